//! The map beside a model: whatever it says of a key is the key's newest place, or a place of
//! another key.

use std::collections::HashMap;

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Purpose};
use terrapin_valuemap::{Location, LocationMap, PLACES_MAX, Page, SizeClass};

const GENERATION: u64 = 1;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash64(&self.0.to_le_bytes())
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn page(id: u64) -> Page {
    Page {
        id,
        offset: id << 20,
        bytes: 1 << 20,
        collection: 0,
        born: GENERATION,
    }
}

/// A map with what a store would hold: each place has one key's record, for ever.
struct Scene {
    map: LocationMap,
    class: SizeClass,
    /// The key whose record each place of a page has. Pages go by their number.
    owner: HashMap<(u64, u32), u64>,
    newest: HashMap<u64, (u64, Location)>,
    /// The index, the number, and the next free place of the page that is written.
    page: (u32, u64, u32),
}

impl Scene {
    fn new(bits: u32, bytes_max: u64) -> Self {
        let map = LocationMap::with_fingerprints(&Budget::new(1 << 30), 64 << 20, 7, bits);
        map.set_bytes_max(bytes_max);
        let index = map.add_page(page(1)).unwrap();
        Scene {
            map,
            class: SizeClass::of(1000).unwrap(),
            owner: HashMap::new(),
            newest: HashMap::new(),
            page: (index, 1, 0),
        }
    }

    fn key(&self, number: u64) -> terrapin_valuemap::Key {
        self.map.key(0, hash64(&number.to_le_bytes()))
    }

    fn place(&mut self, number: u64) -> (u64, Location) {
        if self.page.2 == PLACES_MAX {
            let id = self.page.1 + 1;
            self.page = (self.map.add_page(page(id)).unwrap(), id, 0);
        }
        let location = Location {
            page: self.page.0,
            place: self.page.2,
            class: self.class,
        };
        self.page.2 += 1;
        self.owner.insert((self.page.1, location.place), number);
        (self.page.1, location)
    }

    fn set(&mut self, number: u64) {
        let at = self.place(number);
        self.map.set(self.key(number), at.1);
        self.newest.insert(number, at);
    }

    /// Whether the map knows the key. Panics where it leads to an older record of it.
    fn is_known(&self, number: u64) -> bool {
        let Some(found) = self.map.get(self.key(number), GENERATION) else {
            return false;
        };
        let at = (found.page.id, found.location.place);
        if self.owner[&at] != number {
            return false;
        }
        let newest = self.newest.get(&number).map(|at| (at.0, at.1.place));
        assert_eq!(Some(at), newest, "an older record of key {number}");
        true
    }
}

/// With fingerprints of four bits, keys are taken for each other all the time. More and more keys
/// make shards grow through sizes that are no powers of two: some bits name two buckets there.
#[test]
fn no_lookup_leads_to_an_older_record_of_its_key() {
    const STEPS: u64 = 800_000;
    for bits in [4, 14] {
        let mut scene = Scene::new(bits, 4 << 20);
        let mut random = Random(bits.into());
        let mut most_bytes = 0;
        for step in 0..STEPS {
            let number = random.below(60_000 + step / 4);
            match random.below(20) {
                0 => {
                    scene.map.remove(scene.key(number));
                    scene.newest.remove(&number);
                }
                1 => {
                    // Moved by collecting, which may find that the key is elsewhere.
                    let Some(&(_, from)) = scene.newest.get(&number) else {
                        continue;
                    };
                    let to = scene.place(number);
                    let key = scene.key(number);
                    scene.map.moved(key, from, to.1);
                    scene.newest.insert(number, to);
                }
                2 => {
                    let epoch = scene.map.epoch();
                    if let Some(&(_, at)) = scene.newest.get(&number) {
                        scene.map.fill(scene.key(number), at, epoch);
                    }
                }
                3..14 => scene.set(number),
                _ => _ = scene.is_known(number),
            }
            if step % 200_000 == 199_999 {
                most_bytes = most_bytes.max(scene.map.bytes());
                scene.map.set_bytes_max((1 + random.below(16)) << 16);
                while scene.map.shrink_step() {}
                scene.map.set_bytes_max(4 << 20);
            }
        }
        (0..60_000 + STEPS / 4).for_each(|number| _ = scene.is_known(number));
        // 64 shards of 192 buckets, 64 bytes each.
        assert!(most_bytes > 64 * 192 * 64, "{most_bytes} bytes at most");
    }
}

#[test]
fn a_map_with_memory_keeps_nearly_all_keys_in_ten_and_a_half_bytes_each() {
    let mut scene = Scene::new(14, 16 << 20);
    for keys in [400_000_u64, 450_000, 550_000, 800_000, 1_000_000] {
        let from = scene.newest.len() as u64;
        (from..keys).for_each(|number| scene.set(number));
        let known = (0..keys).filter(|&number| scene.is_known(number)).count() as u64;
        let counts = scene.map.counts();
        assert!(known * 100 >= keys * 97, "{known} of {keys}: {counts:?}");
        let bytes = counts.bytes as f64 / known as f64;
        println!("{keys} keys, {known} known, {bytes:.2} bytes each, {counts:?}");
        assert!(bytes <= 10.5, "{bytes} bytes a key: {counts:?}");
    }
}

