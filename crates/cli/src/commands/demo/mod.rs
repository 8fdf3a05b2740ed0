//! `terrapin demo`: the store at work, in four steps that print what happened. Records go in, are
//! queried, and are overwritten at several checkpoint distances χ, turned during the run. Then the
//! database is closed, reopened and verified.

#![allow(clippy::disallowed_methods)] // a demonstration tells of wall time and threads: they are its subject

mod data;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use terrapin::verify::{self, VerifyOptions};
use terrapin::{CheckpointDistance, Database, Keyspace, Options};
use terrapin_base::{Error, ErrorKind, Result, VALUE_BYTES_MAX};
use terrapin_bench::{Random, Usage, allocated_bytes, reset_rss_peak, rss_peak_bytes};

use super::import::{check_sizes, format_of};
use crate::bytes::{counted, human, show, thousands};
use crate::database::KeyspaceArgs;
use crate::formats::{self, Dialect, Format};
use crate::input::{InputFile, Watched};
use crate::table::Table;
use crate::temporary::Temporary;
use crate::{arguments, output, own_files, progress};

const BATCH_RECORDS: usize = 512;
const BATCH_BYTES: usize = 128 << 10;
/// Keys kept aside to read and overwrite: a fair sample of all.
const SAMPLE_KEYS: u64 = 100_000;
const POINT_READS: u64 = 100_000;
/// With fewer bytes of records, rates and ratios mean nothing, and a larger χ saves nothing.
const FIGURES_BYTES_MIN: u64 = 1 << 20;
/// Records of a prefix that are printed.
const SHOWN: usize = 2;
/// The values of χ, as far as memory allows.
const DISTANCES: [u32; 3] = [1, 4, 16];

/// Arguments of `demo`.
#[derive(Args)]
pub struct Demo {
    /// Directory for the database, which is kept [default: a temporary one, removed at the end, or
    /// by the next run if this one is killed]
    #[arg(value_name = "DB")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Import this file instead of generating records
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Format of --file [default: from its name]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Records to generate
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = arguments::at_least_one::<u64>)]
    records: u64,
    /// Overwrites for each value of χ
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = arguments::at_least_one::<u64>)]
    updates: u64,
    /// Memory budget, a fraction of the data
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = arguments::size)]
    memory: u64,
    /// Print a JSON object for each step instead of text
    #[arg(long)]
    json: bool,
}

/// Data that the steps share.
struct Stage<'a> {
    directory: &'a Path,
    database: Database,
    keyspace: Keyspace,
    keys: Vec<Box<[u8]>>,
    random: Random,
    teller: Teller,
    /// Whether there is enough data for rates and ratios.
    has_figures: bool,
}

/// Reports what happened.
#[derive(Clone, Copy)]
struct Teller {
    json: bool,
}

impl Teller {
    /// For people.
    fn tell(self, line: impl std::fmt::Display) -> Result<()> {
        if self.json { Ok(()) } else { output::say(line) }
    }

    /// For programs.
    fn figures(self, figures: &Value) -> Result<()> {
        if self.json {
            output::say(figures)
        } else {
            Ok(())
        }
    }
}

/// The imported records.
#[derive(Default)]
struct Totals {
    records: u64,
    bytes: u64,
}

impl Demo {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        match &self.directory {
            Some(directory) => self.run_in(directory),
            None => self.run_in(Temporary::new("demo")?.path()),
        }
    }

    fn run_in(&self, directory: &Path) -> Result<()> {
        // The input is checked before anything is created.
        let input = match &self.file {
            Some(path) => Some((path, format_of(self.format, path)?, InputFile::open(path)?)),
            None => None,
        };
        own_files::refuse_std(directory)?;
        let options = Options::new().memory(self.memory).error_if_exists(true);
        let database = options.open(directory)?;
        let keyspace = database.keyspace(&self.keyspace.name)?;
        let teller = Teller { json: self.json };
        let mut stage = Stage {
            directory,
            database,
            keyspace,
            keys: Vec::new(),
            random: Random::new(1),
            teller,
            has_figures: true,
        };
        reset_rss_peak();
        teller.tell(format_args!(
            "Terrapin in {}, {} of memory",
            directory.display(),
            human(self.memory)
        ))?;

        teller.tell("\n1. Records go in")?;
        stage.fill(|put| match input {
            None => generate(self.records, put),
            Some((path, format, input)) => {
                let bar = progress::of_bytes(input.bytes, "import");
                formats::read(
                    &Dialect::plain(format),
                    &mut Watched::new(&input, &bar),
                    &mut |record| {
                        check_sizes(&record, VALUE_BYTES_MAX)?;
                        put(record.key, record.value)
                    },
                )
                .map_err(|error| error.with("input", path.display()))
            }
        })?;
        teller.tell("\n2. They are queried")?;
        stage.query()?;
        let has_figures = stage.has_figures;
        if has_figures {
            teller.tell("\n3. The dial is turned while writers and readers run")?;
            stage.turn(self.updates, self.memory)?;
            teller.tell("\n4. Close, reopen, verify")?;
        } else {
            teller.tell("\n3. Close, reopen, verify")?;
        }
        stage.reopen(self.memory, &self.keyspace.name)?;
        let peak_bytes = rss_peak_bytes();
        if has_figures {
            teller.tell(format_args!(
                "   peak memory: {} for the whole process, code and the demo's own lists included; the budget of {} bounds the database",
                human(peak_bytes),
                human(self.memory)
            ))?;
        }
        teller.figures(&json!({
            "step": "end",
            "memory_bytes": self.memory,
            "rss_peak_bytes": peak_bytes,
        }))?;
        if self.directory.is_some() {
            teller.tell(format_args!(
                "   the database stays: terrapin scan {} --limit 10{}",
                directory.display(),
                self.keyspace.option()
            ))?;
        }
        Ok(())
    }
}

