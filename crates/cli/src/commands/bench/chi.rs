//! `terrapin bench chi`: the sweep over checkpoint distances (`terrapin_bench::ChiSweep`).

use clap::Args;
use terrapin_base::{Error, Result};
use terrapin_bench::{ChiStep, ChiSweep};

use super::{Form, driven::Driven, with_bar};
use crate::arguments;
use crate::temporary::Temporary;

/// A χ takes at most a sixth of the memory, as auto gives one keyspace.
const MEMORY_UNITS: u64 = 6;
/// The least memory that a database opens with.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// Arguments of `bench chi`.
#[derive(Args)]
pub(super) struct Chi {
    /// Largest checkpoint distance: the sweep doubles from 1 up to it
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = arguments::whole::<u32>)]
    largest: u32,
    /// Records to load at each
    #[arg(long, value_name = "N", default_value_t = 4_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Reads to measure afterwards, and a fifth as many scans; as many come first, unmeasured
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = arguments::whole::<u64>)]
    operations: u64,
    #[command(flatten)]
    driven: Driven,
    /// Batch unit, L
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = arguments::size)]
    batch_unit: u64,
    /// Memory budget [default: six memtables of the largest checkpoint distance, and 8 MiB at
    /// least]
    #[arg(long, value_name = "SIZE", value_parser = arguments::size)]
    memory: Option<u64>,
    #[command(flatten)]
    form: Form,
}

impl Chi {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<()> {
        let memtable_bytes = u64::from(self.largest).saturating_mul(self.batch_unit);
        let config = self.driven.config(self.records)?;
        let sweep = ChiSweep {
            config,
            operations: self.operations,
            memory_bytes: self.memory.unwrap_or_else(|| {
                let memtables_bytes = memtable_bytes.saturating_mul(MEMORY_UNITS);
                memtables_bytes.max(MEMORY_BYTES_MIN)
            }),
            batch_unit_bytes: self.batch_unit,
        };
        if self.largest == 0 || self.operations == 0 {
            return Err(Error::invalid(
                "operations and the largest checkpoint distance are at least 1",
            ));
        }
        self.form.say_head::<ChiStep>()?;
        let doubled = |chi: &u32| chi.checked_mul(2).filter(|&next| next <= self.largest);
        for chi in std::iter::successors(Some(1), doubled) {
            let temporary = Temporary::new("chi")?;
            let step = with_bar("chi", self.records, |seen| {
                sweep.step(chi, temporary.path(), seen)
            })?;
            self.form.say(&step)?;
        }
        Ok(())
    }
}
