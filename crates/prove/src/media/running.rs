//! A store that runs while its medium fails, once or from then on.

use terrapin_base::ErrorKind;
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Media, MediaFault, Op, SECTOR_BYTES};
use terrapin_model::{
    Answer, Operation, Oracle, Pattern, Random, Simulated, State, Subject, Survives, UNLOGGED,
};

use super::salvage::{self, salvaged};
use super::store::{Plan, Seen, Tally, go_on, is_of_medium, is_of_medium_error, look};
use crate::Find;

/// Faults that a unit tries.
const STRIKES: usize = 24;
/// A full disk is noticed to have room again within this time.
const RESUMES_WITHIN_MS: u64 = 15_000;

/// The faults.
#[derive(Clone, Debug)]
enum Strike {
    /// A write is stored wrong, permanently.
    Write(Media),
    /// A read comes out wrong once.
    Read(Media),
    /// A sector cannot be read any more.
    BadSector,
    /// A sync fails once and then lies.
    Sync,
    /// The disk is full for a while.
    Full,
}

impl Strike {
    fn any(random: &mut Random) -> Self {
        let mask = random.between(1..256) as u8;
        let all = [
            Strike::Write(Media::LostWrite),
            Strike::Write(Media::TornWrite),
            Strike::Write(Media::MisdirectedWrite),
            Strike::Write(Media::FlippedWrite(mask)),
            Strike::Write(Media::RevertedWrite),
            Strike::Read(Media::StaleRead),
            Strike::Read(Media::FlippedRead(mask)),
            Strike::Read(Media::ReadError),
            Strike::Read(Media::ShortRead),
            Strike::BadSector,
            Strike::Sync,
            Strike::Full,
        ];
        random.pick(&all).clone()
    }

    /// Whether nothing is wrong once the fault is removed.
    fn passes(&self) -> bool {
        !matches!(self, Strike::Write(_))
    }
}

/// Runs a plan's workload with one fault at a time.
pub(super) fn strike(plan: &Plan, tally: &mut Tally) -> Result<(), Find> {
    let mut random = Random::new(plan.seed ^ 0x7275_6e73);
    for _ in 0..STRIKES {
        let mut random = random.fork();
        let strike = Strike::any(&mut random);
        let from = random.index(plan.operations.len());
        let nth = random.scaled(40);
        let file = *random.pick(&["data", "data", "log-", "spare-", ""]);
        let fault = format!("{strike:?}, the {nth}th of {file:?} from operation {from} on");
        let mut run = Run::new(plan, strike, random)?;
        tally.attempt(&fault, || run.all(plan, from, nth, file));
    }
    Ok(())
}

struct Run {
    strike: Strike,
    disk: SimDisk,
    subject: Simulated,
    oracle: Oracle,
    random: Random,
    /// A write failed: only a read shows the store's content.
    unknown: bool,
    refused: bool,
    capacity: u64,
    syncs: u64,
    /// Damage in the data file may end the log ([`Plan::data_may_end_log`]).
    data_may_end_log: bool,
}

/// How the workload ended.
enum Ended {
    Open,
    /// An open or a close failed.
    Shut,
}

impl Run {
    fn new(plan: &Plan, strike: Strike, random: Random) -> Result<Self, Find> {
        let disk = SimDisk::new(plan.seed);
        let (mut subject, oracle) = plan.store(&disk);
        subject.open()?;
        Ok(Run {
            strike,
            disk,
            subject,
            oracle,
            random,
            unknown: false,
            refused: false,
            capacity: 0,
            syncs: u64::MAX,
            data_may_end_log: plan.data_may_end_log(),
        })
    }

    fn all(&mut self, plan: &Plan, from: usize, nth: u64, file: &str) -> Result<bool, String> {
        for operation in &plan.operations[..from] {
            Plan::apply(&mut self.subject, &mut self.oracle, operation).map_err(|find| find.0)?;
        }
        self.begin(nth, file);
        let mut ended = Ended::Open;
        for operation in &plan.operations[from..] {
            let done = self.operate(operation);
            match done.map_err(|m| format!("{operation}: {m}"))? {
                Some(end) => {
                    ended = end;
                    break;
                }
                None if self.unknown => break,
                None => {}
            }
        }
        if matches!(ended, Ended::Open) {
            self.look_at_end()?;
        }
        self.come_back(ended)?;
        Ok(self.met())
    }

