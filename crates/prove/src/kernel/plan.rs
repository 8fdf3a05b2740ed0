//! The steps of a child's threads. {seed, life, thread, index} determines every step, so the
//! process that does them and the judge exchange only how far it got.
//!
//! Each thread has keys of its own, spread over the whole order, so the state of its keys shows how
//! many of its steps a store holds. Thread 0, the steward, checkpoints, flushes, changes χ, and
//! creates, fills, clears and drops a keyspace; the others write.

use terrapin_model::{Configuration, Random};

/// The steward and the writers.
pub const THREADS: usize = 4;
/// The writers' keyspaces.
pub const KEYSPACES: [&str; 2] = ["left", "right"];
/// The steward's keyspace, which is created and dropped.
pub const GUEST: &str = "guest";
/// The byte of a key that names its thread.
const THREAD_BYTE: usize = 4;

/// A put, or a delete.
pub struct Change {
    /// The keyspace.
    pub keyspace: &'static str,
    /// The key.
    pub key: Vec<u8>,
    /// The value; none deletes.
    pub value: Option<Vec<u8>>,
}

/// One step of a thread.
pub enum Step {
    /// One change, or several as a batch; synced or not.
    Write(Vec<Change>, bool),
    /// A change of the steward's keyspace, if it exists.
    WriteGuest(Change),
    Checkpoint,
    Flush,
    /// χ of a keyspace of [`KEYSPACES`].
    Distance(&'static str, u32),
    CreateGuest,
    ClearGuest,
    DropGuest,
}

/// What all lives of a directory share.
pub struct Story {
    seed: u64,
    configuration: Configuration,
    /// Keys of a thread in one keyspace.
    slots: u64,
    value_bytes_max: u64,
    /// One step in this many is synced.
    sync_every: u64,
}

impl Story {
    /// The story of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let configuration = Configuration::random(&mut random).without_refusals();
        Story {
            seed,
            slots: 50 + random.scaled(4000),
            value_bytes_max: (8 + random.scaled(4000))
                .min(configuration.record_bytes_max() as u64 / 12),
            sync_every: 1 + random.scaled(64),
            configuration,
        }
    }

    /// Its seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The options of one life.
    #[must_use]
    pub fn configuration(&self, life: u64) -> Configuration {
        self.configuration
            .varied(self.seed.wrapping_add(life.wrapping_mul(0x9e37_79b9)))
    }

    /// The step of a thread at a position of a life.
    #[must_use]
    pub fn step(&self, life: u64, thread: usize, index: u32) -> Step {
        let place = (life << 40) ^ ((thread as u64) << 32) ^ u64::from(index);
        let mut random = Random::new(self.seed ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93));
        if thread == 0 {
            return self.steward(life, &mut random);
        }
        let sync = random.one_in(self.sync_every);
        let changes = if random.one_in(6) {
            random.scaled(8)
        } else {
            1
        };
        let changes = (0..changes).map(|_| self.change(thread, &mut random));
        Step::Write(changes.collect(), sync)
    }

    fn steward(&self, life: u64, random: &mut Random) -> Step {
        match random.below(20) {
            0..4 => Step::Checkpoint,
            4..6 => Step::Flush,
            6..10 => {
                let chi = random.scaled(u64::from(self.configuration(life).distance_max()));
                Step::Distance(random.pick::<&str>(&KEYSPACES), chi as u32)
            }
            10..12 => Step::CreateGuest,
            12 => Step::ClearGuest,
            13 => Step::DropGuest,
            _ => {
                let mut change = self.change(0, random);
                change.keyspace = GUEST;
                Step::WriteGuest(change)
            }
        }
    }

    fn change(&self, thread: usize, random: &mut Random) -> Change {
        let slot = random.below(self.slots);
        let mut key = (slot as u32)
            .wrapping_mul(0x9e37_79b1)
            .to_be_bytes()
            .to_vec();
        key.push(thread as u8);
        key.resize(key.len() + (slot % 24) as usize, b'k');
        let value = (!random.one_in(4)).then(|| {
            let bytes = random.scaled(self.value_bytes_max) as usize;
            let mut value = Vec::with_capacity(bytes + 8);
            while value.len() < bytes {
                value.extend_from_slice(&random.bits().to_le_bytes());
            }
            value
        });
        Change {
            keyspace: random.pick::<&str>(&KEYSPACES),
            key,
            value,
        }
    }
}

/// The thread of a key; none if no thread ever wrote it.
#[must_use]
pub fn thread_of(key: &[u8]) -> Option<usize> {
    key.get(THREAD_BYTE)
        .map(|&thread| usize::from(thread))
        .filter(|&thread| thread < THREADS)
}
