//! Waiting awake for a small read. On a fast device the read ends sooner than a sleeping thread
//! wakes up. So the thread looks at the read several times and yields between two looks.
//!
//! A thread waits asleep if as many threads wait awake as there are processors, or if a job that
//! gives way to users is running. Otherwise measurements decide: some reads are waited for awake
//! and some asleep, and then many in the mode that took less time (decision 0015).

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::{available_parallelism, yield_now};

use terrapin_base::sync::{AtomicUsize, Mutex, Ordering};
use terrapin_base::{Env, is_job_giving_way};

/// Number of looks at one read. A look takes about half a microsecond on an idle processor.
const LOOKS: u32 = 256;
/// Number of reads in a trial of one mode.
const TRIAL_READS: u32 = 32;
/// Reads of a stretch in the chosen mode, and stretches until the next trial of both modes.
const STRETCH: u32 = 128;
const STRETCHES: u32 = 32;

/// Number of threads in a read that may be waited for awake.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// What this process has learnt from its reads.
static CHOOSER: Mutex<WaitChooser> = Mutex::new(WaitChooser::new());

/// Does a read with `awake`, which waits by [`look`], or with `asleep`. Also uses `asleep` if
/// `awake` returns `None`.
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

/// Looks until `is_over` holds, [`LOOKS`] times at most.
pub(super) fn look(mut is_over: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        yield_now();
        if is_over() {
            return;
        }
    }
}

/// The right of one thread to wait awake. There are as many as processors.
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

/// How a thread waits for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitMode {
    Asleep,
    Awake,
}

/// The recent time of reads in one mode. The mean of the last stretch has a weight of one quarter,
/// the value before it has the rest. One stretch alone says too little. One read in a hundred takes
/// three times as long as most, and the modes may differ by a tenth.
#[derive(Clone, Copy, Default)]
struct ReadTime {
    /// Nanoseconds for a read; `None` before the first stretch.
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

/// Chooses between the two modes by the times of earlier reads.
struct WaitChooser {
    /// The mode of the next reads.
    mode: WaitMode,
    /// Stretches until the next trial, the current one included; 0 during a trial.
    stretches: u32,
    /// Reads that are left of the stretch or trial.
    left: u32,
    /// Nanoseconds that its reads took so far.
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

    /// The mode of the next read.
    fn mode(&self) -> WaitMode {
        self.mode
    }

    /// Records the time of a read in nanoseconds. Ignores a read that began before the mode
    /// changed.
    fn learn(&mut self, mode: WaitMode, took_ns: u64) {
        if mode != self.mode {
            return;
        }
        self.left -= 1;
        self.took_ns = self.took_ns.saturating_add(took_ns);
        let trying = self.stretches == 0;
        let reads = u64::from(if trying { TRIAL_READS } else { STRETCH });
        // The reads took more than 1.5 times as long as the same number asleep: other threads want
        // the processor, and the trial can end.
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
        // Awake must not be slower than asleep. A chosen mode is kept until it is slower by more
        // than chance.
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

    /// Number of reads that were waited for awake, for given times of both modes.
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
    fn most_reads_use_the_faster_mode() {
        assert!(awake(100_000, 50_000, |_| 25_000) > 99_000);
        assert!(awake(100_000, 50_000, |_| 55_000) < 1_000);
        // Every tenth read takes as long as another thread may keep the processor. The first of
        // them ends the trial.
        let crowded = |read: u32| {
            if read.is_multiple_of(10) {
                3_000_000
            } else {
                25_000
            }
        };
        assert!(awake(100_000, 50_000, crowded) < 500);
    }

    /// A device with read times of 0.5 to 1.5 times the mean, and every fiftieth of four times.
    #[test]
    fn a_difference_smaller_than_the_spread_of_reads_is_found() {
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
    fn both_modes_are_tried_again_regularly() {
        // The device becomes faster than a sleep after a while.
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
