//! [`Locations`]: where separated values are, by key, in memory (after Wayfinder). A get of such a
//! value is one read of the device, without the tree.
//!
//! It is a cache ([`terrapin_valuemap`]): nothing depends on what it knows, and it begins empty.
//! Gets of the newest state ask it and fill it. Views do neither.
//!
//! # Coherence
//!
//! - A merge's walk over a sealed memtable removes each key ([`Locations::remove`]), after it began
//!   a new epoch of cached records, and then of the map. Readers find these keys in the memtable.
//! - A fill counts if the epoch of cached records, which the reader took before it loaded its
//!   state, was still current once the reader had the map's epoch.
//! - Each version of a keyspace has a number, its *moment*. Before a checkpoint installs a version,
//!   [`Locations::installing`] ends the pages that it gave up. Readers of the new moment believe no
//!   entry that names them. From then on, readers of older moments name no new page.
//! - A range delete gives up records unread. So the checkpoint ends all pages of the keyspace.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};
use terrapin_base::{Budget, Charge, PageId, Purpose, Slice, mutant};
use terrapin_recordcache::Collection;
use terrapin_structure::{Changes, PageUse, StoredValues, ValuePlace};
use terrapin_valuemap::{Epoch, Location, LocationMap, Page, SizeClass};

use crate::planning::location_share::{LocationSavings, first_bytes, most_bytes, next_bytes};

/// Bytes that a known page takes here, about.
const KNOWN_BYTES: u64 = 64;
/// Bytes that a known page takes here and in the map, about.
const PAGE_BYTES: u64 = KNOWN_BYTES + 48;
/// Known pages take at most this part (1/n) of what the map may take. Entries have the rest.
const PAGES_PART: u64 = 2;
/// Indexes of pages that were given up are freed once there are this many.
const ENDED_MAX: usize = 1024;

/// See the module.
pub(crate) struct Locations {
    map: LocationMap,
    known: Mutex<Known>,
    /// Gets that the map answered.
    hits: AtomicU64,
    /// Gets that found a value by way of the tree.
    found_in_trees: AtomicU64,
    last: Mutex<LocationSavings>,
}

/// Which pages the map has an index for.
struct Known {
    pages: BTreeMap<PageId, (u32, Collection)>,
    /// The newest moment of each collection.
    newest: BTreeMap<u32, u64>,
    memory: Charge,
}

/// A version of a keyspace that a checkpoint installs.
pub(crate) struct Installed {
    pub collection: Collection,
    pub moment: u64,
    /// Whether its merge gave up records unread.
    pub erases: bool,
}

