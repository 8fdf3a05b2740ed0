//! The memory of cached blocks, and the order of eviction. There are two lanes of slabs: one for
//! blocks of gets and blocks that were used again, one for blocks of scans. Blocks enter at a
//! lane's end, and eviction takes slabs from its front. Shards find blocks by key. A lane only
//! notes which keys to look up for a slab.
//!
//! The lanes' lock is held for a few words at a time. It is never held across another lock, a copy
//! of a block, or a call to the kernel.

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
/// Long enough that little space stays unused behind a slab's last block. An idle reader of one
/// block may keep a whole slab.
const SLAB_BYTES_MAX: u64 = 128 << 10;
/// A block longer than this part of a slab takes memory of its own.
const ALONE: usize = 4;
/// The scans' lane may keep this part of the block bytes. Eviction takes what is beyond it first.
const LOW_PART: u64 = 8;
/// A lane notes a block only in one of this many newest cohorts. Otherwise the block is not cached.
const LOOKED_BACK: usize = 32;

/// Blocks that enter together and leave together: the blocks of a slab, or one block alone.
pub(super) struct Cohort {
    pub(super) home: Home,
    /// The keys of blocks that may still be in this home.
    pub(super) keys: Vec<Key>,
    born: u64,
    bytes: u64,
}

/// The memory of a cohort's blocks.
pub(super) enum Home {
    Slab(Arc<Slab>),
    /// One block in an allocation of its own.
    Alone(Weak<Block>),
}

impl Home {
    /// Whether a block is in this home.
    pub(super) fn holds(&self, block: &Arc<Block>) -> bool {
        match self {
            Home::Slab(slab) => block.payload().is_of(slab),
            Home::Alone(alone) => alone.as_ptr() == Arc::as_ptr(block),
        }
    }

    /// Whether less than half of the blocks that entered are left. A reader's reference counts as a
    /// block.
    fn is_sparse(&self, keys: usize) -> bool {
        match self {
            Home::Slab(slab) => (Arc::strong_count(slab) - 1) * 2 < keys,
            Home::Alone(block) => block.strong_count() == 0,
        }
    }
}

impl Cohort {
    fn of_slab(slab: Arc<Slab>, born: u64, bytes: u64) -> Self {
        Cohort {
            home: Home::Slab(slab),
            keys: Vec::new(),
            born,
            bytes,
        }
    }

    /// Bytes of memory that the cohort keeps.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Default)]
struct Lane {
    filler: Filler,
    filling: Option<Cohort>,
    /// Cohorts that [`Lanes::take_sparse`] has passed and kept. They are older than those in
    /// `sealed`. Empty while no pass is under way.
    passed: VecDeque<Cohort>,
    /// The oldest cohort comes first.
    sealed: VecDeque<Cohort>,
    bytes: u64,
    slabs: u64,
}

impl Lane {
    fn seal(&mut self) {
        self.sealed.extend(self.filling.take());
        self.filler.close();
    }

    /// Cohorts without the one that fills.
    fn len(&self) -> usize {
        self.passed.len() + self.sealed.len()
    }

    /// The cohort at a position, counted from the oldest.
    fn get(&self, at: usize) -> Option<&Cohort> {
        match at.checked_sub(self.passed.len()) {
            Some(at) => self.sealed.get(at),
            None => self.passed.get(at),
        }
    }

    /// The number of the oldest cohort.
    fn oldest(&self) -> Option<u64> {
        let cohort = self.get(0).or(self.filling.as_ref());
        cohort.map(|cohort| cohort.born)
    }

    fn pop(&mut self) -> Option<Cohort> {
        if self.len() == 0 {
            self.seal();
        }
        let passed = self.passed.pop_front();
        let cohort = passed.or_else(|| self.sealed.pop_front())?;
        self.left(&cohort);
        Some(cohort)
    }

    fn left(&mut self, cohort: &Cohort) {
        self.bytes -= cohort.bytes;
        self.slabs -= u64::from(matches!(cohort.home, Home::Slab(_)));
    }

