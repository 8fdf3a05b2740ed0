//! The data file's space. It knows which bytes are free, which of them the file system has
//! allocated, and how the file grows and shrinks. It alone hands bytes out, and they return only
//! through [`Pages`]. So no write can touch a page that a reader may still read (D1, D5).
//!
//! Space is allocated in the file system before it is written, so a full disk shows at allocation
//! (D10). A reserve stays allocated, in as few runs as possible. [`SpaceClass::Normal`] cannot use
//! it, so deletes pass on a full disk.
//!
//! Locks: `resizing` before `state`. `resizing` is held over calls that change the file's
//! allocation at its end, and over searches for allocated space. `state` is held briefly and never
//! over I/O.

mod allocate;
mod exchange;
mod free;
mod live;
mod reclaim;
mod reserve;
mod runs;

use std::collections::VecDeque;

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use terrapin_base::{EXTENT_ALIGNMENT, Error, Generation, PageId, Result, Signal};
use terrapin_disk::File;

pub use allocate::SpaceClass;
use allocate::growth_bytes;
use free::Free;
pub(crate) use live::{Freed, Pages};

use crate::page::{Changes, Extent, PageUse};
use crate::superblock::PAGES_START;

/// The free space kept for the next checkpoint is at most this share (1/n) of live bytes, unless
/// they grow.
const SLACK_SHARE: u64 = 96;
/// Live bytes grow if recent checkpoints added more than this share (1/n) of what they wrote.
const GROWING_SHARE: u64 = 8;
/// Each checkpoint forgets this share (1/n) of the bytes of earlier ones. A single checkpoint that
/// only fills a buffer is then no growth.
const FORGOTTEN_SHARE: u64 = 4;

/// The last refusal of the file system. On a full disk, as many bytes are not asked for again. ext4
/// and XFS write their journals before they refuse. That takes milliseconds, and one merge asks for
/// hundreds of pages.
#[derive(Debug)]
struct Refusal {
    /// The lowest number of bytes that was refused.
    bytes: u64,
    error: Error,
}

#[derive(Debug, Default)]
struct State {
    free: Free,
    /// Each commit and each return of space to the file system forgets this. A failed allocation
    /// forgets it too and asks once more before it fails.
    refusal: Option<Refusal>,
    pages: Pages,
    reserve_target: u64,
    /// The bytes that a checkpoint writes: the maximum of recent ones, which each checkpoint lowers
    /// by an eighth.
    checkpoint_bytes: u64,
    /// Bytes that recent checkpoints wrote, and bytes that they gave up.
    written_lately: u64,
    released_lately: u64,
    /// The last checkpoint wrote more than it gave up.
    grew: bool,
    /// No checkpoint is expected soon, so no space is kept for one. The next checkpoint resets
    /// this.
    at_rest: bool,
    /// Space is being returned until only the slack is left (hysteresis).
    reclaiming: bool,
    /// Pages whose space was freed, for the cache to forget.
    gone: Vec<PageId>,
    /// Extents that hold no page and could not be written, the newest at the end. They are not
    /// free: the best fit would find the same bad extent again, and every merge would fail there.
    parked: VecDeque<Extent>,
}

impl State {
    fn release(&mut self, freed: &[Freed]) {
        for page in freed {
            self.free.add(page.extent, page.is_whole, true);
            self.gone.push(page.id);
        }
        if !freed.is_empty() {
            self.free.refill_reserve(self.reserve_target);
        }
    }

    /// Frees the pages that no pin keeps any more.
    fn sweep(&mut self) {
        if self.pages.loosened() {
            let freed = self.pages.sweep();
            self.release(&freed);
        }
    }

    /// Notes what a checkpoint wrote and gave up.
    fn note(&mut self, written: u64, released: u64) {
        self.checkpoint_bytes = written.max(self.checkpoint_bytes - self.checkpoint_bytes / 8);
        self.grew = written > released;
        let forget = |sum: u64| sum - sum / FORGOTTEN_SHARE;
        self.written_lately = forget(self.written_lately) + written;
        self.released_lately = forget(self.released_lately) + released;
    }

    /// Whether recent checkpoints grew the live bytes, and the last one too. Free space will then
    /// be used soon and stay in use.
    fn is_growing(&self) -> bool {
        let grown = self.written_lately.saturating_sub(self.released_lately);
        self.grew && grown > self.written_lately / GROWING_SHARE
    }

    /// Free space that is kept. At rest this is the reserve. Otherwise it is what a checkpoint like
    /// the recent ones needs, within bounds.
    fn slack(&self) -> u64 {
        if self.at_rest {
            return self.reserve_target;
        }
        let most = match self.is_growing() {
            true => u64::MAX,
            false => self.pages.live_bytes() / SLACK_SHARE,
        };
        self.reserve_target.max(self.checkpoint_bytes.min(most))
    }

    /// Free space beyond the slack that may occupy the disk.
    fn excess(&self) -> u64 {
        let excess =
            (self.free.occupying.total() + self.free.reserve.total()).saturating_sub(self.slack());
        excess - excess % EXTENT_ALIGNMENT
    }
}

