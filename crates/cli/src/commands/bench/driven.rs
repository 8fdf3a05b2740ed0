//! Arguments that suites share: the records' shape, threads, seed; and for suites with a new
//! database per step, its place and χ.

use std::path::PathBuf;

use clap::Args;
use terrapin::{CheckpointDistance, Options};
use terrapin_base::Result;
use terrapin_bench::{Config, Records};

use crate::arguments;
use crate::temporary::Temporary;

/// The records' shape, and the threads.
#[derive(Args)]
pub(super) struct Driven {
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = arguments::whole::<usize>)]
    value_bytes: usize,
    /// Bytes of a key, from 8 on
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = arguments::whole::<usize>)]
    key_bytes: usize,
    /// Client threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = arguments::whole::<usize>)]
    threads: usize,
    /// Seed of all choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = arguments::whole::<u64>)]
    seed: u64,
}

impl Driven {
    /// The settings for this many records. Nonsense is refused before any work.
    pub(super) fn config(&self, records: u64) -> Result<Config> {
        let config = Config {
            records,
            loaded: false,
            shape: Records::new(self.key_bytes, self.value_bytes)?,
            threads: self.threads,
            seed: self.seed,
        };
        config.check()?;
        Ok(config)
    }
}

/// The databases of a suite that creates one per step.
#[derive(Args)]
pub(super) struct Fresh {
    /// Checkpoint distance: a number, or auto
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = arguments::distance)]
    chi: CheckpointDistance,
    /// Where the databases are made, and removed at the end, or by the next run there if this one
    /// is killed [default: the system's place for temporary files]
    #[arg(long, value_name = "DIR")]
    within: Option<PathBuf>,
}

impl Fresh {
    /// The options of the databases, with this memory.
    pub(super) fn options(&self, memory: u64) -> Options {
        Options::new().memory(memory).checkpoint_distance(self.chi)
    }

    /// A directory for the next database.
    pub(super) fn place(&self, what: &str) -> Result<Temporary> {
        Temporary::within(self.within.as_deref(), what)
    }
}
