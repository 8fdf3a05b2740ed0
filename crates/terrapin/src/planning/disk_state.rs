//! [`DiskState`]: whether the disk has room for writes, as one state machine (D10).
//!
//! ```text
//!            begun memtables                small begun memtables
//!            do not fit                     do not fit
//!   ample ──────────────────────▶ low ──────────────────────▶ full
//!     ◀──────────────────────        ◀──────────────────────   ▲
//!      lasting memtables fit           small lasting memtables  │ from any state:
//!      with an eighth to spare         fit with an eighth to    │ an allocation
//!                                      spare                    │ was refused
//! ```
//!
//! A put that was acknowledged must be merged later, and a full disk has no room for that. The
//! engine therefore refuses puts while there is still room to merge everything that memtables hold,
//! one memtable more, the log's next files, and the reserve. Large memtables need much room. On a
//! *low* disk memtables are small first, one unit each. The disk counts as *full* once there is no
//! room for small ones either. The engine then accepts only what frees space: deletes, clears and
//! drops.
//!
//! This file has the states and the decisions. `disk_space::room` measures what the disk has and
//! what memtables need, and does what a new state asks for.
//!
//! Invariants, held by the tests below: one step changes the state by one place at most. More room
//! never leads to a worse state. With room and needs that stay, three steps reach a state that
//! stays. A step asks only for the needs that decide it, since each costs a walk over keyspaces.

/// How much room the disk has for writes. A worse state is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum DiskState {
    /// There is room for memtables of the usual size.
    #[default]
    Ample,
    /// There is room for memtables of one unit only.
    Low,
    /// There is no room for puts. Memtables have their usual size again, and are sealed once enough
    /// deletes have gathered (`checkpoint::gather`).
    Full,
}

/// A need for room that decides about a state: the room that certain memtables need, together with
/// their merges, the log's next files and the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The memtables that have begun, filled up to their usual size.
    BegunAmple,
    /// Memtables of the usual size for as long as the same keyspaces are written.
    LastingAmple,
    /// The memtables that have begun, with one unit more each.
    BegunSmall,
    /// Memtables of one unit each for as long as those keyspaces are written that were written when
    /// puts were last refused.
    LastingSmall,
}

/// The room at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes that can still be allocated on the disk and in the data file.
    pub bytes: u64,
    /// Whether the log has a further file, or can get one. Room in the data file is of no use to
    /// the log.
    pub can_log_grow: bool,
}

impl Room {
    /// Whether this many bytes fit, and the log can go on.
    pub fn fits(self, needed_bytes: u64) -> bool {
        self.bytes >= needed_bytes && self.can_log_grow
    }

    /// Whether this many bytes and an eighth more fit, so that the state does not go to and fro.
    pub fn fits_again(self, needed_bytes: u64) -> bool {
        self.fits(with_an_eighth(needed_bytes))
    }
}

impl DiskState {
    /// The next state. `needed` returns the bytes of one need.
    ///
    /// A disk that becomes low has its memtables sealed first. [`DiskState::low_or_full`] then
    /// decides whether the small ones fit.
    pub fn next(self, room: Room, needed: impl Fn(Need) -> u64) -> DiskState {
        match self {
            DiskState::Ample if room.fits(needed(Need::BegunAmple)) => DiskState::Ample,
            DiskState::Ample => DiskState::Low,
            DiskState::Low if room.fits_again(needed(Need::LastingAmple)) => DiskState::Ample,
            DiskState::Low => DiskState::low_or_full(room, needed),
            DiskState::Full if room.fits_again(needed(Need::LastingSmall)) => DiskState::Low,
            DiskState::Full => DiskState::Full,
        }
    }

    /// The state of a disk that has no room for memtables of the usual size.
    pub fn low_or_full(room: Room, needed: impl Fn(Need) -> u64) -> DiskState {
        match room.fits(needed(Need::BegunSmall)) {
            true => DiskState::Low,
            false => DiskState::Full,
        }
    }

    /// The state with this number, as the engine's atomic holds it. No other number is stored; it
    /// would count as full.
    #[inline]
    pub fn of_number(number: u32) -> DiskState {
        match number {
            0 => DiskState::Ample,
            1 => DiskState::Low,
            _ => DiskState::Full,
        }
    }
}

/// What was true when the disk last became full.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusal {
    /// Bytes that small memtables of all written keyspaces would have taken.
    pub memtable_bytes: u64,
    /// The room in bytes.
    pub room_bytes: u64,
    /// Whether the file system refused space because of a quota.
    pub is_quota: bool,
}

