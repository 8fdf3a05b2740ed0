//! `terrapin bench`: measurements. The crate `terrapin-bench` measures; this module has arguments
//! and output.

mod absent;
mod backup;
mod chi;
mod driven;
mod expiry;
mod growth;
mod ingest;
mod merges;
mod open;
mod range_delete;
mod reads;
mod recovery;
mod space;
mod transactions;
mod ycsb;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::{Args, Subcommand};
use terrapin::{Database, Durability, KeyspaceOptions, StructureKind};
use terrapin_base::Result;
use terrapin_bench::{
    Config, Distribution, Driver, Figures, Phase, Progress, TerrapinStore, Workload,
};

use self::driven::Fresh;
use super::help::Help;
use crate::{output, progress};

/// The interval at which the progress bar is updated.
const REDRAW: Duration = Duration::from_millis(250);

/// Arguments of `bench`.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// The workloads of YCSB: load, then a (half updates), b, c (reads), d (latest), e (scans), f
    /// (read-modify-write)
    Ycsb(ycsb::Ycsb),
    /// Loads at checkpoint distances 1, 2, 4 …, each followed by reads at 1: the costs and savings
    /// of χ
    Chi(chi::Chi),
    /// The cost of overwriting in writes and space, at several bounds of space amplification
    Space(space::Space),
    /// The cost of a loaded record as the data grows, beside log₂ of the data over the memtable
    Growth(growth::Growth),
    /// Many cold keys at once and a scan of everything, beside raw reads of the device in the same
    /// run
    Reads(reads::Reads),
    /// What an open costs, and the first gets after it
    Open(open::Open),
    /// What an open costs after a process died with its writes in the log only
    Recovery(recovery::Recovery),
    /// Gets of keys that are not there beside gets of keys that are
    Absent(absent::Absent),
    /// Puts, compare-and-swaps and transactions of four reads and two writes, by turns
    Transactions(transactions::Transactions),
    /// A sorted ingest beside a load of as many records: rates, and bytes written for each
    Ingest(ingest::Ingest),
    /// Half of the records deleted by one range: the call, the space, and the bytes written
    RangeDelete(range_delete::RangeDelete),
    /// Merges beside puts, and gets of a key with many merges beside other gets
    Merges(merges::Merges),
    /// The space of records, half of which expire while nobody uses the database
    Expiry(expiry::Expiry),
    /// A backup beside overwrites, and an incremental one after 1 % of the records changed
    Backup(backup::Backup),
    /// Print this message or the help of one of these
    Help(Help),
}

impl Bench {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        match &self.suite {
            Suite::Ycsb(ycsb) => ycsb.run(),
            Suite::Chi(chi) => chi.run(),
            Suite::Space(space) => space.run(),
            Suite::Growth(growth) => growth.run(),
            Suite::Reads(reads) => reads.run(),
            Suite::Open(open) => open.run(),
            Suite::Recovery(recovery) => recovery.run(),
            Suite::Absent(absent) => absent.run(),
            Suite::Transactions(transactions) => transactions.run(),
            Suite::Ingest(ingest) => ingest.run(),
            Suite::RangeDelete(delete) => delete.run(),
            Suite::Merges(merges) => merges.run(),
            Suite::Expiry(expiry) => expiry.run(),
            Suite::Backup(backup) => backup.run(),
            Suite::Help(help) => return help.run(&["bench"]),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

/// How figures are printed.
#[derive(Args)]
struct Form {
    /// Print one JSON object for each line of the table
    #[arg(long)]
    json: bool,
}

impl Form {
    /// The table's head, if there is one.
    fn say_head<F: Figures>(&self) -> Result<()> {
        if self.json {
            return Ok(());
        }
        output::say(F::table_head())
    }

    /// Measures once in each turn, in a new place below a directory of this name, behind a progress
    /// bar. Prints the head, and each turn's figures.
    fn say_turns<F: Figures>(
        &self,
        (turns, fresh, name): (u64, &Fresh, &str),
        (bar, records): (&'static str, u64),
        measure: impl Fn(&Path, &Progress) -> Result<F>,
    ) -> Result<()> {
        self.say_head::<F>()?;
        for _ in 0..turns {
            let place = fresh.place(name)?;
            let figures = with_bar(bar, records, |seen| measure(place.path(), seen))?;
            self.say(&figures)?;
        }
        Ok(())
    }

    fn say<F: Figures>(&self, figures: &F) -> Result<()> {
        output::say(if self.json {
            figures.json()
        } else {
            figures.table_line()
        })
    }
}

/// Runs counted work with a progress bar.
fn with_bar<R>(name: &'static str, records: u64, run: impl FnOnce(&Progress) -> R) -> R {
    let seen = Progress::default();
    let bar = progress::of_records(Some(records), name);
    std::thread::scope(|scope| {
        let (done, wait) = mpsc::channel::<()>();
        let (seen, bar) = (&seen, &bar);
        if !bar.is_hidden() {
            scope.spawn(move || {
                while wait.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
                    bar.set_total(seen.total.load(Ordering::Relaxed));
                    bar.set(seen.done.load(Ordering::Relaxed));
                }
            });
        }
        let result = run(seen);
        drop(done);
        result
    })
}

/// The keyspace of a run with this structure, which this creates if it is missing.
fn stored(
    database: &Database,
    structure: StructureKind,
    memory_bytes: u64,
) -> Result<TerrapinStore> {
    let store = TerrapinStore::new(database.clone(), Durability::Process, memory_bytes);
    store.stored(KeyspaceOptions::new().structure(structure))
}

/// Writes the records of a run into an empty keyspace. Then come this many operations of YCSB's
/// workload A, half of which overwrite.
fn load(
    config: &Config,
    store: &TerrapinStore,
    operations: u64,
    directory: &Path,
    progress: &Progress,
) -> Result<()> {
    let driver = Driver::new(config, store, directory, progress)?;
    driver.phase(Phase::uniform(Workload::Load, config.records))?;
    if operations > 0 {
        let mut phase = Phase::uniform(Workload::A, operations);
        phase.distribution = Distribution::Zipfian;
        driver.phase(phase)?;
    }
    Ok(())
}
