//! Watches a simulated disk and asserts on every write what keeps a database whole at a power cut:
//!
//! - D1: no page is overwritten, punched, truncated or removed that a superblock of either slot
//!   reaches, as long as a power cut could leave that superblock.
//! - D2: a slot is written after the pages that it reaches are durable, with the log through
//!   everything that its trees hold; and never while the other slot is in progress. Pages that a
//!   checkpoint frees are still reached from the slot that was not synced, so D1 protects them
//!   until both are.
//! - D3: no log segment goes that one of these superblocks needs.
//!
//! It asks the medium what is durable, so it holds across crashes and for every writer, a running
//! database or a recovery. It walks a tree once for each superblock, and looks up each write in the
//! ranges that they reach.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrapin::verify::{Reach, log_end_on, reach_on};
use terrapin_base::{Env, Error};
use terrapin_disk::sim::{Call, CrashMode, Moment, Op, Probe, Watching};
use terrapin_disk::{File, OpenOptions, SimDisk};
use terrapin_model::Structures;
use terrapin_pages::{DATA_FILE, PAGES_START, SLOT_BYTES, SLOTS};

use crate::Find;

/// Calls that a find shows.
const SHOWN: usize = 12;
/// Bytes of a slot that have a meaning.
const SECTOR: usize = 512;
const RING: &str = "ring";
const SEGMENT_PREFIX: &str = "log-";

/// The checker of one disk; it watches as long as it lives.
pub struct Protocol {
    checker: Arc<Mutex<Checker>>,
    _watching: Watching,
}

impl Protocol {
    /// Watches a disk from now on.
    #[must_use = "it watches as long as it lives"]
    pub fn watch(disk: &SimDisk) -> Protocol {
        let checker = Arc::new(Mutex::new(Checker::default()));
        let told = checker.clone();
        let watching = disk.watch(Box::new(move |probe, call| {
            let mut checker = lock(&told);
            if checker.breach.is_none()
                && let Err(breach) = checker.see(probe, call)
            {
                checker.breach = Some(checker.tell(call, &breach));
            }
        }));
        Protocol {
            checker,
            _watching: watching,
        }
    }

    /// The number of checked changes of the disk.
    ///
    /// # Errors
    ///
    /// The first breach.
    pub fn check(&self) -> Result<u64, Find> {
        let checker = lock(&self.checker);
        match &checker.breach {
            Some(breach) => Err(Find(breach.clone())),
            None => Ok(checker.checked),
        }
    }
}

fn lock(checker: &Mutex<Checker>) -> MutexGuard<'_, Checker> {
    checker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The used sector of a slot.
type Sector = [u8; SECTOR];

/// The content of a slot, and what a power cut may leave there.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct SlotContent {
    current: Option<Sector>,
    durable: Option<Sector>,
}

/// A superblock that was seen.
#[derive(Default)]
struct Root {
    /// None if the slot is torn or was never written.
    reach: Option<Arc<Reach>>,
    /// Whether it was written after everything that it reaches.
    in_order: bool,
}

#[derive(Default)]
struct Checker {
    life: Option<u64>,
    slots: [SlotContent; SLOTS],
    roots: BTreeMap<Sector, Root>,
    /// The reached ranges, ascending and disjoint.
    reached: Vec<Range>,
    checked: u64,
    last: VecDeque<String>,
    breach: Option<String>,
}

/// Bytes of the data file that a superblock reaches.
struct Range {
    start: u64,
    end: u64,
    generation: u64,
}

/// The fault of a call.
type Breach = String;

impl Checker {
    fn see(&mut self, probe: &Probe<'_>, call: &Call<'_>) -> Result<(), Breach> {
        if self.life != Some(probe.life()) {
            self.life = Some(probe.life());
            self.refresh(probe)?;
        }
        if !call.changes() {
            return Ok(());
        }
        match call.moment {
            Moment::Before => {
                self.checked += 1;
                self.note(call);
                self.before(call)
            }
            Moment::After { .. } => self.after(probe, call),
        }
    }

