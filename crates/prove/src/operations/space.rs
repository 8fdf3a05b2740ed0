//! Layer `space`: after writes, overwrites and deletes of records of any length, the pages in use
//! stay near the data, and the figures agree. A unit draws a kind of records from its seed, works
//! on a simulated disk, then checkpoints, closes, opens and checks.

use std::collections::BTreeMap;
use std::path::Path;

use terrapin::{Database, Options};
use terrapin_base::Env;
use terrapin_disk::SimDisk;
use terrapin_model::Random;

use crate::{Find, Layer, Units};

/// Key and value bytes that a unit writes first, roughly.
const LOADED_BYTES: u64 = 6 << 20;
/// The most records.
const RECORDS_MAX: u64 = 20_000;
/// Live pages are at most this many percent of the live records' bytes, plus this many bytes for
/// nodes, the catalog and partly filled leaves.
const USED_PERCENT: u64 = 180;
const USED_BYTES: u64 = 256 << 10;
/// The metric knows the live bytes within this many percent. The second number is for puts that
/// replaced records of their own length, which are known on average only.
const OFF_PERCENT: u64 = 10;
const OFF_REPLACED_PERCENT: u64 = 40;

pub(super) fn layer() -> Layer {
    Layer {
        name: "space",
        counts: "operations",
        ci: 1_000_000,
        full: 10_000_000,
        units: Units::Seeds,
        alone: false,
        unit,
    }
}

/// Lengths of keys and values: most are short, and one in this many is long.
struct Lengths {
    key: usize,
    short: usize,
    long: usize,
    one_in: u64,
}

/// The kinds of records of a unit. The last three are uneven but shorter than a block: the merge
/// knows their hidden bytes by samples (decision 0035).
const KINDS: [Lengths; 10] = [
    lengths(8, 130 << 10, 130 << 10, 1),
    lengths(8, 4 << 10, 4 << 10, 1),
    lengths(12, 1 << 10, 1 << 10, 1),
    lengths(12, 90, 110, 2),
    lengths(8, 20, 100 << 10, 100),
    lengths(3000, 50, 50, 1),
    lengths(16, 100, 20_000, 7),
    lengths(8, 20, 3000, 10),
    lengths(12, 20, 1500, 20),
    lengths(12, 30, 2500, 5),
];

const fn lengths(key: usize, short: usize, long: usize, one_in: u64) -> Lengths {
    Lengths {
        key,
        short,
        long,
        one_in,
    }
}

impl Lengths {
    /// The key of a number: consecutive numbers are far apart.
    fn key(&self, number: u64) -> Vec<u8> {
        let mut key = number
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_be_bytes()
            .to_vec();
        key.resize(self.key, b'k');
        key
    }

    fn value(&self, random: &mut Random) -> Vec<u8> {
        let long = random.one_in(self.one_in);
        vec![random.bits() as u8; if long { self.long } else { self.short }]
    }

    fn mean_bytes(&self) -> u64 {
        let long = self.long as u64 / self.one_in;
        self.key as u64 + long + self.short as u64 * (self.one_in - 1) / self.one_in
    }
}

/// A store and its expected content: the bytes of each number's record.
struct Store<'k> {
    kind: &'k Lengths,
    database: Database,
    there: BTreeMap<u64, u64>,
    operations: u64,
    /// Whether puts may have replaced others of their length.
    has_replaced: bool,
}

impl Store<'_> {
    fn put(&mut self, number: u64, value: &[u8]) -> Result<(), Find> {
        let key = self.kind.key(number);
        self.database.default_keyspace().put(&key, value)?;
        self.there.insert(number, (key.len() + value.len()) as u64);
        self.operations += 1;
        Ok(())
    }

    fn delete(&mut self, number: u64) -> Result<(), Find> {
        let keyspace = self.database.default_keyspace();
        keyspace.delete(self.kind.key(number))?;
        self.there.remove(&number);
        self.operations += 1;
        Ok(())
    }

    /// One pass of a kind, over all present and past records.
    fn round(&mut self, random: &mut Random, records: u64) -> Result<(), Find> {
        let one_in = random.between(1..20);
        let kind = random.below(5);
        self.has_replaced |= kind >= 3;
        for number in 0..records {
            // Delete most or little, or only long records; put some again, shorter, unchanged or
            // new.
            let is_long = || {
                self.there
                    .get(&number)
                    .is_some_and(|&bytes| bytes > self.kind.mean_bytes())
            };
            match kind {
                0 if !random.one_in(one_in) => self.delete(number)?,
                1 if random.one_in(one_in) => self.delete(number)?,
                2 if is_long() => self.delete(number)?,
                3 if random.one_in(one_in) => self.put(number, &[1; 16])?,
                4 if random.one_in(one_in) => {
                    let value = self.kind.value(random);
                    self.put(number, &value)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Find> {
        let there: u64 = self.there.values().sum();
        let metrics = self.database.metrics();
        let used = metrics.data_live_bytes;
        let stat = self.database.stat()?;
        // Indexes and nodes hold whole keys. Where keys are most of the records, that is not waste.
        let keys = match self.kind.key > self.kind.long {
            true => stat.space.pages.indexes + stat.space.pages.nodes,
            false => 0,
        };
        let most = there / 100 * USED_PERCENT + USED_BYTES + keys;
        if used > most {
            return Err(Find(format!(
                "{used} bytes of live pages for {there}, more than {most}: {stat:#?}"
            )));
        }
        let said = (used as f64 / metrics.space_amplification.max(1e-9)) as u64;
        let off = if there == 0 { 0 } else { said.abs_diff(there) };
        let percent = match self.has_replaced {
            true => OFF_REPLACED_PERCENT,
            false => OFF_PERCENT,
        };
        if off > there / 100 * percent + USED_BYTES / 8 {
            return Err(Find(format!(
                "{said} live bytes by the metric, and {there} are there: {stat:#?}"
            )));
        }
        Ok(())
    }
}

fn unit(unit: u64, _scratch: &Path) -> Result<u64, Find> {
    let mut random = Random::new(unit);
    let (env, sim) = Env::simulated(unit);
    let disk = SimDisk::new(unit);
    let kind = random.pick(&KINDS);
    let options = Options::new()
        .memory(*random.pick(&[8 << 20, 16 << 20]))
        .ring_bytes(1 << 20)
        .group_bytes(*random.pick(&[64 << 10, 256 << 10]))
        .fanout(*random.pick(&[4, 16, 64]))
        .background_threads(1 + random.index(3));
    let open = || options.open_on(env.clone(), disk.handle());
    let mut store = Store {
        kind,
        database: open()?,
        there: BTreeMap::new(),
        operations: 0,
        has_replaced: false,
    };
    let records = (LOADED_BYTES / kind.mean_bytes()).min(RECORDS_MAX);
    for number in 0..records {
        let value = kind.value(&mut random);
        store.put(number, &value)?;
    }
    for _ in 0..1 + random.below(4) {
        store.round(&mut random, records)?;
        if random.one_in(2) {
            store.database.checkpoint()?;
        }
    }
    store.database.checkpoint()?;
    sim.settle();
    store.check()?;
    store.database.close()?;
    store.database = open()?;
    store.check()?;
    store.database.close()?;
    Ok(store.operations)
}
