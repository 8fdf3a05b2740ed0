//! `terrapin bench expiry`: half of the records expire; see [`terrapin_bench::measure_expiry`].

use std::time::Duration;

use clap::Args;
use terrapin::{KeyspaceOptions, StructureKind};
use terrapin_base::Result;
use terrapin_bench::measure_expiry;

use super::Form;
use super::driven::{Driven, Fresh};
use crate::arguments;

/// Arguments of `bench expiry`.
#[derive(Args)]
pub(super) struct Expiry {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Time to live of every other record, from its put on
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = arguments::time)]
    ttl: Duration,
    /// How long after the last deadline the space is measured
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = arguments::time)]
    wait: Duration,
    /// Times that everything is measured, each with a database of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::at_least_one::<u64>)]
    turns: u64,
    #[command(flatten)]
    driven: Driven,
    /// The structure of the records' keyspace: leveled, tiered, inplace or hashed
    #[arg(long, value_name = "NAME", default_value = "leveled", value_parser = arguments::structure)]
    structure: StructureKind,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

impl Expiry {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        let keyspace = KeyspaceOptions::new().structure(self.structure);
        let turns = (self.turns, &self.fresh, "expiry");
        self.form
            .say_turns(turns, ("load", self.records), |place, seen| {
                measure_expiry(
                    &config,
                    (&options, &keyspace),
                    (self.ttl, self.wait),
                    place,
                    seen,
                )
            })
    }
}
