//! `terrapin scan`: records of a range, in order from either end, exact to the byte; on a terminal control characters are escaped.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;

use clap::Args;
use terrapin::{KeyRange, Keyspace, Range};
use terrapin_base::Result;

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::{bytes, output};

/// The range of keys that a command works on; all keys if none is given.
#[derive(Args)]
pub struct RangeArgs {
    /// Only keys that begin so
    #[arg(long, conflicts_with_all = ["from", "to"], allow_hyphen_values = true)]
    prefix: Option<OsString>,
    /// From this key on
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    from: Option<OsString>,
    /// Up to, and without, this key
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    to: Option<OsString>,
}

impl RangeArgs {
    /// Its records; keys are given as they are, or as hexadecimal digits.
    pub fn of(&self, keyspace: &Keyspace, hex: bool) -> Result<Range> {
        Ok(keyspace.range(self.bounds(hex)?))
    }

    /// Where it begins and ends.
    pub fn bounds(&self, hex: bool) -> Result<impl KeyRange + use<>> {
        let key = |text: &Option<OsString>| {
            text.as_ref()
                .map(|text| bytes::argument(text, hex))
                .transpose()
        };
        let (from, to) = (key(&self.from)?, key(&self.to)?);
        Ok(match key(&self.prefix)? {
            Some(prefix) => terrapin::prefix_range(prefix),
            None => (
                from.map_or(Bound::Unbounded, Bound::Included),
                to.map_or(Bound::Unbounded, Bound::Excluded),
            ),
        })
    }
}

/// Arguments of `scan`.
#[derive(Args)]
pub struct Scan {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// From the largest key down
    #[arg(long)]
    reverse: bool,
    /// At most so many records
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
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
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.find(&database)?;
        let range = self.range.of(&keyspace, self.hex)?;
        self.print(match self.limit {
            Some(limit) => range.limit(limit),
            None => range,
        })?;
        crate::database::close(&database)
    }

    fn print(&self, mut range: Range) -> Result<()> {
        let mut out = output::stdout();
        let terminal = output::is_terminal();
        let show = |bytes: &[u8], line: &mut Vec<u8>| {
            if self.hex {
                bytes::encode_hex(bytes, line);
            } else if terminal {
                bytes::escape(bytes, "", line);
            } else {
                line.extend_from_slice(bytes);
            }
        };
        let mut line = Vec::new();
        loop {
            let record = if self.reverse {
                range.next_back()
            } else {
                range.next()
            };
            let Some(record) = record else { break };
            let (key, value) = record?;
            line.clear();
            show(&key, &mut line);
            if !self.keys_only {
                line.push(b'\t');
                show(&value, &mut line);
            }
            line.push(b'\n');
            out.write_all(&line).map_err(output::stdout_failed)?;
        }
        out.flush().map_err(output::stdout_failed)
    }
}
