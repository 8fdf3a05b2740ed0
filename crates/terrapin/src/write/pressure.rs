//! Back-pressure. While a keyspace's sealed memtable is being merged, its writers are held to a
//! pace at which the active memtable is full just when the merge ends: smooth, instead of free
//! running and then a stall. When the disk cannot keep up at all they wait, and after the stall
//! limit get [`ErrorKind::Stalled`]. All of it before the LSN is taken.
//!
//! The pace is a virtual clock per keyspace: every byte written moves it on by (time until the
//! sealed memtable is gone, see `forecast`) / (room the memtable still has), and a writer that
//! finds it ahead of the real clock waits for the difference. Bytes are charged in pieces, each
//! thread's by itself, so that most writes touch one counter only, of their thread's, and see to
//! nothing else; and waits are at least [`WAIT_NS_MIN`], so that they are worth a sleep. The system
//! wakes sleepers late: how late, on average, is taken off what they ask for, and what is too late
//! all the same is credited to the writes that follow. The last part of the memtable is left for
//! forecasts that come too short: a write there waits [`WAIT_NS_MAX`] at most, again and again,
//! before anything waits for the end of the merge however long it takes.
//!
//! The last quarter of the log's ring is left for the disk's hiccups: for each piece a writer waits
//! the shortest time while less than three fourths of that are in use, which takes two writers tens
//! of milliseconds to fill, as long as most hiccups take; then longer and longer, up to
//! [`WAIT_NS_MAX`]; and only behind it all writers wait for as long as the disk takes. A record
//! that waits for room counts as in use already, or writers of short ones would take it from a long
//! one.
//!
//! While writers are held to a pace, one that comes to the end of a piece naps for a moment if
//! another one should have been awake already (`turns`), or fell asleep until others have
//! published. What it loses by that is credited, which it would not be to one that runs freely.

use std::sync::Arc;
use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::{Condition, Error, ErrorKind, Purpose, Result, Wait};
use terrapin_wal::Log;

use crate::engine::core::{Core, Loaded};
use crate::engine::state::{KeyspaceShared, KeyspaceState};
use crate::metrics::{Counter, Histogram};
use crate::write::patience::{Mark, Patience};

/// A shorter wait is left to add up.
const WAIT_NS_MIN: u64 = 75_000;
/// What a writer asks for that lets another one have its processor: the least that the system does.
const NAP_NS: u64 = 1_000;
/// One wait for pace at most; the pace is computed anew after it.
const WAIT_NS_MAX: u64 = 5_000_000;
/// How far the virtual clock may be behind the real one: what a writer loses that waits for a
/// processor as long as others may keep it.
const CREDIT_NS: u64 = 5_000_000;
/// More than that is not expected of how late sleepers wake.
const LATE_NS_MAX: u64 = 60_000;
const _: () = assert!(LATE_NS_MAX < WAIT_NS_MIN);
/// The part of the memtable that forecasts do not count on.
const MARGIN_SHARE: u64 = 32;
/// Bytes after which the virtual clock is moved, unless a memtable is so small that a 64th of it is
/// less.
const PIECE_BYTES: u64 = 2 << 10;

impl Core {
    /// Lets a write of so many bytes go on, at once or after a wait. `frees`: it only deletes, and
    /// may go on while the disk is full (D10).
    #[inline]
    pub fn admit(
        &self,
        shared: &Arc<KeyspaceShared>,
        bytes: u64,
        frees: bool,
        patience: &mut Patience,
    ) -> Result<Admitted> {
        self.health.check_open()?;
        let pieces = shared.pace.pieces(bytes, shared.piece_bytes());
        let state = self.load_state();
        let Some(keyspace) = state.keyspaces.get(shared.id) else {
            return Err(self.dropped().with("keyspace", &shared.name));
        };
        let free_running = (pieces == 0 || keyspace.sealed.is_none())
            && self.budget.used(Purpose::Memtable) <= self.memtable_memory_max();
        if pieces == 0 && free_running && !self.schedule.space_is_short() {
            return Ok(Admitted {
                state: Some(state),
                looks: false,
            });
        }
        drop(state);
        self.admit_piece(shared, (bytes, pieces, frees), free_running, patience)?;
        Ok(Admitted {
            state: None,
            looks: pieces > 0,
        })
    }

