//! A model of the record cache for the model checker, in a build with `--cfg terrapin_shuttle`.
//! Readers look, miss and fill beside checkpoints that sweep. The cache is so small that strips are
//! recycled all the time.
#![cfg(terrapin_shuttle)]

use terrapin_base::checksum::hash64;
use terrapin_base::sync::explore::{explore, spawn};
use terrapin_base::sync::{Arc, AtomicU64, Ordering};
use terrapin_base::{Budget, Purpose};
use terrapin_recordcache::{Collection, RecordCache, SealedRecord};

const KEYS: u64 = 6;
const ROUNDS: u64 = 2;
/// Room for one strip, in thousandths.
const SHARE: u64 = 320;

/// The state of the engine beside the cache: for each key the version in the tree, and whether a
/// memtable holds the next version.
struct Engine {
    cache: RecordCache,
    /// Twice the tree's version, plus 1 while a memtable holds the next version.
    keys: [AtomicU64; KEYS as usize],
}

const ID: Collection = Collection(1);

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    // Four records fill a strip, so a reader meets a strip that is being rewritten.
    let mut value = vec![version as u8; 800];
    value[0] = number as u8;
    value
}

impl Engine {
    /// A get, as the engine's `read.rs` does it.
    fn read(&self, number: u64) {
        let (bytes, hash) = (key(number), hash64(&key(number)));
        let epoch = self.cache.epoch();
        let seen = self.keys[number as usize].load(Ordering::SeqCst);
        if !seen.is_multiple_of(2) {
            return;
        }
        match self.cache.get(epoch, ID, &bytes, hash) {
            Some(found) => {
                let version = u64::from(found[1]);
                assert_eq!(found, value(number, version)[..], "torn");
                // A newer record would be inconsistent with what else was found in that epoch.
                assert_eq!(version, seen / 2, "not the tree's");
            }
            None => self
                .cache
                .fill(epoch, ID, &bytes, hash, &value(number, seen / 2)),
        }
    }

    /// Merges memtables one after the other, each with a record of every key.
    fn checkpoints(&self) {
        for round in 1..=ROUNDS {
            for key in &self.keys {
                key.store(round * 2 - 1, Ordering::SeqCst);
            }
            if self.cache.begin_sweep() {
                for number in 0..KEYS {
                    let text = value(number, round);
                    let told = (number > 0).then_some(&text[..]);
                    self.cache.sweep(
                        ID,
                        &key(number),
                        hash64(&key(number)),
                        SealedRecord {
                            value: told,
                            was_read: number.is_multiple_of(2),
                        },
                        number.is_multiple_of(2),
                    );
                }
            }
            for key in &self.keys {
                key.store(round * 2, Ordering::SeqCst);
            }
        }
    }
}

/// A reader gets the tree's version of the time of its read, and no torn one. Seen red without the
/// epoch's check in `fill`, and without the check of the stamp after a copy.
fn readers_beside_checkpoints(beside: impl FnOnce(&RecordCache) + Send + 'static) {
    let budget = Budget::new(16 << 10);
    // Blocks would take all memory.
    budget.take(Purpose::Blocks, 16 << 10);
    let engine = Arc::new(Engine {
        cache: RecordCache::new(&budget, 16 << 10),
        keys: Default::default(),
    });
    engine.cache.set_share(SHARE);
    (0..KEYS).for_each(|number| engine.read(number));
    let mut threads: Vec<_> = (0..2)
        .map(|reader| {
            let engine = engine.clone();
            spawn(move || {
                for look in 0..8 {
                    engine.read((look * (reader + 1)) % KEYS);
                }
            })
        })
        .collect();
    let other = engine.clone();
    threads.push(spawn(move || beside(&other.cache)));
    engine.checkpoints();
    for thread in threads {
        thread.join().unwrap();
    }
    (0..KEYS).for_each(|number| engine.read(number));
    drop(engine);
    assert_eq!(budget.used(Purpose::Records), 0);
}

#[test]
fn fills_beside_sweeps_never_bring_back_an_old_version() {
    explore("records", || readers_beside_checkpoints(|_| {}));
}

#[test]
fn a_shrinking_cache_and_a_clear_leave_nothing_wrong() {
    explore("records-cleared", || {
        readers_beside_checkpoints(|cache| {
            cache.set_share(100);
            while cache.shrink_step() {}
            cache.set_share(SHARE);
            cache.clear();
        });
    });
}
