//! The memtable's memory: taken chunk by chunk, given out piece by piece, given back all at once
//! when the memtable goes.
//!
//! Every thread that writes owns a slot (`slots`): two bump pointers, for records and for nodes,
//! each over a *sub-chunk* cut from the newest chunk, and its share of the memtable's counts.
//! Allocating and counting thus take no lock and write no shared cache line; a lock is taken once
//! per sub-chunk, or for a large record. Threads without a slot share one, under a lock.
//!
//! Chunks grow with the memtable, from [`FIRST_CHUNK_BYTES`] to [`CHUNK_BYTES`], sub-chunks with
//! what their slot has taken, and slots come with the first insert: a database may have thousands
//! of keyspaces that hold next to nothing, and dozens of threads that write a little to each. What
//! is charged for a memtable is what a merge of it frees, so an empty one is charged nothing.

use std::cell::Cell;
use std::ptr::{NonNull, null_mut};

use terrapin_base::sync::{
    Arc, AtomicI64, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, Ordering,
};
use terrapin_base::{Budget, Purpose};

use crate::chunk::{CHUNK_ALIGNMENT, CHUNK_BYTES, Chunk, Pool};
use crate::slots::{self, Number};

/// Size of a memtable's first chunk.
pub(crate) const FIRST_CHUNK_BYTES: usize = 1 << 10;
/// A slot's first sub-chunks, for records and for nodes.
const FIRST_SUB_CHUNK_BYTES: usize = 256;
/// The largest.
const SUB_CHUNK_BYTES_MAX: usize = 64 << 10;
/// What is taken next, chunk or sub-chunk, is this part of what was taken so far: of a memtable
/// that is small when it is sealed, as where many keyspaces share the memory, about a tenth is
/// unused.
const GROWTH_PART: usize = 4;
/// From this size on a memtable's memory doubles with each chunk, and soon takes whole huge pages.
const SMALL_BYTES: usize = 64 << 10;

/// Counts that a slot keeps and a memtable sums up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// Key and value bytes of newest versions.
    LiveBytes,
    /// Arena bytes that no newest version and no live node uses.
    GarbageBytes,
    /// Keys whose newest version is a put.
    Records,
    /// Keys whose newest version is a delete.
    Tombstones,
}

const COUNTS: usize = 4;

/// Slots that come together, with the first insert of a thread that owns one of them.
const GROUP_SLOTS: usize = 4;
const GROUPS: usize = (slots::OWNED + slots::SHARED).div_ceil(GROUP_SLOTS);

type Group = Box<[Slot; GROUP_SLOTS]>;

/// A range of memory that is given out from its start.
struct Bump {
    next: Cell<*mut u8>,
    left: Cell<usize>,
    /// Bytes of all sub-chunks so far.
    taken: Cell<usize>,
}

impl Bump {
    fn new() -> Self {
        Bump {
            next: Cell::new(null_mut()),
            left: Cell::new(0),
            taken: Cell::new(0),
        }
    }

    #[inline]
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let left = self.left.get().checked_sub(bytes)?;
        let at = NonNull::new(self.next.get())?;
        self.left.set(left);
        self.next.set(at.as_ptr().wrapping_add(bytes));
        Some(at)
    }
}

/// What one thread owns of a memtable; two cache lines, so that neighbours never share one.
#[repr(align(128))]
struct Slot {
    records: Bump,
    nodes: Bump,
    /// Written by the owner only, read by all.
    counts: [AtomicI64; COUNTS],
}

/// What was cut from a chunk.
struct Cut {
    at: NonNull<u8>,
    bytes: usize,
    /// It begins where the asker's last sub-chunk ends, in the same chunk.
    goes_on: bool,
}

struct Shared {
    chunks: Vec<Chunk>,
    /// The newest ordinary chunk's rest.
    next: *mut u8,
    left: usize,
}

// SAFETY: `next` points into memory that `chunks` owns.
unsafe impl Send for Shared {}

/// A memtable's memory.
pub(crate) struct Arena {
    budget: Arc<Budget>,
    pool: Option<Arc<Pool>>,
    /// Every allocation is a chunk of its own, so that a memory checker sees its bounds. For tests.
    exact: bool,
    bytes: AtomicU64,
    /// Slots that may have counts: those below this number.
    slots_used: AtomicUsize,
    /// One slot for each number, in groups; none of a group before a thread enters that has one of
    /// its numbers.
    slots: [OnceLock<Group>; GROUPS],
    /// For each number that threads share: held by the one that is in its slot.
    sharing: [Mutex<()>; slots::SHARED],
    shared: Mutex<Shared>,
}

