//! Where cached blocks lie, and the order in which they go: two lanes of slabs, one for blocks of
//! gets and what proved its use, one for blocks of scans. Blocks enter at a lane's end, and the
//! cache takes slabs from the front. Which block is found by which key is the shards' business: a
//! record here says which keys to look for.
//!
//! The lock is held for some words at a time: never across another lock, nor while memory is copied
//! or goes to the kernel.

use std::collections::VecDeque;

use terrapin_base::sync::{Arc, AtomicU32, Mutex, Ordering, Weak};
use terrapin_base::{Budget, Purpose};
use terrapin_disk::{Filler, Piece, Slab, Slabs};

use super::shard::Birth;
use super::{Key, Worth};
use crate::block::Block;

/// A slab is about this part of the budget.
const SLABS: u64 = 1024;
const SLAB_BYTES_MIN: u64 = 4 << 10;
/// So long that little is left over behind the last block; every idle reader may keep this much for
/// one block.
const SLAB_BYTES_MAX: u64 = 128 << 10;
/// A longer block than this part of a slab lies alone.
const ALONE: usize = 4;
/// The scans' lane may keep this part; what is beyond it goes first.
const LOW_PART: u64 = 8;
/// A block is entered into one of the last records of its lane, or is not cached.
const LOOKED_BACK: usize = 32;

/// Blocks that came together and leave together.
pub(super) struct Record {
    pub(super) home: Home,
    /// What may still lie there.
    pub(super) keys: Vec<Key>,
    born: u64,
    bytes: u64,
}

/// The memory of a record's blocks.
pub(super) enum Home {
    Slab(Arc<Slab>),
    /// One block in an allocation of its own.
    Alone(Weak<Block>),
}

impl Home {
    /// Whether a block lies here.
    pub(super) fn holds(&self, block: &Arc<Block>) -> bool {
        match self {
            Home::Slab(slab) => block.payload().is_of(slab),
            Home::Alone(alone) => alone.as_ptr() == Arc::as_ptr(block),
        }
    }

    /// Whether it is mostly empty: of the blocks that came here less than half is left. A reader
    /// counts as a block.
    fn is_sparse(&self, keys: usize) -> bool {
        match self {
            Home::Slab(slab) => (Arc::strong_count(slab) - 1) * 2 < keys,
            Home::Alone(block) => block.strong_count() == 0,
        }
    }
}

impl Record {
    fn of_slab(slab: Arc<Slab>, born: u64, bytes: u64) -> Self {
        Record {
            home: Home::Slab(slab),
            keys: Vec::new(),
            born,
            bytes,
        }
    }

    /// Bytes of memory that it keeps.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Default)]
struct Lane {
    filler: Filler,
    filling: Option<Record>,
    /// What [`Lanes::take_sparse`] is through with, and left; empty when that is not under way.
    /// Older than what is in `sealed`.
    passed: VecDeque<Record>,
    /// The oldest first.
    sealed: VecDeque<Record>,
    bytes: u64,
    slabs: u64,
}

impl Lane {
    fn seal(&mut self) {
        self.sealed.extend(self.filling.take());
        self.filler.close();
    }

    /// Records, but for the one that fills.
    fn len(&self) -> usize {
        self.passed.len() + self.sealed.len()
    }

    /// One of them, counted from the oldest.
    fn get(&self, at: usize) -> Option<&Record> {
        match at.checked_sub(self.passed.len()) {
            Some(at) => self.sealed.get(at),
            None => self.passed.get(at),
        }
    }

    /// When the oldest record came.
    fn oldest(&self) -> Option<u64> {
        let record = self.get(0).or(self.filling.as_ref());
        record.map(|record| record.born)
    }

    fn pop(&mut self) -> Option<Record> {
        if self.len() == 0 {
            self.seal();
        }
        let passed = self.passed.pop_front();
        let record = passed.or_else(|| self.sealed.pop_front())?;
        self.left(&record);
        Some(record)
    }

    fn left(&mut self, record: &Record) {
        self.bytes -= record.bytes;
        self.slabs -= u64::from(matches!(record.home, Home::Slab(_)));
    }