/// Takes a record.
type Put<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

fn generate(records: u64, put: Put<'_>) -> Result<()> {
    let bar = progress::of_records(Some(records), "import");
    for number in 0..records {
        // An order unrelated to that of the names, as in real data.
        let name = data::name(number);
        put(name.as_bytes(), data::record(&name, 0).as_bytes())?;
        if number % 1024 == 0 {
            bar.set(number);
        }
    }
    Ok(())
}

fn rate(count: u64, time: Duration) -> String {
    thousands((count as f64 / time.as_secs_f64().max(1e-9)) as u64)
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

/// Bytes written to the device meanwhile. The system's count may fall, when pages are given up
/// unwritten.
fn device_bytes_since(before: &Usage) -> u64 {
    let now = Usage::now().device_bytes_written;
    now.saturating_sub(before.device_bytes_written)
}

/// Why memory does not allow a setting, if that is the error; any other error is returned.
fn too_large(set: Result<()>) -> Result<Option<Error>> {
    match set {
        Ok(()) => Ok(None),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::OutOfMemory | ErrorKind::InvalidArgument
            ) =>
        {
            Ok(Some(error))
        }
        Err(error) => Err(error),
    }
}

impl Stage<'_> {
    /// Puts every record in batches, and keeps a sample of the keys.
    fn fill(&mut self, source: impl FnOnce(Put<'_>) -> Result<()>) -> Result<()> {
        let (before, start) = (Usage::now(), Instant::now());
        let mut totals = Totals::default();
        let mut batch = self.database.batch();
        source(&mut |key, value| {
            batch.put(&self.keyspace, key, value);
            totals.records += 1;
            totals.bytes += (key.len() + value.len()) as u64;
            // Vitter's algorithm R: every key is as likely to be in the sample as any other.
            if totals.records <= SAMPLE_KEYS {
                self.keys.push(key.into());
            } else if let Some(slot) = self
                .keys
                .get_mut(self.random.below(totals.records) as usize)
            {
                *slot = key.into();
            }
            if batch.len() >= BATCH_RECORDS || batch.bytes() >= BATCH_BYTES {
                self.database.write(&batch)?;
                batch.clear();
            }
            Ok(())
        })?;
        self.database.write(&batch)?;
        let written = start.elapsed();
        self.database.checkpoint()?;
        let device = device_bytes_since(&before);
        self.has_figures = totals.bytes >= FIGURES_BYTES_MIN;
        let records = counted(totals.records, "record");
        let space = allocated_bytes(self.directory)?;
        if self.has_figures {
            self.teller.tell(format_args!(
                "   {records}, {}, in {:.1} s: {} a second",
                human(totals.bytes),
                written.as_secs_f64(),
                rate(totals.records, written)
            ))?;
            self.teller.tell(format_args!(
                "   written to the device for each byte of them: {:.2} (the log included); directory {}",
                ratio(device, totals.bytes),
                human(space)
            ))?;
        } else {
            self.teller
                .tell(format_args!("   {records}, {}", human(totals.bytes)))?;
        }
        self.teller.figures(&json!({
            "step": "load",
            "records": totals.records,
            "bytes": totals.bytes,
            "seconds": written.as_secs_f64(),
            "device_bytes_written": device,
            "space_bytes": space,
        }))?;
        if self.keys.is_empty() {
            return Err(Error::invalid("the input has no records"));
        }
        Ok(())
    }

    fn query(&mut self) -> Result<()> {
        if self.has_figures {
            self.read_points()?;
        }
        self.show_prefix()?;
        self.scan()
    }

    fn read_points(&mut self) -> Result<()> {
        let mut latency = Vec::with_capacity(POINT_READS as usize);
        let start = Instant::now();
        for _ in 0..POINT_READS {
            let key = &self.keys[self.random.below(self.keys.len() as u64) as usize];
            let begun = Instant::now();
            let found = self.keyspace.get(key)?;
            latency.push(begun.elapsed());
            if found.is_none() {
                return Err(Error::corrupt("a record is missing").with("key", show(key)));
            }
        }
        let (time, (p50, p99)) = (start.elapsed(), percentiles(&mut latency));
        self.teller.tell(format_args!(
            "   {} point reads at random: {} a second, median {p50:.1} µs, 99 % below {p99:.1} µs",
            thousands(POINT_READS),
            rate(POINT_READS, time)
        ))?;
        self.teller.figures(&json!({
            "step": "point reads",
            "reads": POINT_READS,
            "seconds": time.as_secs_f64(),
            "p50_us": p50,
            "p99_us": p99,
        }))
    }

    fn show_prefix(&self) -> Result<()> {
        let snapshot = self.database.snapshot()?;
        let key = &self.keys[0];
        let prefix = &key[..key.len().min(6)];
        let start = Instant::now();
        let mut count = 0;
        let mut samples = Vec::new();
        for record in snapshot.prefix(&self.keyspace, prefix) {
            let (key, value) = record?;
            count += 1;
            if samples.len() < SHOWN {
                samples.push((key.to_vec(), value.to_vec()));
            }
        }
        let time = start.elapsed();
        let took = match self.has_figures {
            true => format!(" in {:.1} ms", time.as_secs_f64() * 1e3),
            false => String::new(),
        };
        let which = match count > samples.len() as u64 {
            true => format!(", the first {}", samples.len()),
            false => String::new(),
        };
        self.teller.tell(format_args!(
            "   prefix {}: {}{took}{which}:",
            show(prefix),
            counted(count, "record")
        ))?;
        for (key, value) in &samples {
            self.teller
                .tell(format_args!("      {}  {}", show(key), show(value)))?;
        }
        self.teller.figures(&json!({
            "step": "prefix",
            "prefix": show(prefix),
            "records": count,
            "seconds": time.as_secs_f64(),
        }))
    }

    fn scan(&self) -> Result<()> {
        let snapshot = self.database.snapshot()?;
        let start = Instant::now();
        let (mut records, mut bytes) = (0, 0);
        for record in snapshot.iter(&self.keyspace) {
            let (key, value) = record?;
            records += 1;
            bytes += (key.len() + value.len()) as u64;
        }
        let time = start.elapsed();
        let a_second = match self.has_figures {
            true => format!(", {} records a second", rate(records, time)),
            false => String::new(),
        };
        self.teller.tell(format_args!(
            "   full scan: {}, {}{a_second}",
            counted(records, "record"),
            human(bytes)
        ))?;
        self.teller.figures(&json!({
            "step": "scan",
            "records": records,
            "bytes": bytes,
            "seconds": time.as_secs_f64(),
        }))
    }

    fn turn(&mut self, updates: u64, memory: u64) -> Result<()> {
        let mut table = Table::new(&[
            "   χ",
            "memtable",
            "updates/s",
            "device bytes a byte",
            "reads/s meanwhile",
            "read p50 µs",
            "read p99 µs",
        ]);
        let group_bytes = self.database.stat()?.group_bytes;
        for (revision, distance) in (1u64..).zip(DISTANCES) {
            let set = self
                .keyspace
                .set_checkpoint_distance(CheckpointDistance::Fixed(distance));
            if let Some(error) = too_large(set)? {
                self.teller.tell(format_args!(
                    "   χ = {distance} does not fit into {}: {error}",
                    human(memory)
                ))?;
                continue;
            }
            self.database.checkpoint()?;
            let (before, start) = (Usage::now(), Instant::now());
            let (user_bytes, mut reads) = self.overwrite(updates, revision)?;
            let time = start.elapsed();
            // Merge the memtable before the figures are taken.
            self.database.checkpoint()?;
            self.database.flush()?;
            let device = device_bytes_since(&before);
            let read_rate = rate(reads.len() as u64, time);
            let (p50, p99) = percentiles(&mut reads);
            self.teller.figures(&json!({
                "step": "dial",
                "chi": distance,
                "memtable_bytes": u64::from(distance) * group_bytes,
                "updates": updates,
                "seconds": time.as_secs_f64(),
                "user_bytes_written": user_bytes,
                "device_bytes_written": device,
                "reads": reads.len(),
                "read_p50_us": p50,
                "read_p99_us": p99,
            }))?;
            table.row(vec![
                format!("   {distance}"),
                human(u64::from(distance) * group_bytes),
                rate(updates, time),
                format!("{:.2}", ratio(device, user_bytes)),
                read_rate,
                format!("{p50:.1}"),
                format!("{p99:.1}"),
            ]);
        }
        self.keyspace
            .set_checkpoint_distance(CheckpointDistance::Auto)?;
        self.teller.tell(table)?;
        self.teller.tell(
            "   A larger χ writes less to the device and keeps more of the memory for writing; a smaller one leaves it to reads.",
        )
    }

    /// Overwrites keys of the sample at random while another thread reads. Returns user bytes and
    /// the latency of each read.
    fn overwrite(&mut self, updates: u64, revision: u64) -> Result<(u64, Vec<Duration>)> {
        let (stop, seed) = (AtomicBool::new(false), self.random.bits());
        let (keyspace, keys, random) = (&self.keyspace, &self.keys, &mut self.random);
        let mut last = None;
        let (written, reads) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_until(&stop, keyspace, keys, seed));
            let written = (|| {
                let mut user_bytes = 0;
                for _ in 0..updates {
                    let key = &keys[random.below(keys.len() as u64) as usize];
                    let value = data::record(&String::from_utf8_lossy(key), revision);
                    keyspace.put(key, &value)?;
                    user_bytes += (key.len() + value.len()) as u64;
                    last = Some((key, value));
                }
                Ok(user_bytes)
            })();
            stop.store(true, Ordering::Relaxed);
            let panicked = |_| Err(Error::internal("the reader panicked"));
            (written, reader.join().unwrap_or_else(panicked))
        });
        let (written, reads) = (written?, reads?);
        if let Some((key, value)) = last
            && self.keyspace.get(key)?.as_deref() != Some(value.as_bytes())
        {
            return Err(
                Error::corrupt("a record is not the last one written").with("key", show(key))
            );
        }
        Ok((written, reads))
    }

    fn reopen(self, memory: u64, name: &str) -> Result<()> {
        let Stage {
            directory,
            database,
            keyspace,
            keys,
            teller,
            ..
        } = self;
        let start = Instant::now();
        crate::database::close(&database)?;
        let closed = start.elapsed();
        drop((keyspace, database));
        let start = Instant::now();
        let database = Options::new()
            .memory(memory)
            .create_if_missing(false)
            .open(directory)?;
        let opened = start.elapsed();
        let replayed = database.metrics().replayed_records;
        let keyspace = database.open_keyspace(name)?;
        for key in keys.iter().take(1000) {
            if !keyspace.contains(key)? {
                return Err(
                    Error::corrupt("a record is missing after the database was reopened")
                        .with("key", show(key)),
                );
            }
        }
        teller.tell(format_args!(
            "   closed in {:.0} ms, reopened in {:.1} ms, {} replayed",
            closed.as_secs_f64() * 1e3,
            opened.as_secs_f64() * 1e3,
            counted(replayed, "log record")
        ))?;
        crate::database::close(&database)?;
        let options = VerifyOptions::new().memory(memory);
        let start = Instant::now();
        let report = verify::verify(directory, &options)?;
        if let Some(finding) = report.findings.first() {
            return Err(Error::corrupt(finding.message.clone()).with("place", &finding.place));
        }
        let verified = start.elapsed();
        teller.tell(format_args!(
            "   verified in {:.1} s: sound, {} in {}",
            verified.as_secs_f64(),
            counted(report.groups, "page group"),
            human(report.page_bytes)
        ))?;
        teller.figures(&json!({
            "step": "reopen",
            "close_seconds": closed.as_secs_f64(),
            "open_seconds": opened.as_secs_f64(),
            "replayed_log_records": replayed,
            "verify_seconds": verified.as_secs_f64(),
            "sound": true,
        }))
    }
}

fn read_until(
    stop: &AtomicBool,
    keyspace: &Keyspace,
    keys: &[Box<[u8]>],
    seed: u64,
) -> Result<Vec<Duration>> {
    let (mut random, mut latency) = (Random::new(seed), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let key = &keys[random.below(keys.len() as u64) as usize];
        let begun = Instant::now();
        let found = keyspace.get(key)?;
        latency.push(begun.elapsed());
        if found.is_none() {
            return Err(Error::corrupt("a record is missing").with("key", show(key)));
        }
    }
    Ok(latency)
}

/// Median and 99th percentile in microseconds.
fn percentiles(latency: &mut [Duration]) -> (f64, f64) {
    latency.sort_unstable();
    let at = |share: usize| {
        latency
            .get(latency.len() * share / 100)
            .map_or(0.0, |d| d.as_secs_f64() * 1e6)
    };
    (at(50), at(99))
}
