//! A workload beside the oracle in which one call fails. The head of [`super`] lists the checks.

use terrapin_base::{Error, ErrorKind};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, Fault, FaultError, IoEvent, Op};
use terrapin_model::{
    Answer, Operation, Oracle, Pattern, Read, Simulated, State, Subject, Survives,
};

use super::workloads::Workload;
use crate::Find;
use crate::run::caught;

/// The seed of every run: only the failed call varies.
const SEED: u64 = 11;
/// The most finds of a unit that are shown.
const FINDS_SHOWN: usize = 5;
/// A little more than the longest rest after a failed checkpoint.
const RESUMES_WITHIN_MS: u64 = 15_000;

/// One fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failing {
    /// The number of the call, from 1.
    pub call: u64,
    pub error: FaultError,
    pub lasting: bool,
    /// The call as it is when nothing failed before.
    pub op: Op,
}

impl Failing {
    /// Every way in which a call fails.
    pub fn ways(call: u64, event: &IoEvent) -> Vec<Failing> {
        let mut errors = vec![FaultError::Io, FaultError::NoSpace];
        if matches!(event.op, Op::Allocate | Op::Write) {
            errors.push(FaultError::Quota);
        }
        if matches!(event.op, Op::Open | Op::OpenRing) {
            errors.push(FaultError::TooManyFiles);
        }
        let both = [false, true];
        let ways = errors.into_iter().flat_map(|error| {
            both.map(|lasting| Failing {
                call,
                error,
                lasting,
                op: event.op,
            })
        });
        ways.collect()
    }

    /// The fault for the disk.
    pub fn fault(&self) -> Fault {
        self.again(self.call)
    }

    fn again(&self, call: u64) -> Fault {
        let fault = Fault::nth(call, self.error);
        // Too many open files do not affect files that are open.
        let fault = match (self.error, self.lasting) {
            (FaultError::TooManyFiles, true) if call == 1 => fault.on(Op::Open),
            _ => fault,
        };
        if self.lasting { fault.lasting() } else { fault }
    }

    /// Whether the fault may leave the disk's content open, so that the database may be poisoned.
    fn may_poison(&self) -> bool {
        self.lasting
            || matches!(
                self.op,
                Op::Sync | Op::SyncDirectory | Op::Write | Op::Rename
            )
    }

    /// Whether an error caused by the fault names it.
    pub fn explains(&self, kind: ErrorKind, text: &str) -> Result<(), String> {
        let finds_no_room = matches!(self.error, FaultError::NoSpace | FaultError::Quota);
        let fits = match kind {
            ErrorKind::Io => !finds_no_room,
            ErrorKind::NoSpace => finds_no_room,
            ErrorKind::Poisoned => self.may_poison(),
            ErrorKind::Stalled => self.lasting,
            _ => false,
        };
        if !fits {
            return Err(format!("{kind:?} does not fit the fault: {text}"));
        }
        // The disk's own text names the call and the file. The text for a full disk or a quota says
        // so and names the file, or what still works.
        let what = match self.error {
            FaultError::Quota => "quota",
            _ => "the disk is full",
        };
        if self.error == FaultError::Quota && text.contains("the disk is full") {
            return Err(format!("a quota is no full disk: {text}"));
        }
        if text.contains("simulated fault") || text.contains(what) {
            return Ok(());
        }
        Err(format!("the error does not tell what failed: {text}"))
    }

    /// Whether an error caused by the fault names it.
    pub fn explains_error(&self, error: &Error) -> Result<(), String> {
        self.explains(error.kind(), &error.to_string())
    }
}

/// The results of failing one call after the other.
#[derive(Default)]
pub(super) struct Tally {
    failed: u64,
    finds: Vec<String>,
}

impl Tally {
    /// Fails each of these calls in every way; `place` says where they are made.
    pub fn try_each(
        &mut self,
        place: &str,
        calls: &[IoEvent],
        one: impl Fn(Failing) -> Result<(), String>,
    ) {
        for (call, event) in (1..).zip(calls) {
            for failing in Failing::ways(call, event) {
                self.failed += 1;
                if let Err(message) = caught(|| one(failing)) {
                    let (op, file, error) = (event.op, &event.file, failing.error);
                    let later = if failing.lasting {
                        ", and every later one"
                    } else {
                        ""
                    };
                    self.finds.push(format!(
                        "{place}, call {call} ({op:?} of {file:?}) fails with {error:?}{later}: {message}"
                    ));
                }
            }
        }
    }

