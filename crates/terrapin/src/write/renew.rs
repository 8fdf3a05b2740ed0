//! Writes the value of a key again with another deadline, if nothing changed the key meanwhile.

use std::sync::Arc;
use std::time::Duration;

use terrapin_base::{Message, Result, mutant};
use terrapin_valuelog::large::{LargeReader, OwnedLarge};

use crate::engine::clock::Ends;
use crate::engine::core::Core;
use crate::engine::state::KeyspaceShared;
use crate::log_record::check_sizes;
use crate::pacing::patience::Patience;
use crate::read::large::{Content, find};
use crate::types::options::Durability;
use crate::write::conditional::{ATTEMPTS_MAX, New, busy, check_durability};
use crate::write::lasting::deadline_after;

/// How long a value lasts from now on.
#[derive(Clone, Copy)]
pub(crate) enum Lasts {
    For(Duration),
    Forever,
}

impl Core {
    /// Lets the value of a stored key last for another time. Returns whether the key has a value.
    /// Memory holds a piece of a large value at a time, and all attempts put one copy of it.
    ///
    /// # Errors
    ///
    /// Those of conditional writes.
    pub fn renew(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        durability: Durability,
        lasts: Lasts,
    ) -> Result<bool> {
        check_durability(durability)?;
        check_sizes(key, Message::Delete)?;
        let timer = self.counters.put_timer(&self.env);
        let log = self.log()?;
        let mut patience = Patience::default();
        let mut last: Option<((Content, Option<u64>), New<'_>)> = None;
        for attempt in 0..ATTEMPTS_MAX {
            self.begin_attempt(log, attempt)?;
            let observed = self.observe_apart()?;
            let (before, ends) = (observed.before, Ends::default());
            let keyspace = observed.state.keyspaces.get(shared.id);
            let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
            let content = find(keyspace, observed.moment(Some(&ends)), key)?;
            let read = (content, ends.first());
            match (&read, lasts) {
                ((Content::Value(None), _), _) => return Ok(false),
                ((_, None), Lasts::Forever) => return Ok(true),
                _ => {}
            }
            let seen = [(shared.id, keyspace.collection)];
            let (read, new) = match last.take().filter(|(last, _)| *last == read) {
                Some(renewed) => renewed,
                None => {
                    // The reader keeps the page. A copy must not keep the state.
                    let reader = match &read.0 {
                        Content::Large(handle) => Some(keyspace.shared.large.open(*handle, key)?),
                        Content::Value(_) => None,
                    };
                    drop(observed);
                    let new = self.renewed(shared, key, (&read.0, reader), lasts)?;
                    (read, new)
                }
            };
            let seen = (before, &seen[..], &ends);
            if self.write_one_read(shared, key, &new, durability, seen, &mut patience)? {
                self.counters.put_done(&self.env, timer);
                return Ok(true);
            }
            last = Some((read, new));
        }
        Err(busy(shared, key).error())
    }

    /// What a key has that lasts for another time. `reader` is that of a large value.
    fn renewed(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        (content, reader): (&Content, Option<LargeReader>),
        lasts: Lasts,
    ) -> Result<New<'static>> {
        let deadline_ms = match lasts {
            Lasts::Forever => None,
            Lasts::For(ttl) => {
                let deadline_ms = deadline_after(self, ttl);
                if deadline_ms <= self.clock.begin(&self.env) {
                    return Ok(New::Delete);
                }
                Some(deadline_ms)
            }
        };
        match (content, reader) {
            (Content::Value(Some(value)), _) => {
                let new = New::Put(value.to_vec().into(), deadline_ms);
                self.written(shared, key, new)
            }
            (_, Some(reader)) => {
                let copy = self.copy_large(shared, key, &reader, deadline_ms)?;
                Ok(New::Large(Arc::new(copy)))
            }
            (_, None) => Ok(New::Delete),
        }
    }

    /// Writes a large value into another page, piece by piece.
    pub fn copy_large(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        reader: &LargeReader,
        deadline_ms: Option<u64>,
    ) -> Result<OwnedLarge> {
        let length = reader.length();
        let mut writer = self.begin_large(shared, key, length)?;
        let mut written = Ok(());
        reader.read(0..length, &mut |piece| {
            if written.is_ok() {
                written = writer.write(piece);
            }
        })?;
        written?;
        let forgets = mutant::active("renewed-large-values-keep-their-deadline");
        writer.finish(deadline_ms.filter(|_| !forgets))
    }
}
