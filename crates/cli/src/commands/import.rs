//! `terrapin import`: records from a text file, in its order.
//!
//! The import writes batches one after the other, each whole or not at all. So the database always
//! holds a prefix of the file, and at least what was acknowledged. It opens and creates nothing
//! before it has read the first records. When the input pauses, or a signal ends the import, it
//! writes the records read so far.

use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;
use terrapin::{Batch, Database, Durability, Ingest, Keyspace};
use terrapin_base::{Env, Error, ErrorKind, KEY_BYTES_MAX, Result, VALUE_BYTES_MAX};

use crate::arguments::DurabilityName;
use crate::database::{KeyspaceArgs, WriterArgs};
use crate::formats::{self, Column, Columns, Dialect, Format, Long, Record, SPOOLED_FROM_BYTES};
use crate::input::{Idle, InputFile, Watched};
use crate::interrupt::{self, Interrupt};
use crate::progress::Bar;
use crate::{arguments, output, own_files, progress};

/// A batch's records or bytes. A larger batch costs no less per record.
const BATCH_RECORDS_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 128 << 10;
/// Bytes of a long value that are copied at once.
const PIECE_BYTES: usize = 256 << 10;
/// A value that is made of several columns has at most this part (1/n) of the memory.
const MEMORY_PART: u64 = 4;

/// Arguments of `import`.
#[derive(Args)]
pub struct Import {
    #[command(flatten)]
    database: WriterArgs,
    /// File to read; - is stdin. Values have up to 1 GiB. One of more than 1 MiB goes to a
    /// temporary file beside the database first. When the input pauses for a tenth of a second, the
    /// import writes the records that it has read. Ctrl-C ends the import after the last whole
    /// record, and it says how many records are stored
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Format [default: from the file's name; stdin has none, and needs it]
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Keys and values are hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// csv: the first line names the columns; key and value, unless --csv-key says otherwise
    #[arg(long)]
    header: bool,
    /// csv without a header: a third column, expires_ms, has the deadline of the value in
    /// milliseconds since 1970, or nothing. A header may name that column, and jsonl has a member
    /// of that name. A value whose deadline has come deletes its key. One without a deadline lasts
    /// as long as the keyspace says (--ttl of keyspace)
    #[arg(long)]
    deadlines: bool,
    /// csv with other columns: the one that holds the key, by its name in the first line, or by its
    /// number from 1 on
    #[arg(long, value_name = "COLUMN")]
    csv_key: Option<Column>,
    /// csv: the column that holds the value [default with --csv-key: a JSON object of all other
    /// columns, by their names]
    #[arg(long, value_name = "COLUMN", requires = "csv_key")]
    csv_value: Option<Column>,
    /// Print `acknowledged COUNT` after each N records and at the end; acknowledged records survive
    /// kill -9. If the reader goes away, the import says so on stderr and continues to its end
    #[arg(long, value_name = "N", value_parser = arguments::at_least_one::<u64>)]
    ack_every: Option<u64>,
    /// At the end, print a JSON object: {"records":…,"seconds":…}
    #[arg(long, conflicts_with = "ack_every")]
    json: bool,
    /// The keys ascend, each once: the records go to the data file directly, and are stored all
    /// together at the end, durably, or not at all. Faster, and writes each byte once
    #[arg(long, conflicts_with_all = ["ack_every", "durability"])]
    sorted: bool,
    /// Durability of a batch
    #[arg(long, value_enum, default_value = "process")]
    durability: DurabilityName,
}

impl Import {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        if self.ack_every.is_some() && matches!(self.durability, DurabilityName::None) {
            return Err(Error::invalid(
                "without a log nothing can be acknowledged: --ack-every needs another --durability",
            ));
        }
        let dialect = self.dialect()?;
        let input = InputFile::open(&self.input)?;
        let name = self.input.display().to_string();
        own_files::refuse_open(self.database.path(), "input", input.file(), &name)?;
        let interrupt = Interrupt::listen()?;
        let bar = progress::of_bytes(input.bytes, "import");
        let loader = RefCell::new(Loader {
            import: self,
            dialect: &dialect,
            target: None,
            ingest: None,
            pending: Pending::default(),
            records: 0,
            acknowledged: None,
            unheard: false,
            bar: &bar,
        });
        let clock = Env::threads();
        let start_ns = clock.now_ns();
        let read = formats::read(
            &dialect,
            &mut Watched::new(&input, &bar).minding(&interrupt, &loader),
            &mut |record| loader.borrow_mut().take(record),
        );
        let ended = loader.into_inner().end(read);
        drop(bar);
        let records = ended.map_err(|error| error.with("input", self.input.display()))?;
        let seconds = clock.now_ns().saturating_sub(start_ns) as f64 / 1e9;
        if self.json {
            output::say(json!({ "records": records, "seconds": seconds }))?;
        }
        output::notice_sum("imported", records, seconds);
        Ok(())
    }

