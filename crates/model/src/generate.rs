//! Random operations from a seed. A [`Profile`] shapes them, and they come in phases (loading,
//! erasing, one hot key, reading, everything). Long runs of one kind are what breaks trees.

use std::ops::Bound;

use crate::configuration::Configuration;
use crate::operation::{Change, Durability, Operation, Read, Reopen, Span, Walk, What};
use crate::oracle::UNLOGGED;
use crate::pattern::Pattern;
use crate::random::Random;
use crate::turn::conditional;

/// The shape of a run's operations.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Different keys of a keyspace.
    pub universe: u64,
    /// Key and value bytes of the largest write.
    pub record_bytes_max: usize,
    /// The largest χ.
    pub distance_max: u32,
    /// The smallest memory budget, in KiB.
    pub memory_kib: u64,
    /// Whether the process may die at any moment. Unlogged writes then go to a keyspace of their
    /// own.
    pub crashes: bool,
    /// Decides which keyspace gets keys of which shape.
    shapes: u64,
}

impl Profile {
    /// Any profile.
    #[must_use]
    pub fn random(random: &mut Random, record_bytes_max: usize) -> Self {
        let universe_max = if random.one_in(8) { 30_000 } else { 4000 };
        Profile {
            universe: 8 + random.scaled(universe_max),
            record_bytes_max,
            distance_max: 8,
            memory_kib: 1024,
            crashes: false,
            shapes: random.bits(),
        }
    }

    /// A profile that fits a store with these options.
    #[must_use]
    pub fn of(configuration: &Configuration, random: &mut Random) -> Self {
        let mut profile = Profile::random(random, configuration.record_bytes_max());
        profile.distance_max = configuration.distance_max();
        profile.memory_kib = configuration.memory_bytes >> 10;
        profile
    }

    /// Few and small records, for a store that may die at any moment.
    #[must_use]
    pub fn small(configuration: &Configuration, random: &mut Random) -> Self {
        let mut profile = Self::of(configuration, random);
        profile.universe = 8 + random.scaled(100);
        profile.record_bytes_max = profile.record_bytes_max.min(4 << 10);
        profile.crashes = true;
        profile
    }
}

/// The keyspaces that come and go.
const NAMES: [&str; 3] = ["users", "a/b", "log.2026"];

/// How many snapshots a run holds at once: few, some, or dozens, which share runs of a memtable.
const SNAPSHOTS_MAX: [usize; 4] = [3, 3, 12, 48];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Mixed,
    Load,
    Erase,
    Hot,
    Reads,
}

/// An endless sequence of operations. It tracks keyspaces, snapshots and open ranges, so that most
/// operations mean something.
#[derive(Debug)]
pub struct Generator {
    random: Random,
    profile: Profile,
    phase: Phase,
    phase_left: u64,
    /// Where loading and erasing continue, and the step to the next key.
    at: u64,
    stride: u64,
    keyspaces: Vec<String>,
    /// Keyspaces that existed before.
    snapshots: Vec<(String, Vec<String>)>,
    /// The most snapshots held at once.
    snapshots_max: usize,
    ranges: Vec<String>,
    made: u64,
    /// Operations so far.
    given: u64,
    queued: Vec<Operation>,
}

