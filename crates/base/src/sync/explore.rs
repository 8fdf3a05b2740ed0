//! Tries many interleavings of a model: a closure that starts threads over real code of the engine
//! and asserts what must hold.
//!
//! How many, and which, comes from the environment: `TERRAPIN_SCHEDULES` (200 by default) and
//! `TERRAPIN_SEED` (0). The same two try the same interleavings. Half of them choose the next
//! thread at random at every point; the other half, by probabilistic concurrency testing, let one
//! thread run until it waits, but for two or three changes, which finds what needs a long delay at
//! one place.

use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

pub use shuttle::thread::{JoinHandle, spawn};

/// Longer runs are taken for ones that never end.
const STEPS_MAX: usize = 5_000_000;
const STACK_BYTES: usize = 1 << 20;

/// Tries the interleavings, and says how many on a line of its own. Panics with the first that
/// fails.
pub fn explore(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let schedules = from_environment("TERRAPIN_SCHEDULES", 200) as usize;
    let seed = from_environment("TERRAPIN_SEED", 0);
    let model = std::sync::Arc::new(model);
    let at_random = schedules / 2;
    // One tree of choices a seed, and another for the other scheduler.
    let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    try_with(RandomScheduler::new_from_seed(seed, at_random), &model);
    let depth = 2 + (seed % 2) as usize;
    let by_changes = PctScheduler::new_from_seed(seed ^ 1, depth, schedules - at_random);
    let points = try_with(by_changes, &model);
    println!("explored {name}: {schedules} schedules, about {points} points each");
}

fn try_with(
    scheduler: impl Scheduler + 'static,
    model: &std::sync::Arc<impl Fn() + Send + Sync + 'static>,
) -> u64 {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    let model = model.clone();
    let points = std::sync::Arc::new(AtomicU64::new(0));
    let counted = points.clone();
    let schedules = Runner::new(scheduler, config).run(move || {
        super::checked::restart_clock();
        model();
        counted.fetch_add(
            shuttle::current::context_switches() as u64,
            Ordering::Relaxed,
        );
    });
    points.load(Ordering::Relaxed) / schedules.max(1) as u64
}

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}
