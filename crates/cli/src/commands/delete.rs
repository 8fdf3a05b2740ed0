//! `terrapin delete`: one key; no error if it is not there.

use std::ffi::OsString;

use clap::Args;
use terrapin_base::Result;

use crate::bytes;
use crate::database::{KeyspaceArgs, WriterArgs};

/// Arguments of `delete`.
#[derive(Args)]
pub struct Delete {
    #[command(flatten)]
    database: WriterArgs,
    /// Key; put -- before it if it begins with a dash and is not a number
    key: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The key is hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Delete {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open()?;
        self.keyspace.find(&database)?.delete(key)?;
        crate::database::close(&database)
    }
}
