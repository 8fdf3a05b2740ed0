//! `terrapin export`: all records of a keyspace, in key order, as of one moment. A file takes its new content only when all of
//! it was written. Stdout takes csv unless another format is named: the one that carries any bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use terrapin::Keyspace;
use terrapin_base::{Error, Result};

use super::import::format_of;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::formats::{Dialect, Format, Writer};
use crate::{output, progress};

/// Arguments of `export`.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    database: DatabaseArgs,
    /// File to write; - is stdout. One whose reader goes away fails the command, stdout's does not
    #[arg(value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Format [default: from the file's name; on stdout csv, which carries any bytes]
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Write keys and values as hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// csv: begin with a line that names the columns key and value
    #[arg(long)]
    header: bool,
    /// json, jsonl: write values that are the JSON text of a number, object, array, true, false or null as they stand, so that
    /// what was imported from JSON comes back as it was (a string that says 12 becomes the number, though)
    #[arg(long)]
    typed: bool,
}

impl Export {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        let to_stdout = self.output.as_os_str() == "-";
        let named = self.format.or(to_stdout.then_some(Format::Csv));
        let dialect = Dialect {
            format: format_of(named, &self.output)?,
            hex: self.hex,
            header: self.header,
            typed: self.typed,
        };
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.find(&database)?;
        if to_stdout {
            write_all(&keyspace, Writer::new(dialect, output::Stored::new()))?;
        } else {
            self.write_file(&keyspace, dialect)?;
        }
        database.close()
    }

    fn write_file(&self, keyspace: &Keyspace, dialect: Dialect) -> Result<()> {
        let path = &self.output;
        let failed = |e| Error::io("cannot write the output", e).with("file", path.display());
        // A pipe or device is written as it is; a file beside itself first, so that a failure leaves the old one.
        let special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        if special {
            let file = File::options().write(true).open(path).map_err(failed)?;
            return write_all(keyspace, Writer::new(dialect, buffered(file)));
        }
        let partial = beside(path);
        let file = File::create(&partial).map_err(failed)?;
        let written = write_all(keyspace, Writer::new(dialect, buffered(&file)))
            .and_then(|()| file.sync_all().map_err(failed))
            .and_then(|()| std::fs::rename(&partial, path).map_err(failed));
        if written.is_err() {
            // The failure is what to tell of; the rest of a file that nobody asked for is not.
            let _ = std::fs::remove_file(&partial);
        }
        written
    }
}

fn buffered<W: Write>(out: W) -> BufWriter<W> {
    BufWriter::with_capacity(256 << 10, out)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    name.into()
}

fn write_all<W: Write>(keyspace: &Keyspace, mut writer: Writer<W>) -> Result<()> {
    let bar = progress::of_records(Some(keyspace.approximate_count()?), "export");
    for record in keyspace.iter() {
        let (key, value) = record?;
        writer.record(&key, &value)?;
        if writer.records().is_multiple_of(1024) {
            bar.set_position(writer.records());
        }
    }
    bar.finish_and_clear();
    writer.finish()
}