// SAFETY: the cells of slot i are touched only by the thread whose own number is i, those of a
// number that is shared only under its lock of `sharing` (see `enter`); `slots` hands numbers over
// with a happens-before edge. Everything else is atomic or locked.
unsafe impl Sync for Arena {}
// SAFETY: nothing in it is bound to a thread: whoever owns the arena reaches the cells only through
// `enter`.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(budget: &Arc<Budget>, pool: Option<Arc<Pool>>, exact: bool) -> Self {
        Arena {
            budget: budget.clone(),
            pool,
            exact,
            bytes: AtomicU64::new(0),
            slots_used: AtomicUsize::new(0),
            slots: Default::default(),
            sharing: Default::default(),
            shared: Mutex::new(Shared {
                chunks: Vec::new(),
                next: null_mut(),
                left: 0,
            }),
        }
    }

    /// The current thread's slot.
    #[inline]
    pub(crate) fn enter(&self) -> Entered<'_> {
        let (number, guard) = match slots::current() {
            Number::Own(number) => (number, None),
            Number::Shared(number) => {
                let sharing = &self.sharing[number - slots::OWNED];
                (number, Some(sharing.lock()))
            }
        };
        let group = match self.slots[number / GROUP_SLOTS].get() {
            Some(group) => group,
            None => self.make_group(number / GROUP_SLOTS),
        };
        Entered {
            arena: self,
            number,
            slot: &group[number % GROUP_SLOTS],
            _guard: guard,
        }
    }

    #[cold]
    fn make_group(&self, group: usize) -> &Group {
        let fresh = Box::new(std::array::from_fn(|_| Slot {
            records: Bump::new(),
            nodes: Bump::new(),
            counts: Default::default(),
        }));
        let mut is_first = false;
        let group = self.slots[group].get_or_init(|| {
            is_first = true;
            fresh
        });
        if is_first {
            self.charge(size_of_val(&**group) as u64);
        }
        group
    }

    fn charge(&self, bytes: u64) {
        self.budget.take(Purpose::Memtable, bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// All memory taken, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A count over all threads: exact when nobody writes. Takes as long as there were writing
    /// threads.
    pub(crate) fn count(&self, count: Count) -> u64 {
        let used = self.slots_used.load(Ordering::Acquire);
        let groups = &self.slots[..used.div_ceil(GROUP_SLOTS)];
        let sum: i64 = groups
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|group| group.iter())
            .map(|s| s.counts[count as usize].load(Ordering::Relaxed))
            .sum();
        // Another thread's part of a sum may be seen before ours.
        u64::try_from(sum).unwrap_or(0)
    }

    fn new_chunk(&self, bytes: usize) -> Chunk {
        self.charge(bytes as u64);
        match &self.pool {
            Some(pool) if bytes == CHUNK_BYTES => pool.take(),
            _ => Chunk::new(bytes),
        }
    }

    /// `bytes` from the newest chunk, or a sub-chunk of that size if they are few. `behind` is the
    /// end of the asker's last sub-chunk.
    fn cut(&self, bytes: usize, sub_chunk_bytes: usize, behind: *mut u8, number: usize) -> Cut {
        self.slots_used.fetch_max(number + 1, Ordering::Release);
        let mut shared = self.shared.lock();
        if self.exact || bytes > CHUNK_BYTES / 4 {
            let chunk = self.new_chunk(bytes);
            let at = chunk.at();
            shared.chunks.push(chunk);
            return Cut {
                at,
                bytes,
                goes_on: false,
            };
        }
        // Between two calls `next` is never at the start of its chunk. So if `behind` is there,
        // both are of one chunk.
        let mut goes_on = shared.next == behind;
        loop {
            // What is cut starts and ends at a cache line. The rest of a chunk is not lost to who
            // asks for more.
            let wanted = if bytes > sub_chunk_bytes / 4 {
                bytes.next_multiple_of(CHUNK_ALIGNMENT)
            } else if bytes <= shared.left / 4 {
                sub_chunk_bytes.min(shared.left)
            } else {
                sub_chunk_bytes
            };
            if let (Some(at), Some(left)) =
                (NonNull::new(shared.next), shared.left.checked_sub(wanted))
            {
                shared.next = at.as_ptr().wrapping_add(wanted);
                shared.left = left;
                return Cut {
                    at,
                    bytes: wanted,
                    goes_on,
                };
            }
            // As much as is cut from a fresh chunk, so that the loop ends.
            let room = match bytes > sub_chunk_bytes / 4 {
                true => bytes.next_multiple_of(CHUNK_ALIGNMENT),
                false => sub_chunk_bytes,
            };
            let room = room.next_power_of_two();
            let total: usize = shared.chunks.iter().map(Chunk::bytes).sum();
            let next = match total < SMALL_BYTES {
                true => (total / GROWTH_PART).next_multiple_of(FIRST_CHUNK_BYTES / 2),
                false => total.next_power_of_two(),
            };
            let next = next.max(room).clamp(FIRST_CHUNK_BYTES, CHUNK_BYTES);
            let chunk = self.new_chunk(next);
            goes_on = false;
            shared.next = chunk.at().as_ptr();
            shared.left = chunk.bytes();
            shared.chunks.push(chunk);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.budget.give(Purpose::Memtable, self.bytes());
        let chunks = std::mem::take(&mut self.shared.get_mut().chunks);
        if let Some(pool) = &self.pool {
            pool.keep(chunks);
        }
    }
}

/// A thread in its slot of an arena. Bound to the thread.
pub(crate) struct Entered<'a> {
    arena: &'a Arena,
    number: usize,
    slot: &'a Slot,
    _guard: Option<MutexGuard<'a, ()>>,
}