    /// The rest of [`Core::admit`], for a write that completes a piece, or may have to wait.
    fn admit_piece(
        &self,
        shared: &Arc<KeyspaceShared>,
        (bytes, pieces, frees): (u64, u64, bool),
        free_running: bool,
        patience: &mut Patience,
    ) -> Result<()> {
        if pieces > 0 {
            self.spare_the_ring(shared)?;
            if !free_running {
                self.give_turns(shared)?;
            }
        }
        if !free_running || self.schedule.space_is_short() {
            self.admit_slowly(shared, (bytes, pieces, frees), patience)?;
        }
        Ok(())
    }

    /// A wait if the last quarter of the log's ring is in use: see the head of this file.
    #[inline]
    fn spare_the_ring(&self, shared: &KeyspaceShared) -> Result<()> {
        let Some(log) = self.log.as_ref() else {
            return Ok(());
        };
        let (used, ring) = log.ring_fill();
        match used.checked_sub(ring / 4 * 3) {
            Some(beyond @ 1..) => {
                self.let_it_be_drained(log, beyond, ring / 4, shared.pace.late_ns())
            }
            _ => Ok(()),
        }
    }

    /// A nap if another writer seems to want the processor.
    #[inline]
    fn give_turns(&self, shared: &KeyspaceShared) -> Result<()> {
        let is_held_up = self.log.as_ref().is_some_and(Log::left_asleep);
        if is_held_up || self.turns.is_somebody_overdue(|| self.env.now_ns()) {
            self.give_turn(shared.pace.late_ns())?;
        }
        Ok(())
    }

    #[cold]
    fn give_turn(&self, late_ns: u64) -> Result<()> {
        let since = self.env.now_ns();
        let until = since + NAP_NS;
        let nap = Condition::delay_until(until);
        self.stand_back(&nap, since, until + late_ns, &self.counters.waits.turn)
    }

    #[cold]
    fn let_it_be_drained(&self, log: &Log, beyond: u64, quarter: u64, late_ns: u64) -> Result<()> {
        let since = self.env.now_ns();
        let back = since + ring_wait_ns(beyond, quarter);
        let drained = log.drained_to(2 * quarter).until(back - late_ns);
        self.stand_back(&drained, since, back, &self.counters.waits.log)
    }

    /// A wait from `since` on that is to be over at `back_ns`, and counts as a wait of a write.
    fn stand_back(
        &self,
        condition: &Condition,
        since: u64,
        back_ns: u64,
        waits: &Histogram,
    ) -> Result<()> {
        let asleep = self.turns.sleep_until(back_ns);
        self.env.wait(condition)?;
        drop(asleep);
        let waited = self.env.now_ns().saturating_sub(since);
        waits.record(waited);
        self.counters.write_wait_ns.add(waited);
        Ok(())
    }