    /// Bytes of the longest value that is made of several columns.
    fn value_bytes_max(&self) -> usize {
        let bytes = usize::try_from(self.database.memory() / MEMORY_PART);
        bytes.map_or(VALUE_BYTES_MAX, |bytes| bytes.max(VALUE_BYTES_MAX))
    }

    /// The directory beside the database.
    fn place(&self) -> PathBuf {
        let place = self.database.path().parent();
        let place = place.filter(|place| !place.as_os_str().is_empty());
        place.unwrap_or(Path::new(".")).to_owned()
    }

    fn dialect(&self) -> Result<Dialect> {
        let columns = self.csv_key.clone().map(|key| Columns {
            key,
            value: self.csv_value.clone(),
        });
        let dialect = Dialect {
            hex: self.hex,
            header: self.header,
            deadlines: self.deadlines,
            columns,
            value_bytes_max: self.value_bytes_max(),
            spool: Some(self.place()),
            ..Dialect::plain(format_of(self.format, &self.input)?)
        };
        dialect.check()?;
        Ok(dialect)
    }
}

/// The named format, or the one of the file's name.
pub fn format_of(named: Option<Format>, path: &Path) -> Result<Format> {
    named.or_else(|| Format::of_name(path)).ok_or_else(|| {
        if path.as_os_str() == "-" {
            return Error::invalid(
                "stdin has no name that shows the format: give --format tsv, csv, jsonl or json",
            );
        }
        Error::invalid(
            "the file's name does not show the format: give --format tsv, csv, jsonl or json",
        )
        .with("file", path.display())
    })
}

/// Refuses records beyond the limits, by their line.
pub fn check_sizes(record: &Record<'_>, value_bytes_max: usize) -> Result<()> {
    let line = record.line;
    for (what, bytes, limit) in [
        ("key", record.key.len(), KEY_BYTES_MAX),
        ("value", record.value.len(), value_bytes_max),
    ] {
        if bytes > limit {
            let message = format!("malformed line {line}: the {what} is longer than the limit");
            return Err(Error::new(ErrorKind::TooLarge, message)
                .with("bytes", bytes)
                .with("limit", limit));
        }
    }
    Ok(())
}

/// The moment that is this many milliseconds after the beginning of 1970.
fn moment(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// Records that wait for the database to be opened, back to back.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    /// Of key and value, and the deadline.
    lengths: Vec<(usize, usize, Option<u64>)>,
}

struct Target {
    database: Database,
    keyspace: Keyspace,
    batch: Batch,
    /// Records that were written.
    written: u64,
}

struct Loader<'a> {
    import: &'a Import,
    dialect: &'a Dialect,
    target: Option<Target>,
    /// With `--sorted`: the ingest under way.
    ingest: Option<Ingest>,
    /// Records read and not yet written.
    pending: Pending,
    /// Records read.
    records: u64,
    acknowledged: Option<u64>,
    /// The reader of acknowledgements has gone.
    unheard: bool,
    bar: &'a Bar,
}

impl Idle for RefCell<Loader<'_>> {
    fn has_work(&self) -> bool {
        !self.borrow().pending.lengths.is_empty()
    }

    fn work(&self) -> Result<()> {
        let mut loader = self.borrow_mut();
        loader.write()?;
        tracing::debug!(
            records = loader.records,
            "the input paused: the records read so far are written"
        );
        Ok(())
    }
}

