//! Back-pressure. While a keyspace's sealed window is being merged, its writers are held to a pace at which the active
//! window is full just when the merge ends: smooth, instead of free running and then a stall. When the disk cannot keep up at all they
//! wait, and after the stall limit get [`ErrorKind::Stalled`]. All of it before the LSN is taken.
//!
//! The pace is a virtual clock per keyspace: every byte written moves it on by (time the merge still needs) / (room the window
//! still has), and a writer that finds it ahead of the real clock waits for the difference. Bytes are charged in
//! pieces, so that most writes touch one counter only, and waits are at least [`WAIT_NS_MIN`], so that they are worth a sleep.

use std::sync::Arc;
use terrapin_base::sync::Ordering;

use terrapin_base::{Condition, Error, ErrorKind, Purpose, Result, Wait};

use crate::core::Core;
use crate::state::{KeyspaceShared, KeyspaceState};

/// A shorter wait is left to add up.
const WAIT_NS_MIN: u64 = 75_000;
/// One wait for pace at most; the pace is computed anew after it.
const WAIT_NS_MAX: u64 = 10_000_000;
/// Bytes after which the virtual clock is moved, unless a window is so small that a 64th of it is less.
const PIECE_BYTES: u64 = 8 << 10;

impl Core {
    /// Lets a write of so many bytes go on, at once or after a wait. `frees`: it only deletes, and may go on while the disk is full (D10).
    #[inline]
    pub fn admit(&self, shared: &Arc<KeyspaceShared>, bytes: u64, frees: bool) -> Result<()> {
        self.health.check_open()?;
        let free_running = {
            let state = self.state.load();
            let Some(keyspace) = state.keyspaces.get(shared.id) else {
                return Err(self.dropped().with("keyspace", &shared.name));
            };
            keyspace.sealed.is_none()
                && self.budget.used(Purpose::Window) <= self.window_memory_max()
        };
        if free_running && !self.schedule.space_is_short() {
            return Ok(());
        }
        self.admit_slowly(shared, bytes, frees)
    }

    #[cold]
    fn admit_slowly(&self, shared: &Arc<KeyspaceShared>, bytes: u64, frees: bool) -> Result<()> {
        let since = self.env.now_ns();
        if frees {
            self.let_the_log_be_trimmed(bytes)?;
        }
        let mut charged = false;
        loop {
            self.health.check_open()?;
            if let Some(error) = self.log.as_ref().and_then(|log| log.failed()) {
                return Err(error);
            }
            if self.schedule.space_is_short() && !frees {
                let error = Error::new(
                    ErrorKind::NoSpace,
                    "the disk is full; deletes are still accepted",
                );
                return Err(match self.schedule.last_error() {
                    Some(cause) => error.with("last error", cause),
                    None => error,
                });
            }
            // Read before the state: a merge that ends in between is then seen by the wait's condition.
            let releases = self.schedule.releases();
            let wait = {
                let state = self.state.load();
                let Some(keyspace) = state.keyspaces.get(shared.id) else {
                    return Err(self.dropped().with("keyspace", &shared.name));
                };
                let memory_is_short = self.budget.used(Purpose::Window) > self.window_memory_max();
                if memory_is_short && self.schedule.sealed_count() == 0 {
                    Hold::CutFirst
                } else if memory_is_short || (keyspace.sealed.is_some() && keyspace.is_full()) {
                    Hold::UntilRelease
                } else if keyspace.sealed.is_none() || charged {
                    Hold::No
                } else {
                    charged = true;
                    self.pace(keyspace, bytes)
                }
            };
            let now = self.env.now_ns();
            let wait = match wait {
                Hold::No => break,
                Hold::CutFirst => {
                    self.cut_largest();
                    if self.schedule.sealed_count() == 0 {
                        // Nothing of it is in windows that a merge could free: waiting would not help.
                        break;
                    }
                    continue;
                }
                Hold::Until(at) => at,
                Hold::UntilRelease => since.saturating_add(self.settings.stall_limit_ns),
            };
            let schedule = self.schedule.clone();
            let released = Condition::new(self.schedule.progress(), move || {
                schedule.releases() != releases
            });
            let outcome = self.env.wait(&released.until(wait))?;
            let now = now.max(self.env.now_ns());
            if outcome == Wait::TimedOut
                && now.saturating_sub(since) >= self.settings.stall_limit_ns
            {
                self.counters.stalls.add(1);
                let error = Error::new(
                    ErrorKind::Stalled,
                    "the write was not done: merging does not keep up",
                )
                .with("keyspace", &shared.name)
                .with("waited milliseconds", (now - since) / 1_000_000);
                return Err(match self.health.background_error() {
                    Some(cause) => error.with("last background error", cause),
                    None => error,
                });
            }
        }
        self.counters
            .stall_ns
            .add(self.env.now_ns().saturating_sub(since));
        Ok(())
    }

    /// A delete on a full disk leaves the log what a checkpoint needs of it: it waits for one that trims it. If none succeeds it goes on, and
    /// the log says what is the matter.
    fn let_the_log_be_trimmed(&self, bytes: u64) -> Result<()> {
        let Some(log) = self.log.as_ref() else {
            return Ok(());
        };
        if !self.schedule.space_is_short() || !log.files_are_short(bytes) {
            return Ok(());
        }
        let through = log.tail();
        self.schedule.ask(through);
        let (schedule, failures) = (self.schedule.clone(), self.schedule.failures());
        let over = Condition::new(self.schedule.progress(), move || {
            schedule.durable_through() >= through
                || schedule.failures() != failures
                || schedule.is_stopping()
        });
        let deadline = self.env.now_ns() + self.settings.stall_limit_ns;
        self.env.wait(&over.until(deadline)).map(drop)
    }

    /// Charges bytes to the keyspace's virtual clock; whether, and until when, the writer waits for it.
    fn pace(&self, keyspace: &KeyspaceState, bytes: u64) -> Hold {
        let shared = &keyspace.shared;
        let limit = shared.window_bytes.load(Ordering::Relaxed);
        let piece = PIECE_BYTES.min(limit / 64).max(1);
        let before = shared.unpaced_bytes.fetch_add(bytes, Ordering::Relaxed);
        let pieces = (before + bytes) / piece - before / piece;
        if pieces == 0 {
            return Hold::No;
        }
        let left = shared
            .merge_total
            .load(Ordering::Relaxed)
            .saturating_sub(shared.merge_done.load(Ordering::Relaxed));
        let merge_ns =
            u128::from(left) * u128::from(shared.merge_ns_per_kib.load(Ordering::Relaxed)) / 1024;
        let room = u128::from(limit.saturating_sub(keyspace.active_bytes()).max(piece));
        let cost = u128::from(pieces * piece) * merge_ns / room;
        let cost = u64::try_from(cost).unwrap_or(u64::MAX).min(WAIT_NS_MAX);
        let now = self.env.now_ns();
        let clock = shared
            .paced_until_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |clock| {
                Some(clock.clamp(now, now + WAIT_NS_MAX) + cost)
            })
            .map_or(now, |clock| clock.clamp(now, now + WAIT_NS_MAX) + cost);
        if clock > now + WAIT_NS_MIN {
            Hold::Until(clock.min(now + WAIT_NS_MAX))
        } else {
            Hold::No
        }
    }
}

enum Hold {
    /// Goes on.
    No,
    /// Waits for its pace.
    Until(u64),
    /// Waits until a merge is done and its window gone.
    UntilRelease,
    /// Window memory is short and nothing is sealed: something has to be.
    CutFirst,
}
