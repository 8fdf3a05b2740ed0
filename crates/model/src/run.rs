//! Random runs: a store and the oracle do the same operations, and every answer is compared. A seed
//! determines a run. A failure prints the seed, and the operations before it as lines of a script.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use terrapin_disk::SimDisk;

use crate::configuration::Configuration;
use crate::generate::{Generator, Profile};
use crate::life::Life;
use crate::operation::{Answer, Operation, Reopen};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::simulated::Simulated;
use crate::subject::Subject;

/// Operations that a failure shows.
const TRACE: usize = 25;

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations done.
    pub operations: u64,
    /// Crashes survived, including those during recoveries.
    pub crashes: u64,
    /// Records at the end.
    pub records: usize,
    /// A hash of every call on the disk: equal for equal runs.
    pub trace_hash: u64,
}

/// How a run failed, and how to repeat it.
#[derive(Clone)]
pub struct Failure {
    /// The kind of run and its seed, or the script and its line.
    pub run: String,
    /// How the store was opened.
    pub configuration: String,
    /// What is wrong.
    pub message: String,
    /// The last operations, the one that failed at the end.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.run, self.message)?;
        writeln!(f, "  {}", self.configuration)?;
        self.trace
            .iter()
            .try_for_each(|line| writeln!(f, "  | {line}"))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// The last operations, for a failure to show.
pub(crate) struct Trace {
    run: String,
    configuration: String,
    last: VecDeque<String>,
    done: u64,
}

impl Trace {
    pub(crate) fn new(run: String, configuration: String) -> Self {
        Trace {
            run,
            configuration,
            last: VecDeque::new(),
            done: 0,
        }
    }

    pub(crate) fn note(&mut self, line: String) {
        self.done += 1;
        self.last.push_back(line);
        if self.last.len() > TRACE {
            self.last.pop_front();
        }
    }

    pub(crate) fn failure(&self, message: impl fmt::Display) -> Failure {
        Failure {
            run: self.run.clone(),
            configuration: self.configuration.clone(),
            message: format!("operation {}: {message}", self.done),
            trace: self.last.iter().cloned().collect(),
        }
    }
}

/// Does an operation. A panic becomes an answer that agrees with nothing.
pub(crate) fn guarded(subject: &mut dyn Subject, operation: &Operation) -> Answer {
    let done = catch_unwind(AssertUnwindSafe(|| subject.apply(operation)));
    done.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Answer::Broken(format!("a panic: {}", text.unwrap_or("no message")))
    })
}

/// Lets the oracle and a store do an operation, and compares their answers.
pub(crate) fn compare(
    oracle: &mut Oracle,
    subject: &mut dyn Subject,
    operation: &Operation,
) -> Result<Answer, String> {
    let expected = oracle.apply(operation);
    let answer = guarded(subject, operation);
    if answer.agrees(&expected) {
        Ok(answer)
    } else {
        Err(answer.difference(&expected))
    }
}

/// Whether an operation loses unlogged writes.
fn is_lossy(oracle: &Oracle, operation: &Operation) -> bool {
    matches!(operation, Operation::Reopen(how) if how.dropped) && oracle.holds_unlogged()
}

/// Flushes before an operation that would lose unlogged writes.
fn flush_before(
    oracle: &mut Oracle,
    subject: &mut dyn Subject,
    operation: &Operation,
) -> Result<(), String> {
    if is_lossy(oracle, operation) {
        compare(oracle, subject, &Operation::Flush)?;
    }
    Ok(())
}

/// The configuration and the profile of a seed.
fn drawn(random: &mut Random, crashes: bool) -> (Configuration, Profile) {
    let configuration = Configuration::random(random);
    let mut profile = Profile::of(&configuration, random);
    profile.crashes = crashes;
    (configuration, profile)
}

/// Runs this many random operations without crashes, under random options, and compares the whole
/// content at the end.
pub fn random_run(seed: u64, operations: usize) -> Result<Outcome, Failure> {
    random_run_on(seed, operations, SimDisk::new(seed))
}

/// Does what [`random_run`] does on a new disk of the caller, which may watch it.
pub fn random_run_on(seed: u64, operations: usize, disk: SimDisk) -> Result<Outcome, Failure> {
    let (configuration, all) = random_operations(seed, operations);
    let name = format!("random run of seed {seed}");
    replay_on(&name, seed, &configuration, all, disk)
}

/// The run of a seed, for [`random_run`].
#[must_use]
pub fn random_operations(seed: u64, operations: usize) -> (Configuration, Vec<Operation>) {
    let mut random = Random::new(seed);
    let (configuration, profile) = drawn(&mut random, false);
    let all = Generator::new(random.bits(), profile)
        .take(operations)
        .collect();
    (configuration, all)
}

/// Runs these operations beside the oracle. It skips operations that name a missing snapshot or
/// range, so any part of a failing run can be replayed.
pub fn replay(
    name: &str,
    seed: u64,
    configuration: &Configuration,
    operations: impl IntoIterator<Item = Operation>,
) -> Result<Outcome, Failure> {
    replay_on(name, seed, configuration, operations, SimDisk::new(seed))
}

