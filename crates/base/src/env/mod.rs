//! The environment: clocks, randomness and background jobs.
//!
//! In production, threads run the jobs. In simulation, one thread and a seed do, so that a run can
//! be repeated exactly. Rules:
//!
//! - A [`Job::step`] never waits; it returns [`Step::Pending`].
//! - A foreground wait uses [`Env::wait`], and the caller holds no lock or guard.
//! - Code that changes what a condition tests calls [`Signal::notify`] afterwards.

mod sim;
mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, Ordering};
use crate::{Error, Result};

pub use sim::Sim;
pub use threads::is_job_giving_way;

/// The outcome of one step of a job.
pub enum Step {
    /// More work can be done now.
    Again,
    /// No work can be done until the condition holds or its deadline passes. Then comes the next
    /// step.
    Pending(Condition),
    /// The job is over, and is dropped.
    Done,
}

/// A background task in steps. A step is short (one large I/O or a few milliseconds) and never
/// waits.
pub trait Job: Send {
    /// The job's name for threads, traces and reports of deadlocks.
    fn name(&self) -> &'static str;
    /// Does one piece of the work.
    fn step(&mut self) -> Step;
    /// Whether foreground threads come first. The production environment then lowers the priority
    /// of the job's thread, where the system can. For jobs that compute long and hold no lock
    /// meanwhile.
    fn gives_way(&self) -> bool {
        false
    }
    /// Prepares the job's own thread, before the first step. Not called in simulation, which has no
    /// such thread. The default does nothing.
    fn on_thread(&mut self) {}
    /// Called after a step panicked; then the job is dropped. The default does nothing.
    ///
    /// Not called after a panic outside a step, such as in this function or in a condition. Only
    /// [`JobHandle::join`] reports such a panic.
    fn panicked(&mut self, _error: Error) {}
}

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The condition holds.
    Ready,
    /// The deadline passed first.
    TimedOut,
}

/// Wakes threads that wait for conditions on shared state. Costs one atomic load if no thread
/// waits.
#[derive(Default)]
pub struct Signal {
    waiters: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    /// A new signal.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes waiting threads test their conditions again. Call it after the change is visible.
    pub fn notify(&self) {
        crate::sync::atomic::fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.changed.notify_all();
        }
    }

    /// Waits on this thread until `ready` or the deadline, in nanoseconds of `now`.
    fn wait(
        &self,
        ready: &dyn Fn() -> bool,
        deadline_ns: Option<u64>,
        now: &dyn Fn() -> u64,
    ) -> Wait {
        if ready() {
            return Wait::Ready;
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        crate::sync::atomic::fence(Ordering::SeqCst);
        let mut guard = self.lock.lock();
        let outcome = loop {
            if ready() {
                break Wait::Ready;
            }
            match deadline_ns {
                None => self.changed.wait(&mut guard),
                Some(deadline) => {
                    let left = deadline.saturating_sub(now());
                    if left == 0 {
                        break Wait::TimedOut;
                    }
                    self.changed
                        .wait_for(&mut guard, std::time::Duration::from_nanos(left));
                }
            }
        };
        drop(guard);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        outcome
    }
}

/// A test of shared state, the signal that tells when to test again, and perhaps a deadline. The
/// test must be cheap, must not block, and must not notify the same signal.
#[derive(Clone)]
pub struct Condition {
    signal: Arc<Signal>,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
    deadline_ns: Option<u64>,
}

impl Condition {
    /// A condition that holds when `ready` returns `true`.
    pub fn new(signal: &Arc<Signal>, ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Condition {
            signal: signal.clone(),
            ready: Arc::new(ready),
            deadline_ns: None,
        }
    }

    /// Sets a deadline in nanoseconds of [`Env::now_ns`]. The earliest deadline counts.
    #[must_use]
    pub fn until(mut self, deadline_ns: u64) -> Self {
        self.deadline_ns = Some(self.deadline_ns.map_or(deadline_ns, |d| d.min(deadline_ns)));
        self
    }

    /// A delay: a condition that never holds and has a deadline.
    #[must_use]
    pub fn delay_until(deadline_ns: u64) -> Self {
        Condition::new(&Signal::new(), || false).until(deadline_ns)
    }

    /// Whether the condition holds now.
    #[must_use]
    pub fn holds(&self) -> bool {
        (self.ready)()
    }
}

trait Driver: Send + Sync {
    fn now_ns(&self) -> u64;
    fn wall_ms(&self) -> u64;
    fn random(&self) -> u64;
    fn spawn(&self, job: Box<dyn Job>, handle: &JobHandle) -> Result<()>;
    fn wait(&self, condition: &Condition) -> Result<Wait>;
    fn breathe(&self);
    fn simulated(&self) -> bool;
}