#[test]
fn a_map_that_may_take_less_gives_back_and_serves_what_is_left() {
    let budget = Budget::new(1 << 30);
    let mut scene = Scene::new(14, 4 << 20);
    scene.map = LocationMap::new(&budget, 64 << 20, 3);
    let index = scene.map.add_page(page(1)).unwrap();
    scene.page = (index, 1, 0);
    let fixed = budget.used(Purpose::Locations);
    scene.map.set_bytes_max(4 << 20);
    (0..400_000).for_each(|number| scene.set(number));
    let all = budget.used(Purpose::Locations);
    assert!(all > 3 << 20 && all <= 4 << 20, "{all}");
    scene.map.set_bytes_max(1 << 20);
    while scene.map.shrink_step() {}
    assert!(budget.used(Purpose::Locations) <= 1 << 20);
    let known = (0..400_000)
        .filter(|&number| scene.is_known(number))
        .count();
    assert!((90_000..140_000).contains(&known), "{known}");
    scene.map.set_bytes_max(fixed);
    while scene.map.shrink_step() {}
    assert_eq!(budget.used(Purpose::Locations), fixed);
    assert!(!(0..400_000).any(|number| scene.is_known(number)));
    drop(scene);
    assert_eq!(budget.used(Purpose::Locations), 0);
}

/// What a reader learned before a sweep is older than what the sweep said.
#[test]
fn a_place_that_was_learned_before_a_sweep_does_not_enter() {
    let mut scene = Scene::new(14, 4 << 20);
    scene.set(1);
    let (_, old) = scene.newest[&1];
    let epoch = scene.map.epoch();
    scene.map.begin_sweep();
    scene.map.remove(scene.key(1));
    assert!(!scene.map.fill(scene.key(1), old, epoch));
    assert_eq!(scene.map.get(scene.key(1), GENERATION), None);
}

/// A reader of an old state does not follow an entry to a page that came later, nor one of a new
/// state to a page that is given up.
#[test]
fn pages_answer_readers_of_their_time_only() {
    let map = LocationMap::new(&Budget::new(1 << 30), 4 << 20, 9);
    map.set_bytes_max(4 << 20);
    let index = map.add_page(Page { born: 5, ..page(1) }).unwrap();
    let key = map.key(0, hash64(b"key"));
    let location = Location {
        page: index,
        place: 9,
        class: SizeClass::of(100).unwrap(),
    };
    map.set(key, location);
    map.end_page(index, 8);
    let seen: Vec<u64> = (0..12).filter(|&g| map.get(key, g).is_some()).collect();
    assert_eq!(seen, [5, 6, 7]);
    let epoch = map.epoch();
    // Another page gets the index once no entry names it.
    map.free_pages();
    assert_eq!(map.counts().entries, 0);
    assert_eq!(map.add_page(page(2)), Some(index));
    assert_eq!(map.get(key, 6), None);
    assert!(!map.fill(key, location, epoch));
    // Giving the same page up twice frees its index once.
    map.end_page(index, 9);
    map.end_page(index, 9);
    assert_eq!(map.ended_pages(), 1);
}

/// Readers beside a writer that grows, shrinks and reuses pages.
#[test]
fn readers_beside_a_growing_map_find_newest_places_or_none() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    const KEYS: u64 = 20_000;
    let map = LocationMap::with_fingerprints(&Budget::new(1 << 30), 16 << 20, 11, 6);
    map.set_bytes_max(1 << 20);
    let class = SizeClass::of(700).unwrap();
    // A key's place tells its version: pages count up, and place = key.
    let versions: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let mut indexes = vec![map.add_page(page(0)).unwrap()];
    let key = |number: u64| map.key(0, hash64(&number.to_le_bytes()));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (done, versions, map) = (&done, &versions, &map);
            scope.spawn(move || {
                let mut random = Random(seed + 100);
                while !done.load(Ordering::Relaxed) {
                    let number = random.below(KEYS);
                    let before = versions[number as usize].load(Ordering::SeqCst);
                    let found = map.get(map.key(0, hash64(&number.to_le_bytes())), GENERATION);
                    if let Some(found) = found.filter(|f| u64::from(f.location.place) == number) {
                        assert!(found.page.id >= before, "{found:?} after {before}");
                    }
                }
            });
        }
        let mut random = Random(5);
        for version in 1..60 {
            indexes.push(map.add_page(page(version)).unwrap());
            map.begin_sweep();
            for _ in 0..KEYS / 4 {
                let number = random.below(KEYS);
                let location = Location {
                    page: *indexes.last().unwrap(),
                    place: number as u32,
                    class,
                };
                map.set(key(number), location);
                versions[number as usize].store(version, Ordering::SeqCst);
            }
            if version % 7 == 0 {
                map.set_bytes_max((1 + random.below(8)) << 17);
                while map.shrink_step() {}
            }
            if version % 5 == 0 && indexes.len() > 12 {
                for old in indexes.drain(..4) {
                    map.end_page(old, 0);
                }
                map.free_pages();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A map that may take less than its pages need has nothing to do: its owner would ask for ever.
/// Found by random runs with little memory.
#[test]
fn a_map_without_room_for_its_pages_rests() {
    let map = LocationMap::new(&Budget::new(1 << 30), 4 << 20, 9);
    map.set_bytes_max(4096);
    let page = Page {
        id: 1,
        offset: 0,
        bytes: 1 << 20,
        collection: 1,
        born: 1,
    };
    let index = map.add_page(page).unwrap();
    assert!(map.bytes() > map.bytes_max());
    let location = Location {
        page: index,
        place: 1,
        class: SizeClass::of(1000).unwrap(),
    };
    for hash in 0..1000 {
        map.fill(map.key(1, hash), location, map.epoch());
    }
    while map.wants_step() {
        assert!(map.shrink_step() || map.grow_step(), "asked for nothing");
    }
}
