//! The small stores whose medium fails, and the checks of them.

use terrapin_base::{Error, ErrorKind};
use terrapin_disk::SimDisk;
use terrapin_model::{
    Answer, Configuration, Generator, Operation, Oracle, Pattern, Profile, Random, Read, Simulated,
    Span, State, Structures, Subject, Walk,
};

use crate::Find;
use crate::place::names_a_place;
use crate::run::caught;

/// The most finds of a unit that are shown.
const FINDS_SHOWN: usize = 5;
/// Records looked up one by one.
const GETS: usize = 12;

/// A workload of a seed.
pub(super) struct Plan {
    pub seed: u64,
    pub configuration: Configuration,
    pub operations: Vec<Operation>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Half of the stores keep a log much longer than its ring, in one file.
        let has_long_log = random.one_in(2);
        let mut configuration = Configuration {
            group_bytes: 1024 << random.below(3),
            block_bytes: *random.pick(&[512, 1024, 4096]),
            chi: Some(random.between(1..4) as u32),
            segment_bytes: 16 << 10,
            segments_max: 4,
            threads: 1 + random.index(2),
            structures: Structures::random(&mut Random::new(!seed)),
            ..Configuration::small()
        };
        // A draw of its own, so that plans without separated values stay as they were.
        let thresholds = [None, None, Some(0), Some(24)];
        configuration.separate_from = *Random::new(seed.rotate_left(32)).pick(&thresholds);
        let lengths = [None, None, None, Some(0), Some(20), Some(200)];
        configuration.large_above = *Random::new(seed.rotate_left(16)).pick(&lengths);
        if has_long_log {
            configuration.chi = Some(500);
            configuration.memory_bytes = 8 << 20;
            configuration.segment_bytes = 512 << 10;
        }
        let profile = Profile::small(&configuration, &mut random);
        let count = 40 + random.index(120);
        let mut operations: Vec<_> = Generator::new(random.bits(), profile).take(count).collect();
        if has_long_log {
            let at = random.between(count as u64 / 2..count as u64) as usize;
            operations.splice(at..at, burst(&mut random));
        }
        Plan {
            seed,
            operations,
            configuration,
        }
    }

    /// Whether damage in the data file may end the log: its newest records name large pages there,
    /// and the first page that is not whole ends it, unless it was synced.
    pub fn data_may_end_log(&self) -> bool {
        self.configuration.large_above.is_some()
    }

    /// Its store, not yet opened, and the oracle.
    pub fn store(&self, disk: &SimDisk) -> (Simulated, Oracle) {
        let configuration = self.configuration.clone();
        let oracle = Oracle::new()
            .with_default(configuration.durability)
            .with_structures(configuration.structures);
        let name = format!("media faults of seed {}", self.seed);
        (
            Simulated::closed(name, self.seed, configuration, disk.clone()),
            oracle,
        )
    }

    /// Does an operation of a sound store. Unlogged writes are flushed before a drop, which would
    /// lose them.
    pub fn apply(
        subject: &mut Simulated,
        oracle: &mut Oracle,
        operation: &Operation,
    ) -> Result<(), Find> {
        let drops = matches!(operation, Operation::Reopen(how) if how.dropped);
        if drops && oracle.holds_unlogged() {
            Self::apply(subject, oracle, &Operation::Flush)?;
        }
        let expected = oracle.apply(operation);
        if matches!(expected, Answer::Broken(_)) {
            return Ok(());
        }
        let answer = subject.apply(operation);
        if answer.agrees(&expected) {
            return Ok(());
        }
        Err(Find(format!(
            "{operation}, on a sound medium: {}",
            answer.difference(&expected)
        )))
    }
}

/// Puts of a few rings' size.
fn burst(random: &mut Random) -> Vec<Operation> {
    let put = |number| Operation::Put {
        keyspace: "default".to_owned(),
        key: Pattern::literal(format!("burst {number}")),
        value: Pattern::Noise(number, 1000),
        durability: Some(terrapin::Durability::Process),
    };
    (0..random.between(80..250)).map(put).collect()
}

/// The results of one fault after the other.
#[derive(Default)]
pub(super) struct Tally {
    tried: u64,
    met: u64,
    finds: Vec<String>,
}

impl Tally {
    /// Tries a fault, which returns whether it was met.
    pub fn attempt(&mut self, fault: &str, one: impl FnOnce() -> Result<bool, String>) {
        self.tried += 1;
        match caught(one) {
            Ok(met) => self.met += u64::from(met),
            Err(message) => self.finds.push(format!("{fault}: {message}")),
        }
    }

