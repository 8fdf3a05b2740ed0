//! Closing a database (decision 0038).

use terrapin_base::sync::Ordering;
use terrapin_base::{Condition, ErrorKind, Result};
use terrapin_disk::Process;

use crate::api::database::Database;
use crate::engine::core::Core;
use crate::engine::events;
use crate::types::closed::Closed;

impl Database {
    /// Checkpoints everything, so that the next open replays nothing, and lets the files, the
    /// caches and the listeners go. Handles, snapshots and iterators that still live get `Closed`
    /// from then on. Another close waits until the first is over, and returns what that came to.
    ///
    /// On a disk that is too full to merge everything, `close` tries for a bounded number of
    /// checkpoints (as [`Database::checkpoint`] does). What is not merged then stays in the log,
    /// which is synced: nothing is lost, and [`Closed`] says how much the next open replays.
    ///
    /// After an error the database is closed all the same. Nothing acknowledged is lost then but
    /// writes of [`Durability::None`](crate::Durability::None) since the last checkpoint or
    /// [`Database::flush`]: the next open replays the log. (So a full disk is an error,
    /// [`ErrorKind::NoSpace`], where such writes could not be merged.)
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-close-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// database.close()?; // the next open replays nothing
    /// assert_eq!(fruit.get("apple").unwrap_err().kind(), terrapin::ErrorKind::Closed);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn close(&self) -> Result<Closed> {
        let core = self.core();
        if !core.health.process().is_this() {
            return Err(Process::foreign());
        }
        if let Some(closing) = core.health.close() {
            let began_ns = core.env.now_ns();
            let outcome = self.close_first();
            events::closed(core, began_ns, outcome.as_ref());
            closing.ended(outcome.clone());
            return outcome;
        }
        loop {
            if let Some(outcome) = core.health.close_outcome() {
                return outcome;
            }
            let closing = core.clone();
            let over = move || closing.health.close_outcome().is_some();
            core.env
                .wait(&Condition::new(core.health.close_signal(), over))?;
        }
    }

    fn close_first(&self) -> Result<Closed> {
        let core = self.core();
        let mut outcome = Ok(Closed::default());
        if let Some(log) = &core.log {
            let through = log.end();
            outcome = match core.checkpoint_through(through) {
                Ok(()) => {
                    core.give_space_back();
                    Ok(Closed::default())
                }
                Err(error) if error.kind() == ErrorKind::NoSpace && !core.holds_unlogged() => {
                    let durable = core.schedule.durable_through();
                    Ok(Closed {
                        replay_bytes: through.0.saturating_sub(durable.0),
                        cause: Some(error),
                    })
                }
                Err(error) => Err(error),
            };
            // Nobody waits for a checkpoint of what comes behind the log's end.
            core.schedule.stop();
            let ended = log.close();
            outcome = outcome.and_then(|closed| ended.map(|()| closed));
        }
        let shut = self.owner.shut_as(outcome.is_ok());
        outcome.and_then(|closed| shut.map(|()| closed))
    }
}

impl Core {
    /// Whether a memtable holds a write that is not in the log. A look at each keyspace.
    fn holds_unlogged(&self) -> bool {
        let state = self.state.load();
        state.keyspaces.iter().any(|keyspace| {
            let sealed = keyspace.sealed.as_ref().map(|s| &s.records);
            let mut memtables = std::iter::once(&keyspace.active).chain(sealed);
            memtables.any(|memtable| memtable.unlogged.load(Ordering::Acquire))
        })
    }
}
