//! The simulated environment: no threads, a clock that moves only on events, and a seed that
//! chooses the next job. Equal seeds and calls give equal runs.

use super::{Condition, Driver, Job, JobHandle, Stepped, Wait};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::{Error, Result};

/// A test's handle on a simulated environment.
#[derive(Clone)]
pub struct Sim(Arc<Driven>);

struct Driven {
    state: Mutex<State>,
    /// Whether [`super::Env::breathe`] steps jobs.
    breathing: Arc<AtomicBool>,
}

struct State {
    rng: u64,
    now_ns: u64,
    /// The wall clock when `now_ns` was 0, in nanoseconds since 1970; below 0 if it was set back
    /// that far.
    wall_zero_ns: i128,
    jobs: Vec<SimJob>,
    stepping: bool,
    steps: u64,
    /// What [`super::Env::random`] returns, if the test chose it.
    fixed_random: Option<u64>,
}

struct SimJob {
    name: &'static str,
    /// `None` during a step of the job.
    job: Option<Box<dyn Job>>,
    handle: JobHandle,
    pending: Option<Condition>,
}

/// The wall clock at the start of a simulation, in milliseconds since 1970: some moment of 2026.
const WALL_START_MS: u64 = 1_777_777_777_777;
const NS_PER_MS: i128 = 1_000_000;

/// SplitMix64: small, fast, and random enough for choices.
fn next(rng: &mut u64) -> u64 {
    *rng = rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *rng;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Sim {
    pub(super) fn new(seed: u64) -> Self {
        let state = State {
            rng: seed,
            now_ns: 1,
            wall_zero_ns: i128::from(WALL_START_MS) * NS_PER_MS,
            jobs: Vec::new(),
            stepping: false,
            steps: 0,
            fixed_random: None,
        };
        Sim(Arc::new(Driven {
            state: Mutex::new(state),
            breathing: Arc::new(AtomicBool::new(true)),
        }))
    }

    pub(super) fn breathing(&self) -> &Arc<AtomicBool> {
        &self.0.breathing
    }

    pub(super) fn driver(&self) -> Arc<dyn Driver> {
        self.0.clone()
    }

    /// Steps one runnable job, chosen by the seed. Returns `false` if every job waits. Does not
    /// move the clock to a deadline.
    pub fn step(&self) -> bool {
        self.0.step()
    }

    /// Moves the clock forward by `ns` nanoseconds.
    pub fn advance_ns(&self, ns: u64) {
        self.0.state.lock().now_ns += ns;
    }

    /// Sets the wall clock ([`super::Env::wall_ms`]) to this many milliseconds since 1970. It may
    /// go backwards. The monotonic clock does not change.
    pub fn set_wall_ms(&self, ms: u64) {
        let mut state = self.0.state.lock();
        state.wall_zero_ns = i128::from(ms) * NS_PER_MS - i128::from(state.now_ns);
    }

    /// Has [`super::Env::random`] return this number until the next call; `None` goes back to the
    /// seed. For tests of numbers that collide. The order of steps still follows from the seed.
    pub fn fix_random(&self, number: Option<u64>) {
        self.0.state.lock().fixed_random = number;
    }

    /// Steps until no job is runnable, without moving the clock to a deadline. Returns the number
    /// of steps.
    pub fn settle(&self) -> u64 {
        let mut steps = 0;
        while self.step() {
            steps += 1;
        }
        steps
    }

    /// Sets whether [`super::Env::breathe`] steps jobs, which it does initially. A test that
    /// chooses all steps itself turns it off.
    pub fn set_breathing(&self, on: bool) {
        self.0.breathing.store(on, Ordering::Relaxed);
    }

    /// Drops every job without another step, like the death of the process.
    pub fn kill(&self) {
        let jobs = std::mem::take(&mut self.0.state.lock().jobs);
        drop(jobs);
    }

    /// Number of steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.state.lock().steps
    }

    /// Random bits from the seed, for a test's own choices.
    #[must_use]
    pub fn random(&self) -> u64 {
        next(&mut self.0.state.lock().rng)
    }

    /// A random number below a bound, for a test's own choices. Panics if the bound is 0.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        self.random() % bound
    }
}