impl Generator {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64, profile: Profile) -> Self {
        let mut random = Random::new(seed);
        let mut generator = Generator {
            snapshots_max: *random.pick(&SNAPSHOTS_MAX),
            random,
            phase: Phase::Mixed,
            phase_left: 0,
            at: 0,
            stride: 1,
            keyspaces: vec!["default".to_owned()],
            snapshots: Vec::new(),
            ranges: Vec::new(),
            made: 0,
            given: 0,
            queued: Vec::new(),
            profile,
        };
        if generator.profile.crashes {
            generator.queued = vec![
                Operation::Checkpoint,
                Operation::Create {
                    keyspace: UNLOGGED.to_owned(),
                },
            ];
        }
        generator
    }

    /// The process died: snapshots and ranges are gone, and these keyspaces exist.
    pub fn recovered<'a>(&mut self, keyspaces: impl IntoIterator<Item = &'a String>) {
        self.snapshots.clear();
        self.ranges.clear();
        self.queued.clear();
        self.keyspaces = keyspaces
            .into_iter()
            .filter(|name| *name != UNLOGGED)
            .cloned()
            .collect();
    }

    fn keyspace(&mut self) -> String {
        if self.random.one_in(200) {
            return "nowhere".to_owned();
        }
        self.random.pick(&self.keyspaces).clone()
    }

    fn key_of(&mut self, keyspace: &str, number: u64) -> Pattern {
        let mut shape =
            (self.profile.shapes ^ terrapin_base::checksum::hash64(keyspace.as_bytes())) % 6;
        if self.random.one_in(30) {
            shape = self.random.below(6);
        }
        match shape {
            0 => Pattern::literal(number.to_be_bytes()),
            1 => Pattern::Literal(
                format!(
                    "service/eu-west/tenant-{:03}/object-{number:07}",
                    number % 17
                )
                .into_bytes(),
            ),
            // Keys that are prefixes of each other, the empty one first.
            2 => Pattern::Literal(digits(number, b"abc")),
            3 => Pattern::Literal(digits(number, b"\x00\xff\x7f\x80")),
            4 => {
                let bytes = 40 + (number as usize * 7) % 400;
                Pattern::Literal(
                    [vec![b'x'; bytes % 97 + 20], number.to_string().into_bytes()].concat(),
                )
            }
            _ => {
                let longest = self
                    .profile
                    .record_bytes_max
                    .min(terrapin_base::KEY_BYTES_MAX)
                    / 2;
                let bytes = 9
                    + (number as usize * 131)
                        % if number.is_multiple_of(23) {
                            longest.max(10)
                        } else {
                            60
                        };
                Pattern::Repeated(format!("{number}/").into_bytes(), bytes)
            }
        }
    }

    fn key(&mut self, keyspace: &str) -> Pattern {
        // Some keys are chosen far more often than others.
        let end = if self.random.one_in(3) {
            self.profile.universe / 10 + 1
        } else {
            self.profile.universe
        };
        let number = self.random.below(end);
        self.key_of(keyspace, number)
    }

    fn value(&mut self) -> Pattern {
        self.made += 1;
        let (made, longest) = (self.made, self.profile.record_bytes_max / 3);
        let tag = format!("{made}.").into_bytes();
        match self.random.below(12) {
            0 => Pattern::literal(b""),
            1..4 => Pattern::Literal(tag),
            4..7 => Pattern::Repeated(tag, 20 + self.random.index(200)),
            7..9 => Pattern::Noise(made, 20 + self.random.index(300)),
            // The number grows and shrinks during the run.
            9 => Pattern::Noise(made, (made as usize * 3) % 2000),
            10 => Pattern::Repeated(tag, 1500 - (made as usize) % 1500),
            _ if self.random.one_in(6) => Pattern::Noise(made, self.random.index(longest.max(1))),
            _ => Pattern::Noise(made, self.random.scaled(longest as u64) as usize),
        }
    }

    fn durability(&mut self) -> Durability {
        match self.random.below(16) {
            0 => Some(terrapin::Durability::Sync),
            1 => Some(terrapin::Durability::Process),
            2 if !self.profile.crashes => Some(terrapin::Durability::None),
            _ => None,
        }
    }

    fn change(&mut self, keyspace: String, deletes: bool) -> Change {
        let key = self.key(&keyspace);
        let value = if deletes { None } else { Some(self.value()) };
        Change::of(&keyspace, key, value)
    }

    fn write(change: Change, durability: Durability) -> Operation {
        let keyspace = change.keyspace;
        match change.what {
            What::Put(key, value) => Operation::Put {
                keyspace,
                key,
                value,
                durability,
            },
            What::Delete(key) => Operation::Delete {
                keyspace,
                key,
                durability,
            },
            What::Merge(key, operand) => Operation::Merge {
                keyspace,
                key,
                operand,
                durability,
            },
            What::Erase(span) => Operation::Erase {
                keyspace,
                span,
                durability,
            },
        }
    }

    fn merge(&mut self, keyspace: String) -> Change {
        let what = What::Merge(self.key(&keyspace), self.value());
        Change { keyspace, what }
    }

    /// An erase, mostly of a few neighbouring keys.
    fn erase(&mut self, keyspace: String) -> Change {
        let span = match self.random.one_in(6) {
            true => self.span(&keyspace),
            false => {
                let number = self.random.below(self.profile.universe);
                let until = number + self.random.scaled(20);
                let (a, b) = (
                    self.key_of(&keyspace, number),
                    self.key_of(&keyspace, until),
                );
                let (a, b) = if a.bytes() <= b.bytes() {
                    (a, b)
                } else {
                    (b, a)
                };
                Span::Between(Bound::Included(a), Bound::Excluded(b))
            }
        };
        Change {
            keyspace,
            what: What::Erase(span),
        }
    }

    fn batch(&mut self) -> Operation {
        let mut durability = self.durability();
        let same = self.random.one_in(2).then(|| self.keyspace());
        let mut room = self.profile.record_bytes_max;
        let mut changes = Vec::new();
        for _ in 0..=self.random.scaled(30) {
            let keyspace = same.clone().unwrap_or_else(|| self.keyspace());
            let deletes = self.random.one_in(3);
            let change = match self.random.below(12) {
                0 => self.erase(keyspace),
                1..4 => self.merge(keyspace),
                _ => self.change(keyspace, deletes),
            };
            let bytes = change.bytes();
            if bytes > room {
                break;
            }
            room -= bytes;
            changes.push(change);
        }
        if same.is_none()
            && durability == Some(terrapin::Durability::None)
            && !self.random.one_in(20)
        {
            durability = None;
        }
        Operation::Batch {
            changes,
            durability,
        }
    }

    fn span(&mut self, keyspace: &str) -> Span {
        if self.random.one_in(3) {
            let key = self.key(keyspace).bytes();
            let bytes = self.random.index(key.len() + 1);
            return Span::Prefix(Pattern::literal(&key[..bytes]));
        }
        let (mut a, mut b) = (self.key(keyspace), self.key(keyspace));
        if a.bytes() > b.bytes() && !self.random.one_in(15) {
            std::mem::swap(&mut a, &mut b);
        }
        let mut bound = |key| match self.random.below(5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        };
        let lower = bound(a);
        Span::Between(lower, bound(b))
    }

    /// The source of a read: the newest state, or half of the time a snapshot.
    fn snapshot(&mut self) -> Option<String> {
        if self.snapshots.is_empty() || self.random.one_in(2) {
            return None;
        }
        Some(self.random.pick(&self.snapshots).0.clone())
    }

    fn read(&mut self) -> Operation {
        let keyspace = self.keyspace();
        let snapshot = self.snapshot();
        let read = match self.random.below(20) {
            0..8 => Read::Get(self.key(&keyspace)),
            8 => Read::Contains(self.key(&keyspace)),
            9..11 => {
                let count = self.random.scaled(40);
                Read::MultiGet((0..count).map(|_| self.key(&keyspace)).collect())
            }
            11 => Read::First,
            12 => Read::Last,
            13 => Read::Count,
            _ => {
                let walk = match self.random.below(4) {
                    0 => Walk::Ends(self.random.below(1000)),
                    1 => Walk::Backward,
                    _ => Walk::Forward,
                };
                let limit = if self.random.one_in(4) {
                    None
                } else {
                    Some(self.random.scaled(200) as usize)
                };
                Read::Range(self.span(&keyspace), walk, limit)
            }
        };
        Operation::Read {
            snapshot,
            keyspace,
            read,
        }
    }

    /// The source of a range: an existing keyspace, now or in a snapshot.
    fn opened(&mut self) -> (Option<String>, String) {
        if self.snapshots.is_empty() || self.random.one_in(2) {
            return (None, self.random.pick(&self.keyspaces).clone());
        }
        let (name, keyspaces) = self.random.pick(&self.snapshots);
        (Some(name.clone()), self.random.pick(keyspaces).clone())
    }

    /// Snapshots and open ranges.
    fn view(&mut self) -> Operation {
        let taken = self.made;
        self.made += 1;
        match self.random.below(8) {
            0 | 1 if self.snapshots.len() < self.snapshots_max => {
                let name = format!("s{taken}");
                self.snapshots.push((name.clone(), self.keyspaces.clone()));
                Operation::Snapshot { name }
            }
            2 if !self.snapshots.is_empty() => {
                let at = self.random.index(self.snapshots.len());
                Operation::Release {
                    name: self.snapshots.swap_remove(at).0,
                }
            }
            3 if self.ranges.len() < 3 => {
                let name = format!("r{taken}");
                let (snapshot, keyspace) = self.opened();
                let read = Read::Open(name.clone(), self.span(&keyspace));
                self.ranges.push(name);
                Operation::Read {
                    snapshot,
                    keyspace,
                    read,
                }
            }
            4 if !self.ranges.is_empty() => {
                let at = self.random.index(self.ranges.len());
                Operation::Shut {
                    range: self.ranges.swap_remove(at),
                }
            }
            _ if !self.ranges.is_empty() => {
                let range = self.random.pick(&self.ranges).clone();
                Operation::Next {
                    range,
                    count: self.random.scaled(100) as usize,
                    back: self.random.one_in(3),
                }
            }
            _ => self.read(),
        }
    }

    fn rare(&mut self) -> Operation {
        match self.random.below(24) {
            0..3 => Operation::Checkpoint,
            3 => Operation::Flush,
            4..6 => {
                let distance = if self.random.one_in(4) {
                    None
                } else {
                    Some(self.random.scaled(u64::from(self.profile.distance_max)) as u32)
                };
                if self.random.one_in(2) {
                    Operation::Chi { distance }
                } else {
                    Operation::Dial {
                        keyspace: self.keyspace(),
                        distance,
                    }
                }
            }
            6 => Operation::Memory {
                kib: self.profile.memory_kib + self.random.below(self.profile.memory_kib),
            },
            7..10 => {
                let how = Reopen {
                    dropped: self.random.one_in(2),
                    inspected: self.random.one_in(3),
                    vary: if self.random.one_in(3) {
                        self.random.below(1000)
                    } else {
                        0
                    },
                };
                self.snapshots.clear();
                self.ranges.clear();
                Operation::Reopen(how)
            }
            10..14 => Operation::Pass {
                ms: self.random.scaled(3000),
            },
            14..18 => {
                let name = *self.random.pick(&NAMES);
                if !self.keyspaces.iter().any(|k| k == name) {
                    self.keyspaces.push(name.to_owned());
                }
                Operation::Create {
                    keyspace: name.to_owned(),
                }
            }
            18 | 19 => {
                let name = if self.random.one_in(8) {
                    "default"
                } else {
                    *self.random.pick(&NAMES)
                };
                self.keyspaces.retain(|k| k == "default" || k != name);
                Operation::Drop {
                    keyspace: name.to_owned(),
                }
            }
            20 | 21 => Operation::Clear {
                keyspace: self.keyspace(),
            },
            22 => self.ingest(),
            _ => Operation::Keyspaces,
        }
    }

    /// Records of scattered or neighbouring keys. One in eight ingests has keys out of order.
    fn ingest(&mut self) -> Operation {
        let keyspace = self.keyspace();
        let universe = self.profile.universe;
        let (first, count) = (self.random.below(universe), self.random.scaled(300));
        let stride = 1 + self.random.scaled(universe / (count + 1) + 1);
        let mut records: Vec<_> = (0..count)
            .map(|number| {
                let key = self.key_of(&keyspace, (first + number * stride) % universe);
                (key, self.value())
            })
            .collect();
        records.sort_by_key(|(key, _)| key.bytes());
        records.dedup_by_key(|(key, _)| key.bytes());
        if self.random.one_in(8)
            && let Some((key, _)) = records.first()
        {
            let again = key.clone();
            records.push((again, self.value()));
        }
        Operation::Ingest { keyspace, records }
    }

    fn mixed(&mut self) -> Operation {
        if self.profile.crashes && self.random.one_in(12) {
            let deletes = self.random.one_in(5);
            let change = match self.random.below(12) {
                0 => self.erase(UNLOGGED.to_owned()),
                1..4 => self.merge(UNLOGGED.to_owned()),
                _ => self.change(UNLOGGED.to_owned(), deletes),
            };
            let unlogged = Self::write(change.clone(), Some(terrapin::Durability::None));
            if !self.random.one_in(6) {
                return unlogged;
            }
            // A logged write behind what was flushed, and one of the same key that covers it in a
            // tree.
            let what = match change.what {
                What::Put(key, _) | What::Merge(key, _) => What::Delete(key),
                What::Delete(key) => What::Put(key, self.value()),
                What::Erase(_) => What::Put(self.key(UNLOGGED), self.value()),
            };
            let logged = Self::write(Change { what, ..change }, self.durability());
            self.queued = vec![Operation::Flush, unlogged, logged];
            return Operation::Flush;
        }
        match self.random.below(100) {
            0..10 => {
                let keyspace = self.keyspace();
                let change = self.merge(keyspace);
                let durability = self.durability();
                Self::write(change, durability)
            }
            10..30 => {
                let keyspace = self.keyspace();
                let change = self.change(keyspace, false);
                let durability = self.durability();
                Self::write(change, durability)
            }
            30..32 => {
                let keyspace = self.keyspace();
                let change = self.erase(keyspace);
                let durability = self.durability();
                Self::write(change, durability)
            }
            32..40 => {
                let keyspace = self.keyspace();
                let change = self.change(keyspace, true);
                let durability = self.durability();
                Self::write(change, durability)
            }
            40..55 => self.batch(),
            55..85 => self.read(),
            85..96 => self.view(),
            _ => self.rare(),
        }
    }

    /// Continues through the keys from where the phase began: upwards, downwards, or in strides
    /// that visit every key.
    fn sweep(&mut self, deletes: bool) -> Operation {
        self.at = (self.at + self.stride) % self.profile.universe;
        let keyspace = self.keyspaces[0].clone();
        let (key, value) = (
            self.key_of(&keyspace, self.at),
            (!deletes).then(|| self.value()),
        );
        Self::write(Change::of(&keyspace, key, value), None)
    }

    fn begin_phase(&mut self) {
        let universe = self.profile.universe;
        (self.phase, self.phase_left) = match self.random.below(8) {
            0 | 1 => (Phase::Load, self.random.scaled(universe)),
            2 => (Phase::Erase, universe / 2 + self.random.below(universe)),
            3 => (Phase::Hot, self.random.scaled(1500)),
            4 => (Phase::Reads, self.random.scaled(100)),
            _ => (Phase::Mixed, self.random.scaled(400)),
        };
        self.at = self.random.below(universe);
        self.stride = match self.random.below(4) {
            0 | 1 => 1,
            2 => universe - 1,
            // A prime above any universe shares no divisor with it.
            _ => 104_729 % universe,
        };
        // Sweeps work on the first keyspace, so choose any as the first.
        let first = self.random.index(self.keyspaces.len());
        self.keyspaces.swap(0, first);
    }
}