    #[cold]
    fn admit_slowly(
        &self,
        shared: &Arc<KeyspaceShared>,
        (bytes, pieces, frees): (u64, u64, bool),
        patience: &mut Patience,
    ) -> Result<()> {
        let since = self.env.now_ns();
        let deadline = patience.until_ns(self);
        if frees && !self.let_the_log_be_trimmed(bytes, patience)? {
            return Err(self.log_is_not_trimmed(since));
        }
        let mut charged = false;
        let mut was_sealed = false;
        loop {
            self.health.check_open()?;
            // Read before the log's failure, which is told as a release, and before the state: a
            // merge that ends in between is then seen by the wait's condition.
            let (releases, aside) = (self.schedule.releases(), self.schedule.aside_count());
            if let Some(error) = self.log.as_ref().and_then(|log| log.failed()) {
                return Err(error);
            }
            if !frees {
                self.check_room()?;
            }
            let wait = {
                let state = self.state.load();
                let Some(keyspace) = state.keyspaces.get(shared.id) else {
                    return Err(self.dropped().with("keyspace", &shared.name));
                };
                let memory_is_short =
                    self.budget.used(Purpose::Memtable) > self.memtable_memory_max();
                let is_held = keyspace.sealed.is_some();
                let is_releasing = self.schedule.releasing_count() > 0;
                let seal = keyspace.sealed.as_ref().map(|sealed| sealed.seal.0);
                let is_full = is_held && keyspace.is_full();
                let waits_for_its_own = is_full || (memory_is_short && !is_releasing);
                if memory_is_short && !is_releasing && !was_sealed && !is_full {
                    Hold::CutFirst
                } else if let Some(seal) = seal.filter(|_| waits_for_its_own) {
                    Hold::UntilRelease(&shared.stalled, seal)
                } else if memory_is_short && is_releasing {
                    Hold::UntilRelease(&self.marks.memory, self.schedule.seals())
                } else if !is_held || charged {
                    // Where memory is short nothing of it is in memtables that a merge could free,
                    // but of keyspaces whose own writers wait for that.
                    Hold::No
                } else {
                    charged = true;
                    self.pace(keyspace, pieces)
                }
            };
            let now = self.env.now_ns();
            let mut in_vain = None;
            let paced = matches!(wait, Hold::Until(_));
            let waits = match paced {
                true => &self.counters.waits.pace,
                false => &self.counters.waits.merge,
            };
            let wait = match wait {
                Hold::No => break,
                Hold::CutFirst => {
                    self.cut_largest();
                    was_sealed = true;
                    continue;
                }
                Hold::Until(at) => at,
                Hold::UntilRelease(mark, progress) if mark.holds(progress) => {
                    return Err(self.does_not_keep_up(shared, since));
                }
                Hold::UntilRelease(mark, progress) => {
                    in_vain = Some((mark, progress));
                    deadline
                }
            };
            let schedule = self.schedule.clone();
            let released = Condition::new(self.schedule.progress(), move || {
                schedule.releases() != releases || schedule.aside_count() != aside
            });
            let asleep = paced.then(|| self.turns.sleep_until(wait + shared.pace.late_ns()));
            let stalled = in_vain.is_some().then(|| {
                let cause = "merges do not keep up";
                self.stalls
                    .merge
                    .begin(&self.env, cause, Some(&shared.name))
            });
            let outcome = self.env.wait(&released.until(wait))?;
            drop((asleep, stalled));
            was_sealed = false;
            let waited_from = now;
            let now = now.max(self.env.now_ns());
            waits.record(now - waited_from);
            if paced && outcome == Wait::TimedOut {
                shared.pace.late(now.saturating_sub(wait));
            }
            // Who was only paced finds room, or comes to wait for some.
            if let Some((mark, progress)) = in_vain
                && outcome == Wait::TimedOut
                && now >= deadline
            {
                mark.leave(progress);
                return Err(self.does_not_keep_up(shared, since));
            }
        }
        self.counters
            .write_wait_ns
            .add(self.env.now_ns().saturating_sub(since));
        Ok(())
    }

    /// Why a write is refused that waited since then, or that would wait for what another one has
    /// waited for in vain.
    fn does_not_keep_up(&self, shared: &KeyspaceShared, since: u64) -> Error {
        let waited = self.env.now_ns().saturating_sub(since);
        self.counters.writes_refused.add(1);
        self.counters.write_wait_ns.add(waited);
        let error = Error::new(
            ErrorKind::Stalled,
            "the write was not done: merging does not keep up; until it has made room, writes that need room fail at once",
        )
        .with("keyspace", &shared.name)
        .with("waited_ms", waited / 1_000_000)
        .with("limit_ms", self.settings.stall_limit_ns / 1_000_000);
        match self.health.background_error() {
            Some(cause) => error.with("last background error", cause),
            None => error,
        }
    }

    /// [`ErrorKind::NoSpace`] while the disk is full: for what does not free any.
    pub fn check_room(&self) -> Result<()> {
        if !self.schedule.space_is_short() || self.room_came_back() {
            return Ok(());
        }
        let error = self.no_room();
        Err(match self.schedule.last_error() {
            Some(cause) => error.with("last error", cause),
            None => error,
        })
    }

