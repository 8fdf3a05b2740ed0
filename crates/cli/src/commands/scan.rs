//! `terrapin scan`: records of a range, in order from either end.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;

use clap::Args;
use terrapin::Range;
use terrapin_base::Result;

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::{bytes, output};

/// Arguments of `scan`.
#[derive(Args)]
pub struct Scan {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Only keys that begin so
    #[arg(long, conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// From this key on
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Up to, and without, this key
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// From the largest key down
    #[arg(long)]
    reverse: bool,
    /// At most so many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Keys without values
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are given, and records printed, as hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Scan {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        let key = |text: &Option<OsString>| {
            text.as_ref()
                .map(|text| bytes::argument(text, self.hex))
                .transpose()
        };
        let (prefix, from, to) = (key(&self.prefix)?, key(&self.from)?, key(&self.to)?);
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.find(&database)?;
        let range = match prefix {
            Some(prefix) => keyspace.prefix(prefix),
            None => keyspace.range((
                from.map_or(Bound::Unbounded, Bound::Included),
                to.map_or(Bound::Unbounded, Bound::Excluded),
            )),
        };
        self.print(range)?;
        database.close()
    }

    fn print(&self, mut range: Range) -> Result<()> {
        let mut out = output::stdout();
        let mut line = Vec::new();
        let mut left = self.limit.unwrap_or(u64::MAX);
        while left > 0 {
            let record = if self.reverse {
                range.next_back()
            } else {
                range.next()
            };
            let Some(record) = record else { break };
            let (key, value) = record?;
            line.clear();
            self.show(&key, &mut line);
            if !self.keys_only {
                line.push(b'\t');
                self.show(&value, &mut line);
            }
            line.push(b'\n');
            out.write_all(&line).map_err(output::stdout_failed)?;
            left -= 1;
        }
        out.flush().map_err(output::stdout_failed)
    }

    fn show(&self, bytes: &[u8], line: &mut Vec<u8>) {
        if self.hex {
            bytes::encode_hex(bytes, line);
        } else {
            line.extend_from_slice(bytes);
        }
    }
}
