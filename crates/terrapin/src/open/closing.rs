//! Closing a database (decision 0038).

use terrapin_base::sync::Ordering;
use terrapin_base::{Condition, ErrorKind, Result};
use terrapin_disk::Process;

use crate::api::database::Database;
use crate::checkpoint::request::{checkpoint_through, give_space_back};
use crate::engine::core::Core;
use crate::engine::events;
use crate::types::closed::Closed;

impl Database {
    /// Closes the database. It checkpoints everything, so that the next open replays nothing, and
    /// releases the files, the caches and the listeners. Later calls of handles, snapshots and
    /// iterators fail with `Closed`. Another close waits until the first one is over, and returns
    /// the first one's result.
    ///
    /// On a disk that is too full to merge everything, `close` tries a bounded number of
    /// checkpoints, as [`Database::checkpoint`] does. Records that are not merged then stay in the
    /// log, which is synced. Nothing is lost, and [`Closed`] says how much the next open replays.
    ///
    /// # Errors
    ///
    /// After an error the database is closed, too. The next open replays the log. Of the
    /// acknowledged writes, only those of [`Durability::None`](crate::Durability::None) since the
    /// last checkpoint or [`Database::flush`] can be lost. If a full disk prevents merging such
    /// writes, the error is [`ErrorKind::NoSpace`].
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
            core.end_ingests();
            // The checkpoint keeps it too, if it succeeds.
            let _ = core.note_now();
            let through = log.end();
            outcome = match checkpoint_through(core, through) {
                Ok(()) => {
                    give_space_back(core);
                    Ok(Closed::default())
                }
                Err(error) if error.kind() == ErrorKind::NoSpace && !holds_unlogged(core) => {
                    let durable = core.schedule.durable_through();
                    Ok(Closed {
                        replay_bytes: through.0.saturating_sub(durable.0),
                        cause: Some(error),
                    })
                }
                Err(error) => Err(error),
            };
            // No caller waits for a checkpoint of records above the log's end.
            core.schedule.stop();
            let ended = log.close();
            outcome = outcome.and_then(|closed| ended.map(|()| closed));
        }
        let shut = self.owner.shut_as(outcome.is_ok());
        outcome.and_then(|closed| shut.map(|()| closed))
    }
}

/// Whether a memtable holds a write that is not in the log. O(keyspaces).
fn holds_unlogged(core: &Core) -> bool {
    let state = core.state.load();
    state.keyspaces.iter().any(|keyspace| {
        let mut memtables = keyspace.memtables();
        memtables.any(|memtable| memtable.unlogged.load(Ordering::Acquire))
    })
}
