//! What a structure found for a key, made into the user's answer. This is the only place that does
//! so, for all structures and all reads of single keys. A kind of record that is new to the engine
//! gets its meaning here.
//!
//! A structure may find what this version does not write: the handle of a value that is stored
//! elsewhere, or operands of merges. They are refused by name, since an answer without them would
//! be wrong.

use terrapin_base::{Error, ErrorKind, Result, Slice, mutant};
use terrapin_structure::{Found, Presence, Version};

/// The user's value of what was found for a key.
#[inline]
pub(crate) fn value(key: &[u8], found: Found) -> Result<Option<Slice>> {
    match found {
        Found::Nothing => Ok(None),
        Found::Value(value) => Ok(Some(value)),
        Found::Handle(_) => Err(refused(
            key,
            "the handle of a value that is stored elsewhere",
        )),
        Found::Operands(_) => Err(refused(key, "operands of merges")),
    }
}

/// The value of a key in a version. `hash` is that of the key.
#[inline]
pub(crate) fn get(version: &dyn Version, key: &[u8], hash: u64) -> Result<Option<Slice>> {
    value(key, version.get(key, hash)?)
}

/// Whether a key has a value in a version. `hash` is that of the key.
#[inline]
pub(crate) fn contains(version: &dyn Version, key: &[u8], hash: u64) -> Result<bool> {
    match version.contains(key, hash)? {
        Presence::Absent => Ok(false),
        Presence::Present => Ok(true),
        Presence::Unresolved => Ok(get(version, key, hash)?.is_some()),
    }
}

/// The values of many keys in a version, in the order of `keys`, each with its hash.
pub(crate) fn multi_get(
    version: &dyn Version,
    keys: &[(&[u8], u64)],
) -> Result<impl Iterator<Item = Result<Option<Slice>>>> {
    let mut found = vec![Found::Nothing; keys.len()];
    version.multi_get(keys, &mut found)?;
    if mutant::active("multi-get-forgets-last-key")
        && let Some(last) = found.last_mut()
    {
        *last = Found::Nothing;
    }
    let pairs = keys.iter().zip(found);
    Ok(pairs.map(|((key, _), found)| value(key, found)))
}

#[cold]
fn refused(key: &[u8], kind: &'static str) -> Error {
    let message = "the record was stored by a later version of Terrapin: use that version, or a \
                   later one";
    Error::new(ErrorKind::NewerFormat, message)
        .with("key", key.escape_ascii())
        .with("kind of record", kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_version_does_not_write_is_refused_with_key_and_kind() {
        let slice = Slice::copy(b"bytes");
        assert_eq!(value(b"k", Found::Nothing).unwrap(), None);
        let found = value(b"k", Found::Value(slice.clone())).unwrap();
        assert_eq!(found.as_deref(), Some(&b"bytes"[..]));
        for (found, kind) in [
            (Found::Handle(slice.clone()), "handle"),
            (Found::Operands(slice), "operands"),
        ] {
            let error = value(b"\x01k", found).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NewerFormat);
            let text = error.to_string();
            assert!(text.contains("\\x01k") && text.contains(kind), "{text}");
        }
    }
}
