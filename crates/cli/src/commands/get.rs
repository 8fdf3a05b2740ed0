//! `terrapin get`: one value, byte for byte. On a terminal, control characters are escaped and a
//! newline follows. `--i64` prints a counter as a number.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use terrapin_base::{Error, ErrorKind, Result};

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::formats::{Dialect, Format, Writer};
use crate::{bytes, output};

/// Arguments of `get`.
#[derive(Args)]
pub struct Get {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Key; put -- before it if it begins with a dash and is not a number
    key: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The key is given, and the value printed, as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print a line of JSON: {"key":…,"value":…}
    #[arg(long)]
    json: bool,
    /// Print the value as a whole number: 8 bytes, little-endian, as the operators that add keep it
    #[arg(long, conflicts_with_all = ["json", "hex"])]
    i64: bool,
}

impl Get {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open_to_read()?;
        let Some(value) = self.keyspace.find(&database)?.get(&key)? else {
            let missing = Error::new(ErrorKind::NotFound, "there is no such key");
            output::complain(&missing.with("key", bytes::show(&key)));
            return Ok(ExitCode::from(output::NO));
        };
        if self.i64 {
            let number = value[..].try_into().map_err(|_| {
                Error::invalid("with --i64 the value has 8 bytes").with("bytes", value.len())
            })?;
            output::say(i64::from_le_bytes(number))?;
        } else if self.json {
            self.print_json(&key, &value)?;
        } else {
            self.print(&value).map_err(output::stdout_failed)?;
        }
        crate::database::close(&database)?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, value: &[u8]) -> std::io::Result<()> {
        let mut shown = value.to_vec();
        if self.hex {
            shown.clear();
            bytes::encode_hex(value, &mut shown);
        }
        if self.hex || output::is_terminal() {
            shown.push(b'\n');
        }
        let mut out = output::Stored::new();
        out.write_all(&shown)?;
        out.flush()
    }

    fn print_json(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let dialect = Dialect {
            hex: self.hex,
            ..Dialect::plain(Format::Jsonl)
        };
        let mut writer = Writer::new(dialect, output::Stored::new());
        writer.record(key, value, None)?;
        writer.finish()?;
        Ok(())
    }
}
