//! The memory of a memtable. It takes chunks, hands out pieces, and gives everything back when the
//! memtable is dropped.
//!
//! Each writing thread owns a slot (`thread_number`). A slot has two bump pointers, for records and
//! for nodes, each over a *sub-chunk* of the newest chunk. It also has the thread's share of the
//! memtable's counts. So allocating and counting take no lock and write no shared cache line. A
//! thread takes a lock once per sub-chunk, and for a large record. Threads without a slot of their
//! own share a few slots, each under a lock.
//!
//! Chunks grow with the memtable, from [`FIRST_CHUNK_BYTES`] to [`CHUNK_BYTES`]. Sub-chunks grow
//! with the bytes that their slot has taken, and slots are made at the first insert. A database may
//! have thousands of nearly empty keyspaces, and dozens of threads that write a little to each. The
//! budget is charged with what a merge of the memtable frees, so an empty memtable is charged
//! nothing.

use std::cell::Cell;
use std::ptr::{NonNull, null_mut};

use terrapin_base::sync::{
    Arc, AtomicI64, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, Ordering,
};
use terrapin_base::{Budget, Purpose};

use crate::chunk::{CHUNK_ALIGNMENT, CHUNK_BYTES, Chunk, Pool};
use crate::thread_number::{self, Number};

/// Bytes of a memtable's first chunk.
pub(crate) const FIRST_CHUNK_BYTES: usize = 1 << 10;
/// Bytes of a slot's first sub-chunks, for records and for nodes.
const FIRST_SUB_CHUNK_BYTES: usize = 256;
/// Bytes of the largest sub-chunk.
const SUB_CHUNK_BYTES_MAX: usize = 64 << 10;
/// The next chunk or sub-chunk is this part (1/n) of all bytes taken so far. So a memtable that is
/// sealed while small has about a tenth of its memory unused. This happens if many keyspaces share
/// the memory.
const GROWTH_PART: usize = 4;
/// From this size on, the memory of a memtable doubles with each chunk, and soon consists of whole
/// huge pages.
const SMALL_BYTES: usize = 64 << 10;

/// Counts that each slot keeps. A memtable adds them up.
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

/// Slots that are made together, when a thread that owns one of them inserts first.
const GROUP_SLOTS: usize = 4;
const GROUPS: usize = (thread_number::OWNED + thread_number::SHARED).div_ceil(GROUP_SLOTS);

type Group = Box<[ThreadSlot; GROUP_SLOTS]>;

/// A range of memory that is handed out from its start.
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

/// A thread's part of a memtable. It fills two cache lines, so that neighbours never share one.
#[repr(align(128))]
struct ThreadSlot {
    records: Bump,
    nodes: Bump,
    /// Only the owner writes them; all threads read them.
    counts: [AtomicI64; COUNTS],
}

/// A piece of a chunk.
struct SubChunk {
    at: NonNull<u8>,
    bytes: usize,
    /// The piece begins where the last sub-chunk of the same slot ends, in the same chunk.
    is_contiguous: bool,
}

struct Shared {
    chunks: Vec<Chunk>,
    /// The unused rest of the newest ordinary chunk.
    next: *mut u8,
    left: usize,
}

// SAFETY: `next` points into memory that `chunks` owns.
unsafe impl Send for Shared {}

/// A memtable's memory.
pub(crate) struct Arena {
    budget: Arc<Budget>,
    pool: Option<Arc<Pool>>,
    /// Each allocation is a chunk of its own, so that a memory checker sees its bounds. Only tests
    /// set this.
    exact: bool,
    bytes: AtomicU64,
    /// Only slots below this number can have counts.
    slots_used: AtomicUsize,
    /// One slot for each thread number, in groups. A group is made when a thread with one of its
    /// numbers first inserts.
    slots: [OnceLock<Group>; GROUPS],
    /// One lock for each shared thread number. The thread that uses the number's slot holds it.
    sharing: [Mutex<()>; thread_number::SHARED],
    shared: Mutex<Shared>,
}

