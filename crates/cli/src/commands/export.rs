//! `terrapin export`: the records of a keyspace or of a range, in key order, as of one moment.
//! Those of a hashed keyspace come in no order. A file gets its new content only when everything
//! was written, and keeps its permissions. A link to the file stays a link. Stdout gets csv by
//! default, the format that carries any bytes. Values may have any length: large ones are read and
//! written in pieces.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use terrapin::{StreamedValue, ValueReader};
use terrapin_base::{Env, Error, ErrorKind, Result, Slice};

use super::import::format_of;
use super::scan::{StreamedWalk, WalkArgs};
use crate::database::{DatabaseArgs, KeyspaceArgs};
use crate::formats::{Dialect, Format, Writer};
use crate::interrupt::Interrupt;
use crate::{output, own_files, progress};

/// Most links that a path may follow, as many as Linux allows.
const LINKS_MAX: usize = 40;

/// Names tried for a new file until one is free.
const NAMES_MAX: u32 = 100;

/// Arguments of `export`.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    database: DatabaseArgs,
    /// File to write, also through links, outside of the database's directory; - is stdout. If the
    /// reader of a named pipe goes away, the command fails; for stdout it does not. An export that
    /// fails or is ended by Ctrl-C leaves the old file; stdout keeps everything up to the failure.
    /// A killed export leaves FILE.partial-PID
    #[arg(value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Format [default: from the file's name; on stdout csv, which carries any bytes]
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Write keys and values as hexadecimal digits; the range's keys are given so too
    #[arg(long)]
    hex: bool,
    /// csv: begin with a line that names the columns key and value
    #[arg(long)]
    header: bool,
    /// json, jsonl: write values that are the JSON text of a number, object, array, true, false or
    /// null as JSON, so that values imported from JSON come back unchanged (but a string that says
    /// 12 becomes a number, and jsonl keeps a text of several lines as a string, as both do with
    /// values of more than a quarter of --memory); not with --hex
    #[arg(long)]
    typed: bool,
    /// csv: write a third column, expires_ms, with the deadline of the value in milliseconds since
    /// 1970; it is empty where the value has none. jsonl writes a member expires_ms always. Without
    /// this, csv refuses values with a deadline, as tsv and json do
    #[arg(long, conflicts_with = "drop_deadlines")]
    deadlines: bool,
    /// Write values with a deadline as if they had none
    #[arg(long)]
    drop_deadlines: bool,
    /// Print a JSON object once FILE is written: {"records":…,"seconds":…}
    #[arg(long)]
    json: bool,
}

/// What to write.
struct Records {
    /// The estimated number of records, if known.
    about: Option<u64>,
    walk: StreamedWalk,
    /// Signals that end the export early.
    interrupt: Option<Interrupt>,
}

impl Export {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let to_stdout = self.output.as_os_str() == "-";
        let named = self.format.or(to_stdout.then_some(Format::Csv));
        let dialect = Dialect {
            hex: self.hex,
            header: self.header,
            typed: self.typed,
            keys_only: self.walk.keys_only,
            deadlines: self.deadlines,
            drop_deadlines: self.drop_deadlines,
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
        // Only the progress bar needs the estimate. Damage at the range's end is reported when the
        // export gets there.
        let about = match self.walk.range.unordered_of(&keyspace)? {
            Some(_) => keyspace.approximate_count().ok(),
            None => {
                let about = keyspace.approximate(self.walk.range.bounds(self.hex)?);
                about.ok().map(|estimate| estimate.records)
            }
        };
        let limit = self.walk.limit.map_or(u64::MAX, |limit| limit as u64);
        let records = Records {
            about: about.map(|about| about.min(limit)),
            walk: self.walk.of(&keyspace, self.hex)?.streamed(),
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
        // A pipe, a device or another process's open file is written directly. A file is written
        // beside itself first, so that a failure leaves the old one.
        if let Some(old) = &old
            && (!old.is_file() || is_of_system(path))
        {
            // Earlier content of an open file stays.
            let mut options = File::options();
            options.write(true).append(old.is_file());
            let file = options.open(path).map_err(failed)?;
            return write_all(records, Writer::new(dialect, buffered(file))).map_err(named);
        }
        // From here on there is a file to remove.
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
            // Report the failure. The rest of an unwanted file needs no report.
            let _ = std::fs::remove_file(&partial);
        }
        written
    }
}

/// The target of a path through links, whether or not it exists. Links of the system, such as those
/// to open files, are not followed.
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

/// Whether a path without links in its directories names a device or an open file of a process.
/// Files in shared memory are files.
fn is_of_system(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Creates a new file beside a path, and returns its name. An existing file or link of that name
/// stays.
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

/// A file for the new content, with the permissions of the old one.
fn create(path: &Path, old: Option<&Metadata>) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    let Some(old) = old else {
        return options.open(path);
    };
    let file = options.mode(old.permissions().mode()).open(path)?;
    // Undo the umask, where the file system keeps permissions.
    let _ = file.set_permissions(old.permissions());
    Ok(file)
}

fn buffered<W: Write>(out: W) -> BufWriter<W> {
    BufWriter::with_capacity(256 << 10, out)
}

/// A large value whole, if the format looks whether it is JSON, and if memory holds it.
fn whole<W: Write>(reader: &ValueReader, writer: &Writer<W>) -> Result<Option<Slice>> {
    if !writer.is_typed() {
        return Ok(None);
    }
    match reader.read_range(0..reader.len()) {
        Err(error) if error.kind() == ErrorKind::TooLarge => Ok(None),
        read => read.map(Some),
    }
}

/// Writes the records and returns their number.
fn write_all<W: Write>(mut records: Records, mut writer: Writer<W>) -> Result<u64> {
    let bar = progress::of_records(records.about, "export");
    while let Some((key, value, expires_ms)) = records.walk.next()? {
        match value {
            StreamedValue::Bytes(value) => writer.record(key, value, expires_ms)?,
            StreamedValue::Reader(mut reader) => match whole(&reader, &writer)? {
                Some(value) => writer.record(key, &value, expires_ms)?,
                None => writer.record_streamed(key, &mut reader, expires_ms)?,
            },
        }
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