    /// The record of a slab, if it is one of the last.
    fn record_of(&mut self, block: &Arc<Block>) -> Option<&mut Record> {
        let passed = self.passed.iter_mut().rev();
        let last = self.sealed.iter_mut().rev().chain(passed);
        self.filling
            .iter_mut()
            .chain(last.take(LOOKED_BACK))
            .find(|record| record.home.holds(block))
    }
}

#[derive(Default)]
struct Both {
    low: Lane,
    normal: Lane,
    born: u64,
}

impl Both {
    fn lane(&mut self, worth: Worth) -> &mut Lane {
        match worth {
            Worth::Normal => &mut self.normal,
            Worth::Low => &mut self.low,
        }
    }

    fn next_born(&mut self) -> u64 {
        self.born += 1;
        self.born
    }
}

/// In which lane [`Lanes::take_sparse`] is; how far, the lane knows.
#[derive(Clone, Copy, Default)]
pub(super) struct SparseCursor {
    in_normal: bool,
}

/// What a step over sparse records found.
pub(super) enum Sparse {
    /// This record, which is in no lane any more.
    Found(Record, Worth),
    /// None yet.
    Nothing,
    /// None to the end.
    End,
}

/// The lanes, and the slabs that they are made of.
pub(super) struct Lanes {
    slabs: Arc<Slabs>,
    budget: Arc<Budget>,
    both: Mutex<Both>,
    /// The newest record's number.
    newest: AtomicU32,
    /// In each lane, the number at which the oldest quarter ends.
    aged: [AtomicU32; 2],
}

impl Lanes {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        let slab_bytes = (budget.limit() / SLABS)
            .next_power_of_two()
            .clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX);
        Lanes {
            slabs: Slabs::new(slab_bytes as usize),
            budget,
            both: Mutex::default(),
            newest: AtomicU32::new(0),
            aged: Default::default(),
        }
    }

    /// The birth of what comes into a lane now.
    pub(super) fn birth(&self, worth: Worth) -> Birth {
        Birth::new(self.newest.load(Ordering::Relaxed), worth)
    }

    /// In each lane, where the oldest quarter ends.
    #[inline]
    pub(super) fn aged(&self) -> [u32; 2] {
        [0, 1].map(|lane: usize| self.aged[lane].load(Ordering::Relaxed))
    }

    /// Numbers are told in 32 bits: after 2^31 slabs some uses are counted wrong.
    fn tell_ages(&self, both: &Both) {
        self.newest.store(both.born as u32, Ordering::Relaxed);
        for (aged, lane) in self.aged.iter().zip([&both.normal, &both.low]) {
            let quarter = lane.len() - lane.len() * 3 / 4;
            let end = lane.get(quarter).or(lane.filling.as_ref());
            let end = end.map_or(both.born + 1, |record| record.born);
            aged.store(end as u32, Ordering::Relaxed);
        }
    }

    /// Where slabs come from.
    pub(super) fn slabs(&self) -> &Arc<Slabs> {
        &self.slabs
    }

    /// Whether a payload of so many bytes shares a slab with others.
    pub(super) fn shares(&self, bytes: usize) -> bool {
        bytes <= self.slabs.slab_bytes() / ALONE
    }

    /// Memory in the lane's slab, if that has room.
    pub(super) fn take(&self, worth: Worth, bytes: usize) -> Option<Piece> {
        self.both.lock().lane(worth).filler.take(bytes)
    }

    /// Whether [`Lanes::take`] of so many bytes will find room, unless somebody else takes it.
    pub(super) fn has_room(&self, worth: Worth, bytes: usize) -> bool {
        self.both.lock().lane(worth).filler.has_room(bytes)
    }

    /// Charges another slab to the budget: for [`Lanes::take_from`].
    pub(super) fn new_slab(&self) -> Slab {
        let charge = self
            .budget
            .charge(Purpose::Blocks, self.slabs.slab_bytes() as u64);
        self.slabs.take(Some(charge))
    }

    /// As [`Lanes::take`]; the lane goes on with that slab if there is no room, unless another
    /// thread did the same meanwhile.
    pub(super) fn take_from(&self, slab: Slab, worth: Worth, bytes: usize) -> Option<Piece> {
        // A slab that is not needed is dropped behind the lock, as an argument is.
        let mut both = self.both.lock();
        let found = both.lane(worth).filler.take(bytes);
        if found.is_some() {
            return found;
        }
        self.go_on(&mut both, slab, worth);
        both.lane(worth).filler.take(bytes)
    }

    /// The lane goes on with that slab if it has no room for so many bytes.
    pub(super) fn open(&self, slab: Slab, worth: Worth, bytes: usize) {
        let mut both = self.both.lock();
        if !both.lane(worth).filler.has_room(bytes) {
            self.go_on(&mut both, slab, worth);
        }
    }

    fn go_on(&self, both: &mut Both, slab: Slab, worth: Worth) {
        let born = both.next_born();
        let slab_bytes = self.slabs.slab_bytes() as u64;
        let lane = both.lane(worth);
        lane.seal();
        let slab = lane.filler.open(slab);
        lane.filling = Some(Record::of_slab(slab, born, slab_bytes));
        lane.bytes += slab_bytes;
        lane.slabs += 1;
        self.tell_ages(both);
    }

    /// Notes that a block is found by that key from now on; `bytes` is what it takes if it lies
    /// alone. `false` when what it lies in is not among the last of the lane, or no more there: the
    /// block would never go.
    pub(super) fn enter(&self, worth: Worth, key: Key, block: &Arc<Block>, bytes: u64) -> bool {
        let mut both = self.both.lock();
        if block.payload().is_in_slab() {
            let record = both.lane(worth).record_of(block);
            return record.map(|record| record.keys.push(key)).is_some();
        }
        let record = Record {
            home: Home::Alone(Arc::downgrade(block)),
            keys: vec![key],
            born: both.next_born(),
            bytes,
        };
        let lane = both.lane(worth);
        lane.bytes += bytes;
        lane.sealed.push_back(record);
        self.tell_ages(&both);
        true
    }

    /// The record that is to go next, and the bytes of all. The scans' lane gives while it has more
    /// than its part, which an `evenly` taking caller does not look at, or the oldest.
    pub(super) fn pop(&self, evenly: bool) -> Option<(Record, u64)> {
        let mut both = self.both.lock();
        let total = both.low.bytes + both.normal.bytes;
        let beyond_part = both.low.bytes * LOW_PART > total;
        let from_low = match (both.low.oldest(), both.normal.oldest()) {
            (Some(low), Some(normal)) => low < normal || beyond_part && !evenly,
            (low, _) => low.is_some(),
        };
        let lane = if from_low {
            &mut both.low
        } else {
            &mut both.normal
        };
        let popped = lane.pop();
        self.tell_ages(&both);
        popped.map(|record| (record, total))
    }

    /// Lets all slabs go; a block that is on its way into one of them is not entered any more.
    pub(super) fn empty(&self) {
        let gone = {
            let mut both = self.both.lock();
            let empty = Both {
                born: both.born,
                ..Both::default()
            };
            let gone = std::mem::replace(&mut *both, empty);
            self.tell_ages(&both);
            gone
        };
        // Memory goes to the kernel without the lock.
        drop(gone);
    }

    /// Looks at so many records from a place on for one that is mostly empty, and takes it out.
    /// O(1) a record, so that a pass over a large cache holds nobody up.
    pub(super) fn take_sparse(&self, place: &mut SparseCursor, steps: usize) -> Sparse {
        let mut both = self.both.lock();
        let worth = if place.in_normal {
            Worth::Normal
        } else {
            Worth::Low
        };
        let lane = both.lane(worth);
        for _ in 0..steps {
            let Some(record) = lane.sealed.pop_front() else {
                break;
            };
            if record.home.is_sparse(record.keys.len()) {
                lane.left(&record);
                return Sparse::Found(record, worth);
            }
            lane.passed.push_back(record);
        }
        if !lane.sealed.is_empty() {
            return Sparse::Nothing;
        }
        std::mem::swap(&mut lane.passed, &mut lane.sealed);
        if place.in_normal {
            return Sparse::End;
        }
        place.in_normal = true;
        Sparse::Nothing
    }

    /// Bytes of slabs in both lanes.
    pub(super) fn slab_bytes(&self) -> u64 {
        let both = self.both.lock();
        (both.low.slabs + both.normal.slabs) * self.slabs.slab_bytes() as u64
    }
}

