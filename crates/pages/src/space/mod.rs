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

mod exchange;
mod live;
mod reclaim;
mod reserve;
mod runs;

use std::collections::VecDeque;

use terrapin_base::sync::{Arc, AtomicU64, Mutex, Ordering};
use terrapin_base::{EXTENT_ALIGNMENT, Error, ErrorKind, Generation, PageId, Result, Signal};
use terrapin_disk::File;

pub(crate) use live::{Freed, Pages};
use runs::Runs;

use crate::page::{Changes, Extent, PageUse};
use crate::superblock::PAGES_START;

/// The file grows by this share (1/n) of itself, within these bounds. An allocation takes
/// microseconds, so little space is kept ahead.
const GROWTH_BYTES_MIN: u64 = 1 << 20;
const GROWTH_BYTES_MAX: u64 = 16 << 20;
const GROWTH_SHARE: u64 = 128;
/// The free space kept for the next checkpoint is at most this share (1/n) of live bytes, unless
/// they grow.
const SLACK_SHARE: u64 = 96;
/// Live bytes grow if recent checkpoints added more than this share (1/n) of what they wrote.
const GROWING_SHARE: u64 = 8;
/// Each checkpoint forgets this share (1/n) of the bytes of earlier ones. A single checkpoint that
/// only fills a buffer is then no growth.
const FORGOTTEN_SHARE: u64 = 4;

/// Extents that could not be written and stay unused. When there are more, the oldest becomes free
/// again.
const PARKED_MAX: usize = 16;

/// How much a file of this length grows at once.
fn growth_bytes(file_bytes: u64) -> u64 {
    (file_bytes / GROWTH_SHARE)
        .clamp(GROWTH_BYTES_MIN, GROWTH_BYTES_MAX)
        .next_multiple_of(EXTENT_ALIGNMENT)
}

/// Which space an allocation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceClass {
    /// All free space except the reserve.
    Normal,
    /// The reserve too, once nothing else is left (D10).
    Reserve,
}

/// Free space, in sets that overlap.
#[derive(Debug, Default)]
struct Free {
    /// All free space except the reserve.
    all: Runs,
    /// The part of `all` that is known to be allocated in the file system. A write there cannot run
    /// out of space.
    ready: Runs,
    /// The part of `all` that may be allocated in the file system and is worth punching. Contains
    /// `ready`.
    occupying: Runs,
    /// The part of `all` that may be allocated but is not in `ready`. After an open this is
    /// everything, until the file system was asked.
    unasked: Runs,
    /// Allocated space that is set aside for [`SpaceClass::Reserve`]. Not in `all`.
    reserve: Runs,
    /// The file's length.
    end: u64,
}

impl Free {
    fn add(&mut self, extent: Extent, ready: bool, occupying: bool) {
        debug_assert!(
            !self.all.overlaps(extent) && !self.reserve.overlaps(extent),
            "{extent:?} is free already"
        );
        debug_assert!(extent.offset >= PAGES_START && extent.end() <= self.end);
        self.all.insert(extent);
        if ready {
            self.ready.insert(extent);
        } else if occupying {
            self.unasked.insert(extent);
        }
        if occupying {
            self.occupying.insert(extent);
        }
    }

    fn take(&mut self, extent: Extent) {
        debug_assert_eq!(self.all.gaps(extent), [], "{extent:?} is not free");
        self.all.remove(extent);
        self.ready.remove(extent);
        self.occupying.remove(extent);
        self.unasked.remove(extent);
    }

    /// Moves ready space into the reserve: the fewest runs, low ones first.
    fn refill_reserve(&mut self, target: u64) {
        while self.reserve.total() < target {
            let missing = (target - self.reserve.total()).next_multiple_of(EXTENT_ALIGNMENT);
            let Some(extent) = self
                .ready
                .fit(missing, None)
                .or_else(|| self.ready.largest())
            else {
                return;
            };
            self.take(extent);
            self.reserve.insert(extent);
        }
    }

    /// Moves the reserve back to the free space, where its runs join their neighbours.
    fn dissolve_reserve(&mut self) {
        let reserve = std::mem::take(&mut self.reserve);
        for run in reserve.iter() {
            self.add(run, true, true);
        }
    }
}

/// The last refusal of the file system. On a full disk, as many bytes are not asked for again. ext4
/// and XFS write their journals before they refuse. That takes milliseconds, and one merge asks for
/// hundreds of pages.
#[derive(Debug)]
struct Refusal {
    /// The lowest number of bytes that was refused.
    bytes: u64,
    error: Error,
}

/// A part of an extent that is not known to be allocated.
struct Gap {
    extent: Extent,
    /// The file system was not asked yet whether this gap is allocated.
    unasked: bool,
}

