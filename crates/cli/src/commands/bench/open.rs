//! `terrapin bench open`: what an open costs, and the first gets after it; see
//! [`terrapin_bench::measure_open`].

use clap::Args;
use terrapin::StructureKind;
use terrapin_base::Result;
use terrapin_bench::{OpenReport, measure_open};

use super::driven::{Driven, Fresh};
use super::{Form, load, stored, with_bar};
use crate::arguments;

/// Arguments of `bench open`.
#[derive(Args)]
pub(super) struct Open {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Gets after each open
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = arguments::whole::<u64>)]
    gets: u64,
    /// Opens
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

impl Open {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        let place = self.fresh.place("open")?;
        let database = options.open(place.path())?;
        with_bar("load", self.records, |seen| {
            let store = stored(&database, self.structure, self.memory)?;
            load(&config, &store, 0, place.path(), seen)
        })?;
        database.checkpoint()?;
        crate::database::close(&database)?;
        drop(database);
        self.form.say_head::<OpenReport>()?;
        for _ in 0..self.turns {
            self.form.say(&measure_open(
                &config,
                (&options, self.structure),
                self.gets,
                place.path(),
            )?)?;
        }
        Ok(())
    }
}
