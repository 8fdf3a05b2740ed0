//! Backpressure: how a write is admitted, before its LSN is taken.
//!
//! Writers are slowed in steps, so that few of them have to stop:
//!
//! 1. While the keyspace's sealed memtable is being merged, writers keep a pace at which the active
//!    memtable is full just when the merge ends (`pace`, `forecast`). The pace leaves the last
//!    thirty-second of the memtable for forecasts that are too short. There a write waits
//!    [`WAIT_NS_MAX`] at most, again and again.
//! 2. While the last quarter of the log's ring is in use, a writer waits for each piece that it
//!    writes. The wait is the shortest one until three fourths of that quarter are in use: two
//!    writers take tens of milliseconds to fill these, which is as long as most hiccups of a disk
//!    take. Then it grows to [`WAIT_NS_MAX`]. A record that waits for room counts as in use, or
//!    writers of short records would take the room from a long one.
//! 3. With a recovery target, a write that would keep more log than a replay reads in that time
//!    waits for a checkpoint (`pacing::replay`).
//! 4. When memtable memory is short, the largest memtables are sealed, and writers wait until a
//!    merge frees some memory.
//! 5. When the active memtable is full and the sealed one is still there, writers wait for the end
//!    of the merge. After the stall limit a write fails with [`ErrorKind::Stalled`].
//!
//! A paced writer that completes a piece also naps for a moment if another writer should have been
//! awake already (`yielding`), or fell asleep until others have published. The pace credits what
//! the nap takes. A writer that runs freely would not be credited, and does not nap.

use std::sync::Arc;
use terrapin_base::sync::Ordering;

use terrapin_base::{Condition, Error, ErrorKind, Lsn, Purpose, Result, Wait, mutant};
use terrapin_wal::Log;

use crate::disk_space::room;
use crate::engine::core::{Core, Loaded};
use crate::engine::state::{KeyspaceShared, KeyspaceState};
use crate::metrics::Histogram;
use crate::pacing::pace::{WAIT_NS_MAX, WAIT_NS_MIN, piece_bytes};
use crate::pacing::patience::{Mark, Patience};

/// What a writer asks for that lets another one have its processor: the least that the system does.
const NAP_NS: u64 = 1_000;
/// The part of the memtable that the pace leaves free.
const MARGIN_PART: u64 = 32;

impl Core {
    /// [`Core::admit`], out of line: for callers whose own copy would keep the compiler from
    /// inlining it in puts.
    #[inline(never)]
    pub fn admit_apart(
        &self,
        shared: &Arc<KeyspaceShared>,
        bytes: u64,
        frees: bool,
        patience: &mut Patience,
    ) -> Result<Admitted> {
        self.admit(shared, bytes, frees, patience)
    }