#[derive(Debug, Default)]
struct State {
    free: Free,
    /// Each commit and each space returned to the file system forget this. A failed allocation
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
    /// No checkpoint is expected soon, so no space is kept for one. The next checkpoint resets this.
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
        for &(id, extent) in freed {
            self.free.add(extent, true, true);
            self.gone.push(id);
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

    /// Free space in the file, allocated or not, with the reserve.
    pub(crate) fn free_bytes(&self) -> u64 {
        let state = self.state.lock();
        let parked: u64 = state.parked.iter().map(|extent| extent.bytes).sum();
        state.free.all.total() + state.free.reserve.total() + parked
    }

    pub(crate) fn reserve_held_bytes(&self) -> u64 {
        self.state.lock().free.reserve.total()
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

    /// Hands out space that is allocated in the file system. A failure changes nothing.
    pub(crate) fn allocate(&self, bytes: u64, class: SpaceClass) -> Result<Extent> {
        let wanted = bytes
            .checked_next_multiple_of(EXTENT_ALIGNMENT)
            .filter(|&w| w > 0);
        let wanted =
            wanted.ok_or_else(|| Error::internal("impossible allocation").with("bytes", bytes))?;
        let mut holes = true;
        // Space that was refused before this call may exist now.
        let mut may_be_stale = self.state.lock().refusal.is_some();
        loop {
            if let Some((extent, gaps)) = self.take(wanted, class, holes) {
                match self.fill(extent, &gaps) {
                    Ok(()) => return Ok(extent),
                    Err(error) if error.kind() == ErrorKind::NoSpace => holes = false,
                    Err(error) => return Err(error),
                }
                continue;
            }
            match self.grow(wanted, class) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    let last = self.last_resort(wanted, class, &error);
                    if last.is_err() {
                        self.state.lock().refusal = None;
                        if std::mem::take(&mut may_be_stale) {
                            holes = true;
                            continue;
                        }
                    }
                    return last;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the last refusal if it was of no more than `bytes`.
    fn refused(&self, bytes: u64) -> Result<()> {
        match &self.state.lock().refusal {
            Some(refusal) if bytes >= refusal.bytes => Err(refusal.error.clone()),
            _ => Ok(()),
        }
    }

    /// Asks the file system for bytes, and notes a refusal.
    fn ask(&self, offset: u64, bytes: u64) -> Result<()> {
        self.file.allocate(offset, bytes).inspect_err(|error| {
            if error.kind() == ErrorKind::NoSpace {
                let error = error.clone();
                self.state.lock().refusal = Some(Refusal { bytes, error });
            }
        })
    }

    /// Like [`Space::ask`], for bytes that the file does not have. Fails at once if the file system
    /// has refused as many.
    fn obtain(&self, offset: u64, bytes: u64) -> Result<()> {
        self.refused(bytes)?;
        self.ask(offset, bytes)
    }

    /// Takes a free run of the wanted size, and returns its parts that are not allocated yet. The
    /// run at the end of the file is taken last, so that the file can shrink. Without `holes`, only
    /// ready space is taken.
    fn take(&self, wanted: u64, class: SpaceClass, holes: bool) -> Option<(Extent, Vec<Gap>)> {
        let mut state = self.state.lock();
        state.sweep();
        let target = state.reserve_target;
        let free = &mut state.free;
        free.refill_reserve(target);
        if class == SpaceClass::Normal && free.reserve.total() < target {
            return None; // `grow` fills the reserve first
        }
        let tail = Some(free.end);
        let hole = || {
            if holes {
                free.all.fit(wanted, tail)
            } else {
                None
            }
        };
        let tail_hole = || {
            if holes {
                free.all.fit(wanted, None)
            } else {
                None
            }
        };
        let found = free
            .ready
            .fit(wanted, tail)
            .or_else(hole)
            .or_else(|| free.ready.fit(wanted, None))
            .or_else(tail_hole)?;
        let gaps = free.ready.gaps(found).into_iter().map(|extent| Gap {
            extent,
            unasked: free.unasked.overlaps(extent),
        });
        let gaps = gaps.collect();
        free.take(found);
        Some((found, gaps))
    }

    /// Allocates the gaps of a taken extent. On failure the whole extent becomes free again.
    fn fill(&self, extent: Extent, gaps: &[Gap]) -> Result<()> {
        for (i, gap) in gaps.iter().enumerate() {
            let may_be_there = gap.unasked;
            let asked = match self.refused(gap.extent.bytes) {
                Err(error) if !may_be_there => Err((error, true)),
                _ => self
                    .ask(gap.extent.offset, gap.extent.bytes)
                    .map_err(|error| {
                        let is_hole = self.let_go(gap.extent);
                        (error, is_hole)
                    }),
            };
            if let Err((error, is_hole)) = asked {
                let mut state = self.state.lock();
                let free = &mut state.free;
                free.add(extent, true, true);
                for (later, gap) in gaps[i..].iter().enumerate() {
                    free.ready.remove(gap.extent);
                    let may_be_there = if later == 0 { !is_hole } else { gap.unasked };
                    if may_be_there {
                        free.unasked.insert(gap.extent);
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Frees what a failed allocation within the file has left: ext4 allocates a part before it
    /// fails. Returns whether the extent is a hole now.
    fn let_go(&self, extent: Extent) -> bool {
        let punched = self.file.punch_hole(extent.offset, extent.bytes);
        if let Err(error) = &punched {
            tracing::debug!(%error, "a partly allocated extent cannot be punched and stays allocated");
        }
        punched.is_ok()
    }

    /// Makes the file longer: by what `wanted` bytes at its end and the reserve still need, or by a
    /// growth step if that is more.
    fn grow(&self, wanted: u64, class: SpaceClass) -> Result<()> {
        let _resizing = self.resizing.lock();
        let (end, needed) = {
            let state = self.state.lock();
            let free = &state.free;
            let missing = match class {
                SpaceClass::Normal => state.reserve_target.saturating_sub(free.reserve.total()),
                SpaceClass::Reserve => 0,
            };
            let missing = missing
                .saturating_sub(free.ready.total().min(missing))
                .next_multiple_of(EXTENT_ALIGNMENT);
            if missing == 0 && free.ready.fit(wanted, None).is_some() {
                return Ok(()); // another thread grew the file meanwhile
            }
            let tail = free.ready.ending_at(free.end).map_or(0, |run| run.bytes);
            (free.end, missing + wanted.saturating_sub(tail.min(wanted)))
        };
        let needed = needed.max(EXTENT_ALIGNMENT);
        let step = growth_bytes(end);
        let grown = match self.obtain(end, needed.max(step)) {
            Ok(()) => needed.max(step),
            Err(error) if error.kind() == ErrorKind::NoSpace && step > needed => {
                self.obtain(end, needed)?;
                needed
            }
            Err(error) => return Err(error),
        };
        let mut state = self.state.lock();
        state.free.end = end + grown;
        self.file_bytes.store(end + grown, Ordering::Release);
        state.free.add(
            Extent {
                offset: end,
                bytes: grown,
            },
            true,
            true,
        );
        let target = state.reserve_target;
        state.free.refill_reserve(target);
        Ok(())
    }

    /// The last attempts when the file cannot grow. First comes ready space again, because an
    /// allocation in a hole may have failed. Then the call completes the reserve, or takes from it.
    /// Then it exchanges short runs for a long one.
    fn last_resort(&self, wanted: u64, class: SpaceClass, refused: &Error) -> Result<Extent> {
        if let Some((extent, _)) = self.take(wanted, class, false) {
            return Ok(extent);
        }
        match class {
            SpaceClass::Normal => self.complete_reserve()?,
            SpaceClass::Reserve => {
                if let Some(extent) = self.take_reserve(wanted)? {
                    return Ok(extent);
                }
            }
        }
        if let Some(extent) = self.exchange(wanted, class)? {
            return Ok(extent);
        }
        self.unpark();
        if let Some((extent, _)) = self.take(wanted, class, false) {
            return Ok(extent);
        }
        let state = self.state.lock();
        let what = match refused.is_quota() {
            true => "a quota of the file system is met",
            false => "the disk is full",
        };
        Err(Error::new(ErrorKind::NoSpace, what)
            .because_of(refused)
            .with("file", self.file.describe())
            .with("bytes wanted", wanted)
            .with("bytes free in the file", state.free.all.total())
            .with("bytes in reserve", state.free.reserve.total()))
    }

    /// Takes back an extent that could not be written.
    pub(crate) fn park(&self, extent: Extent) {
        let mut state = self.state.lock();
        state.parked.push_back(extent);
        if state.parked.len() > PARKED_MAX
            && let Some(oldest) = state.parked.pop_front()
        {
            state.free.add(oldest, true, true);
        }
    }

    /// Frees all parked extents: an extent that may be bad is better than none.
    fn unpark(&self) {
        let mut state = self.state.lock();
        while let Some(extent) = state.parked.pop_front() {
            state.free.add(extent, true, true);
        }
    }

    /// Notes a page that was written into space handed out.
    pub(crate) fn add_fresh(&self, id: PageId, extent: Extent) {
        self.state.lock().pages.add_fresh(id, extent);
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
    /// name is free. Whether the file system has allocated it is unknown, so it is allocated before
    /// use. After a partial walk nothing is free until the next open.
    pub(crate) fn rebuild(
        &self,
        uses: &mut dyn Iterator<Item = Result<PageUse>>,
        generation: Generation,
        is_whole: bool,
        writable: bool,
    ) -> Result<()> {
        let end = self.file_bytes();
        let mut pages = Pages::default();
        let mut occupied = pages.rebuild(uses, generation, end)?;
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
        let expected = PAGES_START + state.pages.live_bytes() + state.slack() + growth_bytes(end);
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