    fn begin(&mut self, nth: u64, file: &str) {
        match self.strike {
            Strike::Write(media) | Strike::Read(media) => {
                self.disk.inject_media(MediaFault::nth(nth, media).of(file));
            }
            Strike::BadSector => {
                let files = self.disk.handle().list().unwrap_or_default();
                let name = match self.random.below(2) {
                    0 => "data",
                    _ => self.random.pick(&files),
                };
                let bytes = self.disk.content(name).map_or(0, |c| c.len() as u64);
                let at = self.random.below((bytes / SECTOR_BYTES).max(1)) * SECTOR_BYTES;
                let fault = MediaFault::nth(1, Media::ReadError).of(name);
                let fault = fault.within(at..at + SECTOR_BYTES);
                self.disk.inject_media(fault.lasting());
            }
            Strike::Sync => {
                self.syncs = self.disk.stats_total().syncs + nth;
                self.disk
                    .inject(Fault::nth(nth, FaultError::Io).on(Op::Sync));
            }
            Strike::Full => {
                self.capacity = self.disk.used_bytes();
                self.disk.set_capacity(self.capacity);
            }
        }
    }

    fn met(&self) -> bool {
        match self.strike {
            Strike::Write(_) | Strike::Read(_) | Strike::BadSector => {
                !self.disk.media_hits().is_empty()
            }
            Strike::Sync => self.disk.stats_total().syncs >= self.syncs,
            Strike::Full => self.refused,
        }
    }

    /// Whether only the data file is affected.
    fn only_data(&self) -> bool {
        self.disk.media_hits().iter().all(|hit| {
            let astray = hit.astray.as_ref().map_or("data", |(file, _)| file);
            hit.file == "data" && astray == "data"
        })
    }

    /// Whether a lost end of the log may look torn: its own bytes are affected, or large pages that
    /// its newest records name.
    fn may_end_log(&self) -> bool {
        !self.only_data() || self.data_may_end_log
    }

    /// Whether the fault may cause an error.
    fn allows(&mut self, kind: ErrorKind, text: &str) -> Result<(), String> {
        if !self.met() && !matches!(self.strike, Strike::Full) {
            return Err(format!("{kind:?} before the medium went wrong: {text}"));
        }
        match (&self.strike, kind) {
            (Strike::Sync, ErrorKind::Poisoned | ErrorKind::Io) => Ok(()),
            (Strike::Full, ErrorKind::NoSpace | ErrorKind::Stalled) => {
                self.refused = true;
                Ok(())
            }
            // A merge that meets damage does not end, and writers wait for it.
            (Strike::Write(_) | Strike::BadSector, ErrorKind::Stalled) => Ok(()),
            (Strike::Sync | Strike::Full, _) => Err(format!("{kind:?}: {text}")),
            _ => is_of_medium(kind, text),
        }
    }

    fn operate(&mut self, operation: &Operation) -> Result<Option<Ended>, String> {
        let drops = matches!(operation, Operation::Reopen(how) if how.dropped);
        if drops && self.oracle.holds_unlogged() {
            let ended = self.operate(&Operation::Flush)?;
            if ended.is_some() || self.oracle.holds_unlogged() {
                return Ok(ended);
            }
        }
        // The flush before such a write failed. The oracle knows it over a durable keyspace only.
        if self.oracle.holds_unlogged() && logs_what_is_unlogged(operation) {
            return Ok(None);
        }
        let mut after = self.oracle.clone();
        let expected = after.apply(operation);
        if matches!(expected, Answer::Broken(_)) {
            return Ok(None);
        }
        let answer = self.subject.apply(operation);
        if answer.agrees(&expected) {
            if matches!(operation, Operation::Reopen(_)) && self.met() {
                return self.reopened().map(|()| None);
            }
            self.oracle = after;
            return Ok(None);
        }
        match &answer {
            Answer::Failed(kind, text) => self.allows(*kind, text)?,
            Answer::Broken(text)
                if matches!(operation, Operation::Reopen(_))
                    && self.met()
                    && (text.starts_with("verify finds") || text.contains("were replayed")) => {}
            _ => return Err(answer.difference(&expected)),
        }
        if let Operation::Reopen(_) = operation {
            return Ok(Some(Ended::Shut));
        }
        if operation.is_write() {
            let Answer::Failed(kind, _) = answer else {
                return Err(answer.difference(&expected));
            };
            self.write_failed(operation, kind)?;
        }
        if let Operation::Next { range, .. } = operation {
            let shut = Operation::Shut {
                range: range.clone(),
            };
            self.subject.apply(&shut);
            self.oracle.apply(&shut);
        }
        Ok(None)
    }

