//! Puts of values that last for a time: until a deadline that the write names, or as long as the
//! keyspace's options say ([`crate::KeyspaceOptions::ttl`]).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use terrapin_base::expiry::{self, DEADLINE_MS_MAX};
use terrapin_base::{Message, Result};

use crate::engine::core::Core;
use crate::engine::state::KeyspaceShared;
use crate::types::options::Durability;
use crate::write::large::LastingValue;

/// A put. Deadlines are in milliseconds since 1970.
#[derive(Clone, Copy)]
pub(crate) enum LastingPut<'a> {
    Forever(&'a [u8]),
    Until(u64, &'a [u8]),
    /// The deadline has come: a delete.
    Ended,
}

impl<'a> LastingPut<'a> {
    /// A put of a value that got no time of its own.
    #[inline]
    pub fn by_default(core: &Core, shared: &KeyspaceShared, value: &'a [u8]) -> Self {
        match default_deadline(core, shared) {
            None => LastingPut::Forever(value),
            Some(deadline_ms) => LastingPut::Until(deadline_ms, value),
        }
    }

    /// A put of a value that lasts for a time from now on.
    pub fn after(core: &Core, ttl: Duration, value: &'a [u8]) -> Self {
        Self::at(core, deadline_after(core, ttl), value)
    }

    /// A put of a value that lasts until a deadline.
    pub fn until(core: &Core, deadline: SystemTime, value: &'a [u8]) -> Self {
        Self::at(core, deadline_of(deadline), value)
    }

    fn at(core: &Core, deadline_ms: u64, value: &'a [u8]) -> Self {
        match deadline_ms > core.clock.begin(&core.env) {
            true => LastingPut::Until(deadline_ms, value),
            false => LastingPut::Ended,
        }
    }

    /// The value, if it goes into a page of its own.
    #[inline]
    pub fn large(&self, core: &Core, key: &[u8]) -> Option<LastingValue<'a>> {
        let (value, deadline_ms) = match *self {
            LastingPut::Forever(value) => (value, None),
            LastingPut::Until(deadline_ms, value) => (value, Some(deadline_ms)),
            LastingPut::Ended => return None,
        };
        let is_large = core.is_large(key.len(), value.len());
        is_large.then_some((value, deadline_ms))
    }

    /// Passes the message of a put whose value is not large.
    #[inline]
    pub fn with<R>(&self, take: impl FnOnce(Message<'_>) -> R) -> R {
        match *self {
            LastingPut::Forever(value) => take(Message::Put(value)),
            LastingPut::Until(deadline_ms, value) => {
                take(Message::Expiring(&expiry::payload(deadline_ms, value)))
            }
            LastingPut::Ended => take(Message::Delete),
        }
    }

    /// Writes the put of a stored key.
    ///
    /// # Errors
    ///
    /// Those of puts.
    pub fn write(
        &self,
        core: &Core,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        durability: Durability,
    ) -> Result<()> {
        match self.large(core, key) {
            Some(value) => core.put_long(shared, key, value, durability),
            None => self.with(|message| core.write_one(shared, key, message, durability)),
        }
    }
}

/// The deadline of a value in a keyspace whose values last for some time by default.
#[inline]
pub(crate) fn default_deadline(core: &Core, shared: &KeyspaceShared) -> Option<u64> {
    match shared.ttl_ms() {
        0 => None,
        ttl_ms => Some(core.clock.begin(&core.env).saturating_add(ttl_ms)),
    }
}

/// The deadline after a time from now. A part of a millisecond counts as a whole one. From now on
/// the database has deadlines.
pub(crate) fn deadline_after(core: &Core, ttl: Duration) -> u64 {
    let now_ms = core.clock.begin(&core.env);
    let deadline_ms = now_ms.saturating_add(expiry::whole_ms(ttl));
    deadline_ms.min(DEADLINE_MS_MAX)
}

/// A deadline in milliseconds since 1970, a part of which does not count.
pub(crate) fn deadline_of(deadline: SystemTime) -> u64 {
    let since_1970 = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
    expiry::whole_ms_down(since_1970)
}
