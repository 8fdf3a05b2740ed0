//! `terrapin get`: one value, byte for byte. On a terminal, control characters are escaped and a
//! newline follows. `--i64` prints a counter as a number.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use terrapin::ValueReader;
use terrapin_base::{Error, ErrorKind, Result};

use crate::arguments::byte_range;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::formats::{Dialect, Format, Writer};
use crate::{bytes, output, own_files};

/// Bytes of a value that are in memory while it is printed.
const PIECE_BYTES: usize = 256 << 10;

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
    /// Write the value into this file, as it is
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "hex", "i64"])]
    output: Option<PathBuf>,
    /// Only these bytes of the value, from A to below B: A..B, A.. or ..B; sizes such as 1MiB
    #[arg(long, value_name = "A..B", value_parser = byte_range, conflicts_with_all = ["json", "i64"])]
    range: Option<Range<u64>>,
    /// Print the value as a whole number: 8 bytes, little-endian, as the operators that add keep it
    #[arg(long, conflicts_with_all = ["json", "hex"])]
    i64: bool,
}

impl Get {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open_to_read()?;
        let path = match &self.output {
            Some(path) => {
                own_files::refuse_path(&self.database.path, "output", path)?;
                Some(path)
            }
            None => None,
        };
        let Some(mut reader) = self.keyspace.find(&database)?.reader(&key)? else {
            let missing = Error::new(ErrorKind::NotFound, "there is no such key");
            output::complain(&missing.with("key", bytes::show(&key)));
            return Ok(ExitCode::from(output::NO));
        };
        let range = self.range.clone().unwrap_or(0..u64::MAX);
        let range = range.start.min(reader.len())..range.end.min(reader.len());
        let is_streamed = !(self.i64 || self.json || self.hex || output::is_terminal());
        if path.is_some() || is_streamed {
            self.stream(&mut reader, range, path)?;
            crate::database::close(&database)?;
            return Ok(ExitCode::SUCCESS);
        }
        let value = reader.read_range(range)?;
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

    /// Writes bytes of the value as they are.
    fn stream(
        &self,
        reader: &mut ValueReader,
        range: Range<u64>,
        path: Option<&PathBuf>,
    ) -> Result<()> {
        // What a read of the database says names its place.
        let failed = |error: std::io::Error| match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => Error::io("cannot copy the value", error),
        };
        reader.seek(SeekFrom::Start(range.start)).map_err(failed)?;
        let mut part = reader.take(range.end.saturating_sub(range.start));
        match path {
            Some(path) => {
                let named = |error: Error| error.with("output", path.display());
                let mut file = File::create(path).map_err(failed).map_err(named)?;
                std::io::copy(&mut part, &mut file)
                    .map_err(failed)
                    .map_err(named)?;
            }
            None => {
                let mut out = output::Stored::new();
                let mut piece = vec![0; PIECE_BYTES];
                loop {
                    let count = part.read(&mut piece).map_err(failed)?;
                    if count == 0 {
                        break;
                    }
                    out.write_all(&piece[..count])
                        .map_err(output::stdout_failed)?;
                }
                out.flush().map_err(output::stdout_failed)?;
            }
        }
        Ok(())
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