    /// The number of faults met, or the first few finds in words.
    pub fn outcome(self) -> Result<u64, Find> {
        let all = self.finds.len();
        if all == 0 {
            return Ok(self.met);
        }
        let shown = self.finds.iter().take(FINDS_SHOWN).map(String::as_str);
        let shown = shown.collect::<Vec<_>>().join("\n    ");
        Err(Find(format!("{all} of {}:\n    {shown}", self.tried)))
    }
}

/// The result of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Everything is there and right.
    Whole,
    /// Answers are right; some reads failed.
    InPart,
}

/// Whether a fault of the medium may cause an error.
pub(super) fn is_of_medium(kind: ErrorKind, text: &str) -> Result<(), String> {
    let says_where = names_a_place(text);
    match kind {
        ErrorKind::Corrupt | ErrorKind::Io if says_where => Ok(()),
        // Both slots hold other bytes, as after a long misdirected write: the file looks foreign.
        ErrorKind::NotADatabase if says_where => Ok(()),
        _ => Err(format!("{kind:?} is no answer to a faulty medium: {text}")),
    }
}

/// [`is_of_medium`] for an [`Error`].
pub(super) fn is_of_medium_error(error: &Error) -> Result<(), String> {
    is_of_medium(error.kind(), &error.to_string())
}

/// Reads everything in several ways; each answer is right or an error of the medium.
pub(super) fn look(
    subject: &mut Simulated,
    expected: &State,
    random: &mut Random,
) -> Result<Seen, String> {
    let mut seen = Seen::Whole;
    for (name, map) in expected.keyspaces() {
        let all = Span::Between(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let mut reads = vec![
            Read::Range(all.clone(), Walk::Forward, None),
            Read::Range(all, Walk::Backward, None),
            Read::First,
            Read::Get(Pattern::literal("a key that is not there")),
        ];
        let keys: Vec<Pattern> = map.keys().map(Pattern::literal).collect();
        let some: Vec<Pattern> = (0..GETS.min(keys.len()))
            .map(|_| random.pick(&keys).clone())
            .collect();
        reads.extend(some.iter().cloned().map(Read::Get));
        if !some.is_empty() {
            reads.push(Read::MultiGet(some));
        }
        let records = |walk| {
            let forward = map.iter().map(|(k, v)| (k.clone(), v.to_vec()));
            match walk {
                Walk::Backward => forward.rev().collect(),
                _ => forward.collect::<Vec<_>>(),
            }
        };
        let value = |key: &Pattern| map.get(&key.bytes()).map(|v| v.to_vec());
        for read in reads {
            let right = match &read {
                Read::Range(_, walk, _) => Answer::Records(records(*walk)),
                Read::First => {
                    Answer::Records(records(Walk::Forward).into_iter().take(1).collect())
                }
                Read::MultiGet(keys) => Answer::Values(keys.iter().map(value).collect()),
                Read::Get(key) => Answer::Value(value(key)),
                _ => continue,
            };
            let operation = Operation::Read {
                snapshot: None,
                keyspace: name.clone(),
                read,
            };
            match subject.apply(&operation) {
                answer if answer.agrees(&right) => {}
                Answer::Failed(kind, text) => {
                    is_of_medium(kind, &text).map_err(|m| format!("{operation}: {m}"))?;
                    seen = Seen::InPart;
                }
                answer => return Err(format!("{operation}: {}", answer.difference(&right))),
            }
        }
    }
    Ok(seen)
}

/// Writes and merges go on where nothing is damaged, and damage never looks sound afterwards.
pub(super) fn go_on(
    subject: &mut Simulated,
    expected: &mut Oracle,
    random: &mut Random,
    noticed: bool,
) -> Result<(), String> {
    let names: Vec<String> = expected.state().keyspaces().keys().cloned().collect();
    for number in 0..6u64 {
        let put = Operation::Put {
            keyspace: random.pick(&names).clone(),
            key: Pattern::literal(format!("later {number}")),
            value: Pattern::Noise(number, 300),
            durability: Some(terrapin::Durability::Process),
        };
        match subject.apply(&put) {
            Answer::Done => {
                expected.apply(&put);
            }
            // A merge that meets damage does not end, and writers may wait for it.
            Answer::Failed(ErrorKind::Stalled, _) if noticed => break,
            answer => return Err(format!("{put}: {answer}")),
        }
    }
    match subject.apply(&Operation::Checkpoint) {
        Answer::Done => {}
        Answer::Failed(kind, text) if noticed => is_of_medium(kind, &text)?,
        answer => return Err(format!("a checkpoint: {answer}")),
    }
    match look(subject, expected.state(), random) {
        Ok(Seen::InPart) if !noticed => {
            Err("verify finds nothing, and reads fail after a checkpoint".to_owned())
        }
        looked => looked
            .map(drop)
            .map_err(|m| format!("after a checkpoint: {m}")),
    }
}