/// Clocks, randomness and jobs. Clones share one environment.
#[derive(Clone)]
pub struct Env {
    driver: Arc<dyn Driver>,
    /// Whether [`Env::breathe`] steps jobs; `None` in production. Every operation asks.
    breathing: Option<Arc<AtomicBool>>,
}

impl Env {
    /// The production environment: monotonic clock, the system's randomness, one thread per job.
    #[must_use]
    pub fn threads() -> Self {
        Env {
            driver: Arc::new(threads::Threads::new()),
            breathing: None,
        }
    }

    /// A simulated environment without threads. `seed` decides everything random, and the test
    /// steps it through [`Sim`].
    #[must_use]
    pub fn simulated(seed: u64) -> (Self, Sim) {
        let sim = Sim::new(seed);
        let env = Env {
            driver: sim.driver(),
            breathing: Some(sim.breathing().clone()),
        };
        (env, sim)
    }

    /// Nanoseconds of a monotonic clock with an arbitrary zero.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.driver.now_ns()
    }

    /// Milliseconds since 1970 (UTC) of the wall clock; 0 if that clock shows an earlier time.
    ///
    /// People and time servers set this clock, so it can go backwards and leap. Use
    /// [`Env::now_ns`] for durations and deadlines of waits. In simulation the clock follows
    /// [`Env::now_ns`], and [`Sim::set_wall_ms`] sets it.
    ///
    /// ```
    /// let (env, sim) = terrapin_base::Env::simulated(1);
    /// sim.set_wall_ms(1_000_000);
    /// sim.advance_ns(5_000_000);
    /// assert_eq!(env.wall_ms(), 1_000_005);
    /// ```
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.driver.wall_ms()
    }

    /// Random bits; in simulation they follow from the seed.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.driver.random()
    }

    /// Starts a job. Fails if the system refuses a thread.
    pub fn spawn(&self, job: Box<dyn Job>) -> Result<JobHandle> {
        let handle = JobHandle {
            env: self.clone(),
            state: Arc::default(),
        };
        self.driver.spawn(job, &handle)?;
        Ok(handle)
    }

    /// Waits in the foreground. The caller must hold no lock or guard.
    ///
    /// In simulation this steps jobs until the condition holds. If no job can run, it returns an
    /// error with the names of all jobs.
    pub fn wait(&self, condition: &Condition) -> Result<Wait> {
        self.driver.wait(condition)
    }

    /// In simulation, runs a few random steps of jobs, or none. Does nothing in production.
    ///
    /// The foreground calls it when it enters the engine. So simulated background work also
    /// interleaves with calls that never wait.
    #[inline]
    pub fn breathe(&self) {
        if let Some(breathing) = &self.breathing
            && breathing.load(Ordering::Relaxed)
        {
            self.driver.breathe();
        }
    }

    /// Whether this is a simulation.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.driver.simulated()
    }
}

#[derive(Default)]
struct JobState {
    done: AtomicBool,
    panic: Mutex<Option<Error>>,
    signal: Arc<Signal>,
}

/// The outcome of a step, for the driver.
enum Stepped {
    Again,
    Pending(Condition),
    Over(Option<Error>),
}

/// A started job. The job continues after a drop of the handle.
#[derive(Clone)]
pub struct JobHandle {
    env: Env,
    state: Arc<JobState>,
}

impl JobHandle {
    /// Waits until the job is over. Returns an error if the job panicked.
    pub fn join(&self) -> Result<()> {
        let state = self.state.clone();
        self.env.wait(&Condition::new(&self.state.signal, move || {
            state.done.load(Ordering::Acquire)
        }))?;
        match &*self.state.panic.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Whether the job is over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.done.load(Ordering::Acquire)
    }

    fn finish(&self, panic: Option<Error>) {
        *self.state.panic.lock() = panic;
        self.state.done.store(true, Ordering::Release);
        self.state.signal.notify();
    }

    /// Steps a job once. A panic becomes an error, which the job and [`JobHandle::join`] get.
    ///
    /// When the job is over, its driver drops it, and then calls [`JobHandle::finish`] with the
    /// error. So a thread that joins finds everything released that the job held.
    fn step(&self, job: &mut Box<dyn Job>) -> Stepped {
        match catch_unwind(AssertUnwindSafe(|| job.step())) {
            Ok(Step::Done) => Stepped::Over(None),
            Ok(Step::Again) => Stepped::Again,
            Ok(Step::Pending(condition)) => Stepped::Pending(condition),
            Err(payload) => {
                let text = payload
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
                    .unwrap_or_else(|| "no message".into());
                let error = Error::internal("a background job panicked")
                    .with("job", job.name())
                    .with("message", text);
                // If this call panics too, `join` must still report that the job is over. Its error
                // is the first panic.
                let told = catch_unwind(AssertUnwindSafe(|| job.panicked(error.clone())));
                drop(told);
                Stepped::Over(Some(error))
            }
        }
    }
}