    /// Keeps the last calls for a find to show, without stores into the ring, which are too many to
    /// help.
    fn note(&mut self, call: &Call<'_>) {
        if call.op != Op::RingWrite {
            self.last.push_back(call.to_string());
            if self.last.len() > SHOWN {
                self.last.pop_front();
            }
        }
    }

    fn tell(&self, call: &Call<'_>, breach: &str) -> String {
        let mut text = format!("{breach}\n  at {call}; the last changes before it:");
        for line in &self.last {
            text += &format!("\n    {line}");
        }
        text
    }

    /// D1: what must not be done at all.
    fn before(&self, call: &Call<'_>) -> Result<(), Breach> {
        if call.file != DATA_FILE && call.to != DATA_FILE {
            return Ok(());
        }
        let end = call.offset.saturating_add(call.bytes);
        match call.op {
            Op::Write if call.offset < PAGES_START => {
                let slot = call.offset / SLOT_BYTES;
                if end > (slot + 1) * SLOT_BYTES {
                    return Err("a write goes beyond one superblock slot (D2)".to_owned());
                }
                Ok(())
            }
            Op::Write => self.is_free(call.offset, end, "overwritten"),
            Op::PunchHole => self.is_free(call.offset, end, "punched"),
            Op::SetBytes => self.is_free(call.bytes, u64::MAX, "cut off"),
            Op::Remove | Op::Rename => self.is_free(0, u64::MAX, "removed"),
            _ => Ok(()),
        }
    }

    /// Checks that no superblock, and no page that one reaches, is in the range.
    fn is_free(&self, start: u64, end: u64, what: &str) -> Result<(), Breach> {
        if start < PAGES_START && self.roots.values().any(|root| root.reach.is_some()) {
            return Err(format!("a superblock is {what} (D1)"));
        }
        let at = self.reached.partition_point(|range| range.end <= start);
        match self.reached.get(at) {
            Some(range) if range.start < end => Err(format!(
                "a page within {}..{} is {what} that the superblock of generation {} reaches (D1)",
                range.start, range.end, range.generation
            )),
            _ => Ok(()),
        }
    }

    fn after(&mut self, probe: &Probe<'_>, call: &Call<'_>) -> Result<(), Breach> {
        match call.op {
            Op::Write if call.file == DATA_FILE && call.offset < PAGES_START => {
                self.refresh(probe)?;
                self.slot_in_order(probe, (call.offset / SLOT_BYTES) as usize)
            }
            Op::Sync if call.file == DATA_FILE => self.refresh(probe),
            Op::SyncDirectory => self.refresh(probe),
            Op::Remove | Op::Rename | Op::SetBytes if call.file.starts_with(SEGMENT_PREFIX) => {
                self.log_is_there(probe)
            }
            _ => Ok(()),
        }
    }

    /// Reads what the slots hold and may hold, and walks the trees of new superblocks.
    fn refresh(&mut self, probe: &Probe<'_>) -> Result<(), Breach> {
        let mut slots = [SlotContent::default(); SLOTS];
        for (slot, at) in slots.iter_mut().zip((0..).step_by(SLOT_BYTES as usize)) {
            let mut sector = [0; SECTOR];
            slot.current = probe.read(DATA_FILE, at, &mut sector).then_some(sector);
            slot.durable = probe
                .read_durable(DATA_FILE, at, &mut sector)
                .then_some(sector);
        }
        if slots == self.slots {
            return Ok(());
        }
        self.slots = slots;
        let mut known = std::mem::take(&mut self.roots);
        for sector in slots.iter().flat_map(|s| [s.current, s.durable]).flatten() {
            if self.roots.contains_key(&sector) {
                continue;
            }
            let root = match known.remove(&sector) {
                Some(root) => root,
                None => Root {
                    reach: walk(probe, &sector)
                        .map_err(|error| {
                            format!("a superblock reaches an unsound tree (D1): {error}")
                        })?
                        .map(Arc::new),
                    in_order: false,
                },
            };
            self.roots.insert(sector, root);
        }
        self.reached = merged(self.roots.values().filter_map(|root| root.reach.as_deref()));
        Ok(())
    }

