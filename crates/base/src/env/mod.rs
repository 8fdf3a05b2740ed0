//! The environment: clock, randomness and background jobs. In production threads drive the jobs; in
//! simulation one thread and a seed do, so that a run can be repeated to the byte (DESIGN §3).
//!
//! The rules: a [`Job::step`] never waits, it returns [`Step::Pending`]; a foreground wait goes
//! through [`Env::wait`] and holds no lock or guard; whoever changes what a condition tests calls
//! [`Signal::notify`] afterwards.

mod sim;
mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sync::{Arc, AtomicBool, AtomicUsize, Condvar, Mutex, Ordering};
use crate::{Error, Result};

pub use sim::Sim;
pub use threads::is_job_giving_way;

/// What a job's step came to.
pub enum Step {
    /// More can be done at once.
    Again,
    /// Nothing can be done until the condition holds or its deadline passes; then the job is
    /// stepped again.
    Pending(Condition),
    /// The job is over and is dropped.
    Done,
}

/// A background duty, cut into steps. A step is short (at most one large I/O or a few milliseconds)
/// and never waits.
pub trait Job: Send {
    /// For thread names, traces and reports of deadlocks.
    fn name(&self) -> &'static str;
    /// Does one piece of the duty.
    fn step(&mut self) -> Step;
    /// Whether foreground threads that want a processor come first: the production environment runs
    /// the job at a lower priority, where the system has such a thing for threads. For duties that
    /// take long stretches of computing and nobody's lock.
    fn gives_way(&self) -> bool {
        false
    }
    /// Called once, before the first step, on the thread that the production environment has for
    /// the job alone; not in simulation, where there is none. For what belongs to a thread. The
    /// default does nothing.
    fn on_thread(&mut self) {}
    /// Told when a step panicked; the job is dropped afterwards. The default does nothing. Where a
    /// job panics beside its steps on its thread, as in this or in a condition that it waits for,
    /// only who joins is told.
    fn panicked(&mut self, _error: Error) {}
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The condition holds.
    Ready,
    /// The deadline passed first.
    TimedOut,
}

/// Wakes those who wait on conditions over some shared state. Costs one atomic load when nobody
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

    /// Tells waiters to test again. Call it after the change is visible.
    pub fn notify(&self) {
        crate::sync::atomic::fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.changed.notify_all();
        }
    }

    /// Waits on this thread until `ready` or the deadline (nanoseconds of `now`).
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

/// Something to wait for: a test over shared state, the signal that tells when to test again,
/// perhaps a deadline. The test must be cheap, must not block and must not notify the same signal.
#[derive(Clone)]
pub struct Condition {
    signal: Arc<Signal>,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
    deadline_ns: Option<u64>,
}

impl Condition {
    /// Holds when `ready` says so.
    pub fn new(signal: &Arc<Signal>, ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Condition {
            signal: signal.clone(),
            ready: Arc::new(ready),
            deadline_ns: None,
        }
    }

    /// Ends the wait at that time of [`Env::now_ns`] at the latest.
    #[must_use]
    pub fn until(mut self, deadline_ns: u64) -> Self {
        self.deadline_ns = Some(self.deadline_ns.map_or(deadline_ns, |d| d.min(deadline_ns)));
        self
    }

    /// A pure delay: never ready, ends at the deadline.
    #[must_use]
    pub fn delay_until(deadline_ns: u64) -> Self {
        Condition::new(&Signal::new(), || false).until(deadline_ns)
    }

    /// Tests it.
    #[must_use]
    pub fn holds(&self) -> bool {
        (self.ready)()
    }
}

trait Driver: Send + Sync {
    fn now_ns(&self) -> u64;
    fn random(&self) -> u64;
    fn spawn(&self, job: Box<dyn Job>, handle: &JobHandle) -> Result<()>;
    fn wait(&self, condition: &Condition) -> Result<Wait>;
    fn breathe(&self);
    fn simulated(&self) -> bool;
}

/// Clock, randomness and jobs. Clones share one environment.
#[derive(Clone)]
pub struct Env(Arc<dyn Driver>);

impl Env {
    /// The production environment: monotonic clock, system randomness, one thread a job.
    #[must_use]
    pub fn threads() -> Self {
        Env(Arc::new(threads::Threads::new()))
    }

    /// A simulated environment without any thread, driven by `seed`; [`Sim`] is the handle by which
    /// a test steps it.
    #[must_use]
    pub fn simulated(seed: u64) -> (Self, Sim) {
        let sim = Sim::new(seed);
        (Env(sim.driver()), sim)
    }

    /// Nanoseconds of a clock that never goes back; its zero means nothing.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    /// Random bits; from the seed in simulation.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.0.random()
    }

    /// Starts a job. Fails when the system gives no thread.
    pub fn spawn(&self, job: Box<dyn Job>) -> Result<JobHandle> {
        let handle = JobHandle {
            env: self.clone(),
            state: Arc::default(),
        };
        self.0.spawn(job, &handle)?;
        Ok(handle)
    }

    /// Waits in the foreground, holding no lock or guard. In simulation this steps jobs by the seed
    /// until the condition holds, and nothing runnable is an error that lists what every job waits
    /// for.
    pub fn wait(&self, condition: &Condition) -> Result<Wait> {
        self.0.wait(condition)
    }

    /// Lets jobs run in simulation (a random few steps, perhaps none); nothing in production.
    /// Called where the foreground enters the engine, so that simulated background work interleaves
    /// with calls that never wait.
    #[inline]
    pub fn breathe(&self) {
        self.0.breathe();
    }

    /// Whether this is a simulation.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.0.simulated()
    }
}

#[derive(Default)]
struct JobState {
    done: AtomicBool,
    panic: Mutex<Option<Error>>,
    signal: Arc<Signal>,
}

/// What a step came to, for the driver.
enum Stepped {
    Again,
    Pending(Condition),
    Over(Option<Error>),
}

/// A started job. Dropping the handle lets the job run on.
#[derive(Clone)]
pub struct JobHandle {
    env: Env,
    state: Arc<JobState>,
}

impl JobHandle {
    /// Waits until the job is over. An error if it panicked.
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

    /// Steps a job once; a panic becomes an error, told to the job and to whoever joins. When the
    /// job is over, its driver drops it and then calls [`JobHandle::finish`] with the error, so
    /// that who joins finds everything released that the job held.
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
                // If that panics in turn, who joins must still learn that the job is over; it was
                // told already that it panicked.
                let told = catch_unwind(AssertUnwindSafe(|| job.panicked(error.clone())));
                drop(told);
                Stepped::Over(Some(error))
            }
        }
    }
}
