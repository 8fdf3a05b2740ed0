//! `terrapin delete`: one key, or all keys of a range or prefix; no error if they are not there.

use std::ffi::OsString;

use clap::Args;
use terrapin_base::Result;

use crate::bytes;
use crate::commands::scan::RangeArgs;
use crate::database::{KeyspaceArgs, WriterArgs};

/// Arguments of `delete`.
#[derive(Args)]
pub struct Delete {
    #[command(flatten)]
    database: WriterArgs,
    /// Key; put -- before it if it begins with a dash and is not a number. Or give --prefix, --from
    /// or --to: all of those keys go at once
    #[arg(
        conflicts_with_all = ["prefix", "from", "to"],
        required_unless_present_any = ["prefix", "from", "to"]
    )]
    key: Option<OsString>,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are given as hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Delete {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let key = self.key.as_ref();
        let key = key.map(|key| bytes::argument(key, self.hex)).transpose()?;
        let range = self.range.bounds(self.hex)?;
        let database = self.database.open()?;
        let keyspace = self.keyspace.find(&database)?;
        match key {
            Some(key) => keyspace.delete(key)?,
            None => keyspace.delete_range(range)?,
        }
        crate::database::close(&database)
    }
}
