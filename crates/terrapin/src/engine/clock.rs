//! [`Clock`]: the moment by which deadlines count, and [`Moment`], which a read has.
//!
//! *Now* is the wall clock, but never earlier than any now before it ([`Clock::now`]). Every view
//! takes its now before it takes its bound, and keeps it. So a value that one view saw expired is
//! expired for all later ones, also if somebody sets the wall clock back. The catalog and the log
//! keep the last now over a restart ([`crate::checkpoint::expiry`]).
//!
//! Until a database gets its first deadline, now is 0. Reads then pay one test and no clock.
//!
//! A writer that depends on a value with a deadline *holds* now from the test of the deadline to
//! the publication of its record ([`Clock::hold`]). Otherwise a view in between could see the value
//! expired and not see the record, although the record depends on the value. Such a view gets the
//! last now. Writers hold now for the time in which they hold up the publication of later records,
//! too. If it stands behind the wall clock by [`HELD_MS_MAX`], no further writer may hold it.

use std::sync::Arc;

use terrapin_base::expiry::DEADLINE_MS_MAX;
use terrapin_base::sync::{AtomicU64, Ordering};
use terrapin_base::{Env, Lsn, Result, Signal, mutant};

/// Bits of the last now behind the number of writers that hold it.
const HOLDS_BITS: u32 = 16;
/// Most writers that hold now at once.
const HOLDS_MAX: u64 = (1 << HOLDS_BITS) - 1;
/// While writers hold a now that is so far behind the wall clock, in milliseconds, no other may
/// hold it.
const HELD_MS_MAX: u64 = 10;

/// The last now.
#[derive(Default)]
pub(crate) struct Clock {
    /// The last now in milliseconds since 1970, 0 while no record of the database ever had a
    /// deadline; then [`HOLDS_BITS`] with the number of writers that hold it.
    last: AtomicU64,
    /// The last now that a record of the log or the catalog holds.
    noted_ms: AtomicU64,
    /// Notified at the first deadline.
    begun: Arc<Signal>,
}

impl Clock {
    /// A clock whose last now is known; 0 for a database without deadlines.
    pub fn at(last_ms: u64) -> Self {
        Clock {
            last: AtomicU64::new(last_ms << HOLDS_BITS),
            noted_ms: AtomicU64::new(last_ms),
            begun: Signal::new(),
        }
    }

    /// Now, in milliseconds since 1970; 0 in a database without deadlines.
    #[inline]
    pub fn now(&self, env: &Env) -> u64 {
        match self.last.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.begin(env),
        }
    }

    /// Now, for a write with a deadline: from now on the database has deadlines.
    #[cold]
    #[inline(never)]
    pub fn begin(&self, env: &Env) -> u64 {
        let wall_ms = env.wall_ms().clamp(1, DEADLINE_MS_MAX);
        if mutant::active("now-goes-back") {
            self.last.store(wall_ms << HOLDS_BITS, Ordering::Relaxed);
            return wall_ms;
        }
        self.raise(wall_ms)
    }

    /// Makes sure that no later now is earlier than this one, unless writers hold the last one.
    /// Returns the last now.
    pub fn raise(&self, now_ms: u64) -> u64 {
        // Acquire: a view with a now that was held before sees the record of the writer.
        let mut last = self.last.load(Ordering::Acquire);
        loop {
            let (last_ms, holds) = (last >> HOLDS_BITS, last & HOLDS_MAX);
            // Reads share the line: it changes once a millisecond at most.
            if now_ms <= last_ms || holds > 0 {
                return last_ms;
            }
            let next = now_ms << HOLDS_BITS;
            match self
                .last
                .compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(0) => {
                    self.begun.notify();
                    return now_ms;
                }
                Ok(_) => return now_ms,
                Err(found) => last = found,
            }
        }
    }

    /// Holds now for a writer that depends on values with a deadline, the least of which is
    /// `first_ms`, if no view had a now at or after it. The writer lets now go once its record is
    /// published. Fails too, for a while, if others have held now for long.
    pub fn hold(&self, env: &Env, first_ms: u64) -> Option<Hold<'_>> {
        let mut last = self.last.load(Ordering::Acquire);
        loop {
            let (last_ms, holds) = (last >> HOLDS_BITS, last & HOLDS_MAX);
            let is_late = holds > 0 && env.wall_ms() > last_ms.saturating_add(HELD_MS_MAX);
            if last_ms >= first_ms || is_late || holds == HOLDS_MAX {
                return None;
            }
            match self.last.compare_exchange_weak(
                last,
                last + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(Hold(self)),
                Err(found) => last = found,
            }
        }
    }

    /// The signal of the first deadline.
    pub fn begun(&self) -> &Arc<Signal> {
        &self.begun
    }

    /// The last now, if it is later than the one that was noted.
    pub fn to_note(&self) -> Option<u64> {
        let last_ms = self.last();
        (last_ms > self.noted_ms.load(Ordering::Relaxed)).then_some(last_ms)
    }

    /// Says that the log or the catalog holds a now.
    pub fn noted(&self, now_ms: u64) {
        self.noted_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// The last now, in milliseconds since 1970; 0 in a database without deadlines.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire) >> HOLDS_BITS
    }
}

