//! A store and its oracle through deaths and recoveries. The process dies, perhaps with the power,
//! and the store is opened again. It must then hold a prefix of the commits, with everything that
//! had to survive (D6, D7).

use terrapin_base::ErrorKind;
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;

use crate::configuration::Configuration;
use crate::generate::{Generator, Profile};
use crate::operation::Operation;
use crate::oracle::{Oracle, State, Survives};
use crate::random::Random;
use crate::run::{Failure, Outcome, Trace, finish, guarded};
use crate::simulated::Simulated;
use crate::subject::Subject;

/// A store on a simulated disk and the oracle that knows its content, as a death has left both.
pub struct Life {
    subject: Simulated,
    oracle: Oracle,
    generator: Generator,
    pub(crate) random: Random,
    trace: Trace,
    /// What the deaths since the last recovery may have taken.
    survives: Survives,
    crashes: u64,
}

fn is_none_yet(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DatabaseNotFound | ErrorKind::NotADatabase)
}

impl Life {
    /// A life that begins with a new store.
    pub(crate) fn new(
        subject: Simulated,
        oracle: Oracle,
        generator: Generator,
        random: Random,
        trace: Trace,
    ) -> Self {
        Life {
            subject,
            oracle,
            generator,
            random,
            trace,
            survives: Survives::Acknowledged,
            crashes: 0,
        }
    }

    /// A life on the disk of a dead process. The oracle knows the store's content, except for what
    /// deaths since the last recovery may have taken.
    #[must_use]
    pub fn after_death(
        name: String,
        seed: u64,
        configuration: &Configuration,
        disk: SimDisk,
        oracle: Oracle,
        survives: Survives,
    ) -> Self {
        let mut random = Random::new(seed);
        let profile = Profile::small(configuration, &mut random);
        let mut generator = Generator::new(random.bits(), profile);
        generator.recovered(oracle.state().keyspaces().keys());
        let mut subject =
            Simulated::closed(name.clone(), random.bits(), configuration.clone(), disk);
        if random.one_in(4) {
            subject.open_with(configuration.varied(random.bits()));
        }
        let trace = Trace::new(name, configuration.to_string());
        Life {
            survives,
            ..Life::new(subject, oracle, generator, random, trace)
        }
    }

    /// The store.
    #[must_use]
    pub fn subject(&self) -> &Simulated {
        &self.subject
    }

    /// Deaths so far.
    #[must_use]
    pub fn crashes(&self) -> u64 {
        self.crashes
    }

    /// Remembers a line for failures to show.
    pub fn note(&mut self, line: String) {
        self.trace.note(line);
    }

    /// A failure, with the lines that led to it.
    #[must_use]
    pub fn failure(&self, message: String) -> Failure {
        self.trace.failure(message)
    }

