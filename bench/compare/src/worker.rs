//! An engine's own process: it enters its group, opens the engine, runs the phases, and writes a
//! line for each.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use terrapin_base::{Error, ErrorKind, Result};
use terrapin_bench::{Config, Driver, Progress, Records, Store, Workload};

use crate::engines;
use crate::files::Files;
use crate::group;
use crate::host::{self, Disk};
use crate::plan::{KEY_BYTES, Memory, Plan};
use crate::result::{Line, Outcome};

/// The job, as JSON in the process's only argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The engine's name.
    pub engine: String,
    /// The plan.
    pub plan: Plan,
    /// The seed.
    pub repeat: u32,
    /// An empty directory for the engine.
    pub directory: PathBuf,
    /// The memory control group, if there is one.
    pub group: Option<PathBuf>,
}

/// Does the job. Every outcome is a line on stdout; the error is for a stdout that fails.
pub fn run(job: &Job) -> Result<()> {
    // Stopping the command stops this process too.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| Error::io("cannot follow the command that started this", e.into()))?;
    let result = job
        .group
        .as_deref()
        .map_or(Ok(()), group::enter)
        .and_then(|()| engines::find(&job.engine))
        .and_then(|engine| (engine.run)(job));
    say(&match result {
        Ok(()) => Line::Done,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            Line::Unsupported(error.to_string())
        }
        Err(error) => Line::Failure(error.to_string()),
    })
}

/// Runs the phases on one store. Compiled for each engine.
pub fn drive<S: Store>(job: &Job, store: &S) -> Result<()> {
    let Job {
        plan, directory, ..
    } = job;
    let config = Config {
        records: plan.records,
        loaded: false,
        shape: Records::new(KEY_BYTES, plan.value_bytes())?,
        threads: plan.cell.threads,
        scan_records_max: terrapin_bench::SCAN_RECORDS_MAX,
        seed: u64::from(job.repeat),
    };
    let files = (engines::find(&job.engine)?.is_data_file)
        .map(|is_data_file| Files::watch(directory, is_data_file))
        .transpose()?;
    let data_file_bytes = || files.as_ref().and_then(|files| files.bytes());
    let progress = Progress::default();
    let driver = Driver::new(&config, store, directory, &progress)?;
    driver.write_first().map_err(|error| match error.kind() {
        ErrorKind::TooLarge => Error::new(ErrorKind::Unsupported, error.to_string()),
        _ => error,
    })?;
    let mut notes = Vec::new();
    for name in &plan.phases {
        let phase = plan
            .phase(name)
            .ok_or_else(|| Error::invalid("there is no such phase").with("given", name))?;
        let load = phase.workload == Workload::Load;
        if let Some(note) = host::drop_page_cache(directory)?
            && notes.is_empty()
        {
            notes.push(note.to_owned());
            say(&Line::Notes(notes.clone()))?;
        }
        if !load {
            if plan.cell.memory == Memory::All {
                driver.read_all()?;
            }
            driver.phase(plan.warm_up(&phase))?;
        }
        let before = Disk::now(directory);
        let data_before = data_file_bytes();
        let report = driver.phase(phase)?;
        let settle = if phase.workload.writes() {
            Some(driver.settle()?)
        } else {
            None
        };
        let mut outcome = Outcome::new(name, &report, settle.as_ref());
        if let (Some(before), Some(after)) = (before, Disk::now(directory)) {
            outcome.disk_bytes_written = Some(after.written - before.written);
            outcome.disk_bytes_read = Some(after.read - before.read);
        }
        if let (Some(before), Some(after)) = (data_before, data_file_bytes()) {
            let data = after - before;
            outcome.data_file_bytes_written = Some(data);
            outcome.log_bytes_written = Some(outcome.device_bytes_written.saturating_sub(data));
        }
        say(&Line::Phase(outcome))?;
        if load && report.records < plan.records {
            return Err(Error::invalid("load was not done within its time limit")
                .with("records", report.records)
                .with("of", plan.records));
        }
    }
    driver.read_all()?;
    driver.check_latest()
}

fn say(line: &Line) -> Result<()> {
    let text = serde_json::to_string(line).map_err(|e| Error::internal(e.to_string()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|e| Error::io("cannot write a result", e))
}
