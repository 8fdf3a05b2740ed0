//! What a structure found for a key, made into the user's answer. This is the only place that does
//! so, for all structures and all reads of single keys. A kind of record that is new to the engine
//! gets its meaning here.
//!
//! Operands of merges are applied by the keyspace's operator. A structure may find what this
//! version does not write: the handle of a value that is stored elsewhere. It is refused by name,
//! since an answer without it would be wrong.

use terrapin_base::{Error, ErrorKind, Fold, Message, Operator, Result, Slice, mutant};
use terrapin_structure::{Found, Presence};

use crate::engine::state::KeyspaceState;

/// The user's value of what was found for a key.
#[inline]
pub(crate) fn value(operator: &Operator, key: &[u8], found: Found) -> Result<Option<Slice>> {
    match found {
        Found::Nothing => Ok(None),
        Found::Value(value) => Ok(Some(value)),
        Found::Handle(_) => Err(handle_refused(key)),
        Found::Operands(_) => applied(operator, key, found),
    }
}

/// Applies operands to their base.
#[cold]
fn applied(operator: &Operator, key: &[u8], found: Found) -> Result<Option<Slice>> {
    let mut fold = Fold::default();
    push(&mut fold, key, found)?;
    Ok(fold.value(operator, key)?.map(Slice::copy))
}

/// Adds what a version holds for a key to the newer messages of the key.
pub(crate) fn push(fold: &mut Fold, key: &[u8], found: Found) -> Result<()> {
    let is_known = match found {
        Found::Nothing => fold.push(Message::Delete)?,
        Found::Value(value) => fold.push(Message::Put(&value))?,
        Found::Operands(stack) => fold.push(Message::Stack(&stack))?,
        Found::Handle(_) => return Err(handle_refused(key)),
    };
    match is_known {
        true => Ok(()),
        false => Err(Error::corrupt("operands without a base in a tree")),
    }
}

/// The value of a key in a keyspace's tree. `hash` is that of the key.
#[inline]
pub(crate) fn get(keyspace: &KeyspaceState, key: &[u8], hash: u64) -> Result<Option<Slice>> {
    value(&keyspace.operator, key, keyspace.version.get(key, hash)?)
}

/// Whether a key has a value in a keyspace's tree. `hash` is that of the key.
#[inline]
pub(crate) fn contains(keyspace: &KeyspaceState, key: &[u8], hash: u64) -> Result<bool> {
    match keyspace.version.contains(key, hash)? {
        Presence::Absent => Ok(false),
        Presence::Present => Ok(true),
        Presence::Unresolved => Ok(get(keyspace, key, hash)?.is_some()),
    }
}

/// The values of many keys in a keyspace's tree, in the order of `keys`, each with its hash.
pub(crate) fn multi_get(
    keyspace: &KeyspaceState,
    keys: &[(&[u8], u64)],
) -> Result<impl Iterator<Item = Result<Option<Slice>>>> {
    let mut found = vec![Found::Nothing; keys.len()];
    keyspace.version.multi_get(keys, &mut found)?;
    if mutant::active("multi-get-forgets-last-key")
        && let Some(last) = found.last_mut()
    {
        *last = Found::Nothing;
    }
    let pairs = keys.iter().zip(found);
    Ok(pairs.map(|((key, _), found)| value(&keyspace.operator, key, found)))
}

#[cold]
fn handle_refused(key: &[u8]) -> Error {
    let kind = "the handle of a value that is stored elsewhere";
    let message = "the record was stored by a later version of Terrapin: use that version, or a \
                   later one";
    Error::new(ErrorKind::NewerFormat, message)
        .with("key", key.escape_ascii())
        .with("kind of record", kind)
}

#[cfg(test)]
mod tests {
    use terrapin_base::{Stack, StackBase};

    use super::*;

    #[test]
    fn operands_are_applied_and_handles_refused_with_key_and_kind() {
        let append = Operator::named("append", &[]);
        let slice = Slice::copy(b"bytes");
        assert_eq!(value(&append, b"k", Found::Nothing).unwrap(), None);
        let found = value(&append, b"k", Found::Value(slice.clone())).unwrap();
        assert_eq!(found.as_deref(), Some(&b"bytes"[..]));
        let error = value(&append, b"\x01k", Found::Handle(slice)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NewerFormat);
        let text = error.to_string();
        assert!(text.contains("\\x01k") && text.contains("handle"), "{text}");
        for (base, expected) in [(StackBase::Nothing, "ab"), (StackBase::Value(b"v"), "vab")] {
            let mut stack = Vec::new();
            Stack::encode(base, [&b"a"[..], b"b"], &mut stack);
            let found = Found::Operands(Slice::copy(&stack));
            let applied = value(&append, b"k", found.clone()).unwrap();
            assert_eq!(applied.as_deref(), Some(expected.as_bytes()));
            for operator in [Operator::default(), Operator::named("mine", &[])] {
                let error = value(&operator, b"k", found.clone()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Operator, "{error}");
            }
        }
        // Operands without a base never come from a tree.
        let mut stack = Vec::new();
        Stack::encode(StackBase::Older, [&b"a"[..]], &mut stack);
        let found = Found::Operands(Slice::copy(&stack));
        assert_eq!(
            value(&append, b"k", found).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }
}
