//! Terrapin beside other engines: the same keys, threads and memory, each engine in a process and a
//! memory control group of its own. docs/BENCHMARKS.md explains how to run it and how to read its
//! output.
//!
//! - `plan`: what is measured; `engines`: the engines
//! - `matrix`: starts the processes; `worker`: the work of one process; `files`: bytes by file name
//! - `result`: the figures of one run; `summary`, `table`, `plot`, `document`: the reports
//! - `sweep`: draws the sweep over χ
//! - `ingest`: sorted ingests; `counters`: merges of few counters; `turns`: engines that take turns
//!   in one process
#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods)] // a benchmark owns threads and measures wall time: that is its subject

mod counters;
mod document;
mod engines;
mod files;
mod group;
mod host;
mod ingest;
mod matrix;
mod plan;
mod plot;
mod result;
mod summary;
mod sweep;
mod table;
mod turns;
mod worker;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use terrapin_base::{Error, Result};

use crate::matrix::Matrix;
use crate::plan::{Cell, Memory, Record, Size};
use crate::summary::Summary;

/// Compares storage engines, cell by cell
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run cells (all by default) that have no results yet, then write the report
    Run(Run),
    /// Write the report of existing results
    Report {
        /// Directory of the results
        #[arg(long, value_name = "DIR", default_value = "compare-results")]
        results: PathBuf,
    },
    /// Records in key order into an empty store: Terrapin's sorted ingest beside RocksDB's files of
    /// sorted records, building included
    Ingest(ingest::Ingest),
    /// Many threads that add to few counters: Terrapin's merges beside RocksDB's
    Counters(counters::Counters),
    /// List the engines of this build, with versions
    Engines,
    /// Draw the output of `terrapin bench chi --json`
    Sweep {
        /// File with its lines
        lines: PathBuf,
        /// The picture to write (SVG)
        picture: PathBuf,
        /// The tree's write amplification at each step by a model, to draw beside the measured one
        #[arg(long, value_name = "LIST", value_delimiter = ',')]
        model: Vec<f64>,
    },
    #[command(hide = true)]
    Worker { job: String },
    /// Regenerate the tables of rates that a Markdown document marks
    Document {
        /// The document
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Summaries; the later of two for one cell counts
        #[arg(value_name = "SUMMARY.json", required = true)]
        summaries: Vec<PathBuf>,
    },
}

/// The name of the cells that `--values` and `--memory` choose.
const SHAPE: &str = "shape";

#[derive(Args)]
struct Run {
    /// Cells, as BYTES-MEMORY-THREADS (4096-64th-2); or core, those of 128 bytes and 1 KiB with
    /// memory a third of the data and 2 threads; or shape, those of --values and --memory with 2
    /// threads [default: the published cells]
    #[arg(value_name = "CELL")]
    cells: Vec<String>,
    /// Bytes of a record, 8 of them key, in the cells of shape: 128, 1k, 4k, 16k, 256k, 1m
    /// [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    values: Vec<Record>,
    /// Memory in the cells of shape, as a share of the data: 100th, 64th, tenth, third, all
    /// [default: all five]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    memory: Vec<Memory>,
    /// How much data and how long: quick, shape (816 MiB in every cell), full, or tiny (which only
    /// shows that everything works) [default: shape for shape, quick for other cells]
    #[arg(long, value_name = "NAME")]
    size: Option<Size>,
    /// Records to load instead of the size's number; give such runs --results of their own
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// Workloads besides load: a, b, c, d, e, f, a-uniform, c-uniform [default: all of these]; and
    /// those that run only if they are named: overwrite; range-1, -10, -100, -1000, -10000 (ranges
    /// of as many records), range-again (of 100); swaps and transactions, for engines with
    /// conditional writes
    #[arg(
        long,
        visible_alias = "phases",
        value_name = "LIST",
        value_delimiter = ','
    )]
    workloads: Vec<String>,
    /// Engines and variants [default: all engines of this build, without variants]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    engines: Vec<String>,
    /// Runs of each engine in each cell
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: u32,
    /// Repeat runs that exist, and replace their results
    #[arg(long)]
    again: bool,
    /// Directory of the results
    #[arg(long, value_name = "DIR", default_value = "compare-results")]
    results: PathBuf,
    /// Directory for the engines' files, on the device to be measured; files left there are removed
    #[arg(long, value_name = "DIR", default_value = "compare-scratch")]
    scratch: PathBuf,
}