impl Loader<'_> {
    /// Whether the input's first record looks like a header.
    fn takes_header_for_record(&self, key: &[u8], value: &[u8]) -> bool {
        let names_columns = matches!((key, value), (b"key", b"value") | (b"value", b"key"));
        let is_plain = !self.dialect.header && self.dialect.columns.is_none();
        names_columns && self.dialect.format == Format::Csv && is_plain
    }

    fn take(&mut self, record: Record<'_>) -> Result<()> {
        let value_bytes_max = self.dialect.value_bytes_max.max(SPOOLED_FROM_BYTES);
        check_sizes(&record, value_bytes_max)?;
        if self.import.sorted {
            return self.take_sorted(record);
        }
        if let Some(long) = record.long {
            return self.take_long(record.key, long, record.expires_ms);
        }
        let Record { key, value, .. } = record;
        self.pending.bytes.extend_from_slice(key);
        self.pending.bytes.extend_from_slice(value);
        let lengths = (key.len(), value.len(), record.expires_ms);
        self.pending.lengths.push(lengths);
        self.records += 1;
        self.warn_of_header(key, value);
        let due = self
            .ack_every()
            .is_some_and(|every| self.records.is_multiple_of(every));
        if due
            || self.pending.lengths.len() >= BATCH_RECORDS_MAX
            || self.pending.bytes.len() >= BATCH_BYTES_MAX
        {
            self.write()?;
        }
        if due { self.acknowledge() } else { Ok(()) }
    }

    /// Writes the waiting records, and then one with a long value.
    fn take_long(&mut self, key: &[u8], long: &Long, expires_ms: Option<u64>) -> Result<()> {
        self.write()?;
        let durability: Durability = self.import.durability.into();
        let target = self.open()?;
        let mut writer = target.keyspace.writer_with(key, long.bytes(), durability)?;
        let (mut from, mut piece) = (long.reader()?, vec![0; PIECE_BYTES]);
        while writer.missing() > 0 {
            let count = writer.missing().min(PIECE_BYTES as u64) as usize;
            let read = from.read_exact(&mut piece[..count]);
            read.map_err(|error| Error::io("cannot read the temporary file", error))?;
            writer.append(&piece[..count])?;
        }
        match expires_ms {
            None => writer.finish()?,
            Some(ms) => writer.finish_expiring(moment(ms))?,
        }
        target.written += 1;
        self.records += 1;
        self.bar.set_records(self.records);
        let every = self.ack_every();
        match every.is_some_and(|every| self.records.is_multiple_of(every)) {
            true => self.acknowledge(),
            false => Ok(()),
        }
    }

    fn take_sorted(&mut self, record: Record<'_>) -> Result<()> {
        self.records += 1;
        self.warn_of_header(record.key, record.value);
        let ingest = match &mut self.ingest {
            Some(ingest) => ingest,
            None => {
                let begun = self.open()?.keyspace.begin_ingest()?;
                self.ingest.insert(begun)
            }
        };
        if self.records.is_multiple_of(BATCH_RECORDS_MAX as u64) {
            self.bar.set_records(self.records);
        }
        let deadline = record.expires_ms.map(moment);
        let added = match (record.long, deadline) {
            (Some(long), deadline) => {
                ingest.add_from(record.key, long.bytes(), &mut long.reader()?, deadline)
            }
            (None, None) => ingest.add(record.key, record.value),
            (None, Some(deadline)) => ingest.add_expiring(record.key, record.value, deadline),
        };
        added.map_err(|error| error.with("line", record.line))
    }

    fn warn_of_header(&self, key: &[u8], value: &[u8]) {
        if self.records == 1 && self.takes_header_for_record(key, value) {
            output::warn(
                "the first line looks like column names and was stored as a record; --header treats it as names",
            );
        }
    }

    fn open(&mut self) -> Result<&mut Target> {
        if self.target.is_none() {
            let database = self.import.database.open_or_create()?;
            let keyspace = self.import.keyspace.find_or_create(&database)?;
            self.target = Some(Target {
                batch: database.batch(),
                database,
                keyspace,
                written: 0,
            });
        }
        self.target
            .as_mut()
            .ok_or_else(|| Error::internal("an import without a database"))
    }

    /// Writes the waiting records in order.
    fn write(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let durability: Durability = self.import.durability.into();
        let target = self.open()?;
        let mut rest = &pending.bytes[..];
        for &(key_bytes, value_bytes, expires_ms) in &pending.lengths {
            let (key, tail) = rest.split_at(key_bytes);
            let (value, tail) = tail.split_at(value_bytes);
            rest = tail;
            // A record takes a little more than its bytes in the log.
            let bytes = target.batch.bytes() + key_bytes + value_bytes + 64;
            if !target.batch.is_empty() && bytes > target.database.batch_bytes_max() {
                target.write_batch(durability)?;
            }
            let (batch, keyspace) = (&mut target.batch, &target.keyspace);
            match expires_ms {
                None => batch.put(keyspace, key, value),
                Some(ms) => batch.put_expiring(keyspace, key, value, moment(ms)),
            }
        }
        target.write_batch(durability)?;
        self.pending = pending;
        self.pending.bytes.clear();
        self.pending.lengths.clear();
        self.bar.set_records(self.records);
        Ok(())
    }

    /// The number of records between acknowledgements.
    fn ack_every(&self) -> Option<u64> {
        self.import.ack_every.filter(|_| !self.unheard)
    }

    /// The import goes on without a reader of acknowledgements: half an import would look like a
    /// whole one.
    fn acknowledge(&mut self) -> Result<()> {
        self.acknowledged = Some(self.records);
        match output::say(format_args!("acknowledged {}", self.records)) {
            Err(error) if output::is_reader_gone(&error) => {
                self.unheard = true;
                output::warn(
                    "the reader of acknowledgements has gone: the import continues without them",
                );
                Ok(())
            }
            said => said,
        }
    }

    /// Writes the waiting records even if reading failed: the database then holds the records
    /// before the error. It is closed in any case.
    fn end(&mut self, read: Result<()>) -> Result<u64> {
        let read = match (self.ingest.take(), read) {
            // Dropped in case of an error, so that nothing stays.
            (Some(ingest), Ok(())) => ingest.finish().map(drop),
            (_, read) => read,
        };
        let ended = match read {
            Ok(()) => self.write_rest(),
            // Write the records before a malformed line. Report the first error; later ones only
            // add to it.
            Err(error) if self.stands_before(&error) => Err(match self.write() {
                Ok(()) => error,
                Err(also) => error.with("and then", also),
            }),
            Err(error) => Err(error),
        };
        let Some(target) = &self.target else {
            let ended = ended.map(|()| self.records);
            return ended.map_err(|error| error.with("records imported before it", 0));
        };
        match (ended, crate::database::close(&target.database)) {
            (Ok(()), Ok(())) => Ok(self.records),
            (Ok(()), Err(error)) => Err(error.with("records imported before it", target.written)),
            (Err(error), closed) => {
                let error = match closed {
                    Ok(()) => error,
                    Err(also) => error.with("and then", also),
                };
                Err(error.with("records imported before it", target.written))
            }
        }
    }

    /// Whether the waiting records are written although reading failed: they are sound, and the
    /// input or a signal ended it.
    fn stands_before(&self, error: &Error) -> bool {
        let is_stopped = interrupt::is_stopped(error) && !self.pending.lengths.is_empty();
        is_stopped || formats::is_malformed(error) && self.target.is_some()
    }

    fn write_rest(&mut self) -> Result<()> {
        self.write()?;
        if self.ack_every().is_some() && self.acknowledged != Some(self.records) {
            self.acknowledge()?;
        }
        Ok(())
    }
}

impl Target {
    fn write_batch(&mut self, durability: Durability) -> Result<()> {
        if !self.batch.is_empty() {
            self.database.write_with(&self.batch, durability)?;
            self.written += self.batch.len() as u64;
            self.batch.clear();
        }
        Ok(())
    }
}
