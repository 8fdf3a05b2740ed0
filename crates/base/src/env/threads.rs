//! The production environment: a thread a job, the monotonic clock, the system's randomness.
#![allow(clippy::disallowed_methods)] // the one place where threads and clocks come from

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Instant;

use super::{Condition, Driver, Job, JobHandle, Stepped, Wait};
use crate::sync::{AtomicU64, Ordering};
use crate::{Error, Result};

pub(super) struct Threads {
    start: Instant,
    entropy: RandomState,
    drawn: AtomicU64,
}

impl Threads {
    pub(super) fn new() -> Self {
        Threads {
            start: Instant::now(),
            entropy: RandomState::new(),
            drawn: AtomicU64::new(0),
        }
    }
}

impl Driver for Threads {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn random(&self) -> u64 {
        let mut hasher = self.entropy.build_hasher();
        hasher.write_u64(self.drawn.fetch_add(1, Ordering::Relaxed));
        hasher.write_u64(self.now_ns());
        hasher.finish()
    }

    fn spawn(&self, mut job: Box<dyn Job>, handle: &JobHandle) -> Result<()> {
        let name = job.name();
        let (handle, start) = (handle.clone(), self.start);
        let now = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        std::thread::Builder::new()
            .name(format!("tp-{name}"))
            .spawn(move || {
                loop {
                    match handle.step(&mut job) {
                        Stepped::Again => {}
                        Stepped::Pending(c) => {
                            c.signal.wait(&*c.ready, c.deadline_ns, &now);
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
