//! What keeps an open database open: every handle, snapshot and iterator holds the [`Owner`]; the
//! jobs hold only the [`Core`]. When the last owner goes, the jobs end and the files are let go.
//! Nothing is checkpointed then, and nothing is lost but writes of `Durability::None`: what else
//! was acknowledged is in the log, which is synced. In a forked child nothing ends and nothing
//! goes: all of it is the parent's.

use std::path::PathBuf;
use std::sync::Arc;
use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::sync::Mutex;
use terrapin_base::{Job, JobHandle, Purpose, Result};

use crate::engine::core::Core;
use crate::engine::gate::Gate;
use crate::engine::state::{KeyspaceShared, Keyspaces, State};

/// The one owner behind all handles.
pub(crate) struct Owner {
    /// The engine.
    pub core: Arc<Core>,
    /// Tells this open database from every other of the process.
    pub number: u64,
    /// The keyspace that every database has.
    pub default_keyspace: Arc<KeyspaceShared>,
    /// Where it lies; none on a disk of the caller's.
    pub path: Option<PathBuf>,
    gate: Arc<Gate>,
    jobs: Mutex<Vec<JobHandle>>,
}

impl Owner {
    /// Takes over a core that is being opened.
    pub fn new(
        core: Arc<Core>,
        gate: Arc<Gate>,
        path: Option<PathBuf>,
        default_keyspace: Arc<KeyspaceShared>,
    ) -> Arc<Self> {
        static OPENED: AtomicU64 = AtomicU64::new(1);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        Arc::new(Owner {
            core,
            number,
            default_keyspace,
            path,
            gate,
            jobs: Mutex::default(),
        })
    }

    /// Starts a job, to be joined at the end.
    pub fn run(&self, job: Box<dyn Job>) -> Result<()> {
        let handle = self.core.env.spawn(job)?;
        self.jobs.lock().push(handle);
        Ok(())
    }

    /// Ends the jobs where they stand and lets the files go, so that the database can be opened
    /// again. Every later call gets [`terrapin_base::ErrorKind::Closed`]. Returns what a job said
    /// of its own failure.
    pub fn shut(&self) -> Result<()> {
        self.shut_as(false)
    }

    /// As [`Owner::shut`]. If the log was `closed`, and no job failed, the data file says so from
    /// then on.
    pub fn shut_as(&self, closed: bool) -> Result<()> {
        self.core.health.close();
        if let Some(log) = &self.core.log {
            log.stop();
        }
        self.core.schedule.stop();
        if let Some(log) = &self.core.log {
            log.failure_signal().notify();
        }
        self.core.store.reclaim_signal().notify();
        self.core.pool.change_signal().notify();
        let jobs = std::mem::take(&mut *self.jobs.lock());
        let mut outcome = Ok(());
        for job in jobs {
            outcome = outcome.and(job.join());
        }
        if closed && self.core.log.is_some() {
            outcome = outcome.and_then(|()| self.core.store.end_branch());
        }
        // Its last sync may have failed when the job that tells of it was over.
        if let Some(error) = self.core.log.as_ref().and_then(|log| log.failed()) {
            self.core.health.log_failed(&error);
        }
        self.core.views.close();
        {
            let _install = self.core.install.lock();
            let generation = self.core.state.load().generation;
            let floor = self.core.state.load().floor;
            let last = self.core.replace_state(State {
                generation,
                pin: None,
                floor,
                keyspaces: Keyspaces::default(),
            });
            drop(last);
            // Handles may live on, and read nothing any more.
            self.core.records.set_share(0);
            self.core.records.clear();
        }
        self.core.pool.set_bytes_max(0);
        if let Some(log) = &self.core.log {
            self.core.budget.give(Purpose::Log, log.release());
        }
        self.gate.shut();
        self.core.store.empty_caches();
        self.core.health.let_listeners_go();
        outcome
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.core.health.process().is_this() {
            // This is a forked child. Jobs and files are its parent's. The child has copies of the
            // memory, under locks that no thread of it may ever release. They go when it ends.
            std::mem::forget((self.core.clone(), self.gate.clone()));
            return;
        }
        // A panic in a job was reported when it happened, and listeners were told of a log that
        // failed.
        let _ = self.shut();
    }
}