#[cfg(all(test, not(terrapin_shuttle)))]
mod tests {
    use terrapin_base::PageId;

    use super::*;
    use crate::cache::Kind;

    /// Puts a record behind all others of the lane of gets; when it was born.
    fn push(lanes: &Lanes, sparse: bool) -> u64 {
        let slab = Arc::new(lanes.new_slab());
        let mut both = lanes.both.lock();
        let born = both.next_born();
        let mut record = Record::of_slab(slab, born, lanes.slabs.slab_bytes() as u64);
        if sparse {
            // A block came here, and is there no more.
            record.keys.push(Key {
                page: PageId(1),
                kind: Kind::Block,
                number: 0,
            });
        }
        let lane = both.lane(Worth::Normal);
        lane.bytes += record.bytes;
        lane.slabs += 1;
        lane.sealed.push_back(record);
        born
    }

    /// What the lane of gets must be: when its records were born, the oldest first, and which are
    /// sparse.
    type Model = VecDeque<(u64, bool)>;

    fn check(lanes: &Lanes, model: &Model) {
        let both = lanes.both.lock();
        let (lane, count) = (&both.normal, model.len() as u64);
        let slab_bytes = lanes.slabs.slab_bytes() as u64;
        assert_eq!((lane.bytes, lane.slabs), (count * slab_bytes, count));
        assert_eq!(lane.oldest(), model.front().map(|&(born, _)| born));
    }