    /// The cohort of a block, if it is one of the newest.
    fn cohort_of(&mut self, block: &Arc<Block>) -> Option<&mut Cohort> {
        let passed = self.passed.iter_mut().rev();
        let last = self.sealed.iter_mut().rev().chain(passed);
        self.filling
            .iter_mut()
            .chain(last.take(LOOKED_BACK))
            .find(|cohort| cohort.home.holds(block))
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

/// The lane of a [`Lanes::take_sparse`] pass. The lane itself keeps the position.
#[derive(Clone, Copy, Default)]
pub(super) struct SparseCursor {
    in_normal: bool,
}

/// What one step over sparse cohorts found.
pub(super) enum Sparse {
    /// A sparse cohort, now removed from its lane.
    Found(Cohort, Worth),
    /// No sparse cohort yet.
    Nothing,
    /// No sparse cohort up to the end.
    End,
}

/// The lanes, and the slabs that they are made of.
pub(super) struct Lanes {
    slabs: Arc<Slabs>,
    budget: Arc<Budget>,
    both: Mutex<Both>,
    /// The newest cohort's number.
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

    /// The birth of a block that enters a lane now.
    pub(super) fn birth(&self, worth: Worth) -> Birth {
        Birth::new(self.newest.load(Ordering::Relaxed), worth)
    }

    /// In each lane, the number at which the oldest quarter ends.
    #[inline]
    pub(super) fn aged(&self) -> [u32; 2] {
        [0, 1].map(|lane: usize| self.aged[lane].load(Ordering::Relaxed))
    }

    /// Publishes the newest number and the ends of the oldest quarters. Numbers have 32 bits. After
    /// 2^31 slabs some rescues are counted wrong.
    fn publish_ages(&self, both: &Both) {
        self.newest.store(both.born as u32, Ordering::Relaxed);
        for (aged, lane) in self.aged.iter().zip([&both.normal, &both.low]) {
            let quarter = lane.len() - lane.len() * 3 / 4;
            let end = lane.get(quarter).or(lane.filling.as_ref());
            let end = end.map_or(both.born + 1, |cohort| cohort.born);
            aged.store(end as u32, Ordering::Relaxed);
        }
    }

    /// The slabs that blocks are allocated from.
    pub(super) fn slabs(&self) -> &Arc<Slabs> {
        &self.slabs
    }

    /// Whether a payload of `bytes` shares a slab with others.
    pub(super) fn shares(&self, bytes: usize) -> bool {
        bytes <= self.slabs.slab_bytes() / ALONE
    }

    /// Memory in the slab that fills in the lane, if it has room.
    pub(super) fn take(&self, worth: Worth, bytes: usize) -> Option<Piece> {
        self.both.lock().lane(worth).filler.take(bytes)
    }

    /// Whether [`Lanes::take`] of as many bytes finds room, unless another thread takes it first.
    pub(super) fn has_room(&self, worth: Worth, bytes: usize) -> bool {
        self.both.lock().lane(worth).filler.has_room(bytes)
    }

    /// Takes a slab for [`Lanes::take_from`] and charges it to the budget.
    pub(super) fn new_slab(&self) -> Slab {
        let charge = self
            .budget
            .charge(Purpose::Blocks, self.slabs.slab_bytes() as u64);
        self.slabs.take(Some(charge))
    }

    /// Like [`Lanes::take`], but opens `slab` in the lane if there is no room. The slab is dropped
    /// if another thread opened one meanwhile.
    pub(super) fn take_from(&self, slab: Slab, worth: Worth, bytes: usize) -> Option<Piece> {
        // The caller's argument outlives this lock, so an unused slab is dropped after it.
        let mut both = self.both.lock();
        let found = both.lane(worth).filler.take(bytes);
        if found.is_some() {
            return found;
        }
        self.go_on(&mut both, slab, worth);
        both.lane(worth).filler.take(bytes)
    }

    /// Opens `slab` in the lane if the lane has no room for `bytes`.
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
        lane.filling = Some(Cohort::of_slab(slab, born, slab_bytes));
        lane.bytes += slab_bytes;
        lane.slabs += 1;
        self.publish_ages(both);
    }

    /// Notes that `key` now finds a block. `bytes` is the memory of a block outside of slabs.
    /// Returns `false` if the block's slab is not among the newest cohorts of the lane. Eviction
    /// would never find that block.
    pub(super) fn enter(&self, worth: Worth, key: Key, block: &Arc<Block>, bytes: u64) -> bool {
        let mut both = self.both.lock();
        if block.payload().is_in_slab() {
            let cohort = both.lane(worth).cohort_of(block);
            return cohort.map(|cohort| cohort.keys.push(key)).is_some();
        }
        let cohort = Cohort {
            home: Home::Alone(Arc::downgrade(block)),
            keys: vec![key],
            born: both.next_born(),
            bytes,
        };
        let lane = both.lane(worth);
        lane.bytes += bytes;
        lane.sealed.push_back(cohort);
        self.publish_ages(&both);
        true
    }

    /// Removes the next cohort to evict; returns it with the bytes of both lanes. The scans' lane
    /// is next while it holds more than its part, unless `evenly`. Otherwise the lane with the
    /// older cohort is next.
    pub(super) fn pop(&self, evenly: bool) -> Option<(Cohort, u64)> {
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
        self.publish_ages(&both);
        popped.map(|cohort| (cohort, total))
    }

    /// Removes all slabs. A block on its way into one of them is not noted any more.
    pub(super) fn empty(&self) {
        let gone = {
            let mut both = self.both.lock();
            let empty = Both {
                born: both.born,
                ..Both::default()
            };
            let gone = std::mem::replace(&mut *both, empty);
            self.publish_ages(&both);
            gone
        };
        // Memory returns to the kernel outside of the lock.
        drop(gone);
    }

    /// Looks at up to `steps` cohorts for one that is mostly empty, and removes it. O(1) for each
    /// cohort, so a pass over a large cache delays no other thread.
    pub(super) fn take_sparse(&self, cursor: &mut SparseCursor, steps: usize) -> Sparse {
        let mut both = self.both.lock();
        let worth = if cursor.in_normal {
            Worth::Normal
        } else {
            Worth::Low
        };
        let lane = both.lane(worth);
        for _ in 0..steps {
            let Some(cohort) = lane.sealed.pop_front() else {
                break;
            };
            if cohort.home.is_sparse(cohort.keys.len()) {
                lane.left(&cohort);
                return Sparse::Found(cohort, worth);
            }
            lane.passed.push_back(cohort);
        }
        if !lane.sealed.is_empty() {
            return Sparse::Nothing;
        }
        std::mem::swap(&mut lane.passed, &mut lane.sealed);
        if cursor.in_normal {
            return Sparse::End;
        }
        cursor.in_normal = true;
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

    /// Puts a cohort behind all others in the lane of gets. Returns its number.
    fn push(lanes: &Lanes, sparse: bool) -> u64 {
        let slab = Arc::new(lanes.new_slab());
        let mut both = lanes.both.lock();
        let born = both.next_born();
        let mut cohort = Cohort::of_slab(slab, born, lanes.slabs.slab_bytes() as u64);
        if sparse {
            // A block entered here and left since.
            cohort.keys.push(Key {
                page: PageId(1),
                kind: Kind::Block,
                number: 0,
            });
        }
        let lane = both.lane(Worth::Normal);
        lane.bytes += cohort.bytes;
        lane.slabs += 1;
        lane.sealed.push_back(cohort);
        born
    }

    /// The expected lane of gets: the numbers of its cohorts, the oldest first, and whether each is
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
        let popped = lanes.pop(true).map(|(cohort, _)| cohort.born);
        assert_eq!(popped, model.pop_front().map(|(born, _)| born));
        let quarter = model.get(model.len() - model.len() * 3 / 4);
        let behind_all = lanes.both.lock().born + 1;
        let end = quarter.map_or(behind_all, |&(born, _)| born);
        assert_eq!(u64::from(lanes.aged()[0]), end);
    }

    #[test]
    fn a_pass_removes_sparse_cohorts_and_keeps_the_order_beside_pops_and_pushes() {
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
            let mut cursor = SparseCursor::default();
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
                match lanes.take_sparse(&mut cursor, 3) {
                    Sparse::Found(cohort, _) => {
                        let at = model.iter().position(|&(born, _)| born == cohort.born);
                        let taken = at.and_then(|at| model.remove(at));
                        assert_eq!(taken, Some((cohort.born, true)));
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