impl Driven {
    fn step(&self) -> bool {
        // Conditions are tested without the lock. They may look at anything except this
        // environment's jobs.
        let (conditions, now) = {
            let state = self.state.lock();
            let all: Vec<_> = state
                .jobs
                .iter()
                .map(|s| (s.job.is_some(), s.pending.clone()))
                .collect();
            (all, state.now_ns)
        };
        let runnable: Vec<usize> = (0..conditions.len())
            .filter(|&i| match &conditions[i] {
                (false, _) => false,
                (true, None) => true,
                (true, Some(c)) => c.deadline_ns.is_some_and(|d| d <= now) || c.holds(),
            })
            .collect();
        if runnable.is_empty() {
            return false;
        }
        let (mut job, handle) = {
            let mut state = self.state.lock();
            assert!(
                !state.stepping,
                "a step of a job stepped the simulation: a step must not wait"
            );
            let pick = runnable[(next(&mut state.rng) % runnable.len() as u64) as usize];
            state.stepping = true;
            state.steps += 1;
            state.now_ns += 100;
            let job_state = &mut state.jobs[pick];
            job_state.pending = None;
            let Some(job) = job_state.job.take() else {
                return false;
            };
            (job, job_state.handle.clone())
        };
        let outcome = handle.step(&mut job);
        let mut state = self.state.lock();
        state.stepping = false;
        // The job is found by its handle, since the step may have spawned jobs and the test may
        // have killed all.
        let index = state
            .jobs
            .iter()
            .position(|s| Arc::ptr_eq(&s.handle.state, &handle.state));
        match (index, outcome) {
            (Some(index), Stepped::Over(panic)) => {
                let job_state = state.jobs.remove(index);
                drop(state);
                drop(job_state);
                drop(job);
                handle.finish(panic);
            }
            (Some(index), outcome) => {
                let job_state = &mut state.jobs[index];
                job_state.job = Some(job);
                if let Stepped::Pending(condition) = outcome {
                    job_state.pending = Some(condition);
                }
            }
            (None, outcome) => {
                drop(state);
                drop(job);
                if let Stepped::Over(panic) = outcome {
                    handle.finish(panic);
                }
            }
        }
        true
    }
}

impl Driver for Driven {
    fn now_ns(&self) -> u64 {
        let mut state = self.state.lock();
        state.now_ns += 1;
        state.now_ns
    }

    fn wall_ms(&self) -> u64 {
        let state = self.state.lock();
        let wall_ns = state.wall_zero_ns + i128::from(state.now_ns);
        u64::try_from(wall_ns / NS_PER_MS).unwrap_or(0)
    }

    fn random(&self) -> u64 {
        let mut state = self.state.lock();
        match state.fixed_random {
            Some(number) => number,
            None => next(&mut state.rng),
        }
    }

    fn spawn(&self, job: Box<dyn Job>, handle: &JobHandle) -> Result<()> {
        let job_state = SimJob {
            name: job.name(),
            job: Some(job),
            handle: handle.clone(),
            pending: None,
        };
        self.state.lock().jobs.push(job_state);
        Ok(())
    }

    fn wait(&self, condition: &Condition) -> Result<Wait> {
        loop {
            if condition.holds() {
                return Ok(Wait::Ready);
            }
            if condition
                .deadline_ns
                .is_some_and(|d| d <= self.state.lock().now_ns)
            {
                return Ok(Wait::TimedOut);
            }
            assert!(
                !self.state.lock().stepping,
                "a step of a job waited: a step must not wait"
            );
            if self.step() {
                continue;
            }
            // No job is runnable: time passes until the earliest deadline, the waiter's included.
            let mut state = self.state.lock();
            let earliest = state
                .jobs
                .iter()
                .filter_map(|s| s.pending.as_ref()?.deadline_ns)
                .min();
            match earliest.into_iter().chain(condition.deadline_ns).min() {
                Some(deadline) => state.now_ns = state.now_ns.max(deadline),
                None => {
                    let names: Vec<_> = state.jobs.iter().map(|s| s.name).collect();
                    return Err(Error::internal(
                        "deadlock: the foreground waits and no job can run",
                    )
                    .with("jobs", format!("[{}]", names.join(", "))));
                }
            }
        }
    }

