//! What a structure found for a key, made into the user's answer. This is the only place that does
//! so, for all structures and all reads of single keys. A kind of record that is new to the engine
//! gets its meaning here.
//!
//! Operands of merges are applied by the keyspace's operator. A large value with a deadline comes
//! as its handle: the deadline is judged first, and an expired value is not read. A structure may
//! find what this version does not write: another handle of a value that is stored elsewhere. It is
//! refused by name, since an answer without it would be wrong.

use terrapin_base::{
    Error, ErrorKind, Fold, Message, Operator, Result, Slice, Stack, StackBase, expiry,
    handle_deadline_ms, mutant,
};
use terrapin_pages::ReadFor;
use terrapin_structure::{Batch, Found, Presence};
use terrapin_valuelog::{Handle, check_operands};

use crate::engine::clock::Moment;
use crate::engine::state::KeyspaceState;
use crate::read::is_live_handle;

/// The user's value of what was found for a key.
#[inline]
pub(crate) fn value(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    found: Found,
) -> Result<Option<Slice>> {
    match found {
        Found::Nothing => Ok(None),
        Found::Value(value) => Ok(Some(value)),
        found => {
            let read = |handle: &[u8]| large(keyspace, key, handle);
            resolved(&keyspace.operator, &read, at, key, found)
        }
    }
}

/// [`value`], where `read` reads the large value of a handle.
fn resolved(
    operator: &Operator,
    read: &dyn Fn(&[u8]) -> Result<Slice>,
    at: Moment<'_>,
    key: &[u8],
    found: Found,
) -> Result<Option<Slice>> {
    match found {
        Found::Nothing => Ok(None),
        Found::Value(value) => Ok(Some(value)),
        Found::Handle(handle) => match handle_deadline_ms(&handle) {
            None => Err(handle_refused(key)),
            Some(deadline_ms) if at.is_live(deadline_ms) => read(&handle).map(Some),
            Some(_) => Ok(None),
        },
        Found::Expiring(payload) => live(at, &payload),
        Found::Operands(_) => {
            let mut fold = Fold::default();
            push(&mut fold, key, found)?;
            read_base(read, at, &mut fold)?;
            let value = fold.value(operator, key, |deadline_ms| at.is_live(deadline_ms))?;
            Ok(value.map(Slice::copy))
        }
    }
}

/// A value with a deadline, if it has not expired.
#[cold]
pub(crate) fn live(at: Moment<'_>, payload: &[u8]) -> Result<Option<Slice>> {
    let (deadline_ms, value) = expiry::split(payload)?;
    Ok(at.is_live(deadline_ms).then(|| Slice::copy(value)))
}

/// Whether the answer for what was found holds until a merge changes it: no deadline ends it.
#[inline]
pub(crate) fn lasts(found: &Found) -> bool {
    match found {
        Found::Nothing | Found::Value(_) => true,
        Found::Handle(_) => mutant::active("expiring-large-value-is-cached"),
        Found::Expiring(_) => mutant::active("expiring-record-is-cached"),
        Found::Operands(bytes) => match Stack::decode(bytes).map(|stack| stack.base) {
            Ok(StackBase::Expiring(_)) => false,
            Ok(StackBase::Handle(handle)) => handle_deadline_ms(handle).is_none(),
            _ => true,
        },
    }
}

/// Replaces the handle that gathered operands apply to by its value, or by nothing if the value has
/// expired. `read` reads the large value of a handle.
pub(crate) fn read_base(
    read: &dyn Fn(&[u8]) -> Result<Slice>,
    at: Moment<'_>,
    fold: &mut Fold,
) -> Result<()> {
    let Some(handle) = fold.handle() else {
        return Ok(());
    };
    match is_live_handle(at, handle) {
        true => {
            check_operands(Handle::decode(handle)?.value_bytes as usize)?;
            let value = read(handle)?;
            fold.set_base(&value);
        }
        false => fold.end_base(),
    }
    Ok(())
}

