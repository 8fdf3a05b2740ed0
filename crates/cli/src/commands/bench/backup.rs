//! `terrapin bench backup`: a backup beside a load, and an incremental one; see
//! [`terrapin_bench::measure_backup`].

use std::time::Duration;

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::{BackupBenchReport, measure_backup};

use super::driven::{Driven, Fresh};
use super::{Form, with_bar};
use crate::arguments;

/// Arguments of `bench backup`.
#[derive(Args)]
pub(super) struct Backup {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// How long records are overwritten without a backup, in each turn
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = arguments::time)]
    alone: Duration,
    /// Times that everything is measured, in one database
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::at_least_one::<u64>)]
    turns: u64,
    #[command(flatten)]
    driven: Driven,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

impl Backup {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        self.form.say_head::<BackupBenchReport>()?;
        let (place, work) = (self.fresh.place("backup")?, (self.alone, self.turns));
        with_bar("load", self.records, |seen| {
            let mut say = |report: &BackupBenchReport| self.form.say(report);
            measure_backup(&config, &options, work, place.path(), seen, &mut say)
        })
    }
}
