//! Places to die: forks of a disk at its calls, taken while a workload runs.

use std::sync::{Arc, Mutex, PoisonError};

use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Call, CrashMode, Landing, Moment, Op, Probe, Watching};
use terrapin_model::Random;

/// A moment at which the process may die: before a call that changes something, or within it.
pub(super) struct CrashPoint {
    /// The call, for a find to name.
    pub call: String,
    /// The disk before the call.
    before: SimDisk,
    /// The disk with the call partly done, in several ways; none for atomic calls.
    within: Vec<SimDisk>,
    random: Random,
}

/// One way to die.
pub(super) struct Death {
    /// The place and the manner, for a find to name.
    pub name: String,
    /// The disk as it is left; `power` crashes it.
    pub disk: SimDisk,
    /// None means that the process is killed.
    pub power: Option<CrashMode>,
    /// The seed of everything random that follows.
    pub seed: u64,
}

impl CrashPoint {
    fn new(probe: &Probe<'_>, call: &Call<'_>, seed: u64) -> Self {
        let mut random = Random::new(
            seed ^ (call.number << 1 | u64::from(call.op == Op::RingWrite))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15),
        );
        let landings: &[Landing] = match call.op {
            Op::Write => &[Landing::AtDeath, Landing::Later],
            Op::RingWrite => &[Landing::AtDeath, Landing::AtDeath],
            _ => &[],
        };
        CrashPoint {
            call: call.to_string(),
            before: probe.fork(),
            within: landings
                .iter()
                .map(|landing| probe.fork_within(random.bits(), *landing))
                .collect(),
            random,
        }
    }

    /// A moment between calls.
    pub fn here(disk: &SimDisk, name: &str, seed: u64) -> Self {
        CrashPoint {
            call: name.to_owned(),
            before: disk.fork(),
            within: Vec::new(),
            random: Random::new(seed),
        }
    }

    /// The ways to die here: killed before the call and within it; a power cut that loses
    /// everything, one that keeps everything, and other modes.
    pub fn deaths(mut self) -> Vec<Death> {
        let others: Vec<CrashMode> = CrashMode::ALL
            .into_iter()
            .filter(|mode| !matches!(mode, CrashMode::LoseUnsynced | CrashMode::KeepAll))
            .collect();
        let first = self.random.index(others.len());
        let second = (first + 1 + self.random.index(others.len() - 1)) % others.len();
        let mut ways = vec![
            (&self.before, None),
            (&self.before, Some(CrashMode::LoseUnsynced)),
            (&self.before, Some(CrashMode::KeepAll)),
            (&self.before, Some(others[first])),
            (&self.before, Some(others[second])),
        ];
        for (nth, disk) in self.within.iter().enumerate() {
            ways.push((disk, None));
            if nth == 0 {
                ways.push((disk, Some(*self.random.pick(&CrashMode::ALL))));
            }
        }
        let before = ways.len() - self.within.len() - usize::from(!self.within.is_empty());
        ways.into_iter()
            .enumerate()
            .map(|(nth, (disk, power))| Death {
                name: format!(
                    "{} {}{}",
                    if nth < before { "before" } else { "within" },
                    self.call,
                    power.map_or(", killed".to_owned(), |mode| format!(
                        ", power cut {mode:?}"
                    )),
                ),
                disk: disk.fork(),
                power,
                seed: self.random.bits(),
            })
            .collect()
    }
}

/// Takes places as long as it lives.
pub(super) struct Taking {
    taken: Arc<Mutex<Vec<CrashPoint>>>,
    _watching: Watching,
}

impl Taking {
    /// Takes every place, or one in this many at random.
    pub fn begin(disk: &SimDisk, seed: u64, one_in: u64) -> Self {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let places = taken.clone();
        let mut random = Random::new(seed);
        let watching = disk.watch(Box::new(move |probe, call| {
            // Before a call that changes nothing, the disk is as it was before the last change.
            if call.moment == Moment::Before && call.changes() && random.one_in(one_in) {
                let place = CrashPoint::new(probe, call, seed);
                places
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(place);
            }
        }));
        Taking {
            taken,
            _watching: watching,
        }
    }

    /// The places taken since the last time.
    pub fn take(&self) -> Vec<CrashPoint> {
        std::mem::take(&mut self.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
