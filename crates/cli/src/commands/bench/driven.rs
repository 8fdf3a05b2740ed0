//! Arguments that suites share: the records' shape, threads, seed; and for suites with a new
//! database per step, its place and χ.

use std::path::PathBuf;

use clap::Args;
use terrapin::{CheckpointDistance, Options};
use terrapin_base::{Error, ErrorKind, Result};
use terrapin_bench::{Config, KeyKind, Records, SCAN_RECORDS_MAX};

use crate::arguments;
use crate::temporary::Temporary;

/// The records' shape, and the threads.
#[derive(Args)]
pub(super) struct Driven {
    /// Bytes of a value, or up to four lengths such as 120,248,1016, each of as many records
    #[arg(long, value_name = "N|N,N", default_value = "120", value_delimiter = ',', value_parser = arguments::whole::<usize>)]
    value_bytes: Vec<usize>,
    /// What keys look like: random, decimal (user and 20 digits) or url
    #[arg(long, value_name = "NAME", default_value = "random")]
    key_kind: KeyKind,
    /// Bytes of a key, or of the shortest and the longest, such as 44..200: from 8 on for random
    /// keys, 24 for decimal ones, 44 for urls [default: as short as the kind allows]
    #[arg(long, value_name = "N|N..N", value_parser = lengths)]
    key_bytes: Option<Lengths>,
    /// Share in per cent of the records whose keys ascend in the order of the load
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = arguments::whole::<u64>)]
    sequential_share: u64,
    /// Records of the longest range: each range asks for 1 to N
    #[arg(long, value_name = "N", default_value_t = SCAN_RECORDS_MAX, value_parser = arguments::at_least_one::<u64>)]
    scan_length: u64,
    /// Client threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = arguments::whole::<usize>)]
    threads: usize,
    /// Seed of all choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = arguments::whole::<u64>)]
    seed: u64,
}

/// The longest values of a benchmark, which memory holds.
const VALUE_BYTES_LIMIT: usize = 64 << 20;

/// Bytes of the shortest and the longest key.
#[derive(Clone, Copy)]
struct Lengths(usize, usize);

fn lengths(text: &str) -> std::result::Result<Lengths, String> {
    let (shortest, longest) = text.split_once("..").unwrap_or((text, text));
    let bytes = |text: &str| text.parse::<usize>().ok();
    match (bytes(shortest), bytes(longest)) {
        (Some(shortest), Some(longest)) => Ok(Lengths(shortest, longest)),
        _ => Err("a number of bytes is expected, or two of them such as 8..200".into()),
    }
}

impl Driven {
    /// The records' shape.
    fn shape(&self) -> Result<Records> {
        let longest = self.value_bytes.iter().copied().max().unwrap_or_default();
        if longest > VALUE_BYTES_LIMIT {
            return Err(
                Error::new(ErrorKind::TooLarge, "values of this length are refused")
                    .with("bytes", longest)
                    .with("limit", VALUE_BYTES_LIMIT),
            );
        }
        let least = self.key_kind.bytes_min();
        let Lengths(shortest, longest_key) = self.key_bytes.unwrap_or(Lengths(least, least));
        Records::of_kind(self.key_kind, shortest..=longest_key, longest)?
            .values(&self.value_bytes)?
            .sequential(self.sequential_share)
    }

    /// The settings for this many records. Nonsense is refused before any work.
    pub(super) fn config(&self, records: u64) -> Result<Config> {
        let config = Config {
            records,
            loaded: false,
            shape: self.shape()?,
            threads: self.threads,
            scan_records_max: self.scan_length,
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
    #[arg(long, visible_alias = "db", value_name = "DIR")]
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