impl Run {
    fn cells(&self) -> Result<Vec<Cell>> {
        let published = Cell::all().into_iter().filter(Cell::is_published);
        if self.cells.is_empty() {
            return Ok(published.collect());
        }
        let mut cells = Vec::new();
        for name in &self.cells {
            if name == "core" {
                let core = |c: &Cell| c.memory == Memory::Third && c.threads == 2;
                cells.extend(published.clone().filter(core));
            } else if name == SHAPE {
                cells.extend(Cell::all().into_iter().filter(|cell| {
                    (self.values.is_empty() || self.values.contains(&cell.record))
                        && (self.memory.is_empty() || self.memory.contains(&cell.memory))
                        && cell.threads == 2
                }));
            } else {
                cells.push(name.parse()?);
            }
        }
        Ok(cells)
    }

    fn size(&self) -> Size {
        self.size.unwrap_or(match self.has_shape() {
            true => Size::Shape,
            false => Size::Quick,
        })
    }

    fn has_shape(&self) -> bool {
        self.cells.iter().any(|name| name == SHAPE)
    }

    fn run(&self) -> Result<bool> {
        let chooses = !self.values.is_empty() || !self.memory.is_empty();
        if chooses && !self.has_shape() {
            return Err(Error::invalid(
                "--values and --memory choose cells of: run shape",
            ));
        }
        let cells = self.cells()?;
        let names: Vec<&str> = self.engines.iter().map(String::as_str).collect();
        let engines = if names.is_empty() {
            engines::plain().collect()
        } else {
            names
                .into_iter()
                .map(engines::find)
                .collect::<Result<_>>()?
        };
        let matrix = Matrix {
            size: self.size(),
            records: self.records,
            phases: self.workloads.clone(),
            engines,
            repeats: self.repeats,
            again: self.again,
            results: self.results.clone(),
            scratch: self.scratch.clone(),
        };
        let mut sound = true;
        for cell in cells {
            sound &= matrix.cell(cell)?;
            // After each cell, so that a stopped command leaves a report.
            report(&self.results)?;
        }
        // Only if the directory is empty.
        let _ = std::fs::remove_dir(&self.scratch);
        Ok(sound)
    }
}

/// Writes tables, figures and plots of the existing results.
fn report(results: &Path) -> Result<()> {
    for size in Size::ALL {
        let (mut summaries, mut machines) = (Vec::new(), Vec::new());
        for cell in Cell::all() {
            let runs = matrix::runs(results, size, cell)?;
            for run in &runs {
                let machine = (run.machine.clone(), run.allocator.clone());
                if !machines.contains(&machine) {
                    machines.push(machine);
                }
            }
            summaries.extend(Summary::new(size, cell, &runs));
        }
        if summaries.is_empty() {
            continue;
        }
        let directory = results.join(size.name());
        let write = |name: &str, text: String| {
            let place = directory.join(name);
            std::fs::write(&place, text)
                .map_err(|e| Error::io("cannot write the report", e).with("file", place.display()))
        };
        let json =
            serde_json::to_string_pretty(&summaries).map_err(|e| Error::internal(e.to_string()))?;
        write("summary.json", json + "\n")?;
        write("tables.md", table::markdown(&machines, &summaries))?;
        for summary in &summaries {
            write(&format!("{}.svg", summary.cell), plot::svg(summary)?)?;
        }
    }
    Ok(())
}

fn draw_sweep(lines: &Path, picture: &Path, model: &[f64]) -> Result<()> {
    let text = std::fs::read_to_string(lines)
        .map_err(|e| Error::io("cannot read the sweep", e).with("file", lines.display()))?;
    std::fs::write(picture, sweep::svg(&text, model)?)
        .map_err(|e| Error::io("cannot write the picture", e).with("file", picture.display()))
}

fn document(file: &Path, summaries: &[PathBuf]) -> Result<()> {
    let failed =
        |message: &'static str| move |e| Error::io(message, e).with("file", file.display());
    let text = std::fs::read_to_string(file).map_err(failed("cannot read the document"))?;
    let filled = document::filled(&text, &document::summaries(summaries)?)?;
    std::fs::write(file, filled).map_err(failed("cannot write the document"))
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(run) => run.run(),
        Command::Report { results } => report(&results).map(|()| true),
        Command::Ingest(ingest) => ingest.run().map(|()| true),
        Command::Counters(counters) => counters.run().map(|()| true),
        Command::Engines => {
            let mut out = std::io::stdout().lock();
            // A reader that has gone wants no more output.
            let _ = engines::all().try_for_each(|engine| {
                writeln!(
                    out,
                    "{:<19}{} ({})",
                    engine.name,
                    engine.version(),
                    engine.how
                )
            });
            Ok(true)
        }
        Command::Sweep {
            lines,
            picture,
            model,
        } => draw_sweep(&lines, &picture, &model).map(|()| true),
        Command::Document { file, summaries } => document(&file, &summaries).map(|()| true),
        Command::Worker { job } => serde_json::from_str(&job)
            .map_err(|e| Error::invalid(format!("not a job: {e}")))
            .and_then(|job| worker::run(&job))
            .map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("compare: some runs failed; they are in the table with the reason");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}