    /// D2, once a slot is written.
    fn slot_in_order(&mut self, probe: &Probe<'_>, written: usize) -> Result<(), Breach> {
        let slot_range = |slot: usize| slot as u64 * SLOT_BYTES..(slot as u64 + 1) * SLOT_BYTES;
        let is_root = |sector: &Sector| {
            self.roots
                .get(sector)
                .is_some_and(|root| root.reach.is_some())
        };
        // Before a slot is durable there is no database.
        let exists = (self.slots.iter()).any(|slot| slot.durable.as_ref().is_some_and(is_root));
        let on_its_way =
            |slot: &usize| *slot != written && !probe.is_durable(DATA_FILE, slot_range(*slot));
        if exists && (0..SLOTS).any(|slot| on_its_way(&slot)) {
            return Err(format!(
                "slot {written} is written while the other is not durable (D2)"
            ));
        }
        let Some(sector) = self.slots[written].current else {
            return Ok(());
        };
        let Some(root) = self.roots.get_mut(&sector).filter(|root| !root.in_order) else {
            return Ok(());
        };
        root.in_order = true;
        let Some(reach) = root.reach.clone() else {
            return Ok(());
        };
        let generation = reach.generation;
        if let Some(range) = (reach.extents.iter())
            .find(|range| !probe.is_durable(DATA_FILE, range.start..range.end))
        {
            return Err(format!(
                "a slot is written with generation {generation} before its page at {range:?} is durable (D2)"
            ));
        }
        if reach.has_log {
            // The segments that a power cut leaves must alone reach through everything that the
            // trees hold.
            let fork = probe.fork();
            fork.crash_power(CrashMode::LoseUnsynced);
            // A closed log needs no ring.
            let empty = probe.bytes(RING).map(|bytes| empty_ring(&fork, bytes));
            let empty = empty.unwrap_or(Ok(()));
            let held = empty.and_then(|()| holds_log(&fork, &reach, reach.log_through));
            held.map_err(|error| {
                format!(
                    "a slot is written with generation {generation} before the log is durable through LSN {} (D2): {error}",
                    reach.log_through
                )
            })?;
        }
        Ok(())
    }

    /// D3, once a segment is gone or shorter.
    fn log_is_there(&self, probe: &Probe<'_>) -> Result<(), Breach> {
        for root in self.roots.values() {
            let Some(reach) = root.reach.as_ref().filter(|reach| reach.has_log) else {
                continue;
            };
            holds_log(&probe.fork(), reach, reach.log_from).map_err(|error| {
                format!(
                    "the log is trimmed that generation {} needs from LSN {} on (D3): {error}",
                    reach.generation, reach.log_from
                )
            })?;
        }
        Ok(())
    }
}

fn open_for_writing(disk: &SimDisk, name: &str) -> Result<Arc<dyn File>, Error> {
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    disk.handle().open(name, options)
}

/// Removes what the kernel's writeback has left of the ring.
fn empty_ring(disk: &SimDisk, bytes: u64) -> Result<(), Error> {
    open_for_writing(disk, RING)?.punch_hole(0, bytes).map(drop)
}

/// The ranges of one superblock's tree, as if it were alone on the disk.
fn walk(probe: &Probe<'_>, sector: &Sector) -> Result<Option<Reach>, Error> {
    let fork = probe.fork();
    let file = open_for_writing(&fork, DATA_FILE)?;
    for slot in 1..SLOTS as u64 {
        file.write_at(&[0; SECTOR], slot * SLOT_BYTES)?;
    }
    file.write_at(sector, 0)?;
    drop(file);
    reach_on(fork.handle(), &Structures::verify_options())
}

fn holds_log(disk: &SimDisk, reach: &Reach, from: terrapin::Lsn) -> Result<(), Error> {
    let (env, _sim) = Env::simulated(0);
    log_end_on(&env, &disk.handle(), reach, from).map(drop)
}

/// The union of ranges, ascending.
fn merged<'a>(all: impl Iterator<Item = &'a Reach>) -> Vec<Range> {
    let mut ranges: Vec<Range> = all
        .flat_map(|reach| {
            reach.extents.iter().map(|extent| Range {
                start: extent.start,
                end: extent.end,
                generation: reach.generation.0,
            })
        })
        .collect();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joins = next.start < last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}