// SAFETY: only the thread whose own number is i touches the cells of slot i. The cells of a shared
// number are touched only under its lock in `sharing` (see `enter`). `thread_number` passes numbers
// on with a happens-before edge. Everything else is atomic or locked.
unsafe impl Sync for Arena {}
// SAFETY: nothing in an arena belongs to one thread. The owner of the arena reaches the cells only
// through `enter`.
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

    /// The budget that the arena is charged to.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Enters the slot of the current thread.
    #[inline]
    pub(crate) fn enter(&self) -> Entered<'_> {
        let (number, guard) = match thread_number::current() {
            Number::Own(number) => (number, None),
            Number::Shared(number) => {
                let sharing = &self.sharing[number - thread_number::OWNED];
                (number, Some(sharing.lock()))
            }
        };
        self.entered(number, guard)
    }

    /// Like [`Arena::enter`], for a thread that must not wait. `None` if another thread is in its
    /// slot.
    pub(crate) fn try_enter(&self) -> Option<Entered<'_>> {
        let (number, guard) = match thread_number::current() {
            Number::Own(number) => (number, None),
            Number::Shared(number) => {
                let sharing = &self.sharing[number - thread_number::OWNED];
                (number, Some(sharing.try_lock()?))
            }
        };
        Some(self.entered(number, guard))
    }

    #[inline(always)]
    fn entered<'a>(&'a self, number: usize, guard: Option<MutexGuard<'a, ()>>) -> Entered<'a> {
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
        let fresh = Box::new(std::array::from_fn(|_| ThreadSlot {
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

    /// A count over all threads. It is exact while no thread writes. O(threads that wrote).
    pub(crate) fn count(&self, count: Count) -> u64 {
        let used = self.slots_used.load(Ordering::Acquire);
        let groups = &self.slots[..used.div_ceil(GROUP_SLOTS)];
        let sum: i64 = groups
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|group| group.iter())
            .map(|s| s.counts[count as usize].load(Ordering::Relaxed))
            .sum();
        // One slot's decrement may be seen before another slot's increment.
        u64::try_from(sum).unwrap_or(0)
    }

    fn new_chunk(&self, bytes: usize) -> Chunk {
        self.charge(bytes as u64);
        match &self.pool {
            Some(pool) if bytes == CHUNK_BYTES => pool.take(),
            _ => Chunk::new(bytes),
        }
    }

    /// Takes `bytes` from the newest chunk, or a whole sub-chunk if `bytes` is small. `behind` is
    /// the end of the slot's last sub-chunk.
    fn sub_chunk(
        &self,
        bytes: usize,
        sub_chunk_bytes: usize,
        behind: *mut u8,
        number: usize,
    ) -> SubChunk {
        self.slots_used.fetch_max(number + 1, Ordering::Release);
        let mut shared = self.shared.lock();
        if self.exact || bytes > CHUNK_BYTES / 4 {
            let chunk = self.new_chunk(bytes);
            let at = chunk.at();
            shared.chunks.push(chunk);
            return SubChunk {
                at,
                bytes,
                is_contiguous: false,
            };
        }
        // Between two calls `next` is never at the start of its chunk. So if `next` equals
        // `behind`, both are in one chunk.
        let mut is_contiguous = shared.next == behind;
        loop {
            // Pieces start and end at a cache line. A slot that needs little takes a chunk's rest
            // as a shorter sub-chunk.
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
                return SubChunk {
                    at,
                    bytes: wanted,
                    is_contiguous,
                };
            }
            // The new chunk has room for the piece, so the loop ends.
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
            is_contiguous = false;
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

/// A thread in its slot of an arena. It stays on that thread.
pub(crate) struct Entered<'a> {
    arena: &'a Arena,
    number: usize,
    slot: &'a ThreadSlot,
    _guard: Option<MutexGuard<'a, ()>>,
}

impl<'a> Entered<'a> {
    /// Allocates `bytes` (a multiple of 8) for a leaf or a version, aligned to 8 and not
    /// initialised.
    #[inline]
    pub(crate) fn record(&self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes.is_multiple_of(crate::leaf::ALIGNMENT));
        self.take(&self.slot.records, bytes)
    }

    /// Allocates `bytes` (a multiple of a cache line) for a node, aligned to a cache line and not
    /// initialised.
    #[inline]
    pub(crate) fn node(&self, bytes: usize) -> NonNull<u8> {
        debug_assert!(bytes.is_multiple_of(CHUNK_ALIGNMENT));
        self.take(&self.slot.nodes, bytes)
    }

    /// Gives back a node that no thread has seen. It becomes garbage if the slot has taken another
    /// node since.
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
        let piece = self
            .arena
            .sub_chunk(bytes, sub_chunk_bytes, behind, self.number);
        bump.taken.set(bump.taken.get() + piece.bytes);
        if piece.is_contiguous {
            bump.left.set(bump.left.get() + piece.bytes);
            if let Some(at) = bump.take(bytes) {
                return at;
            }
        }
        let at = piece.at;
        // A large piece does not discard a larger rest of the current sub-chunk.
        if bytes <= sub_chunk_bytes || piece.bytes - bytes > bump.left.get() {
            bump.next.set(at.as_ptr().wrapping_add(bytes));
            bump.left.set(piece.bytes - bytes);
        }
        at
    }

    /// Adds to a count of the memtable.
    #[inline]
    pub(crate) fn add(&self, count: Count, change: i64) {
        let here = &self.slot.counts[count as usize];
        // Only this thread writes to this count.
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

    /// Regression: thirty threads that wrote one record each took 4 MiB.
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
                    // All threads must have a number before one gives its number back.
                    drop(entered);
                    together.wait();
                });
            }
        });
        assert!(arena.bytes() <= 140 << 10, "{}", arena.bytes());
    }

    #[test]
    fn a_dropped_arena_gives_its_pool_everything_until_it_is_trimmed() {
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
