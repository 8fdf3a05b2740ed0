//! What one keyspace did since the database was opened.
//!
//! An unused keyspace has no counters in memory; the first use allocates 512 bytes.
//! Threads add to cache lines of their own: one line of a stripe holds all counters of a keyspace.

use terrapin_base::sync::{AtomicU64, OnceLock, Ordering};
use terrapin_base::{KeyspaceId, STRIPES, stripe};

/// Figures of one keyspace since the database was opened, unless a field says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KeyspaceMetrics {
    /// Its name.
    pub name: String,
    /// Its number ([`Keyspace::id`](crate::Keyspace::id)).
    pub number: u32,
    /// Puts, those of batches included.
    pub puts: u64,
    /// Deletes, those of batches included.
    pub deletes: u64,
    /// Keys looked up, those of snapshots included.
    pub gets: u64,
    /// Ranges opened, those of snapshots included.
    pub scans: u64,
    /// Records that ranges fetched.
    pub scanned_records: u64,
    /// Key and value bytes of puts, deletes and ingests.
    pub user_bytes_written: u64,
    /// Live bytes in the memtables, as of now.
    pub memtable_bytes: u64,
}

/// What [`KeyspaceMetrics`] is read from.
#[derive(Default)]
pub(crate) struct KeyspaceCounters(OnceLock<Box<[Line; STRIPES]>>);

/// The counters of the threads of a stripe.
#[derive(Default)]
#[repr(align(64))]
struct Line {
    puts: AtomicU64,
    deletes: AtomicU64,
    gets: AtomicU64,
    scans: AtomicU64,
    scanned_records: AtomicU64,
    user_bytes_written: AtomicU64,
}

impl KeyspaceCounters {
    #[inline]
    fn line(&self) -> &Line {
        &self.0.get_or_init(Box::default)[stripe()]
    }

    /// Counts a put or a delete, and its key and value bytes.
    #[inline]
    pub fn wrote(&self, is_put: bool, bytes: u64) {
        let line = self.line();
        let kind = if is_put { &line.puts } else { &line.deletes };
        kind.fetch_add(1, Ordering::Relaxed);
        line.user_bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts key and value bytes of an ingest.
    pub fn ingested(&self, bytes: u64) {
        let line = self.line();
        line.user_bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts keys that were looked up.
    #[inline]
    pub fn looked_up(&self, keys: u64) {
        self.line().gets.fetch_add(keys, Ordering::Relaxed);
    }

    /// Counts a range.
    #[inline]
    pub fn range_begins(&self) {
        self.line().scans.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts records that a range fetched.
    #[inline]
    pub fn scanned(&self, records: u64) {
        self.line()
            .scanned_records
            .fetch_add(records, Ordering::Relaxed);
    }

    /// Key and value bytes that users wrote.
    pub fn user_bytes_written(&self) -> u64 {
        let lines = self.0.get().into_iter().flat_map(|lines| lines.iter());
        lines
            .map(|line| line.user_bytes_written.load(Ordering::Relaxed))
            .sum()
    }

    /// The figures; none if the keyspace was not used since the open.
    pub fn read(&self, name: &str, id: KeyspaceId, memtable_bytes: u64) -> Option<KeyspaceMetrics> {
        let lines = self.0.get()?;
        let sum = |counter: fn(&Line) -> &AtomicU64| {
            let each = lines.iter().map(counter);
            each.map(|c| c.load(Ordering::Relaxed)).sum()
        };
        Some(KeyspaceMetrics {
            name: name.to_owned(),
            number: id.0,
            puts: sum(|line| &line.puts),
            deletes: sum(|line| &line.deletes),
            gets: sum(|line| &line.gets),
            scans: sum(|line| &line.scans),
            scanned_records: sum(|line| &line.scanned_records),
            user_bytes_written: sum(|line| &line.user_bytes_written),
            memtable_bytes,
        })
    }
}
