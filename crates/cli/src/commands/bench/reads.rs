//! `terrapin bench reads`: reads beside the device (`terrapin_bench::ReadsBench`).

use std::time::Duration;

use clap::Args;
use terrapin_base::{Error, Result};
use terrapin_bench::{ReadsBench, ReadsTurn, Records};

use super::{Form, with_bar};
use crate::arguments;
use crate::temporary::Temporary;

/// The most keys of one call: the raw reads of the device take some 16 KiB for each.
const KEYS_MAX: usize = 16_384;

/// Arguments of `bench reads`.
#[derive(Args)]
pub(super) struct Reads {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value_t = 1016, value_parser = arguments::whole::<usize>)]
    value_bytes: usize,
    /// Bytes of a key, from 8 on
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = arguments::whole::<usize>)]
    key_bytes: usize,
    /// Memory budget: small beside the data, so that hardly anything is cached
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = arguments::size)]
    memory: u64,
    /// Keys of one call, 16384 at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = arguments::whole::<usize>)]
    keys: usize,
    /// Repetitions of the whole measurement
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::whole::<u64>)]
    turns: u64,
    /// Milliseconds of random reads in each repetition
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = arguments::whole::<u64>)]
    time: u64,
    /// Seed of all choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = arguments::whole::<u64>)]
    seed: u64,
    #[command(flatten)]
    form: Form,
}

impl Reads {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<()> {
        if self.records == 0 || self.keys == 0 || self.time == 0 {
            return Err(Error::invalid("records, keys and time are at least 1"));
        }
        if self.keys > KEYS_MAX {
            return Err(Error::invalid("one call has too many keys")
                .with("keys", self.keys)
                .with("limit", KEYS_MAX));
        }
        let bench = ReadsBench {
            records: self.records,
            shape: Records::new(self.key_bytes, self.value_bytes)?,
            memory_bytes: self.memory,
            keys_at_once: self.keys,
            time: Duration::from_millis(self.time),
            seed: self.seed,
        };
        let temporary = Temporary::new("reads")?;
        with_bar("load", self.records, |seen| {
            bench.load(temporary.path(), seen)
        })?;
        self.form.say_head::<ReadsTurn>()?;
        for turn in 0..self.turns {
            let figures = bench.turn(temporary.path(), turn)?;
            self.form.say(&figures)?;
        }
        Ok(())
    }
}