    /// The number of failed calls, or the first few finds in words.
    pub fn outcome(self) -> Result<u64, Find> {
        let all = self.finds.len();
        if all == 0 {
            return Ok(self.failed);
        }
        let shown = self.finds.iter().take(FINDS_SHOWN).map(String::as_str);
        let shown = shown.collect::<Vec<_>>().join("\n    ");
        Err(Find(format!("{all} of {}:\n    {shown}", self.failed)))
    }
}

/// Fails every call of a workload in every way.
pub(super) fn every_call(
    workload: &Workload,
    operations: &[Operation],
    tally: &mut Tally,
) -> Result<(), Find> {
    let calls = calls_of(workload, operations)?;
    let place = format!("workload \"{}\"", workload.name);
    tally.try_each(&place, &calls, |failing| {
        Run::new(workload, failing).all(operations)
    });
    Ok(())
}

/// The calls of a workload without a fault, in order.
fn calls_of(workload: &Workload, operations: &[Operation]) -> Result<Vec<IoEvent>, Find> {
    let disk = SimDisk::new(SEED);
    disk.record_trace(true);
    let (mut subject, mut oracle) = beginning(workload, &disk);
    subject.open()?;
    for operation in operations {
        let expected = oracle.apply(operation);
        let answer = subject.apply(operation);
        if !answer.agrees(&expected) {
            let name = workload.name;
            let difference = answer.difference(&expected);
            return Err(Find(format!(
                "workload \"{name}\" without faults: {operation}: {difference}"
            )));
        }
    }
    let mut calls = disk.take_trace();
    calls.retain(|event| event.op != Op::RingWrite);
    Ok(calls)
}

/// A database that a disk does not hold yet, and its oracle.
pub(super) fn beginning(workload: &Workload, disk: &SimDisk) -> (Simulated, Oracle) {
    let configuration = workload.configuration();
    let oracle = Oracle::new()
        .with_default(configuration.durability)
        .with_structures(configuration.structures);
    let subject = Simulated::closed(workload.name, SEED, configuration, disk.clone());
    (subject, oracle)
}

struct Run {
    failing: Failing,
    disk: SimDisk,
    subject: Simulated,
    oracle: Oracle,
    /// The last operation, for messages.
    at: String,
}

impl Run {
    fn new(workload: &Workload, failing: Failing) -> Self {
        let disk = SimDisk::new(SEED);
        disk.inject(failing.fault());
        let (subject, oracle) = beginning(workload, &disk);
        Run {
            failing,
            disk,
            subject,
            oracle,
            at: "the creation".to_owned(),
        }
    }

    fn all(mut self, operations: &[Operation]) -> Result<(), String> {
        let outcome = self.try_all(operations);
        outcome.map_err(|message| format!("{}: {message}", self.at))
    }

    fn try_all(&mut self, operations: &[Operation]) -> Result<(), String> {
        if let Err(error) = self.subject.open() {
            self.must_have_failed()?;
            self.failing.explains_error(&error)?;
            self.open_again()?;
        }
        for operation in operations {
            self.at = operation.to_string();
            self.operate(operation)?;
        }
        self.finish()
    }

    fn has_failed(&self) -> bool {
        self.disk.io_count() >= self.failing.call
    }

    fn must_have_failed(&self) -> Result<(), String> {
        match self.has_failed() {
            true => Ok(()),
            false => Err("an error before any call failed".to_owned()),
        }
    }

    fn operate(&mut self, operation: &Operation) -> Result<(), String> {
        let mut after = self.oracle.clone();
        let expected = after.apply(operation);
        if matches!(expected, Answer::Broken(_)) {
            // The operation needs a snapshot or range that a failed one should have made.
            return Ok(());
        }
        let answer = self.subject.apply(operation);
        if matches!(operation, Operation::Reopen(_)) && self.has_failed() {
            return self.reopened(&answer);
        }
        if answer.agrees(&expected) {
            self.oracle = after;
            return Ok(());
        }
        let Answer::Failed(kind, text) = &answer else {
            return Err(answer.difference(&expected));
        };
        self.must_have_failed()?;
        self.failing.explains(*kind, text)?;
        if operation.is_write() {
            self.write_failed(operation, *kind)?;
        }
        if let Operation::Next { range, .. } = operation {
            // A range ends at its first error.
            let shut = Operation::Shut {
                range: range.clone(),
            };
            self.subject.apply(&shut);
            self.oracle.apply(&shut);
        }
        Ok(())
    }