/// This many bytes and an eighth more.
pub(crate) fn with_an_eighth(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 8)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::DiskState::{Ample, Full, Low};
    use super::Need::{BegunAmple, BegunSmall, LastingAmple, LastingSmall};
    use super::*;

    /// Bytes for each need.
    #[derive(Clone, Copy, Debug)]
    struct Needs {
        begun_ample: u64,
        lasting_ample: u64,
        begun_small: u64,
        lasting_small: u64,
    }

    impl Needs {
        fn of(self, need: Need) -> u64 {
            match need {
                BegunAmple => self.begun_ample,
                LastingAmple => self.lasting_ample,
                BegunSmall => self.begun_small,
                LastingSmall => self.lasting_small,
            }
        }
    }

    const NEEDS: Needs = Needs {
        begun_ample: 4000,
        lasting_ample: 8000,
        begun_small: 100,
        lasting_small: 160,
    };

    #[test]
    fn each_state_asks_for_the_needs_that_decide_and_changes_at_their_bounds() {
        // The state, the room, whether the log can grow, the needs asked for, the next state.
        let table: &[(DiskState, u64, bool, &[Need], DiskState)] = &[
            (Ample, 4000, true, &[BegunAmple], Ample),
            (Ample, 3999, true, &[BegunAmple], Low),
            (Ample, 0, true, &[BegunAmple], Low),
            (Ample, 4000, false, &[BegunAmple], Low),
            (Low, 9000, true, &[LastingAmple], Ample),
            (Low, 8999, true, &[LastingAmple, BegunSmall], Low),
            (Low, 100, true, &[LastingAmple, BegunSmall], Low),
            (Low, 99, true, &[LastingAmple, BegunSmall], Full),
            (Low, 9000, false, &[LastingAmple, BegunSmall], Full),
            (Full, 180, true, &[LastingSmall], Low),
            (Full, u64::MAX, true, &[LastingSmall], Low),
            (Full, 179, true, &[LastingSmall], Full),
            (Full, u64::MAX, false, &[LastingSmall], Full),
        ];
        for row @ (state, bytes, can_log_grow, asked, next) in table {
            let room = Room {
                bytes: *bytes,
                can_log_grow: *can_log_grow,
            };
            let seen = RefCell::new(Vec::new());
            let needed = |need| {
                seen.borrow_mut().push(need);
                NEEDS.of(need)
            };
            assert_eq!(state.next(room, needed), *next, "{row:?}");
            assert_eq!(*seen.borrow(), *asked, "{row:?}");
        }
        for state in [Ample, Low, Full] {
            assert_eq!(DiskState::of_number(state as u32), state);
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) % bound.max(1)
        }

        /// Needs in the order that memtables give them: small ones need no more than ample ones,
        /// and begun ones no more than lasting ones.
        fn needs(&mut self) -> Needs {
            let begun_small = self.below(1000);
            let begun_ample = begun_small + self.below(1000);
            let lasting_small = begun_small + self.below(1000);
            Needs {
                begun_ample,
                lasting_ample: begun_ample.max(lasting_small) + self.below(1000),
                begun_small,
                lasting_small,
            }
        }

        fn room(&mut self) -> Room {
            Room {
                bytes: match self.below(8) {
                    0 => u64::MAX - self.below(2),
                    _ => self.below(5000),
                },
                can_log_grow: self.below(8) > 0,
            }
        }
    }

    #[test]
    fn steps_are_small_more_room_is_never_worse_and_a_state_settles() {
        for seed in 1..=20_000 {
            let mut random = Random(seed);
            let (needs, room) = (random.needs(), random.room());
            let next = |state: DiskState, room| state.next(room, |need| needs.of(need));
            let case = || format!("seed {seed}: {needs:?}, {room:?}");
            for state in [Ample, Low, Full] {
                let after = next(state, room);
                let places = (state as u32).abs_diff(after as u32);
                assert!(places <= 1, "{}: {state:?} to {after:?}", case());
                let more = Room {
                    bytes: room.bytes.saturating_add(random.below(2000)),
                    can_log_grow: true,
                };
                assert!(next(state, more) <= after, "{}: {state:?}", case());
                let settled = (0..3).fold(state, |state, _| next(state, room));
                assert_eq!(next(settled, room), settled, "{}: {state:?}", case());
            }
            // Whatever is full without an eighth to spare does not become low and full by turns.
            if next(Full, room) == Low {
                assert_ne!(next(Low, room), Full, "{}", case());
            }
        }
    }
}
