//! `terrapin scan`: records of a range in order from either end, byte for byte. On a terminal,
//! control characters are escaped.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use terrapin::{
    KeyRange, Keys, Keyspace, Range, RecordAndDeadline, Streamed, StreamedRecord, StreamedValue,
    StructureKind, Unordered,
};
use terrapin_base::{Result, expiry};

use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::formats::{Dialect, Format, Writer};
use crate::{arguments, bytes, output};

/// The range of keys that a command works on. Commands that read take all keys if none is given.
#[derive(Args)]
pub struct RangeArgs {
    /// Only keys with this prefix
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"], allow_hyphen_values = true)]
    prefix: Option<OsString>,
    /// From this key on
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    from: Option<OsString>,
    /// Up to this key, without it
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    to: Option<OsString>,
}

impl RangeArgs {
    /// The range; keys are given as they are, or as hexadecimal digits.
    pub fn of(&self, keyspace: &Keyspace, hex: bool) -> Result<Range> {
        Ok(keyspace.range(self.bounds(hex)?))
    }

    /// All records of a hashed keyspace, if no range is named. The records of other keyspaces and
    /// of ranges come in order, or are refused.
    pub fn unordered_of(&self, keyspace: &Keyspace) -> Result<Option<Unordered>> {
        let is_all = self.prefix.is_none() && self.from.is_none() && self.to.is_none();
        let is_hashed = keyspace.options()?.structure == StructureKind::Hashed;
        Ok((is_all && is_hashed).then(|| keyspace.unordered()))
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

/// The records that a command writes, and their order.
#[derive(Args)]
pub struct WalkArgs {
    #[command(flatten)]
    pub range: RangeArgs,
    /// From the largest key down
    #[arg(long)]
    reverse: bool,
    /// At most N records
    #[arg(long, value_name = "N", value_parser = arguments::whole::<usize>)]
    pub limit: Option<usize>,
    /// Keys without values
    #[arg(long)]
    pub keys_only: bool,
}

impl WalkArgs {
    /// The records, one after the other. All records of a hashed keyspace come in no order.
    pub fn of(&self, keyspace: &Keyspace, hex: bool) -> Result<Walk> {
        if !self.reverse
            && let Some(records) = self.range.unordered_of(keyspace)?
        {
            return Ok(Walk {
                reverse: false,
                records: Records::Unordered {
                    records: records.limit(self.limit.unwrap_or(usize::MAX)),
                    keys_only: self.keys_only,
                },
            });
        }
        let range = self.range.of(keyspace, hex)?;
        let range = match self.limit {
            Some(limit) => range.limit(limit),
            None => range,
        };
        Ok(Walk {
            reverse: self.reverse,
            records: match self.keys_only {
                true => Records::Keys(range.keys()),
                false => Records::Whole(range),
            },
        })
    }
}

/// A key, its value, and the value's deadline, in milliseconds since 1970.
pub type Walked<'a> = (&'a [u8], &'a [u8], Option<u64>);

/// Records in the requested order.
pub struct Walk {
    reverse: bool,
    records: Records,
}

enum Records {
    Whole(Range),
    Keys(Keys),
    Unordered { records: Unordered, keys_only: bool },
}

/// Records in the requested order, whose large values come as readers.
pub struct StreamedWalk {
    reverse: bool,
    records: StreamedRecords,
}

enum StreamedRecords {
    Whole(Streamed),
    Keys(Keys),
}

/// A key, its value or a reader of it, and the deadline, in milliseconds since 1970.
pub type WalkedInPieces<'a> = (&'a [u8], StreamedValue<'a>, Option<u64>);

impl StreamedWalk {
    /// The next key, its value, and the value's deadline, borrowed until the next call. Without
    /// value and deadline if only keys are wanted.
    pub fn next(&mut self) -> Result<Option<WalkedInPieces<'_>>> {
        fn shown((key, value, deadline): StreamedRecord<'_>) -> WalkedInPieces<'_> {
            (key, value, since_1970(deadline))
        }
        fn without_value(key: &[u8]) -> WalkedInPieces<'_> {
            (key, StreamedValue::Bytes(&[]), None)
        }
        match (&mut self.records, self.reverse) {
            (StreamedRecords::Whole(records), false) => Ok(records.next()?.map(shown)),
            (StreamedRecords::Whole(records), true) => Ok(records.next_back()?.map(shown)),
            (StreamedRecords::Keys(keys), false) => Ok(keys.next_ref()?.map(without_value)),
            (StreamedRecords::Keys(keys), true) => Ok(keys.next_back_ref()?.map(without_value)),
        }
    }
}

fn since_1970(deadline: Option<SystemTime>) -> Option<u64> {
    let since_1970 = deadline.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since_1970.map(expiry::whole_ms_down)
}

impl Walk {
    /// The same records, whose large values come as readers.
    pub fn streamed(self) -> StreamedWalk {
        StreamedWalk {
            reverse: self.reverse,
            records: match self.records {
                Records::Whole(range) => StreamedRecords::Whole(range.streamed()),
                Records::Keys(keys) => StreamedRecords::Keys(keys),
                Records::Unordered { records, .. } => StreamedRecords::Whole(records.streamed()),
            },
        }
    }