/// The space of one data file.
pub(crate) struct Space {
    file: Arc<dyn File>,
    state: Mutex<State>,
    /// A thread holds this while it changes the file's length, decides by the length, or searches
    /// for allocated space.
    resizing: Mutex<()>,
    /// The file system makes holes in pages, as far as is known.
    makes_holes: AtomicBool,
    /// The file's length, for bounds checks of reads without a lock.
    file_bytes: AtomicU64,
    /// Notified when space may be returned.
    signal: Arc<Signal>,
}

impl Space {
    /// The space of a file, none of it free. [`Space::rebuild`] finds the free space.
    pub(crate) fn new(file: Arc<dyn File>, file_bytes: u64, reserve_bytes: u64) -> Arc<Self> {
        // An interrupted creation may leave a file shorter than the slots. The missing part of the
        // slots is no free space.
        let file_bytes = (file_bytes.next_multiple_of(EXTENT_ALIGNMENT)).max(PAGES_START);
        let reserve_target = reserve_bytes
            .checked_next_multiple_of(EXTENT_ALIGNMENT)
            .unwrap_or(reserve_bytes);
        let state = State {
            reserve_target,
            free: Free {
                end: file_bytes,
                ..Free::default()
            },
            ..State::default()
        };
        Arc::new(Space {
            file,
            state: Mutex::new(state),
            resizing: Mutex::default(),
            makes_holes: AtomicBool::new(true),
            file_bytes: AtomicU64::new(file_bytes),
            signal: Signal::new(),
        })
    }