    fn breathe(&self) {
        let steps = {
            let mut state = self.state.lock();
            if state.stepping {
                return;
            }
            match next(&mut state.rng) % 8 {
                0 => 1 + next(&mut state.rng) % 4,
                1 => 1,
                _ => 0,
            }
        };
        for _ in 0..steps {
            if !self.step() {
                break;
            }
        }
    }

    fn simulated(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Env, Signal, Step};
    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    struct Count(Arc<AtomicU64>, Arc<Signal>, u64);
    impl Job for Count {
        fn name(&self) -> &'static str {
            "count"
        }
        fn step(&mut self) -> Step {
            if self.2 == 0 {
                return Step::Done;
            }
            self.2 -= 1;
            self.0.fetch_add(1, Ordering::SeqCst);
            self.1.notify();
            Step::Again
        }
    }

    fn run(env: &Env) -> u64 {
        let (count, signal) = (Arc::new(AtomicU64::new(0)), Signal::new());
        let handles: Vec<_> = (0..3)
            .map(|_| {
                env.spawn(Box::new(Count(count.clone(), signal.clone(), 10)))
                    .unwrap()
            })
            .collect();
        let seen = count.clone();
        let outcome = env
            .wait(&Condition::new(&signal, move || {
                seen.load(Ordering::SeqCst) >= 7
            }))
            .unwrap();
        assert_eq!(outcome, Wait::Ready);
        let at = count.load(Ordering::SeqCst);
        handles.iter().for_each(|h| h.join().unwrap());
        assert_eq!(count.load(Ordering::SeqCst), 30);
        at
    }

    #[test]
    fn the_same_jobs_run_on_threads_and_in_simulation() {
        assert!(run(&Env::threads()) >= 7);
        let (env, sim) = Env::simulated(1);
        assert_eq!(run(&env), 7);
        let (again, sim2) = Env::simulated(1);
        run(&again);
        assert_eq!(sim.steps(), sim2.steps());
    }

    #[test]
    fn a_wait_reports_a_deadlock_and_ends_at_its_deadline() {
        let (env, _sim) = Env::simulated(1);
        let never = Condition::new(&Signal::new(), || false);
        assert!(
            env.wait(&never)
                .unwrap_err()
                .to_string()
                .contains("deadlock")
        );
        let later = env.now_ns() + 1_000_000;
        assert_eq!(
            env.wait(&never.clone().until(later)).unwrap(),
            Wait::TimedOut
        );
        assert!(env.now_ns() >= later);
        let real = Env::threads();
        assert_eq!(
            real.wait(&never.until(real.now_ns() + 1_000_000)).unwrap(),
            Wait::TimedOut
        );
    }

    #[test]
    fn the_wall_clock_goes_with_the_other_clock_and_can_be_set_back() {
        let (env, sim) = Env::simulated(1);
        let start = env.wall_ms();
        sim.advance_ns(3_000_000_000);
        assert!(env.wall_ms() - start >= 3_000);
        let now = env.now_ns();
        sim.set_wall_ms(5_000);
        assert_eq!(env.wall_ms(), 5_000, "back by years");
        sim.advance_ns(7_000_000);
        assert_eq!(env.wall_ms(), 5_007);
        sim.set_wall_ms(u64::MAX);
        assert_eq!(env.wall_ms(), u64::MAX);
        sim.set_wall_ms(0);
        assert_eq!(env.wall_ms(), 0);
        assert_eq!(
            env.now_ns(),
            now + 7_000_001,
            "a set wall clock moves no other"
        );
        assert!(Env::threads().wall_ms() > 0);
    }

    struct Panics {
        twice: bool,
    }
    impl Job for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }
        fn step(&mut self) -> Step {
            panic!("on purpose")
        }
        fn panicked(&mut self, _error: Error) {
            assert!(!self.twice, "again");
        }
    }

    #[test]
    fn a_join_reports_the_panic_of_a_job() {
        let (env, _sim) = Env::simulated(1);
        for (env, twice) in [env, Env::threads()]
            .into_iter()
            .flat_map(|env| [(env.clone(), false), (env, true)])
        {
            let job = env.spawn(Box::new(Panics { twice })).unwrap();
            let error = job.join().unwrap_err();
            assert!(error.to_string().contains("on purpose"), "{error}");
        }
    }
}