    /// The next key, its value and the value's deadline, in milliseconds since 1970, borrowed until
    /// the next call. Without value and deadline if only keys are wanted.
    pub fn next(&mut self) -> Result<Option<Walked<'_>>> {
        fn shown((key, value, deadline): RecordAndDeadline<'_>) -> Walked<'_> {
            (key, value, since_1970(deadline))
        }
        fn without_value(key: &[u8]) -> Walked<'_> {
            (key, &[], None)
        }
        match (&mut self.records, self.reverse) {
            (Records::Unordered { records, keys_only }, _) => {
                let keys_only = *keys_only;
                let record = records.next_with_deadline()?;
                Ok(record.map(|record| match keys_only {
                    true => without_value(record.0),
                    false => shown(record),
                }))
            }
            (Records::Whole(range), false) => Ok(range.next_with_deadline()?.map(shown)),
            (Records::Whole(range), true) => Ok(range.next_back_with_deadline()?.map(shown)),
            (Records::Keys(keys), false) => Ok(keys.next_ref()?.map(without_value)),
            (Records::Keys(keys), true) => Ok(keys.next_back_ref()?.map(without_value)),
        }
    }
}

/// Arguments of `scan`.
#[derive(Args)]
pub struct Scan {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys are given, and records printed, as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// Print a line of JSON for each record: {"key":…,"value":…}, and "expires_ms":… if the value
    /// has a deadline, in milliseconds since 1970
    #[arg(long)]
    json: bool,
}

impl Scan {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.find(&database)?;
        let walk = self.walk.of(&keyspace, self.hex)?;
        match self.json {
            true => self.print_json(walk)?,
            false => self.print(walk)?,
        }
        crate::database::close(&database)
    }

    fn print(&self, mut walk: Walk) -> Result<()> {
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
            let record = match walk.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => {
                    // The records before the damage were read well.
                    out.flush().map_err(output::stdout_failed)?;
                    return Err(error);
                }
            };
            line.clear();
            show(record.0, &mut line);
            if !self.walk.keys_only {
                line.push(b'\t');
                show(record.1, &mut line);
            }
            line.push(b'\n');
            out.write_all(&line).map_err(output::stdout_failed)?;
        }
        out.flush().map_err(output::stdout_failed)
    }

    fn print_json(&self, mut walk: Walk) -> Result<()> {
        let dialect = Dialect {
            hex: self.hex,
            keys_only: self.walk.keys_only,
            ..Dialect::plain(Format::Jsonl)
        };
        let mut writer = Writer::new(dialect, output::Stored::new());
        while let Some((key, value, expires_ms)) = walk.next()? {
            writer.record(key, value, expires_ms)?;
        }
        writer.finish()?;
        Ok(())
    }
}