fn replay_on(
    name: &str,
    seed: u64,
    configuration: &Configuration,
    operations: impl IntoIterator<Item = Operation>,
    disk: SimDisk,
) -> Result<Outcome, Failure> {
    let mut trace = Trace::new(name.to_owned(), configuration.to_string());
    let mut subject = Simulated::closed(name, seed, configuration.clone(), disk);
    subject.open().map_err(|e| trace.failure(e))?;
    let mut oracle = Oracle::new()
        .with_default(configuration.durability)
        .with_structures(configuration.structures);
    for operation in operations {
        flush_before(&mut oracle, &mut subject, &operation).map_err(|m| trace.failure(m))?;
        let expected = oracle.apply(&operation);
        if matches!(expected, Answer::Broken(_)) {
            continue;
        }
        trace.note(operation.to_string());
        let answer = guarded(&mut subject, &operation);
        if !answer.agrees(&expected) {
            return Err(trace.failure(answer.difference(&expected)));
        }
    }
    finish(&mut subject, &oracle, &trace, 0)
}

/// Runs these operations on several stores beside the oracle. Every answer and the final records
/// must equal the oracle's. The stores share a default durability, and each is reopened with
/// options of its own.
pub fn replay_beside(
    name: &str,
    mut subjects: Vec<Simulated>,
    operations: impl IntoIterator<Item = Operation>,
) -> Result<u64, Failure> {
    let configurations: Vec<String> = subjects
        .iter()
        .map(|subject| format!("{}: {}", subject.name(), subject.configuration()))
        .collect();
    let mut trace = Trace::new(name.to_owned(), configurations.join("\n  "));
    let durability = subjects.first().map(|s| s.configuration().durability);
    let mut oracle = Oracle::new().with_default(durability.unwrap_or_default());
    for operation in operations {
        let flush = is_lossy(&oracle, &operation).then_some(Operation::Flush);
        for operation in flush.into_iter().chain([operation]) {
            let expected = oracle.apply(&operation);
            if matches!(expected, Answer::Broken(_)) {
                continue;
            }
            trace.note(operation.to_string());
            for (number, subject) in (1..).zip(&mut subjects) {
                let answer = guarded(subject, &varied(&operation, number));
                if !answer.agrees(&expected) {
                    let difference = answer.difference(&expected);
                    return Err(trace.failure(format!("{}: {difference}", subject.name())));
                }
            }
        }
    }
    for subject in &mut subjects {
        finish(subject, &oracle, &trace, 0).map_err(|failure| Failure {
            message: format!("{}: {}", subject.name(), failure.message),
            ..failure
        })?;
    }
    Ok(trace.done)
}

/// The operation for one of several stores: each store has its own options for a reopen.
fn varied(operation: &Operation, number: u64) -> Operation {
    match operation {
        Operation::Reopen(how) if how.vary != 0 => Operation::Reopen(Reopen {
            vary: how.vary * 100 + number,
            ..*how
        }),
        other => other.clone(),
    }
}

/// Compares everything, closes, verifies, opens and compares again.
pub(crate) fn finish(
    subject: &mut Simulated,
    oracle: &Oracle,
    trace: &Trace,
    crashes: u64,
) -> Result<Outcome, Failure> {
    let check = |subject: &mut Simulated| -> Result<(), Failure> {
        let state = subject.state().map_err(|e| trace.failure(e))?;
        if state == *oracle.state() {
            return Ok(());
        }
        Err(trace.failure(format!("at the end: {}", state.difference(oracle.state()))))
    };
    check(subject)?;
    let how = Reopen {
        inspected: true,
        ..Default::default()
    };
    let answer = guarded(subject, &Operation::Reopen(how));
    if !matches!(answer, Answer::Done) {
        return Err(trace.failure(format!("at the end: {answer}")));
    }
    check(subject)?;
    Ok(Outcome {
        operations: trace.done,
        crashes,
        records: oracle.state().records(),
        trace_hash: subject.disk().trace_hash(),
    })
}

/// The life of a crash run.
pub(crate) fn crash_life(seed: u64, disk: SimDisk) -> Result<Life, Failure> {
    let mut random = Random::new(seed);
    let (configuration, profile) = drawn(&mut random, true);
    let name = format!("crash run of seed {seed}");
    let trace = Trace::new(name.clone(), configuration.to_string());
    let oracle = Oracle::new()
        .with_default(configuration.durability)
        .with_structures(configuration.structures);
    let mut subject = Simulated::closed(name, seed, configuration, disk);
    subject.open().map_err(|e| trace.failure(e))?;
    let generator = Generator::new(random.bits(), profile);
    Ok(Life::new(subject, oracle, generator, random, trace))
}

/// Removes operations from a failing run as long as it still fails; `fails` runs the rest.
pub fn minimize(
    mut operations: Vec<Operation>,
    fails: impl Fn(&[Operation]) -> bool,
) -> Vec<Operation> {
    let mut chunk = operations.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < operations.len() {
            let end = (at + chunk).min(operations.len());
            let fewer: Vec<_> = [&operations[..at], &operations[end..]].concat();
            if fails(&fewer) {
                operations = fewer;
            } else {
                at = end;
            }
        }
        chunk = if chunk == 1 { 0 } else { chunk.div_ceil(2) };
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_run_is_reduced_to_the_operations_that_matter() {
        let operations: Vec<_> = (0..100).map(|ms| Operation::Pass { ms }).collect();
        let has = |all: &[Operation], wanted| {
            all.iter()
                .any(|o| matches!(o, Operation::Pass { ms } if *ms == wanted))
        };
        let least = minimize(operations, |all| has(all, 17) && has(all, 80));
        assert_eq!(
            least,
            [Operation::Pass { ms: 17 }, Operation::Pass { ms: 80 }]
        );
    }
}
