//! `terrapin count`: the number of records, by a scan that prints none, or an estimate at once.

use clap::Args;
use serde_json::json;
use terrapin_base::Result;

use super::scan::RangeArgs;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::{output, progress};

/// Arguments of `count`.
#[derive(Args)]
pub struct Count {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// Estimate without reading records: an overwritten record may count more than once until it is
    /// merged, and a range shorter than a block of some KiB may count as empty
    #[arg(long)]
    approximate: bool,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are given as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print a JSON object: {"records":…,"approximate":…}
    #[arg(long)]
    json: bool,
}

impl Count {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.find(&database)?;
        let records = match (self.range.unordered_of(&keyspace)?, self.approximate) {
            (Some(_), true) => keyspace.approximate_count()?,
            (None, true) => keyspace.approximate(self.range.bounds(self.hex)?)?.records,
            (Some(mut all), false) => count(|| Ok(all.next_ref()?.is_some()))?,
            (None, false) => {
                let mut keys = self.range.of(&keyspace, self.hex)?.keys();
                count(|| Ok(keys.next_ref()?.is_some()))?
            }
        };
        match self.json {
            true => output::say(json!({ "records": records, "approximate": self.approximate }))?,
            false => output::say(records)?,
        }
        crate::database::close(&database)
    }
}

/// Counts how often `next` finds a record.
fn count(mut next: impl FnMut() -> Result<bool>) -> Result<u64> {
    let bar = progress::of_records(None, "count");
    let mut records = 0u64;
    while next()? {
        records += 1;
        if records.is_multiple_of(1024) {
            bar.set(records);
        }
    }
    Ok(records)
}
