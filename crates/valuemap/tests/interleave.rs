//! A model of the map for the model checker, in a build with `--cfg terrapin_shuttle`. Readers
//! look, miss and fill beside checkpoints that merge, collect, and free the indexes of pages.
#![cfg(terrapin_shuttle)]

use terrapin_base::Budget;
use terrapin_base::checksum::hash64;
use terrapin_base::sync::explore::{explore, spawn};
use terrapin_base::sync::{Arc, AtomicU64, Ordering};
use terrapin_valuemap::{Location, LocationMap, Page, SizeClass};

const KEYS: u64 = 3;
const MOMENTS: usize = 6;
const COLLECTION: u64 = 7;

/// The engine beside the map. Each moment has all values in one page of its own.
struct Engine {
    map: LocationMap,
    /// Twice the moment, plus 1 while a sealed memtable has newer values of all keys.
    state: AtomicU64,
    /// The map's index of each moment's page.
    indexes: [AtomicU64; MOMENTS],
}

impl Engine {
    fn new(budget: &Arc<Budget>) -> Self {
        let engine = Engine {
            map: LocationMap::with_fingerprints(budget, 1 << 20, 3, 14),
            state: AtomicU64::new(0),
            indexes: Default::default(),
        };
        engine.map.set_bytes_max(1 << 20);
        engine.add_page(0);
        // Memory for each shard.
        while engine.map.grow_step() {}
        engine
    }

    fn add_page(&self, moment: u64) {
        let page = Page {
            id: moment,
            offset: moment << 20,
            bytes: 1 << 20,
            collection: COLLECTION,
            born: moment,
        };
        let index = self.map.add_page(page).unwrap();
        self.indexes[moment as usize].store(index.into(), Ordering::SeqCst);
    }

    /// A get, as the engine's `read` does it.
    fn read(&self, number: u64) {
        let key = self.map.key(COLLECTION, hash64(&number.to_be_bytes()));
        let epoch = self.map.epoch();
        let state = self.state.load(Ordering::SeqCst);
        if !state.is_multiple_of(2) {
            return;
        }
        let moment = state / 2;
        match self.map.get(key, moment) {
            Some(found) => {
                assert_eq!(found.page.id, moment, "the page of another moment");
                assert_eq!(u64::from(found.location.place), number);
            }
            None => {
                let index = self.indexes[moment as usize].load(Ordering::SeqCst);
                let location = Location {
                    page: index as u32,
                    place: number as u32,
                    class: SizeClass::of(1000).unwrap(),
                };
                self.map.fill(key, location, epoch);
            }
        }
    }

    /// Goes to the next moment. A merge has newer values of all keys, and a collecting moves them.
    fn checkpoint(&self, merges: bool) {
        let moment = self.state.load(Ordering::SeqCst) / 2;
        if merges {
            self.state.store(moment * 2 + 1, Ordering::SeqCst);
            self.map.begin_sweep();
            for number in 0..KEYS {
                let hash = hash64(&u64::to_be_bytes(number));
                self.map.remove(self.map.key(COLLECTION, hash));
            }
        }
        self.add_page(moment + 1);
        let index = self.indexes[moment as usize].load(Ordering::SeqCst);
        self.map.end_page(index as u32, moment + 1);
        self.state.store((moment + 1) * 2, Ordering::SeqCst);
    }
}

/// A reader finds the values of its own moment only. That takes the epoch's check in `fill`, the
/// generation's check in `get`, and indexes that are not free at once.
#[test]
fn readers_find_the_values_of_their_moment() {
    explore("locations", || {
        let budget = Budget::new(16 << 20);
        let engine = Arc::new(Engine::new(&budget));
        let mut threads = Vec::new();
        for reader in 0..2 {
            let engine = engine.clone();
            threads.push(spawn(move || {
                for look in 0..6 {
                    engine.read((look * (reader + 1)) % KEYS);
                }
            }));
        }
        for round in 0..MOMENTS - 1 {
            engine.checkpoint(round % 2 == 0);
            if round == 2 {
                engine.map.free_pages();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        (0..KEYS).for_each(|number| engine.read(number));
    });
}