    /// A delete on a full disk leaves the log what a checkpoint needs of it: it waits for one that
    /// trims it. If one fails, or merges everything and trims too little, the delete goes on, and
    /// the log says what is the matter. False where none has ended in time.
    pub fn let_the_log_be_trimmed(&self, bytes: u64, patience: &mut Patience) -> Result<bool> {
        let Some(log) = self.log.as_ref() else {
            return Ok(true);
        };
        if !self.schedule.space_is_short() || !log.files_are_short(bytes) {
            return Ok(true);
        }
        // Read before the log's failure, as in `recovery::make_room`.
        let (schedule, failures) = (self.schedule.clone(), self.schedule.failures());
        if let Some(error) = log.failed() {
            return Err(error);
        }
        let progress = self.schedule.durable_through().0;
        let through = log.end();
        self.schedule.ask(through);
        let mut is_over = self.marks.trim.holds(progress);
        if !is_over {
            let trimmed = log.clone();
            let over = Condition::new(self.schedule.progress(), move || {
                !trimmed.files_are_short(bytes)
                    || schedule.durable_through() >= through
                    || schedule.failures() != failures
                    || schedule.is_stopping()
            });
            let outcome = self.env.wait(&over.until(patience.until_ns(self)))?;
            is_over = outcome == Wait::TimedOut;
        }
        if !is_over || !log.files_are_short(bytes) {
            return Ok(true);
        }
        self.marks.trim.leave(progress);
        Ok(false)
    }

    /// Why a delete is refused that waited since then for the log of a full disk to be trimmed, or
    /// that another one has waited for in vain.
    fn log_is_not_trimmed(&self, since: u64) -> Error {
        let waited = self.env.now_ns().saturating_sub(since);
        self.counters.writes_refused.add(1);
        self.counters.write_wait_ns.add(waited);
        let what = self.what_is_full();
        let error = Error::new(
            ErrorKind::Stalled,
            format!("the write was not done: {what}, and no checkpoint has shortened the log; until one has, deletes fail at once"),
        )
        .with("waited_ms", waited / 1_000_000)
        .with("limit_ms", self.settings.stall_limit_ns / 1_000_000);
        match self.schedule.last_error() {
            Some(cause) => error.with("last error", cause),
            None => error,
        }
    }

    /// Charges pieces to the keyspace's virtual clock; whether, and until when, the writer waits
    /// for it.
    fn pace(&self, keyspace: &KeyspaceState, pieces: u64) -> Hold<'static> {
        if pieces == 0 {
            return Hold::No;
        }
        let shared = &keyspace.shared;
        let limit = shared.memtable_bytes.load(Ordering::Relaxed);
        let piece = shared.piece_bytes();
        let now = self.env.now_ns();
        let aim = limit - limit / MARGIN_SHARE;
        let room = u128::from(aim.saturating_sub(keyspace.active_bytes()).max(piece));
        let left_ns = u128::from(shared.forecast.left_ns(now));
        let cost = u64::try_from(u128::from(pieces * piece) * left_ns / room).unwrap_or(u64::MAX);
        match shared.pace.charge(cost, now) {
            Some(until) => Hold::Until(until),
            None => Hold::No,
        }
    }
}

/// How long a writer of a piece waits when so much of the ring's last quarter is in use.
fn ring_wait_ns(beyond: u64, quarter: u64) -> u64 {
    let part = (quarter / 4).max(1);
    let steep = beyond
        .saturating_sub(quarter.saturating_sub(part))
        .min(part);
    let wait_ns = u128::from(WAIT_NS_MAX) * u128::from(steep) / u128::from(part);
    (wait_ns as u64).max(WAIT_NS_MIN)
}

impl KeyspaceShared {
    /// Bytes of a piece: see the head of this file.
    #[inline]
    fn piece_bytes(&self) -> u64 {
        let limit = self.memtable_bytes.load(Ordering::Relaxed);
        PIECE_BYTES.min(limit / 64).max(1)
    }
}

/// The pace of a keyspace's writers: see the head of this file.
#[derive(Default)]
pub(crate) struct Pace {
    /// Bytes written.
    bytes: Counter,
    /// The virtual clock.
    clock_ns: AtomicU64,
    /// How much longer than asked for waits take: a moving average.
    late_ns: AtomicU64,
}

