//! Terrapin with default options and the cell's memory: a log that survives the death of the
//! process, and χ by memory.

use terrapin::{Durability, Options};
use terrapin_base::Result;
use terrapin_bench::TerrapinStore;

use super::Engine;
use crate::plan::MemoryKind;
use crate::worker::{self, Job};

pub(super) const ENGINES: &[Engine] = &[Engine {
    name: "terrapin",
    packages: &[],
    logged: true,
    memory: MemoryKind::Bounded,
    overhead_bytes: 0,
    small_only: false,
    is_data_file: None,
    how: "direct I/O, log in shared memory, synced every 100 ms",
    run: |job| run(job, Options::new()),
}];

fn run(job: &Job, options: Options) -> Result<()> {
    let memory = job.plan.memory_bytes;
    let database = options.memory(memory).open(&job.directory)?;
    let store = TerrapinStore::new(database.clone(), Durability::Process, memory);
    worker::drive(job, &store)?;
    database.close().map(drop)
}
