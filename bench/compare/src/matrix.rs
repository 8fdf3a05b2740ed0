//! Runs cells: each engine in a process of its own, engines alternating, each result in a file.
//! Existing results are not repeated.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use terrapin_base::{Error, Result};

use crate::engines::{self, Engine};
use crate::group::Group;
use crate::host::Machine;
use crate::plan::{Cell, Plan, Size};
use crate::result::{Line, Run};
use crate::worker::Job;

/// Lines of an engine's stderr that a failure quotes.
const COMPLAINT_LINES: usize = 4;

/// What to run, and where results go.
pub struct Matrix {
    /// The size of all cells.
    pub size: Size,
    /// Records to load instead of the size's number.
    pub records: Option<u64>,
    /// Names of phases; none means all.
    pub phases: Vec<String>,
    /// The engines.
    pub engines: Vec<&'static Engine>,
    /// Runs of each engine in each cell.
    pub repeats: u32,
    /// Whether existing runs are repeated.
    pub again: bool,
    /// Where results lie.
    pub results: PathBuf,
    /// Where engines keep their files during a run.
    pub scratch: PathBuf,
}

impl Matrix {
    /// Runs what a cell lacks. Returns whether all of its runs succeeded.
    pub fn cell(&self, cell: Cell) -> Result<bool> {
        let plan = match self.records {
            Some(records) => Plan::with_records(self.size, cell, records, &self.phases)?,
            None => Plan::new(self.size, cell, &self.phases)?,
        };
        let engines: Vec<&Engine> = (self.engines.iter().copied())
            .filter(|e| e.fits(self.size))
            .collect();
        let mut sound = true;
        for repeat in 1..=self.repeats {
            for engine in turns(&engines, repeat) {
                let place = run_path(&self.results, self.size, cell, engine.name, repeat);
                let known = load(&place)?.filter(|run| !self.is_to_be_redone(run, engine, &plan));
                let run = match known {
                    Some(run) if run.plan.covers(&plan) && !self.again => run,
                    Some(run) if run.plan.covers(&plan) && run.plan != plan => {
                        return Err(Error::invalid(
                            "a run with more phases is there already; run all of them again, or give another --results",
                        )
                        .with("file", place.display()));
                    }
                    _ => {
                        let run = self.run(engine, &plan, repeat)?;
                        store(&place, &run)?;
                        self.clear(engine, repeat)?;
                        run
                    }
                };
                sound &= run.failure.is_none();
            }
        }
        Ok(sound)
    }

    /// Whether an existing run is useless: it failed for another reason than being too slow, the
    /// engine did not support the cell, or the process had another memory limit than now.
    fn is_to_be_redone(&self, run: &Run, engine: &Engine, plan: &Plan) -> bool {
        let limit = limit_bytes(engine, plan);
        run.plan.is_like(plan)
            && (!run.counts() || run.memory_limit_bytes.is_some_and(|had| had != limit))
    }

    fn run(&self, engine: &Engine, plan: &Plan, repeat: u32) -> Result<Run> {
        let directory = self.directory(engine, repeat);
        let failed = |e| {
            Error::io("cannot prepare a directory for an engine", e)
                .with("directory", directory.display())
        };
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(failed)?;
        }
        fs::create_dir_all(&directory).map_err(failed)?;
        let mut run = Run {
            engine: engine.name.into(),
            version: engine.version(),
            repeat,
            plan: plan.clone(),
            began: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            machine: Machine::here(&directory),
            allocator: engines::allocator(),
            memory_limit_bytes: None,
            notes: Vec::new(),
            failure: None,
            unsupported: None,
            outcomes: Vec::new(),
        };
        let limit = limit_bytes(engine, plan);
        let group = match Group::new(limit) {
            Ok(group) => {
                run.memory_limit_bytes = Some(limit);
                Some(group)
            }
            Err(error) => {
                run.notes.push(format!("no limit of memory: {error}"));
                None
            }
        };
        let job = Job {
            engine: engine.name.into(),
            plan: plan.clone(),
            repeat,
            directory: directory.clone(),
            group: group.as_ref().map(|g| g.path().to_owned()),
        };
        let title = format!(
            "{} {} {} #{repeat}",
            plan.size.name(),
            plan.cell,
            run.engine
        );
        let complaints = complaints_of(&directory);
        let mut child = spawn(&job, &complaints)?;
        listen(&mut child, plan.patience(), &mut run, &title)?;
        if run.failure.is_some() && group.as_ref().is_some_and(Group::killed) {
            run.failure = Some(format!(
                "killed at its limit of memory, {} MiB",
                limit >> 20
            ));
        } else if let Some(failure) = &mut run.failure {
            let text = fs::read_to_string(&complaints).unwrap_or_default();
            let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
            for line in &lines[lines.len().saturating_sub(COMPLAINT_LINES)..] {
                failure.push_str("; ");
                failure.push_str(line);
            }
        }
        if let Some(failure) = &run.failure {
            eprintln!("{title}: FAILED: {failure}");
        }
        Ok(run)
    }

    /// The engine's directory.
    fn directory(&self, engine: &Engine, repeat: u32) -> PathBuf {
        self.scratch.join(format!("{}-{repeat}", engine.name))
    }

    /// Removes a run's files once its result is stored.
    fn clear(&self, engine: &Engine, repeat: u32) -> Result<()> {
        let directory = self.directory(engine, repeat);
        let failed = |e| {
            Error::io("cannot remove the files of an engine", e)
                .with("directory", directory.display())
        };
        fs::remove_dir_all(&directory).map_err(failed)?;
        fs::remove_file(complaints_of(&directory)).map_err(failed)
    }
}