/// Now stays what it is while this lives ([`Clock::hold`]).
#[must_use = "now goes on once this is dropped"]
pub(crate) struct Hold<'a>(&'a Clock);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // Release: who raises now sees that the record is published.
        self.0.last.fetch_sub(1, Ordering::Release);
    }
}

/// What a read sees: records below a bound, and deadlines as of a now.
#[derive(Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// Exclusive LSN bound.
    pub before: Lsn,
    /// In milliseconds since 1970; 0 if nothing has expired.
    pub now_ms: u64,
    /// Learns the deadlines of live values that the read found.
    pub ends: Option<&'a Ends>,
}

impl<'a> Moment<'a> {
    /// Builds a moment from its bound, its now, and what learns deadlines.
    #[inline]
    pub fn of(before: Lsn, (now_ms, ends): (u64, Option<&'a Ends>)) -> Self {
        Moment {
            before,
            now_ms,
            ends,
        }
    }

    /// Whether a value with this deadline has not expired.
    pub fn is_live(self, deadline_ms: u64) -> bool {
        let is_live = match mutant::active("read-shows-expired") {
            true => true,
            false => self.now_ms < deadline_ms,
        };
        if let Some(ends) = self.ends.filter(|_| is_live) {
            ends.note(deadline_ms);
        }
        is_live
    }
}

impl Moment<'_> {
    /// Reads a key's value, and says when it ends if it has a deadline.
    #[cold]
    pub fn learning<T>(
        self,
        read: impl FnOnce(Moment<'_>) -> Result<T>,
    ) -> Result<(T, Option<u64>)> {
        let own = Ends::default();
        let value = read(Moment {
            ends: Some(&own),
            ..self
        })?;
        let deadline_ms = own.first();
        if let (Some(deadline_ms), Some(ends)) = (deadline_ms, self.ends) {
            ends.note(deadline_ms);
        }
        Ok((value, deadline_ms))
    }
}

/// The least deadline of the live values that somebody read. At that moment they are not what they
/// were.
pub(crate) struct Ends(AtomicU64);

impl Default for Ends {
    fn default() -> Self {
        Ends(AtomicU64::new(u64::MAX))
    }
}

impl Ends {
    /// Notes the deadline of a live value that was read.
    pub fn note(&self, deadline_ms: u64) {
        if !mutant::active("writer-forgets-deadline-that-it-read") {
            self.0.fetch_min(deadline_ms, Ordering::Relaxed);
        }
    }

    /// The least deadline, in milliseconds since 1970; `None` if no value had one.
    pub fn first(&self) -> Option<u64> {
        match self.0.load(Ordering::Relaxed) {
            u64::MAX => None,
            deadline_ms => Some(deadline_ms),
        }
    }

    /// Whether all values that were read are live for every view until now.
    pub fn have_not_come(&self, clock: &Clock) -> bool {
        self.first().is_none_or(|first| clock.last() < first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_is_0_before_the_first_deadline_and_never_goes_back() {
        let (env, sim) = Env::simulated(1);
        let clock = Clock::default();
        assert_eq!((clock.now(&env), clock.last()), (0, 0));
        sim.set_wall_ms(5_000);
        assert_eq!(clock.begin(&env), 5_000);
        sim.set_wall_ms(4_000);
        assert_eq!((clock.now(&env), clock.last()), (5_000, 5_000));
        sim.set_wall_ms(6_000);
        assert_eq!((clock.last(), clock.now(&env)), (5_000, 6_000));
        assert_eq!(clock.raise(5_500), 6_000);
        // A clock at the beginning of time is no clock of a database without deadlines.
        sim.set_wall_ms(0);
        assert_eq!(Clock::default().begin(&env), 1);
    }

    #[test]
    fn now_stands_while_a_writer_holds_it_and_no_writer_holds_it_for_ever() {
        let (env, sim) = Env::simulated(1);
        sim.set_wall_ms(5_000);
        let clock = Clock::at(5_000);
        assert!(clock.hold(&env, 5_000).is_none(), "a view had that now");
        let first = clock.hold(&env, 5_001).unwrap();
        sim.set_wall_ms(5_000 + HELD_MS_MAX);
        assert_eq!(clock.now(&env), 5_000);
        let second = clock.hold(&env, 5_001).unwrap();
        drop(first);
        assert_eq!(clock.now(&env), 5_000);
        sim.set_wall_ms(5_001 + HELD_MS_MAX);
        assert!(clock.hold(&env, 9_000).is_none(), "others held it for long");
        drop(second);
        assert_eq!(clock.now(&env), 5_001 + HELD_MS_MAX);
        assert!(clock.hold(&env, 5_001).is_none());
        assert!(clock.hold(&env, 9_000).is_some());
    }

    #[test]
    fn a_read_learns_the_least_deadline_of_live_values() {
        let ends = Ends::default();
        let at = Moment {
            before: Lsn(1),
            now_ms: 100,
            ends: Some(&ends),
        };
        assert!(!at.is_live(100) && ends.first().is_none());
        assert!(at.is_live(300) && at.is_live(200) && at.is_live(250));
        assert_eq!(ends.first(), Some(200));
        assert!(ends.have_not_come(&Clock::at(199)) && !ends.have_not_come(&Clock::at(200)));
        assert!(Ends::default().have_not_come(&Clock::at(u64::MAX)));
    }
}