impl Locations {
    /// An empty map. `seed` is random.
    pub fn new(budget: &Arc<Budget>, seed: u64) -> Self {
        let map = LocationMap::new(budget, most_bytes(budget.limit()), seed);
        map.set_bytes_max(first_bytes(budget.room_beside_writes()));
        Locations {
            map,
            known: Mutex::new(Known {
                pages: BTreeMap::new(),
                newest: BTreeMap::new(),
                memory: budget.charge(Purpose::Locations, 0),
            }),
            hits: AtomicU64::new(0),
            found_in_trees: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }

    /// The moment before which a reader asks whether its cached records are current.
    pub fn epoch(&self) -> Epoch {
        self.map.epoch()
    }

    /// The value of a key, if the map knows where it is. A value that cannot be read there is not
    /// found: the tree leads to it, and its read reports the error.
    pub fn get(
        &self,
        collection: Collection,
        values: &dyn StoredValues,
        key: &[u8],
        hash: u64,
    ) -> Option<Slice> {
        let of_key = self.map.key(u64::from(collection.0), hash);
        let found = self.map.get(of_key, values.moment())?;
        if found.page.collection != u64::from(collection.0) {
            return None;
        }
        let place = ValuePlace {
            page: PageUse::whole(PageId(found.page.id), found.page.offset, found.page.bytes),
            place: found.location.place,
            bytes: found.location.class.bytes_max(),
        };
        // An error here may be of a stale place. The tree is asked next, and returns its own.
        let value = values.read_at(&place, key).ok()??;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(value)
    }

    /// Notes where a reader found a key's value by way of the tree. Returns whether the map wants
    /// [`Locations::step`].
    pub fn fill(
        &self,
        (collection, moment): (Collection, u64),
        hash: u64,
        place: &ValuePlace,
        epoch: Epoch,
    ) -> bool {
        self.found_in_trees.fetch_add(1, Ordering::Relaxed);
        let Some(class) = SizeClass::of(place.bytes) else {
            return false;
        };
        let Some(page) = self.index(collection, moment, &place.page) else {
            return false;
        };
        let of_key = self.map.key(u64::from(collection.0), hash);
        let location = Location {
            page,
            place: place.place,
            class,
        };
        !self.map.fill(of_key, location, epoch) && self.map.wants_step()
    }

    /// The index of a page that a version of this moment has.
    fn index(&self, collection: Collection, moment: u64, page: &PageUse) -> Option<u32> {
        let mut known = self.known.lock();
        if let Some((index, _)) = known.pages.get(&page.id) {
            return Some(*index);
        }
        if *known.newest.entry(collection.0).or_insert(moment) != moment {
            return None;
        }
        let pages = known.pages.len() as u64 + 1;
        if pages * PAGE_BYTES > self.map.bytes_max() / PAGES_PART {
            return None;
        }
        let index = self.map.add_page(Page {
            id: page.id.0,
            offset: page.offset,
            bytes: page.bytes,
            collection: u64::from(collection.0),
            born: moment,
        })?;
        known.pages.insert(page.id, (index, collection));
        known.charge();
        Some(index)
    }

    /// A walk over a sealed memtable begins: places that readers learned before do not enter.
    pub fn begin_sweep(&self) {
        self.map.begin_sweep();
    }

    /// A sealed memtable has a key.
    pub fn remove(&self, collection: Collection, hash: u64) {
        if !mutant::active("swept-keys-stay-located") {
            self.map.remove(self.map.key(u64::from(collection.0), hash));
        }
    }

    /// A checkpoint is about to install versions. Ends the pages that they gave up.
    pub fn installing(&self, installed: &[Installed], changes: &Changes) {
        let mut references: BTreeMap<PageId, i64> = BTreeMap::new();
        for page in &changes.released {
            *references.entry(*page).or_default() -= 1;
        }
        for page in &changes.retained {
            *references.entry(*page).or_default() += 1;
        }
        let moment_of = |collection: Collection| {
            let mut installed = installed.iter();
            let found = installed.find(|installed| installed.collection == collection);
            // The pages of a keyspace that is gone: nobody asks for them.
            found.map_or(0, |installed| installed.moment)
        };
        let erases = |collection: Collection| {
            let mut installed = installed.iter();
            installed.any(|installed| installed.collection == collection && installed.erases)
        };
        references.retain(|_, count| *count < 0);
        let known = &mut *self.known.lock();
        for page in references.keys() {
            if let Some((index, collection)) = known.pages.remove(page) {
                self.map.end_page(index, moment_of(collection));
            }
        }
        if installed.iter().any(|installed| installed.erases) {
            known.pages.retain(|_, (index, collection)| {
                let is_over = erases(*collection);
                if is_over {
                    self.map.end_page(*index, moment_of(*collection));
                }
                !is_over
            });
        }
        for Installed {
            collection, moment, ..
        } in installed
        {
            known.newest.insert(collection.0, *moment);
        }
        known.charge();
    }

    /// Gives memory back, frees indexes or grows, one bounded piece of it. Returns whether there
    /// may be more to do.
    pub fn step(&self) -> bool {
        if self.map.shrink_step() {
            return true;
        }
        if self.map.ended_pages() >= ENDED_MAX {
            self.map.free_pages();
            return true;
        }
        self.map.grow_step()
    }

    /// Whether [`Locations::step`] has something to do.
    pub fn wants_step(&self) -> bool {
        self.map.wants_step() || self.map.ended_pages() >= ENDED_MAX
    }

    /// Moves the map's limit by what its entries and cached blocks have saved since the last call.
    /// `room_bytes` is the memory that writes leave.
    pub fn look(&self, blocks: LocationSavings, room_bytes: u64) {
        let now = LocationSavings {
            hits: self.hits.load(Ordering::Relaxed),
            found_in_trees: self.found_in_trees.load(Ordering::Relaxed),
            map_bytes: self.map.bytes(),
            entry_bytes: self.map.entry_bytes(),
            ..blocks
        };
        let mut last = self.last.lock();
        let next = next_bytes(&last, &now, self.map.bytes_max(), room_bytes);
        *last = now;
        self.map.set_bytes_max(next);
    }

    /// Gets that the map answered.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

impl Known {
    fn charge(&mut self) {
        let bytes = self.pages.len() as u64 * KNOWN_BYTES;
        self.memory.resize(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pages_leave_half_of_the_limit_to_entries() {
        let budget = Budget::new(8 << 20);
        let locations = Locations::new(&budget, 1);
        let limit_bytes = locations.map.bytes_max();
        let mut grown = 0;
        for number in 0..100_000u64 {
            let place = ValuePlace {
                page: PageUse::whole(PageId(number), number << 20, 1 << 20),
                place: 0,
                bytes: 4096,
            };
            let hash = terrapin_base::checksum::hash64(&number.to_le_bytes());
            let epoch = locations.map.epoch();
            if locations.fill((Collection(1), 1), hash, &place, epoch) {
                grown += u64::from(locations.step());
            }
        }
        let pages = locations.known.lock().pages.len() as u64;
        assert_eq!(pages, limit_bytes / PAGES_PART / PAGE_BYTES);
        assert!(grown > 0, "pages leave no room for entries");
        let (used, known_bytes) = (budget.used(Purpose::Locations), pages * KNOWN_BYTES);
        let chunk_bytes = 1024 * 48;
        assert!(used <= limit_bytes + known_bytes + chunk_bytes, "{used}");
        assert!(locations.map.entry_bytes() > 0);
    }
}