impl Iterator for Generator {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        self.given += 1;
        self.plain()
            .map(|operation| conditional(operation, self.given))
    }
}

impl Generator {
    fn plain(&mut self) -> Option<Operation> {
        if let Some(operation) = self.queued.pop() {
            return Some(operation);
        }
        if self.phase_left == 0 {
            self.begin_phase();
        }
        self.phase_left = self.phase_left.saturating_sub(1);
        if self.random.one_in(10) {
            return Some(self.mixed());
        }
        Some(match self.phase {
            Phase::Mixed => self.mixed(),
            Phase::Load => self.sweep(false),
            Phase::Erase => self.sweep(true),
            Phase::Reads => self.read(),
            Phase::Hot => {
                let keyspace = self.keyspaces[0].clone();
                let (key, value) = (self.key_of(&keyspace, 5), self.value());
                let what = match self.random.one_in(3) {
                    true => What::Put(key, value),
                    false => What::Merge(key, value),
                };
                Self::write(Change { keyspace, what }, None)
            }
        })
    }
}

/// A number in bijective notation: 0 is the empty word, and every word has a number.
fn digits(mut number: u64, alphabet: &[u8]) -> Vec<u8> {
    let base = alphabet.len() as u64;
    let mut out = Vec::new();
    while number > 0 {
        number -= 1;
        out.push(alphabet[(number % base) as usize]);
        number /= base;
    }
    out.reverse();
    out
}
