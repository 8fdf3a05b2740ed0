//! Explores interleavings of a model: a closure that starts threads over the engine's code and
//! asserts what must hold.
//!
//! The environment sets the number of schedules, `TERRAPIN_SCHEDULES` (default 200), and the seed,
//! `TERRAPIN_SEED` (default 0). Equal values explore equal schedules.
//!
//! - One half chooses the next thread at random at every point.
//! - The other half uses probabilistic concurrency testing. One thread runs until it waits, except
//!   for two or three changes. That finds faults that need a long delay at one point.

use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

pub use shuttle::thread::{JoinHandle, spawn};

/// A model with more steps is assumed not to end.
const STEPS_MAX: usize = 5_000_000;
const STACK_BYTES: usize = 1 << 20;

/// Explores the interleavings, and prints their number. Panics with the first one that fails.
pub fn explore(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let schedules = from_environment("TERRAPIN_SCHEDULES", 200) as usize;
    let seed = from_environment("TERRAPIN_SEED", 0);
    let model = std::sync::Arc::new(model);
    let at_random = schedules / 2;
    // A different tree of choices for each seed, and for each of the two schedulers.
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
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}
