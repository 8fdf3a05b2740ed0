//! The production environment: a thread a job, the monotonic clock, the system's randomness. Under a model checker its threads,
//! clock and randomness are the checker's (`sync`).

use super::{Condition, Driver, Job, JobHandle, Stepped, Wait};
use crate::sync::{AtomicU64, Builder, Clock, Entropy, Ordering, give_way};
use crate::{Error, Result};

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

impl Driver for Threads {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn random(&self) -> u64 {
        self.entropy
            .draw(self.drawn.fetch_add(1, Ordering::Relaxed))
    }

    fn spawn(&self, mut job: Box<dyn Job>, handle: &JobHandle) -> Result<()> {
        let (name, gives_way) = (job.name(), job.gives_way());
        let (handle, clock) = (handle.clone(), self.clock);
        Builder::new()
            .name(format!("tp-{name}"))
            .spawn(move || {
                if gives_way {
                    give_way();
                }
                loop {
                    match handle.step(&mut job) {
                        Stepped::Again => {}
                        Stepped::Pending(c) => {
                            c.signal.wait(&*c.ready, c.deadline_ns, &|| clock.now_ns());
                        }
                        Stepped::Over(panic) => {
                            drop(job);
                            handle.finish(panic);
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