/// The order of the engines in a repeat. Each repeat begins with another engine, and every other
/// repeat goes backwards, so that no engine always follows the same one.
fn turns<'e>(engines: &[&'e Engine], repeat: u32) -> Vec<&'e Engine> {
    let mut order = engines.to_vec();
    let first = (repeat as usize - 1) % order.len().max(1);
    order.rotate_left(first);
    if repeat.is_multiple_of(2)
        && let Some(others) = order.get_mut(1..)
    {
        others.reverse();
    }
    order
}

/// The memory control group's limit for an engine's process.
fn limit_bytes(engine: &Engine, plan: &Plan) -> u64 {
    plan.memory_limit_bytes(engine.memory) + engine.overhead_bytes
}

/// The file for an engine's stderr.
fn complaints_of(directory: &Path) -> PathBuf {
    directory.with_extension("stderr")
}

fn spawn(job: &Job, complaints: &Path) -> Result<Child> {
    let failed = |e| Error::io("cannot start a process for an engine", e);
    let text = serde_json::to_string(job).map_err(|e| Error::internal(e.to_string()))?;
    Command::new(std::env::current_exe().map_err(failed)?)
        .arg("worker")
        .arg(text)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(complaints).map_err(failed)?)
        .spawn()
        .map_err(failed)
}

/// Reads a process's lines until it ends. A process that is silent for too long is killed.
fn listen(child: &mut Child, patience: Duration, run: &mut Run, title: &str) -> Result<()> {
    let Some(out) = child.stdout.take() else {
        return Err(Error::internal("the process has no standard output"));
    };
    let (send, receive) = mpsc::channel();
    let mut done = false;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for line in BufReader::new(out).lines().map_while(|line| line.ok()) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        loop {
            match receive.recv_timeout(patience) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(Line::Notes(notes)) => run.notes.extend(notes),
                    Ok(Line::Phase(outcome)) => {
                        eprintln!(
                            "{title}: {} {:.0} operations/s",
                            outcome.phase,
                            outcome.rate()
                        );
                        run.outcomes.push(outcome);
                    }
                    Ok(Line::Failure(failure)) => run.failure = Some(failure),
                    Ok(Line::Unsupported(why)) => {
                        eprintln!("{title}: not supported: {why}");
                        run.unsupported = Some(why);
                    }
                    Ok(Line::Done) => done = true,
                    // An engine that prints on stdout does not fail the run.
                    Err(_) => eprintln!("{title}: says {line}"),
                },
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    run.failure = Some(format!("hung: no phase ended in {patience:?}"));
                    // It may have ended this very moment.
                    let _ = child.kill();
                }
            }
        }
    });
    let status = child
        .wait()
        .map_err(|e| Error::io("cannot wait for an engine's process", e))?;
    let told = run.failure.is_some() || run.unsupported.is_some();
    let is_whole = done && status.success();
    if !is_whole && !told {
        run.failure = Some(format!("died ({status})"));
    }
    Ok(())
}

/// The file of a run's result.
fn run_path(results: &Path, size: Size, cell: Cell, engine: &str, repeat: u32) -> PathBuf {
    let directory = results.join(size.name()).join(cell.to_string());
    directory.join(format!("{engine}-{repeat}.json"))
}