    /// A write that returned an error is not there. If it was to be synced, its outcome is unknown.
    fn write_failed(&mut self, operation: &Operation, kind: ErrorKind) -> Result<(), String> {
        let state = self.peek()?;
        if state == *self.oracle.state() {
            if kind == ErrorKind::Poisoned && matches!(operation, Operation::Ingest { .. }) {
                self.oracle.may_be_found(operation);
            }
            return Ok(());
        }
        let mut beside = self.oracle.after_writers_beside(operation).into_iter();
        if let Some(left) = beside.find(|left| state == *left.state()) {
            self.oracle = left;
            return Ok(());
        }
        let before = self.oracle.in_flight();
        let was_synced = self.oracle.is_synced(operation);
        self.oracle.apply(operation);
        if state != *self.oracle.state() {
            let difference = state.difference(self.oracle.state());
            return Err(format!("a failed write is there in part: {difference}"));
        }
        if !was_synced {
            return Err("a write returned an error and is there".to_owned());
        }
        self.oracle.last_was_in_flight(before);
        Ok(())
    }

    /// Reads everything while no call fails and no job runs.
    fn peek(&mut self) -> Result<State, String> {
        self.disk.clear_faults();
        self.subject.sim().set_breathing(false);
        let state = self.subject.state();
        self.subject.sim().set_breathing(true);
        if self.failing.lasting {
            self.disk.inject(self.failing.again(1));
        }
        state.map_err(|error| format!("a read although no call fails: {error}"))
    }

    fn reopened(&mut self, answer: &Answer) -> Result<(), String> {
        match answer {
            Answer::Done => {
                let state = match self.subject.state() {
                    Ok(state) => state,
                    Err(error) => {
                        self.must_have_failed()?;
                        self.failing.explains_error(&error)?;
                        self.peek()?
                    }
                };
                self.oracle.recovered(&state, Survives::Acknowledged)
            }
            Answer::Failed(kind, text) => {
                self.must_have_failed()?;
                self.failing.explains(*kind, text)?;
                self.open_again()
            }
            // `verify` reports unreadable files like damage, but by their own kind.
            Answer::Broken(text) if text.contains("simulated fault") => {
                self.must_have_failed()?;
                match text.contains("corrupt") {
                    true => Err(text.clone()),
                    false => self.open_again(),
                }
            }
            other => Err(format!("a reopen answers {other}")),
        }
    }

    /// After a failed open or close. An open may fail as long as calls fail, and not afterwards.
    fn open_again(&mut self) -> Result<(), String> {
        self.subject.let_go();
        if self.failing.lasting
            && let Err(error) = self.subject.open()
        {
            self.failing.explains_error(&error)?;
        }
        self.disk.clear_faults();
        self.subject.let_go();
        self.recover(Survives::Acknowledged)
    }

    fn recover(&mut self, survives: Survives) -> Result<(), String> {
        let opened = self.subject.open().and_then(|()| self.subject.state());
        let state = opened.map_err(|error| format!("the next open: {error}"))?;
        self.oracle.recovered(&state, survives)
    }

    fn finish(&mut self) -> Result<(), String> {
        if !self.has_failed() {
            return Err("the call that was to fail was never made".to_owned());
        }
        self.at = "at the end, calls fail".to_owned();
        match self.subject.state() {
            Ok(state) => self.compare(&state)?,
            Err(error) if self.failing.lasting => self.failing.explains_error(&error)?,
            Err(error) => return Err(format!("a read although no call fails any more: {error}")),
        }
        self.disk.clear_faults();
        self.at = "at the end, no call fails any more".to_owned();
        let state = self.peek_cleared()?;
        self.compare(&state)?;
        let poisoned = self.resume()?;
        self.end(poisoned)
    }

    fn peek_cleared(&mut self) -> Result<State, String> {
        let state = self.subject.state();
        state.map_err(|error| format!("a read: {error}"))
    }

    fn compare(&self, state: &State) -> Result<(), String> {
        if state == self.oracle.state() {
            return Ok(());
        }
        Err(state.difference(self.oracle.state()))
    }

