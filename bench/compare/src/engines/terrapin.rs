//! Terrapin with default options and the cell's memory: a log that survives the death of the
//! process, and χ by memory. The variant with tiered buffers has its records in a keyspace of that
//! structure.

use terrapin::{Durability, KeyspaceOptions, Options, StructureKind};
use terrapin_base::Result;
use terrapin_bench::TerrapinStore;

use super::Engine;
use crate::plan::MemoryKind;
use crate::worker::{self, Job};

const PLAIN: Engine = Engine {
    name: "terrapin",
    packages: &[],
    logged: true,
    memory: MemoryKind::Bounded,
    overhead_bytes: 0,
    small_only: false,
    is_data_file: None,
    how: "direct I/O, log in shared memory, synced every 100 ms",
    run: |job| run(job, StructureKind::Leveled),
};

pub(super) const ENGINES: &[Engine] = &[
    PLAIN,
    Engine {
        name: "terrapin-tiered",
        how: "as terrapin, with tiered buffers",
        run: |job| run(job, StructureKind::Tiered),
        ..PLAIN
    },
];

fn run(job: &Job, structure: StructureKind) -> Result<()> {
    let memory = job.plan.memory_bytes;
    let database = Options::new().memory(memory).open(&job.directory)?;
    let store = TerrapinStore::new(database.clone(), Durability::Process, memory);
    let store = store.stored(KeyspaceOptions::new().structure(structure))?;
    worker::drive(job, &store)?;
    database.close().map(drop)
}
