//! `terrapin export`: the records of a keyspace, all or those of a range, in key order, as of one moment. A file takes its new content only when all of
//! it was written, and keeps its permissions; a link to it stays one. Stdout takes csv unless another format is named: the one that
//! carries any bytes.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use terrapin::Range;
use terrapin_base::{Error, Result};

use super::import::format_of;
use super::scan::RangeArgs;
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::formats::{Dialect, Format, Writer};
use crate::{output, progress};

/// Links that a path may lead through one after the other, as many as Linux allows.
const LINKS_MAX: usize = 40;

/// Arguments of `export`.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    database: DatabaseArgs,
    /// File to write, by way of links if it is one; - is stdout. One whose reader goes away fails the command, stdout's does not. An export that
    /// fails leaves the old file and nothing of the new one (stdout got all up to the failure), one that is killed FILE.partial-PID
    #[arg(value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Format [default: from the file's name; on stdout csv, which carries any bytes]
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Write keys and values as hexadecimal digits; the range's keys are given so, too
    #[arg(long)]
    hex: bool,
    /// csv: begin with a line that names the columns key and value
    #[arg(long)]
    header: bool,
    /// json, jsonl: write values that are the JSON text of a number, object, array, true, false or null as they stand, so that
    /// what was imported from JSON comes back as it was (a string that says 12 becomes the number, though, and jsonl keeps a text of
    /// several lines a string); not with --hex
    #[arg(long)]
    typed: bool,
}

/// What is written.
struct Records {
    /// About how many there are, as far as that is known.
    about: Option<u64>,
    range: Range,
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
        dialect.check()?;
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.find(&database)?;
        // Only a bar wants it: what is damaged at the range's end is told once the export comes there.
        let about = keyspace.approximate(self.range.bounds(self.hex)?);
        let records = Records {
            about: about.ok().map(|estimate| estimate.records),
            range: self.range.of(&keyspace, self.hex)?,
        };
        if to_stdout {
            write_all(records, Writer::new(dialect, output::Stored::new()))?;
        } else {
            self.write_file(records, dialect)?;
        }
        crate::database::close(&database)
    }

    fn write_file(&self, records: Records, dialect: Dialect) -> Result<()> {
        let failed =
            |e| Error::io("cannot write the output", e).with("file", self.output.display());
        let named = |error: Error| error.with("output", self.output.display());
        let path = &resolved(&self.output).map_err(failed)?;
        let old = match path.metadata() {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        // A pipe, a device or what a process has open is written as it is; a file beside itself first, so that a failure leaves
        // the old one.
        if let Some(old) = &old
            && (!old.is_file() || is_of_system(path))
        {
            // What was written to an open file before, by whoever opened it, stays.
            let mut options = File::options();
            options.write(true).append(old.is_file());
            let file = options.open(path).map_err(failed)?;
            return write_all(records, Writer::new(dialect, buffered(file))).map_err(named);
        }
        let partial = beside(path);
        let file = create(&partial, old.as_ref()).map_err(failed)?;
        let written = write_all(records, Writer::new(dialect, buffered(&file)))
            .map_err(named)
            .and_then(|()| file.sync_all().map_err(failed))
            .and_then(|()| std::fs::rename(&partial, path).map_err(failed));
        if written.is_err() {
            // The failure is what to tell of; the rest of a file that nobody asked for is not.
            let _ = std::fs::remove_file(&partial);
        }
        written
    }
}

/// Where a path leads through links, whether or not something is there. Links of the system's own, such as those to what a process
/// has open, are not followed.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(path);
        };
        path = parent.canonicalize()?.join(name);
        let is_link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
        if !is_link || is_of_system(&path) {
            return Ok(path);
        }
        let next = path.read_link()?;
        path.pop();
        path.push(next);
    }
    Err(io::Error::other("it leads through too many links"))
}

/// Whether a path without links in its directories is a name that the system gives devices and what processes have open. Files
/// in shared memory are files.
fn is_of_system(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// A file for the new content, which those may read and write who may the old one.
fn create(path: &Path, old: Option<&Metadata>) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    let Some(old) = old else {
        return options.open(path);
    };
    let file = options.mode(old.permissions().mode()).open(path)?;
    // What the process takes from the files it creates is given back, where the file system knows of that.
    let _ = file.set_permissions(old.permissions());
    Ok(file)
}

fn buffered<W: Write>(out: W) -> BufWriter<W> {
    BufWriter::with_capacity(256 << 10, out)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    name.into()
}

fn write_all<W: Write>(mut records: Records, mut writer: Writer<W>) -> Result<()> {
    let bar = progress::of_records(records.about, "export");
    while let Some((key, value)) = records.range.next_ref()? {
        writer.record(key, value)?;
        if writer.records().is_multiple_of(1024) {
            bar.set_position(writer.records());
        }
    }
    bar.finish_and_clear();
    writer.finish()
}