    /// Writes resume at once or when the new space is noticed, or the database says that it is
    /// poisoned and stays so. Writes that a failed merge stalled resume once its retry made room.
    fn resume(&mut self) -> Result<bool, String> {
        let write = Operation::Put {
            keyspace: "default".to_owned(),
            key: Pattern::literal("resumed"),
            value: Pattern::literal("yes"),
            durability: Some(terrapin::Durability::Sync),
        };
        let mut answer = self.subject.apply(&write);
        let waits = [ErrorKind::NoSpace, ErrorKind::Stalled];
        if matches!(&answer, Answer::Failed(kind, _) if waits.contains(kind)) {
            self.subject.apply(&Operation::Pass {
                ms: RESUMES_WITHIN_MS,
            });
            answer = self.subject.apply(&write);
        }
        let poisoned = match &answer {
            Answer::Done => {
                self.oracle.apply(&write);
                false
            }
            Answer::Failed(ErrorKind::Poisoned, text) => {
                self.failing.explains(ErrorKind::Poisoned, text)?;
                true
            }
            other => return Err(format!("writes do not resume: {other}")),
        };
        let checkpoint = self.subject.apply(&Operation::Checkpoint);
        match (&checkpoint, poisoned) {
            (Answer::Done, false) => {
                self.oracle.apply(&Operation::Checkpoint);
            }
            (Answer::Failed(ErrorKind::Poisoned, _), true) => {}
            (other, _) => {
                return Err(format!(
                    "poisoned: {poisoned}, and a checkpoint answers {other}"
                ));
            }
        }
        let get = Operation::Read {
            snapshot: None,
            keyspace: "default".to_owned(),
            read: Read::Get(Pattern::literal("resumed")),
        };
        let expected = self.oracle.apply(&get);
        let answer = self.subject.apply(&get);
        if answer.agrees(&expected) {
            return Ok(poisoned);
        }
        Err(answer.difference(&expected))
    }

    /// Ends the process in one of several ways, and checks what is left.
    fn end(&mut self, poisoned: bool) -> Result<(), String> {
        let survives = match self.failing.call % 5 {
            0 => {
                self.at = "at the end, closed".to_owned();
                let closed = self.subject.database().and_then(terrapin::Database::close);
                match closed {
                    Ok(_) if !poisoned => {}
                    Err(error) if poisoned && error.kind() == ErrorKind::Poisoned => {}
                    other => return Err(format!("poisoned: {poisoned}, and close says {other:?}")),
                }
                self.subject.let_go();
                Survives::Acknowledged
            }
            1 => {
                self.at = "at the end, dropped".to_owned();
                self.subject.let_go();
                Survives::Acknowledged
            }
            2 => {
                self.at = "at the end, killed".to_owned();
                self.subject.crash(None);
                Survives::Acknowledged
            }
            3 => {
                self.at = "at the end, power cut".to_owned();
                self.subject.crash(Some(CrashMode::LoseUnsynced));
                Survives::Durable
            }
            _ => {
                let mode = CrashMode::ALL[self.failing.call as usize / 5 % CrashMode::ALL.len()];
                self.at = format!("at the end, power cut, {mode:?}");
                self.subject.crash(Some(mode));
                Survives::Durable
            }
        };
        verified(&mut self.subject, survives)?;
        self.recover(survives)?;
        self.at += ", recovered, and a power cut";
        self.subject.crash(Some(CrashMode::LoseUnsynced));
        self.recover(Survives::Durable)?;
        verified_after_close(&mut self.subject)
    }
}

/// Checks that `verify` finds nothing. A power cut during its write may garble a superblock slot;
/// the other one then counts.
pub(super) fn verified(subject: &mut Simulated, survives: Survives) -> Result<(), String> {
    let cut = survives == Survives::Durable;
    let found = subject.verify().map(|mut findings| {
        findings.retain(|finding| !cut || !finding.starts_with("superblock slot"));
        findings
    });
    match found {
        Ok(findings) if findings.is_empty() => Ok(()),
        Ok(findings) => Err(format!("verify finds: {}", findings.join("; "))),
        Err(error) => Err(format!("verify: {error}")),
    }
}

/// Checks that a close succeeds and that `verify` finds nothing after it.
pub(super) fn verified_after_close(subject: &mut Simulated) -> Result<(), String> {
    let closed = subject.database().and_then(terrapin::Database::close);
    closed.map_err(|error| format!("close: {error}"))?;
    subject.let_go();
    verified(subject, Survives::Acknowledged)
}
