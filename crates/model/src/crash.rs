//! Crash runs: random operations, in the middle of which the process dies or the power fails, also while a crash is
//! recovered from. What a recovered store holds must be a prefix of what was committed, with everything that was
//! acknowledged and had to survive (D6, D7; DESIGN §4).

use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;

use crate::generate::Generator;
use crate::operation::Operation;
use crate::oracle::{Oracle, State, Survives};
use crate::random::Random;
use crate::run::{Failure, Outcome, Trace, crash_parts, finish, guarded};
use crate::simulated::Simulated;
use crate::subject::Subject;

/// One run of a seed, under way.
struct Run {
    subject: Simulated,
    oracle: Oracle,
    generator: Generator,
    random: Random,
    trace: Trace,
    crashes: u64,
}

/// Runs so many random operations with crashes between and inside them.
pub fn crash_run(seed: u64, operations: usize) -> Result<Outcome, Failure> {
    crash_run_on(seed, operations, SimDisk::new(seed))
}

/// As [`crash_run`], on a new disk of the caller's, who may watch it.
pub fn crash_run_on(seed: u64, operations: usize, disk: SimDisk) -> Result<Outcome, Failure> {
    let (subject, oracle, generator, random, trace) = crash_parts(seed, disk)?;
    let mut run = Run {
        subject,
        oracle,
        generator,
        random,
        trace,
        crashes: 0,
    };
    for _ in 0..operations {
        run.operate()?;
    }
    run.disarm();
    run.recover_if_dead()?;
    finish(&mut run.subject, &run.oracle, &run.trace, run.crashes)
}

impl Run {
    fn operate(&mut self) -> Result<(), Failure> {
        match self.random.below(200) {
            0 => {
                let call = self.random.scaled(120);
                self.trace.note(format!("# dies at call {call} from here"));
                self.subject.disk().die_at_call(call);
            }
            1 => {
                let write = self.random.scaled(20);
                self.trace
                    .note(format!("# dies at ring write {write} from here"));
                self.subject.disk().die_at_ring_write(write);
            }
            2 => {
                self.trace.note("# dies here".to_owned());
                return self.recover();
            }
            _ => {}
        }
        let Some(operation) = self.generator.next() else {
            return Ok(());
        };
        let drops = matches!(&operation, Operation::Reopen(how) if how.dropped);
        if drops && self.oracle.holds_unlogged() {
            // What is not in the log would be lost.
            self.does(&Operation::Flush)?;
        }
        self.does(&operation)
    }

    fn does(&mut self, operation: &Operation) -> Result<(), Failure> {
        self.trace.note(operation.to_string());
        let before = self.oracle.in_flight();
        let answer = guarded(&mut self.subject, operation);
        if self.subject.disk().is_alive() {
            let expected = self.oracle.apply(operation);
            return match answer.agrees(&expected) {
                true => Ok(()),
                false => Err(self.trace.failure(answer.difference(&expected))),
            };
        }
        // The process died in there: whatever it answered, nobody heard it.
        if operation.is_write() {
            self.oracle.apply(operation);
            self.oracle.last_was_in_flight(before);
        }
        self.recover()
    }

    fn disarm(&mut self) {
        self.subject.disk().die_at_call(u64::MAX);
        self.subject.disk().die_at_ring_write(u64::MAX);
    }

    fn recover_if_dead(&mut self) -> Result<(), Failure> {
        if self.subject.disk().is_alive() {
            Ok(())
        } else {
            self.recover()
        }
    }

    /// Kills what is left of the process, perhaps cuts the power, and opens the store again, perhaps to kill that, too.
    fn recover(&mut self) -> Result<(), Failure> {
        let mut survives = Survives::Acknowledged;
        let state = loop {
            self.disarm();
            let power = self
                .random
                .one_in(2)
                .then(|| *self.random.pick(&CrashMode::ALL));
            if power.is_some() {
                survives = Survives::Durable;
            }
            self.trace.note(power.map_or("# killed".to_owned(), |mode| {
                format!("# power cut, {mode:?}")
            }));
            self.subject.crash(power);
            self.crashes += 1;
            if self.random.one_in(4) {
                self.check_files()?;
            }
            if self.random.one_in(3) {
                let call = self.random.scaled(100);
                self.trace.note(format!("# recovery dies at call {call}"));
                self.subject.disk().die_at_call(call);
            }
            let opened = self.subject.open().and_then(|()| self.subject.state());
            match opened {
                _ if !self.subject.disk().is_alive() => {}
                Ok(state) => break state,
                Err(error) => return Err(self.trace.failure(format!("recovery: {error}"))),
            }
        };
        self.disarm();
        self.oracle
            .recovered(&state, survives)
            .map_err(|e| self.trace.failure(format!("after recovery: {e}")))?;
        self.generator.recovered(state.keyspaces().keys());
        if self.random.one_in(3) {
            self.recover_again(&state)?;
        }
        Ok(())
    }

    fn check_files(&mut self) -> Result<(), Failure> {
        match self.subject.verify() {
            Ok(findings) if findings.is_empty() => Ok(()),
            Ok(findings) => Err(self
                .trace
                .failure(format!("verify after a crash: {}", findings.join("; ")))),
            Err(error) => Err(self.trace.failure(format!("verify after a crash: {error}"))),
        }
    }

    /// A second recovery changes nothing, even after a power cut: what the first one found is durable.
    fn recover_again(&mut self, state: &State) -> Result<(), Failure> {
        self.trace.note("# killed again, power cut".to_owned());
        self.crashes += 1;
        self.subject.crash(Some(CrashMode::LoseUnsynced));
        let again = self.subject.open().and_then(|()| self.subject.state());
        let again = again.map_err(|e| self.trace.failure(format!("second recovery: {e}")))?;
        if again == *state {
            return Ok(());
        }
        Err(self.trace.failure(format!(
            "a second recovery changes the state: {}",
            again.difference(state)
        )))
    }
}
