//! How long a value lasts whose write names no time: as the keyspace's options say
//! ([`crate::KeyspaceOptions::ttl`]). Also the payloads of values with a deadline.

use std::time::{SystemTime, UNIX_EPOCH};

use terrapin_base::{Message, expiry};

use crate::engine::core::Core;
use crate::engine::state::KeyspaceShared;

/// The deadline of a value in a keyspace whose values last for some time by default.
pub(crate) fn default_deadline(core: &Core, shared: &KeyspaceShared) -> Option<u64> {
    match shared.ttl_ms() {
        0 => None,
        ttl_ms => Some(core.clock.begin(&core.env).saturating_add(ttl_ms)),
    }
}

/// The payload of a value in a keyspace whose values last for this many milliseconds by default.
#[cold]
pub(crate) fn default_payload(core: &Core, ttl_ms: u64, value: &[u8]) -> Vec<u8> {
    let deadline_ms = core.clock.begin(&core.env).saturating_add(ttl_ms);
    expiry::payload(deadline_ms, value)
}

/// The payload of a value that lasts until a deadline, which may have come.
pub(crate) fn payload_until(core: &Core, deadline: SystemTime, value: &[u8]) -> Vec<u8> {
    // From now on the database has deadlines.
    core.clock.begin(&core.env);
    let since_1970 = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
    expiry::payload(expiry::whole_ms_down(since_1970), value)
}

/// A put of a value that got no time of its own.
pub(crate) enum DefaultPut<'a> {
    Forever(&'a [u8]),
    /// The keyspace says how long: the payload.
    Expiring(Vec<u8>),
}

impl<'a> DefaultPut<'a> {
    #[inline]
    pub fn of(core: &Core, shared: &KeyspaceShared, value: &'a [u8]) -> Self {
        match shared.ttl_ms() {
            0 => DefaultPut::Forever(value),
            ttl_ms => DefaultPut::Expiring(default_payload(core, ttl_ms, value)),
        }
    }

    #[inline]
    pub fn message(&self) -> Message<'_> {
        match self {
            DefaultPut::Forever(value) => Message::Put(value),
            DefaultPut::Expiring(payload) => Message::Expiring(payload),
        }
    }
}
