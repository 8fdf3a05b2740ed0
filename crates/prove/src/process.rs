//! A process on a simulated disk, for checks that open, kill and reopen.

use terrapin::{Database, Options};
use terrapin_base::{Env, Sim};
use terrapin_disk::SimDisk;

/// One simulated machine, and the process on it.
pub(crate) struct Process {
    pub env: Env,
    pub sim: Sim,
    pub disk: SimDisk,
}

impl Process {
    /// A process on a disk. The seed orders the steps of its jobs.
    pub fn new(seed: u64, disk: SimDisk) -> Self {
        let (env, sim) = Env::simulated(seed);
        Process { env, sim, disk }
    }

    /// Opens a database on the disk.
    pub fn open(&self, options: &Options) -> terrapin::Result<Database> {
        options.open_on(self.env.clone(), self.disk.handle())
    }

    /// The process dies, with its database if it has one open.
    pub fn kill(&self, database: Option<Database>) {
        self.sim.kill();
        self.disk.crash_process();
        drop(database);
        self.sim.kill();
    }
}
