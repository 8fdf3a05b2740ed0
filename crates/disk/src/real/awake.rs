//! Waiting awake for a small read. A fast device has it done sooner than the thread and the processor, once asleep, are up again; so the
//! reader looks a number of times whether it is over, and lets others run between two looks. Not where as many threads wait like that as
//! there are processors, nor while jobs that give way to users want those. Whether it is worth it otherwise, on this device and beside
//! whoever else wants the processors, is tried out: some reads awake, some asleep, and many then in the way that took less time.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::{available_parallelism, yield_now};

use terrapin_base::sync::{AtomicUsize, Mutex, Ordering};
use terrapin_base::{Env, is_job_giving_way};

/// Looks at one read: each takes half a microsecond or so where nobody else wants to run.
const LOOKS: u32 = 256;
/// Reads by which a way is judged.
const TRIED: u32 = 32;
/// Reads of a round in the better way, and rounds until both ways are tried again.
const ROUND: u32 = 128;
const ROUNDS: u32 = 32;

/// Threads that wait, awake or not, and might do so awake.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// What the reads of this process tell.
static HABIT: Mutex<Habit> = Mutex::new(Habit::new());

/// Does a read into this memory by `awake`, which looks for its end by means of [`look`], or by `asleep`, whichever it had better be; by
/// `asleep` too what `awake` does not do.
pub(super) fn read<T>(
    env: &Env,
    memory: &mut [u8],
    awake: impl FnOnce(&mut [u8]) -> Option<T>,
    asleep: impl FnOnce(&mut [u8]) -> T,
) -> T {
    let Some(turn) = Turn::take() else {
        return asleep(memory);
    };
    let way = HABIT.lock().way();
    let began_ns = env.now_ns();
    let done = match way {
        Way::Awake => awake(memory).unwrap_or_else(|| asleep(memory)),
        Way::Asleep => asleep(memory),
    };
    let took_ns = env.now_ns().saturating_sub(began_ns);
    drop(turn);
    HABIT.lock().learn(way, took_ns);
    done
}

/// Looks until it is over, but not too long.
pub(super) fn look(mut is_over: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        yield_now();
        if is_over() {
            return;
        }
    }
}

/// One of the threads that may wait awake: as many as there are processors.
struct Turn(());

impl Turn {
    fn take() -> Option<Self> {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        if is_job_giving_way() {
            return None;
        }
        let processors = PROCESSORS.get_or_init(|| available_parallelism().map_or(1, NonZero::get));
        let turn = Turn(());
        let others = WAITING.fetch_add(1, Ordering::Relaxed);
        (others < *processors).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Asleep,
    Awake,
}

/// What was learnt of the two ways.
struct Habit {
    /// The way of the next reads,
    way: Way,
    /// rounds for which it is settled, this one included, none while it is being tried,
    rounds: u32,
    /// and reads that are left of the round or trial.
    left: u32,
    /// What its reads took so far, in nanoseconds.
    took_ns: u64,
    /// What those of the last trial asleep took.
    asleep_ns: u64,
}

impl Habit {
    const fn new() -> Self {
        Habit {
            way: Way::Asleep,
            rounds: 0,
            left: TRIED,
            took_ns: 0,
            asleep_ns: 0,
        }
    }

    /// The way of the next read.
    fn way(&self) -> Way {
        self.way
    }

    /// A read in that way took so long. (Of two threads one may have begun before the way changed.)
    fn learn(&mut self, way: Way, took_ns: u64) {
        if way != self.way {
            return;
        }
        self.left -= 1;
        self.took_ns = self.took_ns.saturating_add(took_ns);
        let trying = self.rounds == 0;
        // As long as all of them may take: waiting awake must not be worse.
        let allowed_ns = match trying {
            true => self.asleep_ns,
            false => self.asleep_ns.saturating_mul(u64::from(ROUND / TRIED)),
        };
        let lost = way == Way::Awake && self.took_ns > allowed_ns;
        if self.left > 0 && !lost {
            return;
        }
        if trying && way == Way::Asleep {
            self.asleep_ns = self.took_ns;
        }
        (self.way, self.rounds, self.left) = match (self.rounds, way) {
            (0, Way::Asleep) => (Way::Awake, 0, TRIED),
            (0, Way::Awake) if lost => (Way::Asleep, ROUNDS, ROUND),
            (0, Way::Awake) => (Way::Awake, ROUNDS, ROUND),
            (2.., _) if !lost => (way, self.rounds - 1, ROUND),
            _ => (Way::Asleep, 0, TRIED),
        };
        self.took_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many reads were waited for awake, when they take so long in either way.
    fn awake(reads: u32, asleep_ns: u64, awake_ns: impl Fn(u32) -> u64) -> u32 {
        let mut habit = Habit::new();
        let mut awake = 0;
        for _ in 0..reads {
            match habit.way() {
                Way::Asleep => habit.learn(Way::Asleep, asleep_ns),
                Way::Awake => {
                    awake += 1;
                    habit.learn(Way::Awake, awake_ns(awake));
                }
            }
        }
        awake
    }

    #[test]
    fn most_reads_are_waited_for_in_the_way_that_takes_less_time() {
        assert!(awake(100_000, 50_000, |_| 25_000) > 99_000);
        assert!(awake(100_000, 50_000, |_| 55_000) < 1_000);
        // One in ten takes as long as somebody else may keep the processor: the trial is over with the first.
        let crowded = |read: u32| {
            if read.is_multiple_of(10) {
                3_000_000
            } else {
                25_000
            }
        };
        assert!(awake(100_000, 50_000, crowded) < 500);
    }

    #[test]
    fn both_ways_are_tried_again_and_again() {
        // The device gets faster than sleep is only after a while.
        let later = |read: u32| if read < 100 { 60_000 } else { 20_000 };
        let turned = awake(100_000, 50_000, later);
        assert!((50_000..90_000).contains(&turned), "{turned}");
    }

    #[test]
    fn no_more_threads_wait_awake_than_there_are_processors() {
        let processors = available_parallelism().unwrap().get();
        let waiting: Vec<Turn> = (0..processors + 3).filter_map(|_| Turn::take()).collect();
        assert!(waiting.len() <= processors);
    }
}
