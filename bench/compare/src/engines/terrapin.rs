//! Terrapin with default options and the cell's memory: a log that survives the death of the
//! process, and χ by memory. A variant has its records in a keyspace with other options.

use terrapin::{Durability, KeyspaceOptions, Options, StructureKind};
use terrapin_base::Result;
use terrapin_bench::TerrapinStore;

use super::{Engine, SEPARATE_BYTES_MIN};
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
    run: |job| run(job, KeyspaceOptions::new()),
};

pub(super) const ENGINES: &[Engine] = &[
    PLAIN,
    Engine {
        name: "terrapin-tiered",
        how: "as terrapin, with tiered buffers",
        run: |job| run(job, KeyspaceOptions::new().structure(StructureKind::Tiered)),
        ..PLAIN
    },
    Engine {
        name: "terrapin-inplace",
        how: "as terrapin, in a page-grouped tree",
        run: |job| {
            run(
                job,
                KeyspaceOptions::new().structure(StructureKind::InPlace),
            )
        },
        ..PLAIN
    },
    Engine {
        name: "terrapin-hashed",
        how: "as terrapin, in a lazy-trie; no ranges",
        run: |job| run(job, KeyspaceOptions::new().structure(StructureKind::Hashed)),
        ..PLAIN
    },
    Engine {
        name: "terrapin-separated",
        how: "as terrapin, with values of 512 bytes or more apart from keys",
        run: |job| {
            run(
                job,
                KeyspaceOptions::new().separate_from(SEPARATE_BYTES_MIN),
            )
        },
        ..PLAIN
    },
];

fn run(job: &Job, options: KeyspaceOptions) -> Result<()> {
    let memory = job.plan.memory_bytes;
    let database = Options::new().memory(memory).open(&job.directory)?;
    let store = TerrapinStore::new(database.clone(), Durability::Process, memory);
    let store = store.stored(options)?;
    worker::drive(job, &store)?;
    database.close().map(drop)
}