fn load(place: &Path) -> Result<Option<Run>> {
    let text = match fs::read_to_string(place) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            return Err(Error::io("cannot read a result", e).with("file", place.display()));
        }
    };
    let run = serde_json::from_str(&text).map_err(|e| {
        Error::invalid("a result file is malformed; remove it to measure it again")
            .with("file", place.display())
            .with("why", e)
    })?;
    Ok(Some(run))
}

/// Replaces a result atomically: an interrupted command leaves the old or the new one.
fn store(place: &Path, run: &Run) -> Result<()> {
    let failed =
        |e| Error::io("cannot write a result", e).with("file", place.display().to_string());
    if let Some(directory) = place.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let text = serde_json::to_string_pretty(run).map_err(|e| Error::internal(e.to_string()))?;
    let fresh = place.with_extension("new");
    fs::write(&fresh, text + "\n").map_err(failed)?;
    fs::rename(&fresh, place).map_err(failed)
}

/// The existing runs of a cell, in no order, with the newest run's plan; others are not comparable.
/// Reports how many it leaves out.
pub fn runs(results: &Path, size: Size, cell: Cell) -> Result<Vec<Run>> {
    let mut runs = all_runs(results, size, cell)?;
    let newest = runs.iter().max_by_key(|run| run.began);
    if let Some(plan) = newest.map(|run| run.plan.clone()) {
        let all = runs.len();
        runs.retain(|run| run.plan.is_like(&plan));
        if runs.len() < all {
            eprintln!(
                "compare: {} runs of {} {cell} are of another plan than the newest, and left out",
                all - runs.len(),
                size.name()
            );
        }
    }
    Ok(runs)
}

fn all_runs(results: &Path, size: Size, cell: Cell) -> Result<Vec<Run>> {
    let directory = results.join(size.name()).join(cell.to_string());
    let Ok(entries) = fs::read_dir(&directory) else {
        return Ok(Vec::new());
    };
    let mut runs = Vec::new();
    for entry in entries.flatten() {
        if entry.path().extension().is_some_and(|e| e == "json") {
            runs.extend(load(&entry.path())?);
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Outcome, Run};

    #[test]
    fn no_engine_always_follows_the_same_one() {
        let engines: Vec<&Engine> = engines::plain().collect();
        if engines.len() < 3 {
            return;
        }
        let orders = [1, 2, 3].map(|repeat| turns(&engines, repeat));
        for engine in &engines {
            let before = |order: &Vec<&Engine>| {
                let place = order.iter().position(|e| e.name == engine.name).unwrap();
                place.checked_sub(1).map(|before| order[before].name)
            };
            let [a, b, c] = [0, 1, 2].map(|repeat| before(&orders[repeat]));
            assert!(a != b || b != c, "{} follows {a:?}", engine.name);
        }
        assert_ne!(orders[0][0].name, orders[1][0].name);
    }

    #[test]
    fn failed_runs_and_runs_with_other_memory_are_repeated() {
        let matrix = Matrix {
            size: Size::Tiny,
            records: None,
            phases: Vec::new(),
            engines: Vec::new(),
            repeats: 1,
            again: false,
            results: PathBuf::new(),
            scratch: PathBuf::new(),
        };
        let engine = engines::find("terrapin").unwrap();
        let cell: Cell = "128-third-2".parse().unwrap();
        let plan = Plan::new(Size::Tiny, cell, &[]).unwrap();
        let sound = Run {
            engine: engine.name.into(),
            version: engine.version(),
            repeat: 1,
            plan: plan.clone(),
            began: 0,
            machine: Machine::here(Path::new(".")),
            allocator: String::new(),
            memory_limit_bytes: Some(limit_bytes(engine, &plan)),
            notes: Vec::new(),
            failure: None,
            unsupported: None,
            outcomes: Vec::new(),
        };
        let redone = |run: &Run| matrix.is_to_be_redone(run, engine, &plan);
        assert!(!redone(&sound));
        let mut other = sound.clone();
        other.memory_limit_bytes = Some(1);
        assert!(redone(&other));
        other.memory_limit_bytes = None;
        assert!(!redone(&other));
        other = sound.clone();
        other.unsupported = Some("the value is too large".into());
        assert!(redone(&other), "a newer version may support it");
        let failed = |phase: &str, operations| {
            let mut run = sound.clone();
            run.failure = Some("it did".into());
            run.outcomes = vec![Outcome {
                phase: phase.into(),
                operations,
                ..Outcome::default()
            }];
            run
        };
        assert!(redone(&failed("load", plan.records)));
        assert!(!redone(&failed("load", 1)), "too slow, and would be again");
    }
}