    /// Lets a write go on, at once or after a wait. `frees` says that the write only deletes: it
    /// may go on while the disk is full (D10).
    #[inline(always)]
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
        if pieces == 0 && free_running && !self.schedule.disk_is_full() {
            return Ok(Admitted {
                state: Some(state),
                looks: false,
            });
        }
        drop(state);
        let write = Write {
            bytes,
            pieces,
            frees,
        };
        self.admit_piece(shared, write, free_running, patience)?;
        Ok(Admitted {
            state: None,
            looks: pieces > 0,
        })
    }

    /// Admits a write that completes a piece, or may have to wait.
    fn admit_piece(
        &self,
        shared: &Arc<KeyspaceShared>,
        write: Write,
        free_running: bool,
        patience: &mut Patience,
    ) -> Result<()> {
        if write.pieces > 0 {
            self.spare_the_ring(shared)?;
            self.spare_the_replay(shared, write.bytes, patience)?;
            if !free_running {
                self.yield_if_overdue(shared)?;
            }
        }
        if !free_running || self.schedule.disk_is_full() {
            self.admit_slowly(shared, write, patience)?;
        }
        Ok(())
    }

    /// Waits if the last quarter of the log's ring is in use.
    #[inline]
    fn spare_the_ring(&self, shared: &KeyspaceShared) -> Result<()> {
        let Some(log) = self.log.as_ref() else {
            return Ok(());
        };
        let (used, ring) = log.ring_fill();
        match used.checked_sub(ring / 4 * 3) {
            Some(beyond @ 1..) => {
                self.wait_for_the_drain(log, beyond, ring / 4, shared.pace.late_ns())
            }
            _ => Ok(()),
        }
    }

    /// Waits while a write of `bytes` would make the next open replay more than it may.
    #[inline]
    fn spare_the_replay(
        &self,
        shared: &KeyspaceShared,
        bytes: u64,
        patience: &mut Patience,
    ) -> Result<()> {
        if !self.replay_bound.holds(self.replay_bytes() + bytes) {
            return Ok(());
        }
        self.wait_for_shorter_replay(shared, bytes, patience)
    }

    #[cold]
    fn wait_for_shorter_replay(
        &self,
        shared: &KeyspaceShared,
        bytes: u64,
        patience: &mut Patience,
    ) -> Result<()> {
        let since = self.env.now_ns();
        let deadline = patience.until_ns(&self.env, self.settings.stall_limit_ns);
        let cause = "a checkpoint must shorten the log for the recovery target";
        let stalled = self
            .stalls
            .merge
            .begin(&self.env, cause, Some(&shared.name));
        loop {
            self.health.check_open()?;
            let (failures, releases) = (self.schedule.failures(), self.schedule.releases());
            let durable = self.schedule.durable_through();
            let kept = self.replay_bytes();
            let gives_way = self.schedule.disk_is_full()
                || self.schedule.last_error().is_some()
                || !self.ingests.held().is_empty()
                || self.marks.replay.holds(durable.0)
                || !self.replay_bound.is_due(kept, durable)
                || mutant::active("recovery-target-holds-nobody");
            if gives_way || !self.replay_bound.holds(kept + bytes) {
                break;
            }
            self.log_is_long(kept, durable);
            let schedule = self.schedule.clone();
            let shortened = Condition::new(self.schedule.progress(), move || {
                schedule.durable_through() != durable
                    || schedule.failures() != failures
                    || schedule.releases() != releases
                    || schedule.is_stopping()
                    || schedule.disk_is_full()
            });
            if self.env.wait(&shortened.until(deadline))? == Wait::TimedOut {
                self.marks.replay.leave(durable.0);
            }
        }
        drop(stalled);
        let waited = self.env.now_ns().saturating_sub(since);
        self.counters.waits.merge.record(waited);
        self.counters.write_wait_ns.add(waited);
        Ok(())
    }

    /// The log is longer than it should be: asks for a checkpoint that shortens it.
    #[cold]
    pub fn log_is_long(&self, kept: u64, durable: Lsn) {
        if kept > self.settings.log_bytes_max {
            self.schedule.shorten_log();
        }
        if self.replay_bound.asks(kept, durable) {
            self.schedule.work().notify();
        }
    }

    /// Naps if another writer seems to want the processor.
    #[inline]
    fn yield_if_overdue(&self, shared: &KeyspaceShared) -> Result<()> {
        let is_held_up = self.log.as_ref().is_some_and(Log::left_asleep);
        if is_held_up || self.turns.is_any_overdue(|| self.env.now_ns()) {
            self.nap(shared.pace.late_ns())?;
        }
        Ok(())
    }

    #[cold]
    fn nap(&self, late_ns: u64) -> Result<()> {
        let since = self.env.now_ns();
        let until_ns = since + NAP_NS;
        let nap = Condition::delay_until(until_ns);
        self.stand_back(&nap, since, until_ns + late_ns, &self.counters.waits.turn)
    }

    #[cold]
    fn wait_for_the_drain(&self, log: &Log, beyond: u64, quarter: u64, late_ns: u64) -> Result<()> {
        let since = self.env.now_ns();
        let back = since + ring_wait_ns(beyond, quarter);
        let drained = log.drained_to(2 * quarter).until(back - late_ns);
        self.stand_back(&drained, since, back, &self.counters.waits.log)
    }

    /// Waits, from `since` on and until about `back_ns`, and counts that as a wait of a write.
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
        write: Write,
        patience: &mut Patience,
    ) -> Result<()> {
        let since = self.env.now_ns();
        let deadline = patience.until_ns(&self.env, self.settings.stall_limit_ns);
        if write.frees && !self.let_the_log_be_trimmed(write.bytes, patience)? {
            return Err(self.log_is_not_trimmed(since));
        }
        let mut done = Done::default();
        loop {
            self.health.check_open()?;
            // Read before the log's failure, which is announced as a release, and before the state:
            // then the wait's condition sees a merge that ends in between.
            let (releases, aside) = (self.schedule.releases(), self.schedule.aside_count());
            if let Some(error) = self.log.as_ref().and_then(|log| log.failed()) {
                return Err(error);
            }
            if !write.frees {
                self.check_room()?;
            }
            let wait = self.hold(shared, write.pieces, &mut done)?;
            let now = self.env.now_ns();
            let mut in_vain = None;
            let paced = matches!(wait, Hold::Until(_));
            let waits = match paced {
                true => &self.counters.waits.pace,
                false => &self.counters.waits.merge,
            };
            let wait = match wait {
                Hold::No => break,
                Hold::SealFirst => {
                    self.seal_largest();
                    done.sealed = true;
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
            done.sealed = false;
            let waited_from = now;
            let now = now.max(self.env.now_ns());
            waits.record(now - waited_from);
            if paced && outcome == Wait::TimedOut {
                shared.pace.late(now.saturating_sub(wait));
            }
            // A write that was only paced finds room now, or waits for some in the next turn.
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

    /// What a write waits for next.
    fn hold<'a>(
        &'a self,
        shared: &'a KeyspaceShared,
        pieces: u64,
        done: &mut Done,
    ) -> Result<Hold<'a>> {
        let state = self.state.load();
        let Some(keyspace) = state.keyspaces.get(shared.id) else {
            return Err(self.dropped().with("keyspace", &shared.name));
        };
        let memory_is_short = self.budget.used(Purpose::Memtable) > self.memtable_memory_max();
        let is_held = keyspace.sealed.is_some();
        let is_releasing = self.schedule.releasing_count() > 0;
        let seal = keyspace.sealed.as_ref().map(|sealed| sealed.seal.0);
        let is_full = is_held && keyspace.is_full();
        let waits_for_its_own = is_full || (memory_is_short && !is_releasing);
        if memory_is_short && !is_releasing && !done.sealed && !is_full {
            return Ok(Hold::SealFirst);
        }
        if let Some(seal) = seal.filter(|_| waits_for_its_own) {
            return Ok(Hold::UntilRelease(&shared.stalled, seal));
        }
        if memory_is_short && is_releasing {
            return Ok(Hold::UntilRelease(
                &self.marks.memory,
                self.schedule.seals(),
            ));
        }
        if !is_held || done.charged {
            // If memory is short, a merge could free only memtables of keyspaces whose own writers
            // wait for that.
            return Ok(Hold::No);
        }
        done.charged = true;
        Ok(self.pace(keyspace, pieces))
    }

    /// The error of a write that has waited since `since`, or that would wait for what another
    /// write has waited for in vain.
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

    /// Refuses a write that frees no space while the disk is full, with [`ErrorKind::NoSpace`].
    pub fn check_room(&self) -> Result<()> {
        if !self.schedule.disk_is_full() || room::room_came_back(self) {
            return Ok(());
        }
        let error = room::no_room(self);
        Err(match self.schedule.last_error() {
            Some(cause) => error.with("last error", cause),
            None => error,
        })
    }

    /// Waits for a checkpoint that trims the log, before a delete on a full disk takes what that
    /// checkpoint needs of the log. If a checkpoint fails, or trims too little, the delete goes on,
    /// and the append reports the cause. Returns false if no checkpoint ended in time.
    pub fn let_the_log_be_trimmed(&self, bytes: u64, patience: &mut Patience) -> Result<bool> {
        let Some(log) = self.log.as_ref() else {
            return Ok(true);
        };
        if !self.schedule.disk_is_full() || !log.files_are_short(bytes) {
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
            let outcome = self
                .env
                .wait(&over.until(patience.until_ns(&self.env, self.settings.stall_limit_ns)))?;
            is_over = outcome == Wait::TimedOut;
        }
        if !is_over || !log.files_are_short(bytes) {
            return Ok(true);
        }
        self.marks.trim.leave(progress);
        Ok(false)
    }

    /// The error of a delete that has waited since `since` for a checkpoint to trim the log of a
    /// full disk, or that would wait for what another delete has waited for in vain.
    fn log_is_not_trimmed(&self, since: u64) -> Error {
        let waited = self.env.now_ns().saturating_sub(since);
        self.counters.writes_refused.add(1);
        self.counters.write_wait_ns.add(waited);
        let what = room::what_is_full(self);
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

    /// Charges pieces to the keyspace's pace. Returns until when the writer waits for it, if it
    /// does.
    fn pace(&self, keyspace: &KeyspaceState, pieces: u64) -> Hold<'static> {
        if pieces == 0 {
            return Hold::No;
        }
        let shared = &keyspace.shared;
        let limit = shared.memtable_bytes.load(Ordering::Relaxed);
        let piece = shared.piece_bytes();
        let now = self.env.now_ns();
        let aim = limit - limit / MARGIN_PART;
        let room = u128::from(aim.saturating_sub(keyspace.active_bytes()).max(piece));
        let left_ns = u128::from(shared.forecast.left_ns(now));
        let cost = u64::try_from(u128::from(pieces * piece) * left_ns / room).unwrap_or(u64::MAX);
        match shared.pace.charge(cost, now) {
            Some(until) => Hold::Until(until),
            None => Hold::No,
        }
    }
}

/// How long a writer of a piece waits when `beyond` bytes of the ring's last quarter are in use.
fn ring_wait_ns(beyond: u64, quarter: u64) -> u64 {
    let part = (quarter / 4).max(1);
    let steep = beyond
        .saturating_sub(quarter.saturating_sub(part))
        .min(part);
    let wait_ns = u128::from(WAIT_NS_MAX) * u128::from(steep) / u128::from(part);
    (wait_ns as u64).max(WAIT_NS_MIN)
}

impl KeyspaceShared {
    /// Bytes after which a thread charges what it wrote.
    #[inline]
    fn piece_bytes(&self) -> u64 {
        piece_bytes(self.memtable_bytes.load(Ordering::Relaxed))
    }
}

/// A write that may go on.
pub(crate) struct Admitted {
    /// The state that admitted it, if one look at the state was enough.
    pub state: Option<Loaded>,
    /// Whether the write is to look whether the memtable is full: one write of each piece does.
    pub looks: bool,
}

/// A write that is being admitted.
#[derive(Clone, Copy)]
struct Write {
    bytes: u64,
    /// Pieces that it completes.
    pieces: u64,
    /// It only deletes, and may go on while the disk is full.
    frees: bool,
}

/// What a write that is being admitted has done already.
#[derive(Default)]
struct Done {
    /// It charged its pieces to the pace.
    charged: bool,
    /// It sealed memtables, and has not waited since.
    sealed: bool,
}

/// What a write waits for.
enum Hold<'a> {
    /// Nothing.
    No,
    /// Its pace, until this time.
    Until(u64),
    /// The end of a merge. It fails at once if another write did so in vain at this progress.
    UntilRelease(&'a Mark, u64),
    /// Memtable memory is short, and no merge is about to free any: memtables are sealed first.
    SealFirst,
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

    /// The delete waited for the whole stall limit for a checkpoint that was not tried any more.
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
        // Nothing of the log can be trimmed while the jobs rest.
        sim.set_breathing(false);
        for number in 0..2000_u32 {
            if core.schedule.disk_is_full() {
                break;
            }
            let _ = keyspace.put(number.to_be_bytes(), [7; 200]);
        }
        assert!(core.schedule.disk_is_full() && log.files_are_short(1000));
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