    /// Runs this many random operations and checks their answers. Returns whether the process is
    /// still alive: the disk may kill it.
    pub fn operate(&mut self, count: usize) -> Result<bool, Failure> {
        for _ in 0..count {
            if !self.operate_once()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn operate_once(&mut self) -> Result<bool, Failure> {
        let Some(operation) = self.generator.next() else {
            return Ok(true);
        };
        let drops = matches!(&operation, Operation::Reopen(how) if how.dropped);
        if drops && self.oracle.holds_unlogged() && !self.does(&Operation::Flush)? {
            // Unlogged writes would have been lost.
            return Ok(false);
        }
        self.does(&operation)
    }

    /// Runs one operation and checks its answer. Returns whether the process is still alive.
    pub fn does(&mut self, operation: &Operation) -> Result<bool, Failure> {
        self.trace.note(operation.to_string());
        let before = self.oracle.in_flight();
        let answer = guarded(&mut self.subject, operation);
        if self.subject.disk().is_alive() {
            let expected = self.oracle.apply(operation);
            return match answer.agrees(&expected) {
                true => Ok(true),
                false => Err(self.trace.failure(answer.difference(&expected))),
            };
        }
        // The process died during the call, so no caller saw its answer.
        if operation.is_write() {
            self.oracle.apply(operation);
            self.oracle.last_was_in_flight(before);
        }
        Ok(false)
    }

    /// Places the next death at this call on the disk, counted from now.
    pub fn dies_at_call(&mut self, call: u64) {
        self.trace.note(format!("# dies at call {call} from here"));
        self.subject.disk().die_at_call(call);
    }

    /// Places the next death at this store into the log's ring, counted from now.
    pub fn dies_at_ring_write(&mut self, write: u64) {
        self.trace
            .note(format!("# dies at ring write {write} from here"));
        self.subject.disk().die_at_ring_write(write);
    }

    /// Removes a placed death.
    pub(crate) fn disarm(&mut self) {
        self.subject.disk().die_at_call(u64::MAX);
        self.subject.disk().die_at_ring_write(u64::MAX);
    }

    /// Kills the process. With `power`, everything that the mode takes is lost.
    pub fn die(&mut self, power: Option<CrashMode>) {
        self.disarm();
        self.trace.note(power.map_or("# killed".to_owned(), |mode| {
            format!("# power cut, {mode:?}")
        }));
        if power.is_some() {
            self.survives = Survives::Durable;
        }
        self.subject.crash(power);
        self.crashes += 1;
    }

    /// Verifies the files as the death left them. A store whose creation never ended may lack even
    /// a superblock. A power cut during a superblock write may leave one slot damaged, which
    /// `verify` reports.
    pub fn verify(&mut self, created: bool) -> Result<(), Failure> {
        let cut = self.survives == Survives::Durable;
        let verified = self.subject.verify().map(|mut findings| {
            findings.retain(|f| !cut || !f.starts_with("superblock slot"));
            findings
        });
        let found = match verified {
            Ok(findings) if created || !findings.iter().all(|f| f.starts_with("superblock:")) => {
                findings.join("; ")
            }
            Ok(_) => return Ok(()),
            Err(error) if !created && is_none_yet(error.kind()) => return Ok(()),
            Err(error) => error.to_string(),
        };
        if found.is_empty() {
            return Ok(());
        }
        Err(self.trace.failure(format!("verify after a crash: {found}")))
    }

    /// Opens the store and reads all of it; none if the process died meanwhile. A full disk may
    /// refuse the open; once there is room, nothing may be missing.
    pub fn open(&mut self) -> Result<Option<State>, Failure> {
        let mut opened = self.subject.open().and_then(|()| self.subject.state());
        if matches!(&opened, Err(e) if e.kind() == ErrorKind::NoSpace) {
            self.note("# opened when there is room".to_owned());
            self.subject.disk().set_capacity(u64::MAX);
            opened = self.subject.open().and_then(|()| self.subject.state());
        }
        match opened {
            _ if !self.subject.disk().is_alive() => Ok(None),
            Ok(state) => Ok(Some(state)),
            Err(error) => Err(self.trace.failure(format!("recovery: {error}"))),
        }
    }

    /// Checks that the recovered state is allowed; the life continues from there.
    pub fn recovered(&mut self, state: &State) -> Result<(), Failure> {
        self.disarm();
        self.oracle
            .recovered(state, self.survives)
            .map_err(|e| self.trace.failure(format!("after recovery: {e}")))?;
        self.survives = Survives::Acknowledged;
        self.generator.recovered(state.keyspaces().keys());
        Ok(())
    }

    /// Opens the store, checks its content, and survives.
    pub fn recover(&mut self) -> Result<State, Failure> {
        let Some(state) = self.open()? else {
            return Err(self.trace.failure("a death that was not placed"));
        };
        self.recovered(&state)?;
        Ok(state)
    }

    /// Another death and recovery must change nothing, even after a power cut: the first recovery's
    /// result is durable.
    pub fn recover_again(
        &mut self,
        state: &State,
        power: Option<CrashMode>,
    ) -> Result<(), Failure> {
        self.die(power);
        let again = self.recover()?;
        if again == *state {
            return Ok(());
        }
        Err(self.trace.failure(format!(
            "a second recovery changes the state: {}",
            again.difference(state)
        )))
    }

    /// Compares everything, closes, verifies, opens read-only and for writing, and compares again.
    pub fn finish(&mut self) -> Result<Outcome, Failure> {
        finish(&mut self.subject, &self.oracle, &self.trace, self.crashes)
    }
}
