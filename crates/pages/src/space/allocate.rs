//! Allocation: takes free space, has the file system allocate what it needs, and grows the file.

use terrapin_base::sync::Ordering;
use terrapin_base::{EXTENT_ALIGNMENT, Error, ErrorKind, Result};

use super::{Refusal, Space};
use crate::page::Extent;

/// The file grows by this share (1/n) of itself, within these bounds. An allocation takes
/// microseconds, so little space is kept ahead.
const GROWTH_BYTES_MIN: u64 = 1 << 20;
const GROWTH_BYTES_MAX: u64 = 16 << 20;
const GROWTH_SHARE: u64 = 128;
/// Extents that could not be written and stay unused. When there are more, the oldest becomes free
/// again.
const PARKED_MAX: usize = 16;

/// How much a file of this length grows at once.
pub(super) fn growth_bytes(file_bytes: u64) -> u64 {
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

/// A part of an extent that is not known to be allocated.
pub(super) struct Gap {
    extent: Extent,
    /// The file system was not asked yet whether this gap is allocated.
    unasked: bool,
}

impl Space {
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
    pub(super) fn take(
        &self,
        wanted: u64,
        class: SpaceClass,
        holes: bool,
    ) -> Option<(Extent, Vec<Gap>)> {
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
    pub(super) fn let_go(&self, extent: Extent) -> bool {
        let punched = self.file.punch_hole(extent.offset, extent.bytes);
        if let Err(error) = &punched {
            tracing::debug!(%error, "a partly allocated extent cannot be punched and stays allocated");
        }
        punched.is_ok()
    }

    /// Makes the file longer: by what `wanted` bytes at its end and the reserve still need, or by a
    /// growth step if that is more.
    pub(super) fn grow(&self, wanted: u64, class: SpaceClass) -> Result<()> {
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
}
