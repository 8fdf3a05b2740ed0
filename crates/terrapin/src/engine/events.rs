//! The engine's events at level `info`, through the crate `tracing`: opening, recovery,
//! checkpoints, closing. The code that meets a warning or an error emits that event itself.
//!
//! Fields have the same names and units in every event: `directory`, `keyspaces`, `records`,
//! `bytes`, `duration_ms`, `generation`, `cause`, `error`. The documentation of the crate lists the
//! events.

use terrapin_base::{Error, Lsn};

use crate::engine::core::Core;
use crate::types::closed::Closed;

/// Emits what an open found, once the database serves calls.
pub(crate) fn opened(core: &Core, began_ns: u64) {
    tracing::info!(
        directory = core.disk.describe(),
        keyspaces = core.state.load().keyspaces.iter().count(),
        records = core.counters.replayed_records.get(),
        read_only = core.log.is_none(),
        duration_ms = milliseconds_since(core, began_ns),
        "opened the database; records were replayed from the log"
    );
}

/// Emits that a replay begins: the log holds records that no checkpoint holds.
pub(crate) fn replay_begins(from: Lsn, end: Lsn) {
    if end > from {
        tracing::info!(bytes = end.0 - from.0, "replaying the log");
    }
}

/// Emits that the replay of the log ended.
pub(crate) fn replay_ended(core: &Core, from: Lsn, end: Lsn, began_ns: u64) {
    if end > from {
        tracing::info!(
            bytes = end.0 - from.0,
            records = core.counters.replayed_records.get(),
            duration_ms = milliseconds_since(core, began_ns),
            "replayed the log"
        );
    }
}

/// What one checkpoint merged.
#[derive(Clone, Copy)]
pub(crate) struct Merged {
    pub began_ns: u64,
    /// Number of keyspaces of which the checkpoint merged a memtable or a slice of one.
    pub keyspaces: usize,
    /// Live bytes of the merged memtables.
    pub bytes: u64,
}

/// Emits that a checkpoint or a compaction is durable.
pub(crate) fn checkpointed(core: &Core, generation: u64, merged: Merged) {
    let duration_ms = milliseconds_since(core, merged.began_ns);
    let Merged {
        keyspaces, bytes, ..
    } = merged;
    if keyspaces == 0 {
        let message = "committed a checkpoint that merged no memtable";
        tracing::debug!(generation, duration_ms, "{message}");
    } else {
        let message = "checkpoint: merged memtables into their trees";
        tracing::info!(generation, keyspaces, bytes, duration_ms, "{message}");
    }
}

/// Emits that a close ended.
pub(crate) fn closed(core: &Core, began_ns: u64, outcome: Result<&Closed, &Error>) {
    let directory = core.disk.describe();
    let duration_ms = milliseconds_since(core, began_ns);
    match outcome {
        Ok(Closed {
            replay_bytes,
            cause: Some(cause),
        }) => tracing::warn!(
            directory,
            duration_ms,
            replay_bytes,
            %cause,
            "closed the database on a full disk; the next open replays the log"
        ),
        Ok(_) => tracing::info!(directory, duration_ms, "closed the database"),
        Err(error) => tracing::error!(
            directory,
            duration_ms,
            %error,
            "closed the database, but not all of it is checkpointed; the next open replays the log"
        ),
    }
}

fn milliseconds_since(core: &Core, began_ns: u64) -> u64 {
    core.env.now_ns().saturating_sub(began_ns) / 1_000_000
}
