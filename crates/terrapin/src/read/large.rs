//! Reads that do not take a large value whole: they find where it is.

use terrapin_base::checksum::hash64;
use terrapin_base::{Message, Result, Slice};
use terrapin_structure::Found;
use terrapin_valuelog::Handle;
use terrapin_valuelog::large::LargeReader;

use crate::engine::clock::Moment;
use crate::engine::state::KeyspaceState;
use crate::read::{Layer, answer, is_live_handle, layers, resolve};
use crate::run::Spilled;

/// The value of a key, or a reader of it if it is large.
pub(crate) enum Opened {
    Value(Slice),
    Large(LargeReader),
}

/// What a key has: a value, or the handle of a large one, which no other version of a key has.
#[derive(PartialEq, Eq)]
pub(crate) enum Content {
    Value(Option<Slice>),
    Large(Handle),
}

/// Looks a key up, and opens its value if it is large. The caller's state keeps the value's page
/// until this returns; the reader keeps it from then on.
pub(crate) fn open(keyspace: &KeyspaceState, at: Moment<'_>, key: &[u8]) -> Result<Option<Opened>> {
    Ok(match find(keyspace, at, key)? {
        Content::Value(value) => value.map(Opened::Value),
        Content::Large(handle) => Some(Opened::Large(keyspace.shared.large.open(handle, key)?)),
    })
}

/// Whether a key has this value, of which memory holds a part at a time.
#[cold]
pub(crate) fn is_equal(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    wanted: &[u8],
) -> Result<bool> {
    let reader = match open(keyspace, at, key)? {
        None => return Ok(false),
        Some(Opened::Value(value)) => return Ok(value == *wanted),
        Some(Opened::Large(reader)) => reader,
    };
    let length = wanted.len() as u64;
    if reader.length() != length {
        return Ok(false);
    }
    let (mut rest, mut is_equal) = (wanted, true);
    reader.read(0..length, &mut |piece| {
        let (now, later) = rest.split_at(piece.len().min(rest.len()));
        is_equal &= now == piece;
        rest = later;
    })?;
    Ok(is_equal)
}

/// Looks a key up, and reads its value unless it is large.
pub(crate) fn find(keyspace: &KeyspaceState, at: Moment<'_>, key: &[u8]) -> Result<Content> {
    let hash = hash64(key);
    let nothing = Spilled::default();
    let spilled = keyspace.spilled.as_deref().unwrap_or(&nothing);
    for layer in layers(keyspace, spilled, at.before).into_iter().flatten() {
        let found = match &layer {
            Layer::Memtable(memtable) => match memtable.read(key, at.before) {
                Some(message) => of_message(keyspace, at, key, message)?,
                None => continue,
            },
            Layer::Run(run) => match run.get(key, hash, at.before)? {
                Some(said) => of_message(keyspace, at, key, said.message())?,
                None => continue,
            },
        };
        return Ok(found);
    }
    if let Some(values) = keyspace.version.stored_values()
        && let Found::Handle(handle) = values.get_unread(key, hash)?
        && let Some(content) = large_of(at, &handle)?
    {
        return Ok(content);
    }
    resolve::get(keyspace, at, key, hash).map(Content::Value)
}

fn of_message(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    message: Message<'_>,
) -> Result<Content> {
    if let Message::Separated(handle) = message
        && let Some(content) = large_of(at, handle)?
    {
        return Ok(content);
    }
    answer(keyspace, at, key, message).map(Content::Value)
}

/// The content of a handle, if it is of a large value.
fn large_of(at: Moment<'_>, handle: &[u8]) -> Result<Option<Content>> {
    let decoded = Handle::decode(handle)?;
    Ok(match (decoded.is_large(), is_live_handle(at, handle)) {
        (false, _) => None,
        (true, true) => Some(Content::Large(decoded)),
        (true, false) => Some(Content::Value(None)),
    })
}