    /// The file's length in bytes.
    #[inline]
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.state.lock().pages.live_bytes()
    }

    pub(crate) fn retired_bytes(&self) -> u64 {
        self.state.lock().pages.retired_bytes()
    }

    /// Bytes of known holes in live pages, and in retired ones.
    pub(crate) fn hole_bytes(&self) -> (u64, u64) {
        self.state.lock().pages.hole_bytes()
    }

    /// Whether parts of a page may be returned that no tree reads.
    pub(crate) fn may_punch(&self, id: PageId) -> bool {
        self.makes_holes.load(Ordering::Relaxed) && self.state.lock().pages.may_punch(id)
    }

    /// Free space in the file, allocated or not, with the reserve.
    pub(crate) fn free_bytes(&self) -> u64 {
        let state = self.state.lock();
        let parked: u64 = state.parked.iter().map(|extent| extent.bytes).sum();
        state.free.all.total() + state.free.reserve.total() + parked
    }

    pub(crate) fn reserve_held_bytes(&self) -> u64 {
        self.state.lock().free.reserve.total()
    }

    pub(crate) fn reserve_wanted_bytes(&self) -> u64 {
        self.state.lock().reserve_target
    }

    /// Raises the size that the reserve is to have, unless there is none. Free space that is ready
    /// goes into the reserve at once. Growth of the file and what commits free complete it.
    pub(crate) fn raise_reserve(&self, bytes: u64) {
        let mut state = self.state.lock();
        let target = bytes.checked_next_multiple_of(EXTENT_ALIGNMENT);
        let target = target.unwrap_or(bytes);
        if (1..target).contains(&state.reserve_target) {
            state.reserve_target = target;
            state.free.refill_reserve(target);
        }
    }

    pub(crate) fn is_short(&self) -> bool {
        let state = self.state.lock();
        state.free.reserve.total() < state.reserve_target
    }

    pub(crate) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    pub(crate) fn newest_incarnation(&self) -> Option<terrapin_base::Incarnation> {
        self.state.lock().pages.newest_incarnation()
    }

    /// Notes a page that was written into space handed out.
    pub(crate) fn add_fresh(&self, id: PageId, extent: Extent) {
        self.state.lock().pages.add_fresh(id, extent);
    }

    /// Notes a large page whose space was handed out, born in a committed generation.
    pub(crate) fn add_large(&self, id: PageId, extent: Extent, born: Generation) {
        self.state.lock().pages.add_large(id, extent, born);
    }

    /// Frees a large page that nothing refers to. With `is_bad`, its space could not be written and
    /// stays unused for a while.
    pub(crate) fn abandon_large(&self, id: PageId, is_bad: bool) {
        let mut state = self.state.lock();
        let Some(freed) = state.pages.forget_large(id) else {
            return;
        };
        if is_bad {
            drop(state);
            self.park(freed.extent);
            return;
        }
        state.release(&[freed]);
        drop(state);
        self.signal.notify();
    }

    /// The large pages that no checkpoint has adopted.
    pub(crate) fn large_pages(&self) -> Vec<PageId> {
        self.state.lock().pages.large().collect()
    }

    /// Where a page is.
    pub(crate) fn extent_of(&self, id: PageId) -> Option<Extent> {
        self.state.lock().pages.extent_of(id)
    }

    /// Keeps one page. `None` if there is no such page.
    pub(crate) fn hold_page(self: &Arc<Self>, id: PageId) -> Option<HeldPage> {
        let mut state = self.state.lock();
        let extent = state.pages.extent_of(id)?;
        state.pages.hold(id);
        drop(state);
        Some(HeldPage {
            space: self.clone(),
            page: PageUse::whole(id, extent.offset, extent.bytes),
        })
    }

    /// Applies the changes of a durable checkpoint.
    pub(crate) fn commit(&self, generation: Generation, changes: &Changes) {
        let mut state = self.state.lock();
        let (written, released) = state.pages.commit(generation, changes);
        state.refusal = None;
        state.note(written, released);
        state.at_rest = false;
        state.sweep();
        drop(state);
        self.signal.notify();
    }

    /// Frees pages that no tree will refer to.
    pub(crate) fn abandon(&self, added: &[PageUse]) {
        let mut state = self.state.lock();
        let freed = state.pages.abandon(added);
        state.release(&freed);
        drop(state);
        self.signal.notify();
    }

    /// Frees the pages that no pin keeps any more.
    pub(crate) fn sweep(&self) {
        let mut state = self.state.lock();
        state.sweep();
        drop(state);
        self.signal.notify();
    }

    /// Pages freed since the last call.
    pub(crate) fn take_gone(&self) -> Vec<PageId> {
        std::mem::take(&mut self.state.lock().gone)
    }

    /// Keeps the pages of a generation.
    pub(crate) fn pin(self: &Arc<Self>, generation: Generation) -> Pin {
        self.state.lock().pages.pin(generation);
        Pin(Arc::new(PinInner {
            space: self.clone(),
            generation,
        }))
    }

    /// Derives all free space from a walk over the trees (D4). Everything that the walk does not
    /// name, nor `logged`, is free. Whether the file system has allocated it is unknown, so it is
    /// allocated before use. After a partial walk nothing is free until the next open.
    pub(crate) fn rebuild(
        &self,
        uses: &mut dyn Iterator<Item = Result<PageUse>>,
        logged: &[PageUse],
        generation: Generation,
        is_whole: bool,
        writable: bool,
    ) -> Result<()> {
        let end = self.file_bytes();
        let mut pages = Pages::default();
        let mut occupied = pages.rebuild(uses, logged, generation, end)?;
        if !is_whole {
            pages.keep_all(end);
            occupied = vec![Extent {
                offset: PAGES_START,
                bytes: end - PAGES_START,
            }];
        }
        let allocated = self.file.allocated_bytes()?;
        let mut state = self.state.lock();
        pages.adopt_pins(&mut state.pages);
        state.pages = pages;
        state.parked.clear();
        if !is_whole {
            // Deletes cannot free anything, and each open would add another reserve to the file.
            state.reserve_target = 0;
        }
        // The file may have holes that are unknown here. Punching is worth while only if the file
        // occupies more than expected. The margin covers what the file system uses itself.
        let live = state.pages.live_bytes() - state.pages.hole_bytes().0;
        let expected = PAGES_START + live + state.slack() + growth_bytes(end);
        let occupying = allocated > expected;
        state.free = Free {
            end,
            ..Free::default()
        };
        let mut start = PAGES_START;
        for extent in occupied.into_iter().chain([Extent {
            offset: end,
            bytes: 0,
        }]) {
            if extent.offset > start {
                let unused = Extent {
                    offset: start,
                    bytes: extent.offset - start,
                };
                state.free.add(unused, false, occupying);
                state.free.unasked.insert(unused);
            }
            start = extent.end();
        }
        drop(state);
        if writable {
            self.find_reserve()
        } else {
            Ok(())
        }
    }

    /// Panics if another page or free space overlaps the extent of a write (D1).
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn assert_unused(&self, extent: Extent) {
        let state = self.state.lock();
        assert!(
            !state.free.all.overlaps(extent) && !state.free.reserve.overlaps(extent),
            "{extent:?} is free"
        );
        for (id, other) in state.pages.occupied() {
            assert!(
                extent.end() <= other.offset || other.end() <= extent.offset,
                "{extent:?} is page {id}'s: {other:?}"
            );
        }
    }
}

struct PinInner {
    space: Arc<Space>,
    generation: Generation,
}

impl Drop for PinInner {
    fn drop(&mut self) {
        // Readers drop pins, so a drop only counts. The signal asks for a sweep, which frees the
        // pages.
        if self.space.state.lock().pages.unpin(self.generation) {
            self.space.signal.notify();
        }
    }
}

/// Keeps every page that the trees of one generation reach. The drop of the last clone ends this.
#[derive(Clone)]
pub struct Pin(Arc<PinInner>);

impl Pin {
    /// The generation that the pin keeps.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.0.generation
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({})", self.0.generation)
    }
}

/// A page that a reader keeps, whatever happens to the trees. The drop ends this.
pub struct HeldPage {
    space: Arc<Space>,
    page: PageUse,
}

impl HeldPage {
    /// The page, with its whole extent.
    #[must_use]
    pub fn page(&self) -> &PageUse {
        &self.page
    }
}

impl Drop for HeldPage {
    fn drop(&mut self) {
        if self.space.state.lock().pages.let_go(self.page.id) {
            self.space.signal.notify();
        }
    }
}

impl std::fmt::Debug for HeldPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldPage({})", self.page.id)
    }
}