impl Pace {
    /// Counts bytes; how many pieces they complete.
    #[inline]
    fn pieces(&self, bytes: u64, piece: u64) -> u64 {
        let before = self.bytes.add_to_own(bytes);
        (before + bytes) / piece - before / piece
    }

    /// Moves the clock on; until when to wait, if it is so far ahead that a wait is worth it.
    fn charge(&self, cost_ns: u64, now_ns: u64) -> Option<u64> {
        let cost_ns = cost_ns.min(WAIT_NS_MAX);
        let next = |clock: u64| {
            clock.clamp(now_ns.saturating_sub(CREDIT_NS), now_ns + WAIT_NS_MAX) + cost_ns
        };
        let clock = self
            .clock_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |clock| {
                Some(next(clock))
            })
            .map_or(now_ns, next);
        let late_ns = self.late_ns();
        (clock > now_ns + WAIT_NS_MIN).then(|| clock.min(now_ns + WAIT_NS_MAX) - late_ns)
    }

    /// How much longer than asked for waits take.
    fn late_ns(&self) -> u64 {
        self.late_ns.load(Ordering::Relaxed)
    }

    /// A wait ended so much later than it was to.
    fn late(&self, late_ns: u64) {
        let before = self.late_ns.load(Ordering::Relaxed);
        let after = before - before / 16 + late_ns.min(LATE_NS_MAX) / 16;
        self.late_ns.store(after, Ordering::Relaxed);
    }
}

/// A write that may go on.
pub(crate) struct Admitted {
    /// The state that admitted it, if it did not have to look further.
    pub state: Option<Loaded>,
    /// Whether it is one of those that are to look whether the memtable is full.
    pub looks: bool,
}

enum Hold<'a> {
    /// Goes on.
    No,
    /// Waits for its pace.
    Until(u64),
    /// Waits until a merge is done and its memtable gone, unless another one did so in vain at that
    /// progress.
    UntilRelease(&'a Mark, u64),
    /// Memtable memory is short and nothing sealed is about to free any: something has to be, if
    /// anything can.
    CutFirst,
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;
    use terrapin_disk::SimDisk;
    use terrapin_disk::sim::{Fault, FaultError, Op};

    use super::*;
    use crate::Options;

    #[test]
    fn waits_for_the_ring_are_short_until_its_last_sixteenth_and_long_at_its_end() {
        const QUARTER: u64 = 4 << 20;
        assert_eq!(ring_wait_ns(1, QUARTER), WAIT_NS_MIN);
        assert_eq!(ring_wait_ns(QUARTER / 4 * 3, QUARTER), WAIT_NS_MIN);
        assert_eq!(ring_wait_ns(QUARTER / 8 * 7, QUARTER), WAIT_NS_MAX / 2);
        assert_eq!(ring_wait_ns(QUARTER, QUARTER), WAIT_NS_MAX);
        assert_eq!(ring_wait_ns(2 * QUARTER, QUARTER), WAIT_NS_MAX);
        assert_eq!(ring_wait_ns(1, 0), WAIT_NS_MAX);
    }

    /// It waited for the whole stall limit for a checkpoint that nobody would try any more.
    #[test]
    fn a_delete_on_a_full_disk_learns_at_once_of_a_log_that_failed() {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let database = Options::small()
            .open_on(env.clone(), disk.handle())
            .unwrap();
        let keyspace = database.default_keyspace();
        let no_room = Fault::nth(1, FaultError::NoSpace).on(Op::Allocate);
        disk.inject(no_room.of("spare-").lasting());
        let core = database.core();
        let log = core.log().unwrap();
        // So much at once that nothing of the log can be trimmed.
        sim.set_breathing(false);
        for number in 0..2000_u32 {
            if core.schedule.space_is_short() {
                break;
            }
            let _ = keyspace.put(number.to_be_bytes(), [7; 200]);
        }
        assert!(core.schedule.space_is_short() && log.files_are_short(1000));
        log.poison(Error::internal("on purpose"));
        core.schedule.ask(log.end());
        sim.settle();
        assert!(core.schedule.failures() > 0);
        let since = env.now_ns();
        let error = keyspace.delete([0; 4]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        assert!(env.now_ns() - since < 1_000_000_000);
        assert!(database.close().is_err());
    }
}
