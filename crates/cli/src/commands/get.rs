//! `terrapin get`: one value, as it is; a newline behind it only on a terminal.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use clap::Args;
use terrapin_base::{Error, ErrorKind, Result};

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::{bytes, output};

/// Arguments of `get`.
#[derive(Args)]
pub struct Get {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Key
    key: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The key is, and the value is printed as, hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Get {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open_to_read()?;
        let Some(value) = self.keyspace.find(&database)?.get(&key)? else {
            return Err(Error::new(ErrorKind::NotFound, "there is no such key")
                .with("key", bytes::show(&key)));
        };
        let mut shown = value.to_vec();
        if self.hex {
            shown.clear();
            bytes::encode_hex(&value, &mut shown);
        }
        if self.hex || std::io::stdout().is_terminal() {
            shown.push(b'\n');
        }
        let mut out = output::stdout();
        out.write_all(&shown)
            .and_then(|()| out.flush())
            .map_err(output::stdout_failed)?;
        database.close()
    }
}