/// Adds what a version holds for a key to the newer messages of the key.
pub(crate) fn push(fold: &mut Fold, key: &[u8], found: Found) -> Result<()> {
    let is_known = match found {
        Found::Nothing => fold.push(Message::Delete)?,
        Found::Value(value) => fold.push(Message::Put(&value))?,
        Found::Expiring(payload) => fold.push(Message::Expiring(&payload))?,
        Found::Operands(stack) => fold.push(Message::Stack(&stack))?,
        Found::Handle(handle) if handle_deadline_ms(&handle).is_some() => {
            fold.push(Message::Separated(&handle))?
        }
        Found::Handle(_) => return Err(handle_refused(key)),
    };
    match is_known {
        true => Ok(()),
        false => Err(Error::corrupt("operands without a base in a tree")),
    }
}

/// The value of a key in a keyspace's tree. `hash` is that of the key.
#[inline]
pub(crate) fn get(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    hash: u64,
) -> Result<Option<Slice>> {
    let found = keyspace.version.get(key, hash)?;
    value(keyspace, at, key, found)
}

/// Whether a key has a value in a keyspace's tree. `hash` is that of the key.
#[inline]
pub(crate) fn contains(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    hash: u64,
) -> Result<bool> {
    match keyspace.version.contains(key, hash)? {
        Presence::Absent => Ok(false),
        Presence::Present => Ok(true),
        Presence::Unresolved => {
            // A large value need not be read.
            if let Some(values) = keyspace.version.stored_values()
                && let Found::Handle(handle) = values.get_unread(key, hash)?
            {
                return Ok(is_live_handle(at, &handle));
            }
            Ok(get(keyspace, at, key, hash)?.is_some())
        }
    }
}

/// The values of many keys in a keyspace's tree, in the order of `keys`, each with its hash. Also
/// whether each answer [lasts].
pub(crate) fn multi_get(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    keys: &[(&[u8], u64)],
) -> Result<impl Iterator<Item = Result<(Option<Slice>, bool)>>> {
    let mut found = vec![Found::Nothing; keys.len()];
    keyspace.version.multi_get(keys, &mut found)?;
    if mutant::active("multi-get-forgets-last-key")
        && let Some(last) = found.last_mut()
    {
        *last = Found::Nothing;
    }
    let pairs = keys.iter().zip(found);
    Ok(pairs.map(move |((key, _), found)| {
        let lasts = lasts(&found);
        Ok((value(keyspace, at, key, found)?, lasts))
    }))
}

/// The large value of a handle that a memtable or a run has.
#[cold]
pub(crate) fn large(keyspace: &KeyspaceState, key: &[u8], handle: &[u8]) -> Result<Slice> {
    let handle = Handle::decode(handle)?;
    keyspace.shared.large.get(handle, key, ReadFor::Get)
}

/// What a range shows of large values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Large {
    /// Their bytes.
    #[default]
    Read,
    /// Their handles, and this number, which no user knows.
    Tagged(u64),
    /// Their handles, of which the chunk knows.
    Left,
}

/// What the values of a range's chunk cost to read.
#[derive(Clone, Copy, Default)]
pub(crate) struct ValueReads {
    pub reads: u64,
    pub bytes: u64,
}