impl<'a> Entered<'a> {
    /// Room for a leaf or version: `bytes` (a multiple of 8), aligned to 8, not initialised.
    #[inline]
    pub(crate) fn record(&self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes.is_multiple_of(crate::leaf::ALIGNMENT));
        self.take(&self.slot.records, bytes)
    }

    /// Room for a node: `bytes` (a multiple of a cache line), aligned to a cache line, not
    /// initialised.
    #[inline]
    pub(crate) fn node(&self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes.is_multiple_of(CHUNK_ALIGNMENT));
        self.take(&self.slot.nodes, bytes)
    }

    /// Gives a node back that nobody has seen; it is garbage if anything was taken since.
    pub(crate) fn node_unused(&self, at: NonNull<u8>, bytes: usize) {
        let bump = &self.slot.nodes;
        if bump.next.get() == at.as_ptr().wrapping_add(bytes) {
            bump.next.set(at.as_ptr());
            bump.left.set(bump.left.get() + bytes);
        } else {
            self.add(Count::GarbageBytes, bytes as i64);
        }
    }

    #[inline]
    fn take(&self, bump: &Bump, bytes: usize) -> NonNull<u8> {
        match bump.take(bytes) {
            Some(at) => at,
            None => self.take_slowly(bump, bytes),
        }
    }

    #[cold]
    fn take_slowly(&self, bump: &Bump, bytes: usize) -> NonNull<u8> {
        let sub_chunk_bytes = (bump.taken.get() / GROWTH_PART)
            .next_multiple_of(CHUNK_ALIGNMENT)
            .clamp(FIRST_SUB_CHUNK_BYTES, SUB_CHUNK_BYTES_MAX);
        let behind = bump.next.get().wrapping_add(bump.left.get());
        let cut = self.arena.cut(bytes, sub_chunk_bytes, behind, self.number);
        bump.taken.set(bump.taken.get() + cut.bytes);
        if cut.goes_on {
            bump.left.set(bump.left.get() + cut.bytes);
            if let Some(at) = bump.take(bytes) {
                return at;
            }
        }
        let (at, cut) = (cut.at, cut.bytes);
        // A large piece does not cost the rest of the sub-chunk at hand.
        if bytes <= sub_chunk_bytes || cut - bytes > bump.left.get() {
            bump.next.set(at.as_ptr().wrapping_add(bytes));
            bump.left.set(cut - bytes);
        }
        at
    }

    /// Adds to a count of the memtable.
    #[inline]
    pub(crate) fn add(&self, count: Count, change: i64) {
        let here = &self.slot.counts[count as usize];
        // Only this thread writes here.
        here.store(
            here.load(Ordering::Relaxed).wrapping_add(change),
            Ordering::Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_charged_until_the_arena_goes() {
        for exact in [false, true] {
            let budget = Budget::new(1 << 30);
            let arena = Arena::new(&budget, None, exact);
            let mut pieces = Vec::new();
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..3u8)
                    .map(|t| {
                        let arena = &arena;
                        scope.spawn(move || {
                            let entered = arena.enter();
                            let mut taken = Vec::new();
                            for i in 0..400usize {
                                let record =
                                    8 * (1 + i * i % 300) + if i % 97 == 0 { 300 << 10 } else { 0 };
                                let node = 64 * (1 + i % 33);
                                for (at, bytes, align) in [
                                    (entered.record(record), record, 8),
                                    (entered.node(node), node, 64),
                                ] {
                                    assert_eq!(at.addr().get() % align, 0);
                                    // SAFETY: just taken, and that long.
                                    unsafe { at.write_bytes(t, bytes) };
                                    taken.push((at.addr().get(), bytes));
                                }
                            }
                            taken
                        })
                    })
                    .collect();
                for worker in workers {
                    pieces.extend(worker.join().expect("worker"));
                }
            });
            pieces.sort_unstable();
            assert!(
                pieces.windows(2).all(|p| p[0].0 + p[0].1 <= p[1].0),
                "pieces overlap"
            );
            let asked: usize = pieces.iter().map(|p| p.1).sum();
            assert!(arena.bytes() >= asked as u64);
            assert_eq!(budget.used(Purpose::Memtable), arena.bytes());
            drop(arena);
            assert_eq!(budget.used(Purpose::Memtable), 0);
        }
    }

    #[test]
    fn a_small_memtable_is_cheap_and_chunks_grow_to_their_full_size() {
        let budget = Budget::new(1 << 30);
        let arena = Arena::new(&budget, None, false);
        assert_eq!((arena.bytes(), budget.used(Purpose::Memtable)), (0, 0));
        assert_eq!(arena.count(Count::Records), 0);
        let entered = arena.enter();
        assert!(arena.bytes() < 1 << 10);
        entered.record(64);
        entered.node(64);
        assert!(arena.bytes() < 2 << 10);
        for _ in 0..20 {
            entered.record(144);
        }
        assert!(arena.bytes() < 6 << 10, "{}", arena.bytes());
        for _ in 0..8 << 10 {
            entered.record(1 << 10);
        }
        let chunks: Vec<usize> = arena
            .shared
            .lock()
            .chunks
            .iter()
            .map(Chunk::bytes)
            .collect();
        assert_eq!(chunks[..4], [1 << 10; 4]);
        assert_eq!(chunks.last(), Some(&CHUNK_BYTES));
        assert!(
            arena.bytes() < 12 << 20,
            "8 MiB of records took {}",
            arena.bytes()
        );
    }

    /// Thirty threads that wrote a record each took 4 MiB.
    #[test]
    fn many_threads_that_write_a_little_take_little() {
        let budget = Budget::new(1 << 30);
        let arena = Arena::new(&budget, None, false);
        let together = std::sync::Barrier::new(30);
        std::thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    let entered = arena.enter();
                    entered.record(64);
                    entered.node(64);
                    // Nobody leaves a number to another before all have one.
                    drop(entered);
                    together.wait();
                });
            }
        });
        assert!(arena.bytes() <= 140 << 10, "{}", arena.bytes());
    }

    #[test]
    fn a_dropped_arena_leaves_its_pool_everything_until_that_is_trimmed() {
        let budget = Budget::new(1 << 30);
        let pool = Pool::new(&budget, 4 << 20);
        let fill = || {
            let arena = Arena::new(&budget, Some(pool.clone()), false);
            let entered = arena.enter();
            for _ in 0..16 << 10 {
                entered.record(1 << 10);
            }
        };
        for _ in 0..2 {
            fill();
            assert!(pool.bytes() >= 14 << 20, "{}", pool.bytes());
            assert_eq!(pool.bytes(), budget.used(Purpose::Memtable));
            pool.trim();
            assert_eq!(pool.bytes(), 4 << 20);
            assert_eq!(pool.bytes(), budget.used(Purpose::Memtable));
        }
    }
}
