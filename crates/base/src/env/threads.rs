//! The production environment: one thread per job, the monotonic clock, the system's randomness. In
//! a build for the model checker, all three are the checker's (`sync`).

use super::{Condition, Driver, Job, JobHandle, Stepped, Wait};
use crate::sync::{AtomicU64, AtomicUsize, Builder, Clock, Entropy, Ordering, give_way};
use crate::{Error, Result};

/// Number of threads in a step of a job that gives way.
static GIVING_WAY: AtomicUsize = AtomicUsize::new(0);

/// Whether a job that gives way to users ([`Job::gives_way`]) is in a step now, in any environment
/// of threads.
#[must_use]
pub fn is_job_giving_way() -> bool {
    GIVING_WAY.load(Ordering::Relaxed) > 0
}

pub(super) struct Threads {
    clock: Clock,
    entropy: Entropy,
    drawn: AtomicU64,
}

impl Threads {
    pub(super) fn new() -> Self {
        Threads {
            clock: Clock::start(),
            entropy: Entropy::new(),
            drawn: AtomicU64::new(0),
        }
    }
}

/// Finishes a job when its thread ends, even by a panic outside a step. Without this, a join would
/// never end.
struct Ends {
    handle: JobHandle,
    /// The error that a join returns.
    panic: Option<Error>,
}

impl Ends {
    fn new(handle: JobHandle, job: &'static str) -> Self {
        let panic = Error::internal("a background job panicked outside its steps").with("job", job);
        Ends {
            handle,
            panic: Some(panic),
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.handle.finish(self.panic.take());
    }
}

impl Driver for Threads {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn wall_ms(&self) -> u64 {
        Clock::wall_ms()
    }

    fn random(&self) -> u64 {
        self.entropy
            .draw(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    fn spawn(&self, job: Box<dyn Job>, handle: &JobHandle) -> Result<()> {
        let (name, gives_way) = (job.name(), job.gives_way());
        let (handle, clock) = (handle.clone(), self.clock);
        Builder::new()
            .name(format!("tp-{name}"))
            .spawn(move || {
                let mut ends = Ends::new(handle, name);
                // Declared after `ends`, so it is dropped first.
                let mut job = job;
                if gives_way {
                    give_way();
                }
                job.on_thread();
                loop {
                    GIVING_WAY.fetch_add(usize::from(gives_way), Ordering::Relaxed);
                    let stepped = ends.handle.step(&mut job);
                    GIVING_WAY.fetch_sub(usize::from(gives_way), Ordering::Relaxed);
                    match stepped {
                        Stepped::Again => {}
                        Stepped::Pending(c) => {
                            c.signal.wait(&*c.ready, c.deadline_ns, &|| clock.now_ns());
                        }
                        Stepped::Over(panic) => {
                            drop(job);
                            ends.panic = panic;
                            break;
                        }
                    }
                }
            })
            .map(drop)
            .map_err(|e| Error::io("cannot start a background thread", e).with("job", name))
    }

    fn wait(&self, c: &Condition) -> Result<Wait> {
        Ok(c.signal.wait(&*c.ready, c.deadline_ns, &|| self.now_ns()))
    }

    fn breathe(&self) {}

    fn simulated(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::sync::{Arc, AtomicBool};
    use crate::{Env, ErrorKind, Job, Signal, Step};

    use super::*;

    struct Meek(Arc<AtomicBool>);

    impl Job for Meek {
        fn name(&self) -> &'static str {
            "meek"
        }

        fn step(&mut self) -> Step {
            self.0.store(is_job_giving_way(), Ordering::SeqCst);
            Step::Done
        }

        fn gives_way(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_job_that_gives_way_is_reported_during_its_steps() {
        let seen = Arc::new(AtomicBool::new(false));
        let handle = Env::threads().spawn(Box::new(Meek(seen.clone())));
        handle.unwrap().join().unwrap();
        assert!(seen.load(Ordering::SeqCst));
    }

    /// The place where a job panics.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Panics {
        OnThread,
        InPanicked,
        InCondition,
        InDrop,
    }

    struct Frail {
        place: Panics,
        /// Lives as long as the job.
        _lives: Arc<()>,
    }

    impl Frail {
        fn reach(&self, place: Panics) {
            assert!(self.place != place, "on purpose");
        }
    }

    impl Job for Frail {
        fn name(&self) -> &'static str {
            "frail"
        }

        fn on_thread(&mut self) {
            self.reach(Panics::OnThread);
        }

        fn step(&mut self) -> Step {
            self.reach(Panics::InPanicked);
            if self.place == Panics::InCondition {
                return Step::Pending(Condition::new(&Signal::new(), || panic!("on purpose")));
            }
            Step::Done
        }

        fn panicked(&mut self, _error: Error) {
            self.reach(Panics::InPanicked);
        }
    }

    impl Drop for Frail {
        fn drop(&mut self) {
            self.reach(Panics::InDrop);
        }
    }

    #[test]
    fn a_job_is_over_and_failed_wherever_it_panics() {
        for place in [
            Panics::OnThread,
            Panics::InPanicked,
            Panics::InCondition,
            Panics::InDrop,
        ] {
            let env = Env::threads();
            let lives = Arc::new(());
            let _lives = lives.clone();
            let handle = env.spawn(Box::new(Frail { place, _lives })).unwrap();
            let over = Condition::new(&handle.state.signal, {
                let handle = handle.clone();
                move || handle.is_done()
            });
            // Only a job that does not end takes this long.
            let over = over.until(env.now_ns() + 10_000_000_000);
            assert_eq!(env.wait(&over).unwrap(), Wait::Ready);
            assert_eq!(Arc::strong_count(&lives), 1, "dropped before");
            let error = handle.join().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
        }
    }
}