/// Replaces the handles of a range's chunk by their values, which are read together. After an
/// error, the chunk has the records before the value that could not be read. `large` values may
/// stay unread.
#[cold]
pub(crate) fn handles(
    keyspace: &KeyspaceState,
    chunk: &mut Batch,
    large_values: Large,
    cost: &mut ValueReads,
) -> Result<()> {
    if mutant::active("range-shows-handles") {
        return Ok(());
    }
    let wants: Vec<_> = chunk.handles().collect();
    let mut found: Vec<Option<Result<Slice>>> = Vec::new();
    found.resize_with(wants.len(), || None);
    let mut left = Vec::new();
    for (number, ((_, handle), found)) in wants.iter().zip(&mut found).enumerate() {
        let shown = match large_values {
            Large::Read => break,
            _ if !Handle::decode(handle)?.is_large() => continue,
            Large::Tagged(tag) => Slice::from_vec([handle, &tag.to_le_bytes()[..]].concat()),
            Large::Left => {
                left.push(number);
                Slice::copy(handle)
            }
        };
        *found = Some(Ok(shown));
    }
    let rest = (0..wants.len()).filter(|&number| found[number].is_none());
    let numbers: Vec<usize> = rest.collect();
    let wanted: Vec<_> = numbers.iter().map(|&number| wants[number]).collect();
    let read = match keyspace.version.stored_values() {
        Some(values) => values.read(&wanted, &mut |number, value| {
            found[numbers[number]] = Some(value);
        }),
        // The handles are of memtables or runs.
        None => {
            for (&number, (key, handle)) in numbers.iter().zip(&wanted) {
                found[number] = Some(large(keyspace, key, handle));
            }
            Ok(wanted.len() as u64)
        }
    };
    let read = read.map(|reads| cost.reads += reads);
    let mut values = Vec::with_capacity(found.len());
    let mut failed = Ok(());
    for value in found {
        match value {
            Some(Ok(value)) => {
                cost.bytes += value.len() as u64;
                values.push(value);
            }
            Some(Err(error)) => {
                failed = Err(error);
                break;
            }
            None => {
                failed = read.and_then(|()| Err(Error::internal("a value was not looked for")));
                break;
            }
        }
    }
    chunk.leave_handles(&left);
    chunk.fill_in(&values);
    failed
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
    use terrapin_base::{Lsn, Stack, StackBase};

    use super::*;

    /// The value of what was found, where large values are their handles.
    fn value_of(
        operator: &Operator,
        at: Moment<'_>,
        key: &[u8],
        found: Found,
    ) -> Result<Option<Slice>> {
        let read = |handle: &[u8]| Ok(Slice::copy(handle));
        resolved(operator, &read, at, key, found)
    }

    const AT: Moment<'static> = Moment {
        before: Lsn(1),
        now_ms: 100,
        ends: None,
    };

    #[test]
    fn deadlines_are_judged_by_the_moment_of_the_read() {
        let append = Operator::named("append", &[]);
        for (deadline_ms, alone, under_operand) in [(101, Some("v"), "va"), (100, None, "a")] {
            let payload = expiry::payload(deadline_ms, b"v");
            let found = Found::Expiring(Slice::copy(&payload));
            assert!(!lasts(&found));
            let read = value_of(&append, AT, b"k", found).unwrap();
            assert_eq!(read.as_deref(), alone.map(str::as_bytes));
            let mut stack = Vec::new();
            Stack::encode(StackBase::Expiring(&payload), [&b"a"[..]], &mut stack);
            let found = Found::Operands(Slice::copy(&stack));
            assert!(!lasts(&found));
            let read = value_of(&append, AT, b"k", found).unwrap().unwrap();
            assert_eq!(read, under_operand);
        }
        let short = Found::Expiring(Slice::copy(b"short"));
        let error = value_of(&append, AT, b"k", short).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn operands_are_applied_and_handles_refused_with_key_and_kind() {
        let append = Operator::named("append", &[]);
        let slice = Slice::copy(b"bytes");
        assert_eq!(value_of(&append, AT, b"k", Found::Nothing).unwrap(), None);
        let found = value_of(&append, AT, b"k", Found::Value(slice.clone())).unwrap();
        assert_eq!(found.as_deref(), Some(&b"bytes"[..]));
        let error = value_of(&append, AT, b"\x01k", Found::Handle(slice)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NewerFormat);
        let text = error.to_string();
        assert!(text.contains("\\x01k") && text.contains("handle"), "{text}");
        for (base, expected) in [(StackBase::Nothing, "ab"), (StackBase::Value(b"v"), "vab")] {
            let mut stack = Vec::new();
            Stack::encode(base, [&b"a"[..], b"b"], &mut stack);
            let found = Found::Operands(Slice::copy(&stack));
            let applied = value_of(&append, AT, b"k", found.clone()).unwrap();
            assert_eq!(applied.as_deref(), Some(expected.as_bytes()));
            for operator in [Operator::default(), Operator::named("mine", &[])] {
                let error = value_of(&operator, AT, b"k", found.clone()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Operator, "{error}");
            }
        }
        // Operands without a base never come from a tree.
        let mut stack = Vec::new();
        Stack::encode(StackBase::Older, [&b"a"[..]], &mut stack);
        let found = Found::Operands(Slice::copy(&stack));
        assert_eq!(
            value_of(&append, AT, b"k", found).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }
}
