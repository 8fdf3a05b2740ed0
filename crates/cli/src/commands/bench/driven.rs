//! Arguments of every suite that drives clients: the records' shape, how many threads, the seed.

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::{Config, Records};

/// What the records look like and who works on them.
#[derive(Args)]
pub(super) struct Driven {
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 120)]
    value_bytes: usize,
    /// Bytes of a key, from 8 on
    #[arg(long, value_name = "N", default_value_t = 8)]
    key_bytes: usize,
    /// Client threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Seed of all choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Driven {
    /// So many records, to be loaded.
    pub(super) fn config(&self, records: u64) -> Result<Config> {
        Ok(Config {
            records,
            loaded: false,
            shape: Records::new(self.key_bytes, self.value_bytes)?,
            threads: self.threads,
            seed: self.seed,
        })
    }
}