    fn check_pop(lanes: &Lanes, model: &mut Model) {
        let popped = lanes.pop(true).map(|(record, _)| record.born);
        assert_eq!(popped, model.pop_front().map(|(born, _)| born));
        let quarter = model.get(model.len() - model.len() * 3 / 4);
        let behind_all = lanes.both.lock().born + 1;
        let end = quarter.map_or(behind_all, |&(born, _)| born);
        assert_eq!(u64::from(lanes.aged()[0]), end);
    }

    #[test]
    fn a_pass_takes_out_what_is_sparse_and_keeps_the_rest_in_order_beside_pops_and_pushes() {
        let lanes = Lanes::new(Budget::new(1 << 20));
        let (mut model, mut stayed) = (Model::new(), 0);
        let mut random = 5u64;
        let mut one_in = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33).is_multiple_of(n)
        };
        for _ in 0..100 {
            for _ in 0..40 {
                let sparse = one_in(2);
                model.push_back((push(&lanes, sparse), sparse));
            }
            let mut place = SparseCursor::default();
            loop {
                if one_in(4) {
                    let sparse = one_in(2);
                    model.push_back((push(&lanes, sparse), sparse));
                }
                if one_in(4) {
                    check_pop(&lanes, &mut model);
                }
                if one_in(200) {
                    lanes.empty();
                    model.clear();
                }
                match lanes.take_sparse(&mut place, 3) {
                    Sparse::Found(record, _) => {
                        let at = model.iter().position(|&(born, _)| born == record.born);
                        let taken = at.and_then(|at| model.remove(at));
                        assert_eq!(taken, Some((record.born, true)));
                    }
                    Sparse::Nothing => {}
                    Sparse::End => break,
                }
                check(&lanes, &model);
            }
            check(&lanes, &model);
            assert!(model.iter().all(|&(_, sparse)| !sparse), "{model:?}");
            stayed += model.len();
        }
        assert!(stayed > 500, "{stayed}");
        while !model.is_empty() {
            check_pop(&lanes, &mut model);
        }
        assert!(lanes.pop(true).is_none());
    }
}
