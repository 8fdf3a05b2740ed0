//! [`Owner`]: what keeps an open database open. Every handle, snapshot and iterator holds the
//! owner. Jobs hold only the [`Core`]. When the last owner goes, the jobs end and the files are
//! released, without a checkpoint. Only writes of `Durability::None` are lost: all other
//! acknowledged writes are in the log, which is synced. In a forked child, dropping the owner does
//! nothing, since jobs and files belong to the parent.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::sync::Mutex;
use terrapin_base::{Job, JobHandle, Purpose, Result};

use crate::engine::core::Core;
use crate::engine::gate::Gate;
use crate::engine::state::{KeyspaceShared, Keyspaces, State};

/// Opens the newest state of a database as another one.
pub(crate) type Reopen = Box<dyn Fn() -> Result<Arc<Owner>> + Send + Sync>;

/// The one owner that all handles share.
pub(crate) struct Owner {
    /// The engine.
    pub core: Arc<Core>,
    /// A number that no other open database of this process has.
    pub number: u64,
    /// The keyspace that every database has.
    pub default_keyspace: Arc<KeyspaceShared>,
    /// The database's directory. None on a disk that the caller supplied.
    pub path: Option<PathBuf>,
    /// Opens the newest state, for a reader beside a writer.
    pub reopen: OnceLock<Reopen>,
    gate: Arc<Gate>,
    jobs: Mutex<Vec<JobHandle>>,
}

impl Owner {
    /// Takes ownership of a core that is being opened.
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
            reopen: OnceLock::new(),
            gate,
            jobs: Mutex::default(),
        })
    }

    /// Starts a job. The end of the database joins it.
    pub fn run(&self, job: Box<dyn Job>) -> Result<()> {
        let handle = self.core.env.spawn(job)?;
        self.jobs.lock().push(handle);
        Ok(())
    }

    /// Ends the jobs without further work and releases the files, so the database can be opened
    /// again. Later calls fail with [`terrapin_base::ErrorKind::Closed`]. Returns the error of a
    /// job that failed.
    pub fn shut(&self) -> Result<()> {
        self.shut_as(false)
    }

    /// Ends the jobs and releases the files, like [`Owner::shut`]. If the log was `closed` and no
    /// job failed, the data file records a clean close.
    pub fn shut_as(&self, closed: bool) -> Result<()> {
        self.core.health.close();
        self.core.end_ingests();
        if let Some(log) = &self.core.log {
            log.stop();
        }
        self.core.schedule.stop();
        if let Some(log) = &self.core.log {
            log.failure_signal().notify();
        }
        self.core.clock.begun().notify();
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
        // The log's last sync may have failed after the job that reports failures ended.
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
            // Handles may outlive the close. They read nothing any more.
            self.core.records.set_share(0);
            self.core.records.clear();
        }
        self.core.readers.close();
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
            // This is a forked child. Jobs and files belong to the parent. The child has copies of
            // the memory, under locks that no thread of the child may ever release. The copies go
            // when the child ends.
            std::mem::forget((self.core.clone(), self.gate.clone()));
            return;
        }
        // A panic in a job was reported when it happened. Listeners were called for a failed log.
        let _ = self.shut();
    }
}
