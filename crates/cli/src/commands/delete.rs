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
    /// Key; -- before it lets it begin with a dash, as a number may without
    key: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The key is hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Delete {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open()?;
        self.keyspace.find(&database)?.delete(key)?;
        crate::database::close(&database)
    }
}
