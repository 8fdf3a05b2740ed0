//! Waiting awake for a small read. A fast device has it done sooner than the thread and the
//! processor, once asleep, are up again; so the reader looks a number of times whether it is over,
//! and lets others run between two looks. Not where as many threads wait like that as there are
//! processors, nor while jobs that give way to users want those. Whether it is worth it otherwise,
//! on this device and beside whoever else wants the processors, is tried out: some reads awake,
//! some asleep, and many then in the way that took less time.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::{available_parallelism, yield_now};

use terrapin_base::sync::{AtomicUsize, Mutex, Ordering};
use terrapin_base::{Env, is_job_giving_way};

/// Looks at one read: each takes half a microsecond or so where nobody else wants to run.
const LOOKS: u32 = 256;
/// Reads by which a way is judged.
const TRIAL_READS: u32 = 32;
/// Reads of a round in the better way, and stretches until both ways are tried again.
const STRETCH: u32 = 128;
const STRETCHES: u32 = 32;

/// Threads that wait, awake or not, and might do so awake.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// What the reads of this process tell.
static CHOOSER: Mutex<WaitChooser> = Mutex::new(WaitChooser::new());

/// Does a read into this memory by `awake`, which looks for its end by means of [`look`], or by
/// `asleep`, whichever it had better be; by `asleep` too what `awake` does not do.
pub(super) fn read<T>(
    env: &Env,
    memory: &mut [u8],
    awake: impl FnOnce(&mut [u8]) -> Option<T>,
    asleep: impl FnOnce(&mut [u8]) -> T,
) -> T {
    let Some(permit) = AwakePermit::take() else {
        return asleep(memory);
    };
    let mode = CHOOSER.lock().mode();
    let began_ns = env.now_ns();
    let done = match mode {
        WaitMode::Awake => awake(memory).unwrap_or_else(|| asleep(memory)),
        WaitMode::Asleep => asleep(memory),
    };
    let took_ns = env.now_ns().saturating_sub(began_ns);
    drop(permit);
    CHOOSER.lock().learn(mode, took_ns);
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
struct AwakePermit(());

impl AwakePermit {
    fn take() -> Option<Self> {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        if is_job_giving_way() {
            return None;
        }
        let processors = PROCESSORS.get_or_init(|| available_parallelism().map_or(1, NonZero::get));
        let permit = AwakePermit(());
        let others = WAITING.fetch_add(1, Ordering::Relaxed);
        (others < *processors).then_some(permit)
    }
}

impl Drop for AwakePermit {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitMode {
    Asleep,
    Awake,
}

/// What reads in one way take lately: the mean of a stretch of reads counts for a quarter, and
/// those before it for the rest. A stretch alone would say too little: one read in a hundred takes
/// three times as long as most, and the two ways may be a tenth apart.
#[derive(Clone, Copy, Default)]
struct ReadTime {
    /// Nanoseconds a read; none before the first stretch.
    mean_ns: Option<u64>,
}

impl ReadTime {
    fn learn(&mut self, stretch_ns: u64) {
        let before = self.mean_ns.unwrap_or(stretch_ns);
        self.mean_ns = Some((before.saturating_mul(3).saturating_add(stretch_ns)) / 4);
    }

    fn ns(self) -> u64 {
        self.mean_ns.unwrap_or(0)
    }
}

/// What was learnt of the two ways.
struct WaitChooser {
    /// The way of the next reads,
    mode: WaitMode,
    /// stretches for which it is settled, this one included, none while it is being tried,
    stretches: u32,
    /// and reads that are left of the round or trial.
    left: u32,
    /// What its reads took so far, in nanoseconds.
    took_ns: u64,
    asleep: ReadTime,
    awake: ReadTime,
}

impl WaitChooser {
    const fn new() -> Self {
        WaitChooser {
            mode: WaitMode::Asleep,
            stretches: 0,
            left: TRIAL_READS,
            took_ns: 0,
            asleep: ReadTime { mean_ns: None },
            awake: ReadTime { mean_ns: None },
        }
    }

    /// The way of the next read.
    fn mode(&self) -> WaitMode {
        self.mode
    }

    /// A read in that way took so long. (Of two threads one may have begun before the way changed.)
    fn learn(&mut self, mode: WaitMode, took_ns: u64) {
        if mode != self.mode {
            return;
        }
        self.left -= 1;
        self.took_ns = self.took_ns.saturating_add(took_ns);
        let trying = self.stretches == 0;
        let reads = u64::from(if trying { TRIAL_READS } else { STRETCH });
        // More than half as long again as all of them take asleep: somebody else wants the
        // processor, and no more of it is needed to know.
        let crowded = mode == WaitMode::Awake
            && self.took_ns > self.asleep.ns().saturating_mul(reads * 3 / 2);
        if self.left > 0 && !crowded {
            return;
        }
        if !crowded {
            let lately = match mode {
                WaitMode::Asleep => &mut self.asleep,
                WaitMode::Awake => &mut self.awake,
            };
            lately.learn(self.took_ns / reads);
        }
        // Waiting awake must not be worse. What was found to be better is left when it is worse by
        // more than chance.
        let chance = if trying { 0 } else { self.asleep.ns() / 16 };
        let lost =
            crowded || mode == WaitMode::Awake && self.awake.ns() > self.asleep.ns() + chance;
        (self.mode, self.stretches, self.left) = match (self.stretches, mode) {
            (0, WaitMode::Asleep) => (WaitMode::Awake, 0, TRIAL_READS),
            (0, WaitMode::Awake) if lost => (WaitMode::Asleep, STRETCHES, STRETCH),
            (0, WaitMode::Awake) => (WaitMode::Awake, STRETCHES, STRETCH),
            (2.., _) if !lost => (mode, self.stretches - 1, STRETCH),
            _ => (WaitMode::Asleep, 0, TRIAL_READS),
        };
        self.took_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many reads were waited for awake, when they take so long in either way.
    fn awake(reads: u32, asleep_ns: u64, awake_ns: impl Fn(u32) -> u64) -> u32 {
        let mut chooser = WaitChooser::new();
        let mut awake = 0;
        for _ in 0..reads {
            match chooser.mode() {
                WaitMode::Asleep => chooser.learn(WaitMode::Asleep, asleep_ns),
                WaitMode::Awake => {
                    awake += 1;
                    chooser.learn(WaitMode::Awake, awake_ns(awake));
                }
            }
        }
        awake
    }

    #[test]
    fn most_reads_are_waited_for_in_the_way_that_takes_less_time() {
        assert!(awake(100_000, 50_000, |_| 25_000) > 99_000);
        assert!(awake(100_000, 50_000, |_| 55_000) < 1_000);
        // One in ten takes as long as somebody else may keep the processor: the trial is over with
        // the first.
        let crowded = |read: u32| {
            if read.is_multiple_of(10) {
                3_000_000
            } else {
                25_000
            }
        };
        assert!(awake(100_000, 50_000, crowded) < 500);
    }

    /// A device whose reads take half as long again or half as long by chance, and one in fifty
    /// four times as long.
    #[test]
    fn what_differs_less_than_single_reads_do_is_found_all_the_same() {
        let spread = |mean_ns: u64| {
            let mut state = mean_ns;
            move || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let chance = state >> 33;
                match chance % 50 {
                    0 => 4 * mean_ns,
                    _ => mean_ns / 2 + chance % mean_ns,
                }
            }
        };
        let share_awake = |asleep_ns: u64, awake_ns: u64| {
            let (mut asleep, mut awake) = (spread(asleep_ns), spread(awake_ns));
            let (mut chooser, mut count) = (WaitChooser::new(), 0);
            for _ in 0..1_000_000 {
                match chooser.mode() {
                    WaitMode::Asleep => chooser.learn(WaitMode::Asleep, asleep()),
                    WaitMode::Awake => {
                        count += 1;
                        chooser.learn(WaitMode::Awake, awake());
                    }
                }
            }
            f64::from(count) / 1e6
        };
        let (better, worse) = (share_awake(40_000, 37_000), share_awake(40_000, 43_000));
        assert!(better > 0.9 && worse < 0.1, "{better} and {worse} awake");
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
        let waiting: Vec<AwakePermit> = (0..processors + 3)
            .filter_map(|_| AwakePermit::take())
            .collect();
        assert!(waiting.len() <= processors);
    }
}