    /// A failed write is not there, unless it was to be synced. If that cannot be read, it counts
    /// as in progress, and nothing follows it.
    fn write_failed(&mut self, operation: &Operation, kind: ErrorKind) -> Result<(), String> {
        self.subject.sim().set_breathing(false);
        let state = self.subject.state();
        self.subject.sim().set_breathing(true);
        if state.as_ref().is_ok_and(|s| s == self.oracle.state()) {
            if kind == ErrorKind::Poisoned && matches!(operation, Operation::Ingest { .. }) {
                self.oracle.may_be_found(operation);
            }
            return Ok(());
        }
        let mut beside = self.oracle.after_writers_beside(operation).into_iter();
        let left = beside.find(|left| state.as_ref().is_ok_and(|s| s == left.state()));
        if let Some(left) = left {
            self.oracle = left;
            return Ok(());
        }
        let before = self.oracle.in_flight();
        let was_synced = self.oracle.is_synced(operation);
        self.oracle.apply(operation);
        self.oracle.last_was_in_flight(before);
        match state {
            Ok(state) if state != *self.oracle.state() => Err(format!(
                "it failed, and is there in part: {}",
                state.difference(self.oracle.state())
            )),
            Ok(_) if !was_synced => Err("the write failed and is there".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => {
                self.unknown = true;
                is_of_medium_error(&error)
            }
        }
    }

    fn reopened(&mut self) -> Result<(), String> {
        match self.subject.state() {
            Ok(state) => self.take(&state, Survives::Acknowledged),
            Err(error) => {
                is_of_medium_error(&error)?;
                if self.may_end_log() {
                    // It is also unknown how much of the log is lost.
                    self.unknown = true;
                }
                // Partly readable content is compared at the end.
                self.oracle
                    .apply(&Operation::Reopen(terrapin_model::Reopen::default()));
                Ok(())
            }
        }
    }

    fn take(&mut self, state: &State, survives: Survives) -> Result<(), String> {
        let survives = match (&self.strike, survives) {
            (Strike::Write(_), survives) if !self.may_end_log() => survives,
            // A lost end of the log looks like a torn tail.
            (Strike::Write(_), Survives::Acknowledged) => Survives::Durable,
            (Strike::Write(_), _) => Survives::Marked,
            (_, survives) => survives,
        };
        self.unknown = false;
        self.oracle.recovered(state, survives)
    }

    /// The store still runs: its answers are right.
    fn look_at_end(&mut self) -> Result<(), String> {
        if self.unknown {
            return Ok(());
        }
        let state = self.oracle.state().clone();
        let seen = look(&mut self.subject, &state, &mut self.random)?;
        if seen == Seen::InPart && !self.met() {
            return Err("reads fail before the medium went wrong".to_owned());
        }
        if !self.strike.passes() {
            return Ok(());
        }
        self.repair();
        self.resume()?;
        let state = self.oracle.state().clone();
        match look(&mut self.subject, &state, &mut self.random)? {
            Seen::Whole => Ok(()),
            Seen::InPart => Err("reads fail when all is well again".to_owned()),
        }
    }

    /// Nothing is wrong any more: writes and merges go on, or a failed sync has stopped them
    /// permanently.
    fn resume(&mut self) -> Result<(), String> {
        self.subject.apply(&Operation::Pass {
            ms: RESUMES_WITHIN_MS,
        });
        let keyspaces = self.oracle.state().keyspaces();
        let Some(keyspace) = keyspaces.keys().next().cloned() else {
            return Ok(());
        };
        let put = Operation::Put {
            keyspace,
            key: Pattern::literal("resumed"),
            value: Pattern::literal("yes"),
            durability: Some(terrapin::Durability::Process),
        };
        let mut poisoned = false;
        for operation in [put, Operation::Checkpoint] {
            match self.subject.apply(&operation) {
                Answer::Done if !poisoned => {
                    self.oracle.apply(&operation);
                }
                Answer::Failed(ErrorKind::Poisoned, _) if matches!(self.strike, Strike::Sync) => {
                    poisoned = true;
                }
                answer => {
                    return Err(format!("{operation} when all is well again: {answer}"));
                }
            }
        }
        Ok(())
    }

    fn repair(&mut self) {
        self.disk.clear_media();
        self.disk.clear_faults();
        self.disk.set_capacity(64 << 30);
    }

    /// Ends the process, verifies, opens and reads.
    fn come_back(&mut self, ended: Ended) -> Result<(), String> {
        let survives = match (ended, self.random.below(3)) {
            (Ended::Shut, _) | (_, 0) => {
                self.subject.let_go();
                Survives::Acknowledged
            }
            (Ended::Open, 1) => {
                self.subject.crash(None);
                Survives::Acknowledged
            }
            _ => {
                self.subject.crash(Some(CrashMode::LoseUnsynced));
                Survives::Durable
            }
        };
        if matches!(self.strike, Strike::BadSector) {
            self.open_on_bad_sector(survives)?;
        }
        // Faults that struck stay.
        self.repair();
        let findings = match self.subject.verify() {
            Ok(findings) => findings,
            Err(error) => {
                is_of_medium_error(&error)?;
                vec![error.to_string()]
            }
        };
        let noticed = !findings.is_empty();
        let at_rest = self.disk.fork();
        if noticed && (self.strike.passes() || !self.met()) {
            return Err(format!("verify finds: {}", findings.join("; ")));
        }
        if let Err(error) = self.subject.open() {
            is_of_medium_error(&error).map_err(|m| format!("the next open: {m}"))?;
            salvaged(self.subject.configuration(), &at_rest)?;
            return match noticed {
                true => Ok(()),
                false => Err(format!(
                    "verify finds nothing, and the next open says {error}"
                )),
            };
        }
        match self.subject.state() {
            Ok(state) => {
                self.take(&state, survives)?;
                self.salvage(&at_rest)?;
                go_on(
                    &mut self.subject,
                    &mut self.oracle,
                    &mut self.random,
                    noticed,
                )
            }
            Err(error) if noticed => {
                is_of_medium_error(&error)?;
                if self.unknown
                    || survives == Survives::Durable
                    || self.oracle.holds_unlogged()
                    || self.may_end_log()
                {
                    // A part of the records does not show how far the store is set back.
                    salvaged(self.subject.configuration(), &at_rest)?;
                    return Ok(());
                }
                let state = self.oracle.state().clone();
                self.salvage(&at_rest)?;
                look(&mut self.subject, &state, &mut self.random).map(drop)
            }
            Err(error) => Err(format!("verify finds nothing, and a read says {error}")),
        }
    }

    fn salvage(&self, at_rest: &SimDisk) -> Result<(), String> {
        let (configuration, state) = (self.subject.configuration(), self.oracle.state());
        salvage::check(configuration, at_rest, state, self.only_data())
    }

    /// An open that meets an unreadable sector is refused, or gives right answers where it can
    /// read.
    fn open_on_bad_sector(&mut self, survives: Survives) -> Result<(), String> {
        salvaged(self.subject.configuration(), &self.disk)?;
        match self.subject.open() {
            Err(error) => is_of_medium_error(&error).map_err(|m| format!("an open: {m}"))?,
            Ok(()) => match self.subject.state() {
                Ok(state) => self.oracle.clone().recovered(&state, survives)?,
                Err(error) => is_of_medium_error(&error)?,
            },
        }
        self.subject.crash(None);
        Ok(())
    }
}

/// Whether a write to the keyspace of unlogged writes goes to the log.
fn logs_what_is_unlogged(operation: &Operation) -> bool {
    match operation {
        Operation::Put {
            keyspace,
            durability,
            ..
        }
        | Operation::Delete {
            keyspace,
            durability,
            ..
        }
        | Operation::Merge {
            keyspace,
            durability,
            ..
        }
        | Operation::Erase {
            keyspace,
            durability,
            ..
        } => keyspace == UNLOGGED && *durability != Some(terrapin::Durability::None),
        _ => false,
    }
}
