//! Reads that do not take a large value whole: they find where it is.

use terrapin_base::checksum::hash64;
use terrapin_base::{Message, Result, Slice};
use terrapin_structure::Found;
use terrapin_valuelog::Handle;
use terrapin_valuelog::large::LargeReader;

use crate::engine::clock::Moment;
use crate::engine::state::KeyspaceState;
use crate::read::{Layer, answer, layers, resolve};
use crate::run::Spilled;

/// The value of a key, or a reader of it if it is large.
pub(crate) enum Opened {
    Value(Slice),
    Large(LargeReader),
}

/// Looks a key up, and opens its value if it is large. The caller's state keeps the value's page
/// until this returns; the reader keeps it from then on.
pub(crate) fn open(keyspace: &KeyspaceState, at: Moment<'_>, key: &[u8]) -> Result<Option<Opened>> {
    let hash = hash64(key);
    let nothing = Spilled::default();
    let spilled = keyspace.spilled.as_deref().unwrap_or(&nothing);
    for layer in layers(keyspace, spilled, at.before).into_iter().flatten() {
        let opened = match &layer {
            Layer::Memtable(memtable) => match memtable.read(key, at.before) {
                Some(message) => of_message(keyspace, at, key, message)?,
                None => continue,
            },
            Layer::Run(run) => match run.get(key, hash, at.before)? {
                Some(said) => of_message(keyspace, at, key, said.message())?,
                None => continue,
            },
        };
        return Ok(opened);
    }
    if let Some(values) = keyspace.version.stored_values()
        && let Found::Handle(handle) = values.get_unread(key, hash)?
        && let Some(reader) = of_handle(keyspace, key, &handle)?
    {
        return Ok(Some(reader));
    }
    let value = resolve::get(keyspace, at, key, hash)?;
    Ok(value.map(Opened::Value))
}

fn of_message(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    message: Message<'_>,
) -> Result<Option<Opened>> {
    if let Message::Separated(handle) = message
        && let Some(reader) = of_handle(keyspace, key, handle)?
    {
        return Ok(Some(reader));
    }
    let value = answer(keyspace, at, key, message)?;
    Ok(value.map(Opened::Value))
}

/// A reader, if the handle is of a large value.
fn of_handle(keyspace: &KeyspaceState, key: &[u8], handle: &[u8]) -> Result<Option<Opened>> {
    let handle = Handle::decode(handle)?;
    if !handle.is_large() {
        return Ok(None);
    }
    let reader = keyspace.shared.large.open(handle, key)?;
    Ok(Some(Opened::Large(reader)))
}
