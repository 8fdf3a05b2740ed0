//! `terrapin bench space`: the cost of overwriting in writes and space, at several bounds of space
//! amplification ([`terrapin_bench::measure_space`]).

use clap::Args;
use terrapin::{KeyspaceOptions, StructureKind};
use terrapin_base::Result;
use terrapin_bench::{SpaceReport, measure_space};

use super::driven::{Driven, Fresh};
use super::{Form, with_bar};
use crate::arguments::{self, Own};

/// Arguments of `bench space`.
#[derive(Args)]
pub(super) struct Space {
    /// Bounds of space amplification to measure, in order
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "FACTOR|none",
        default_value = "1.15,1.3,1.5,none",
        value_parser = bound
    )]
    bounds: Vec<Bound>,
    /// Records to load; three times as many overwrites follow
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    #[command(flatten)]
    driven: Driven,
    /// Structure of the keyspace
    #[arg(long, value_name = "NAME", default_value = "leveled", value_parser = arguments::structure)]
    structure: StructureKind,
    /// Values from this length on are kept out of the tree: 512B to 64KiB, or none
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = arguments::separate_from)]
    separate: Own<u32>,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "42MiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

/// A bound of space amplification, or none.
#[derive(Clone, Copy)]
struct Bound(Option<f64>);

fn bound(text: &str) -> std::result::Result<Bound, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Bound(None));
    }
    match text.parse::<f64>() {
        Ok(factor) if factor.is_finite() => Ok(Bound(Some(factor))),
        _ => Err("a bound is a factor such as 1.3, or none".into()),
    }
}

impl Space {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        let stored = KeyspaceOptions::new()
            .structure(self.structure)
            .separate_from(self.separate.0);
        self.form.say_head::<SpaceReport>()?;
        for &Bound(bound) in &self.bounds {
            let place = self.fresh.place("space")?;
            let report = with_bar("space", self.records, |seen| {
                let path = place.path();
                measure_space(&config, &options, &stored, bound, path, seen)
            })?;
            self.form.say(&report)?;
        }
        Ok(())
    }
}
