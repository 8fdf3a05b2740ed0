//! Checks the last write of some records. A lost update, or a value that was overwritten, fails the
//! run.
//!
//! Several clients may write one record at once, and their order is unknown. So each write notes
//! how many writes of the record had begun at its start and at its end. Once a write has ended, no
//! earlier write that ended before it began may be seen.

use std::sync::atomic::{AtomicU64, Ordering};

/// One record in this many is watched.
const EVERY: u64 = 256;

/// The writes of the watched records.
pub(crate) struct Watch {
    clients: usize,
    slots: Box<[RecordWrites]>,
    /// The last write of each client, slot by slot.
    last: Box<[Last]>,
}

/// Writes of one record.
#[derive(Default)]
struct RecordWrites {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A client's last write of a record: the `begun`-th, counted from 1. 0 means none.
#[derive(Default)]
struct Last {
    tag: AtomicU64,
    begun: AtomicU64,
    /// How many writes had begun when it ended.
    ended_at: AtomicU64,
}

/// A write or a read in progress at a watched record.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    slot: usize,
    begun: u64,
}

impl Watch {
    /// Watches some of the records, numbered from 0.
    pub fn new(records: u64, clients: usize) -> Self {
        let slots = records.div_ceil(EVERY) as usize;
        Watch {
            clients,
            slots: (0..slots).map(|_| RecordWrites::default()).collect(),
            last: (0..slots * clients).map(|_| Last::default()).collect(),
        }
    }

    /// The records that are watched.
    pub fn records(&self) -> impl Iterator<Item = u64> {
        (0..self.slots.len() as u64).map(|slot| slot * EVERY)
    }

    fn slot(&self, record: u64) -> Option<(usize, &RecordWrites)> {
        if !record.is_multiple_of(EVERY) {
            return None;
        }
        let slot = usize::try_from(record / EVERY).ok()?;
        self.slots.get(slot).map(|found| (slot, found))
    }

    /// A client is about to write a record. Returns none if the record is not watched.
    pub fn begin(&self, record: u64) -> Option<Ticket> {
        let (slot, found) = self.slot(record)?;
        let begun = found.begun.fetch_add(1, Ordering::SeqCst) + 1;
        Some(Ticket { slot, begun })
    }

    /// The client has written the record.
    pub fn end(&self, ticket: Ticket, client: usize, tag: u64) {
        let slot = &self.slots[ticket.slot];
        let last = &self.last[ticket.slot * self.clients + client];
        last.tag.store(tag, Ordering::Release);
        last.begun.store(ticket.begun, Ordering::Release);
        let begun = slot.begun.load(Ordering::SeqCst);
        last.ended_at.store(begun, Ordering::Release);
        slot.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// A client is about to read a record. Returns none if the record is not watched, or if a write
    /// in progress makes its value unknown.
    pub fn look(&self, record: u64) -> Option<Ticket> {
        let (slot, found) = self.slot(record)?;
        let ended = found.ended.load(Ordering::SeqCst);
        let begun = found.begun.load(Ordering::SeqCst);
        (begun == ended).then_some(Ticket { slot, begun })
    }

    /// Whether a value with this tag is allowed after [`Watch::look`]. Any tag is, if a write began
    /// meanwhile.
    pub fn may_be(&self, ticket: Ticket, tag: u64) -> bool {
        let slot = &self.slots[ticket.slot];
        let lasts = &self.last[ticket.slot * self.clients..][..self.clients];
        let writes = lasts.iter().map(|last| {
            [&last.begun, &last.ended_at, &last.tag].map(|field| field.load(Ordering::Acquire))
        });
        let newest = writes.clone().map(|[begun, ..]| begun).max().unwrap_or(0);
        let found = writes
            .filter(|[begun, ended_at, _]| *begun > 0 && *ended_at >= newest)
            .any(|[.., written]| written == tag);
        // Writes before this run are unknown.
        found || newest == 0 || slot.begun.load(Ordering::SeqCst) != ticket.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwritten_values_may_not_be_read_and_racing_ones_may() {
        let watch = Watch::new(1000, 2);
        assert!(watch.begin(1).is_none() && watch.begin(1024).is_none());
        assert_eq!(watch.records().last(), Some(768));
        let may_be = |tag| watch.may_be(watch.look(256).unwrap(), tag);
        assert!(may_be(7), "of before");
        let write = |client, tag| watch.end(watch.begin(256).unwrap(), client, tag);
        write(0, 1);
        assert!(may_be(1) && !may_be(7));
        write(1, 2);
        assert!(may_be(2) && !may_be(1));
        // Of two writes at once, either may be the last.
        let (a, b) = (watch.begin(256).unwrap(), watch.begin(256).unwrap());
        assert!(watch.look(256).is_none());
        watch.end(b, 1, 4);
        watch.end(a, 0, 3);
        assert!(may_be(3) && may_be(4) && !may_be(2));
        write(0, 5);
        assert!(may_be(5) && !may_be(4) && !may_be(3));
        // A concurrent write may be seen.
        let look = watch.look(256).unwrap();
        let write = watch.begin(256).unwrap();
        assert!(watch.may_be(look, 6));
        watch.end(write, 1, 6);
        assert!(watch.may_be(look, 6) && watch.may_be(look, 5));
        assert!(may_be(6) && !may_be(5));
    }
}
