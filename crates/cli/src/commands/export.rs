//! `terrapin export`: the records of a keyspace, all or those of a range, in key order, as of one
//! moment. A file takes its new content only when all of it was written, and keeps its permissions;
//! a link to it stays one. Stdout takes csv unless another format is named: the one that carries
//! any bytes.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use terrapin_base::{Env, Error, Result};

use super::import::format_of;
use super::scan::{Walk, WalkArgs};
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::formats::{Dialect, Format, Writer};
use crate::interrupt::Interrupt;
use crate::{output, own_files, progress};

/// Links that a path may lead through one after the other, as many as Linux allows.
const LINKS_MAX: usize = 40;

/// Names that are tried for a new file until there is none of that name.
const NAMES_MAX: u32 = 100;

/// Arguments of `export`.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    database: DatabaseArgs,
    /// File to write, by way of links if it is one, outside of the database's directory; - is
    /// stdout. One whose reader goes away fails the command, stdout's does not. An export that
    /// fails, or is ended by Ctrl-C, leaves the old file and nothing of the new one (stdout got all
    /// up to the failure), one that is killed FILE.partial-PID
    #[arg(value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Format [default: from the file's name; on stdout csv, which carries any bytes]
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Write keys and values as hexadecimal digits; the range's keys are given so, too
    #[arg(long)]
    hex: bool,
    /// csv: begin with a line that names the columns key and value
    #[arg(long)]
    header: bool,
    /// json, jsonl: write values that are the JSON text of a number, object, array, true, false or
    /// null as they stand, so that what was imported from JSON comes back as it was (a string that
    /// says 12 becomes the number, though, and jsonl keeps a text of several lines a string); not
    /// with --hex
    #[arg(long)]
    typed: bool,
    /// When FILE is written, print a JSON object: {"records":…,"seconds":…}
    #[arg(long)]
    json: bool,
}

/// What is written.
struct Records {
    /// About how many there are, as far as that is known.
    about: Option<u64>,
    walk: Walk,
    /// Signals that end it early.
    interrupt: Option<Interrupt>,
}

impl Export {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        let to_stdout = self.output.as_os_str() == "-";
        let named = self.format.or(to_stdout.then_some(Format::Csv));
        let dialect = Dialect {
            hex: self.hex,
            header: self.header,
            typed: self.typed,
            keys_only: self.walk.keys_only,
            ..Dialect::plain(format_of(named, &self.output)?)
        };
        dialect.check()?;
        if self.json && to_stdout {
            return Err(Error::invalid(
                "--json tells of an export to a file: on stdout the records are; --format jsonl writes those as JSON",
            ));
        }
        let path = match to_stdout {
            true => None,
            false => Some(self.resolved()?),
        };
        let clock = Env::threads();
        let start_ns = clock.now_ns();
        let database = self.database.open_to_read()?;
        let keyspace = self.keyspace.find(&database)?;
        // Only a bar wants it: what is damaged at the range's end is told once the export comes
        // there.
        let about = keyspace.approximate(self.walk.range.bounds(self.hex)?);
        let about = about.ok().map(|estimate| estimate.records);
        let limit = self.walk.limit.map_or(u64::MAX, |limit| limit as u64);
        let records = Records {
            about: about.map(|about| about.min(limit)),
            walk: self.walk.of(&keyspace, self.hex)?,
            interrupt: None,
        };
        let Some(path) = path else {
            write_all(records, Writer::new(dialect, output::Stored::new()))?;
            return crate::database::close(&database);
        };
        let written = self.write_file(records, dialect, &path)?;
        crate::database::close(&database)?;
        let seconds = clock.now_ns().saturating_sub(start_ns) as f64 / 1e9;
        if self.json {
            output::say(json!({ "records": written, "seconds": seconds }))?;
        }
        output::notice_sum("exported", written, seconds);
        Ok(())
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io("cannot write the output", error).with("file", self.output.display())
    }

    /// Where the output's path leads: not to a file of the database.
    fn resolved(&self) -> Result<PathBuf> {
        let path = resolved(&self.output).map_err(|error| self.failed(error))?;
        own_files::refuse_path(&self.database.path, "output", &path)?;
        Ok(path)
    }

    fn write_file(&self, mut records: Records, dialect: Dialect, path: &Path) -> Result<u64> {
        let failed = |error| self.failed(error);
        let named = |error: Error| error.with("output", self.output.display());
        let old = match path.metadata() {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        // A pipe, a device or what a process has open is written as it is; a file beside itself
        // first, so that a failure leaves the old one.
        if let Some(old) = &old
            && (!old.is_file() || is_of_system(path))
        {
            // What was written to an open file before, by whoever opened it, stays.
            let mut options = File::options();
            options.write(true).append(old.is_file());
            let file = options.open(path).map_err(failed)?;
            return write_all(records, Writer::new(dialect, buffered(file))).map_err(named);
        }
        // From here on there is something to remove.
        records.interrupt = Some(Interrupt::listen()?);
        let (file, partial) = create_beside(path, old.as_ref()).map_err(failed)?;
        let written = write_all(records, Writer::new(dialect, buffered(&file)))
            .map_err(named)
            .and_then(|count| file.sync_all().map(|()| count).map_err(failed))
            .and_then(|count| {
                let renamed = std::fs::rename(&partial, path);
                renamed.map(|()| count).map_err(failed)
            });
        if written.is_err() {
            // The failure is what to tell of; the rest of a file that nobody asked for is not.
            let _ = std::fs::remove_file(&partial);
        }
        written
    }
}

/// Where a path leads through links, whether or not something is there. Links of the system's own,
/// such as those to what a process has open, are not followed.
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

/// Whether a path without links in its directories is a name that the system gives devices and what
/// processes have open. Files in shared memory are files.
fn is_of_system(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// A new file beside a path, and its name. One that is there already, or a link of that name, is
/// left alone.
fn create_beside(path: &Path, old: Option<&Metadata>) -> io::Result<(File, PathBuf)> {
    let process = std::process::id();
    for attempt in 0..NAMES_MAX {
        let mut name = path.as_os_str().to_owned();
        name.push(match attempt {
            0 => format!(".partial-{process}"),
            _ => format!(".partial-{process}-{attempt}"),
        });
        let name = PathBuf::from(name);
        match create(&name, old) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (file, name)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A file for the new content, which those may read and write who may the old one.
fn create(path: &Path, old: Option<&Metadata>) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    let Some(old) = old else {
        return options.open(path);
    };
    let file = options.mode(old.permissions().mode()).open(path)?;
    // What the process takes from the files it creates is given back, where the file system knows
    // of that.
    let _ = file.set_permissions(old.permissions());
    Ok(file)
}

fn buffered<W: Write>(out: W) -> BufWriter<W> {
    BufWriter::with_capacity(256 << 10, out)
}

/// Writes what is to be written; how many records that were.
fn write_all<W: Write>(mut records: Records, mut writer: Writer<W>) -> Result<u64> {
    let bar = progress::of_records(records.about, "export");
    while let Some((key, value)) = records.walk.next()? {
        writer.record(key, value)?;
        if writer.records().is_multiple_of(1024) {
            bar.set(writer.records());
            records
                .interrupt
                .as_ref()
                .map_or(Ok(()), Interrupt::check)?;
        }
    }
    records
        .interrupt
        .as_ref()
        .map_or(Ok(()), Interrupt::check)?;
    writer.finish()
}
