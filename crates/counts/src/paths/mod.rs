//! The counted paths. A path prepares itself, the same for any number of operations, and then runs
//! them.

mod engine;
mod parts;
mod tree;

use std::path::Path;
use std::process::{ExitCode, exit};
use std::thread;

use terrapin_base::Result;

pub use engine::STORE;

/// Stack of the thread that runs the operations.
const STACK_BYTES: usize = 8 << 20;

/// A counted path.
pub struct Way {
    /// Its name on the command line and in the baseline.
    pub name: &'static str,
    /// What one operation is.
    pub what: &'static str,
    /// How many operations a count averages.
    pub operations: u64,
    /// Whether it uses the prepared store.
    pub uses_store: bool,
    /// Runs this many operations. It drops nothing whose cost grows with the number of operations.
    go: fn(u64) -> Result<()>,
}

/// Every path that is counted.
pub const PATHS: [Way; 23] = [
    Way {
        name: "put",
        what: "a put of a new key into the memtable, logged, without waiting and without the drain's part",
        operations: 4_000,
        uses_store: true,
        go: engine::put,
    },
    Way {
        name: "compare and swap",
        what: "a swap of the value of a key in the record cache, without other writers",
        operations: 4_000,
        uses_store: true,
        go: engine::compare_and_swap,
    },
    Way {
        name: "get memtable hit",
        what: "a get of a key in the active memtable",
        operations: 5_000,
        uses_store: true,
        go: engine::get_memtable_hit,
    },
    Way {
        name: "merge operand",
        what: "a merge of an operand into the memtable, logged, of four keys one again and again; operands of that key are combined on the way",
        operations: 4_000,
        uses_store: true,
        go: engine::merge_operand,
    },
    Way {
        name: "get merged",
        what: "a get of a key with a value in the tree and 20,000 operands in the memtable",
        operations: 5_000,
        uses_store: true,
        go: engine::get_merged,
    },
    Way {
        name: "get record hit",
        what: "a get of a key in the record cache",
        operations: 5_000,
        uses_store: true,
        go: engine::get_record_hit,
    },
    Way {
        name: "get block hit",
        what: "a get from the tree of a key whose block is cached, and the record's entry into the record cache",
        operations: 5_000,
        uses_store: true,
        go: engine::get_block_hit,
    },
    Way {
        name: "get miss",
        what: "a get of a key that is nowhere: cached filters say no at every level",
        operations: 5_000,
        uses_store: true,
        go: engine::get_miss,
    },
    Way {
        name: "get record hit, hashed",
        what: "a get of a key of a hashed keyspace in the record cache",
        operations: 5_000,
        uses_store: true,
        go: engine::get_hashed_record_hit,
    },
    Way {
        name: "get miss, hashed",
        what: "a get of a key that is nowhere in a hashed keyspace: a cached table says no",
        operations: 5_000,
        uses_store: true,
        go: engine::get_hashed_miss,
    },
    Way {
        name: "64 gets at once, hashed",
        what: "64 keys of a hashed keyspace in the record cache, in one call; counted for each key",
        operations: 6_400,
        uses_store: true,
        go: engine::multi_get_hashed,
    },
    Way {
        name: "get cold block",
        what: "a get whose block has to be read and checked; nodes, indexes and filters are cached",
        operations: 600,
        uses_store: true,
        go: engine::get_cold_block,
    },
    Way {
        name: "scan step",
        what: "a record of a long range over cached blocks and the memtable",
        operations: 20_000,
        uses_store: true,
        go: engine::scan_step,
    },
    Way {
        name: "scan of 50",
        what: "a range opened at a random key, and 50 records of it, over cached blocks and the memtable",
        operations: 300,
        uses_store: true,
        go: engine::scan_of_50,
    },
    Way {
        name: "scan of 50 borrowed",
        what: "the same, of records that are only borrowed",
        operations: 300,
        uses_store: true,
        go: engine::scan_of_50_borrowed,
    },
    Way {
        name: "merge step",
        what: "a record of a memtable merged into a tree, with all the rewriting that it causes on its way",
        operations: 4 * tree::MEMTABLE_RECORDS,
        uses_store: false,
        go: tree::merge,
    },
    Way {
        name: "merge step, page-grouped",
        what: "the same, of a page-grouped tree",
        operations: 4 * tree::MEMTABLE_RECORDS,
        uses_store: false,
        go: tree::merge_page_grouped,
    },
    Way {
        name: "get, page-grouped",
        what: "a get from a page-grouped tree whose blocks are cached; many records wait beside their leaf",
        operations: 5_000,
        uses_store: false,
        go: tree::get_page_grouped,
    },
    Way {
        name: "filter probe",
        what: "a hash looked up in a partition of a filter; every other one is there",
        operations: 2 * parts::FILTER_KEYS,
        uses_store: false,
        go: parts::filter_probe,
    },
    Way {
        name: "location map hit",
        what: "a key found in the map of separated values, of 50,000 keys",
        operations: 20_000,
        uses_store: false,
        go: parts::location_map_hit,
    },
    Way {
        name: "log append",
        what: "a record of 130 bytes appended to the ring in three pieces, and published",
        operations: 5_000,
        uses_store: false,
        go: parts::log_append,
    },
    Way {
        name: "block encode",
        what: "a block of 4 KiB built of sorted records, and sealed",
        operations: 1_000,
        uses_store: false,
        go: parts::block_encode,
    },
    Way {
        name: "block decode",
        what: "a block of 4 KiB checked and decoded",
        operations: 2_000,
        uses_store: false,
        go: parts::block_decode,
    },
];

/// The path of that name.
pub fn find(name: &str) -> Option<&'static Way> {
    const ALL: &[Way] = &PATHS;
    ALL.iter().find(|way| way.name == name)
}

/// Builds the store that paths copy, in this directory, loaded at this χ, and compacted or not.
pub fn prepare(directory: &Path, chi: u32, compacted: bool) -> Result<()> {
    engine::build(&directory.join(STORE), chi, compacted)?;
    engine::choose_cold_keys(directory)
}

/// Runs a path's operations this many times in the current directory, watched by callgrind. They
/// run on a thread of their own. Its stack and heap begin at the same place, whatever the program's
/// path, arguments and environment.
pub fn run(name: &str, times: &str) -> ExitCode {
    let (Some(way), Ok(times)) = (find(name), times.parse::<u64>()) else {
        eprintln!("counts: no such path: {name} {times}");
        return ExitCode::from(2);
    };
    let worker = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || {
            match (way.go)(way.operations * times) {
                // Exit at once: the path's data is not freed.
                Ok(()) => exit(0),
                Err(error) => {
                    eprintln!("counts: {name}: {error}", name = way.name);
                    exit(1)
                }
            }
        });
    // The worker ends the process; this line runs only if it cannot.
    drop(worker.map(thread::JoinHandle::join));
    ExitCode::FAILURE
}

/// The counted function. A profile finds it by its name.
#[inline(never)]
fn operations_under_count(count: u64, mut operation: impl FnMut(u64) -> Result<()>) -> Result<()> {
    for number in 0..count {
        operation(number)?;
    }
    Ok(())
}
