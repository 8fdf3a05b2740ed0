//! The memory of cached blocks: slabs that are evicted whole, blocks that survive them, and
//! charges.

mod common;

use std::sync::Arc;

use common::{
    added, builder, checkpoint, create, key, options, pending, reclaim_all, released, value,
    write_group,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Charge, Message, Purpose};
use terrapin_disk::SimDisk;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, PageStore, SpaceClass};

/// A budget whose slabs hold seven of the tests' blocks.
const BUDGET: u64 = 17 << 20;
const SLAB: u64 = 32 << 10;

/// A store whose caches have `room` bytes, with the slabs of a larger budget, and a group much
/// larger than the room.
struct Scene {
    store: Arc<PageStore>,
    budget: Arc<Budget>,
    group: GroupRef,
    index: Arc<GroupIndex>,
    /// The charge that takes the rest of the budget.
    memtable: Charge,
}

impl Scene {
    fn new(seed: u64, room: u64) -> Self {
        let memory = options(BUDGET, 0);
        let budget = memory.budget.clone();
        let memtable = budget.charge(Purpose::Memtable, BUDGET - room);
        let store = create(&SimDisk::new(seed), memory);
        let group = store
            .write_group(pending(0, 40_000, 100, false), SpaceClass::Normal)
            .unwrap();
        let index = store.index(&group).unwrap();
        assert!(index.blocks() > 1000);
        Scene {
            store,
            budget,
            group,
            index,
            memtable,
        }
    }

    fn read(&self, number: usize, fill: Fill) {
        let block = self
            .store
            .block(&self.group, &self.index, number, fill)
            .unwrap();
        assert_eq!(self.index.find(&block.key(0)), number);
    }

    fn charged(&self) -> u64 {
        self.budget.used(Purpose::Blocks) + self.budget.used(Purpose::Metadata)
    }

    /// How many of the blocks are cached.
    fn cached(&self, numbers: impl Iterator<Item = usize>) -> usize {
        let found = |&number: &usize| {
            let block = self.store.cached_block_as(&self.group, number, Fill::No);
            block.is_some()
        };
        numbers.filter(found).count()
    }
}

#[test]
fn charges_keep_to_the_room_and_shrink_by_whole_slabs() {
    let mut scene = Scene::new(1, 1 << 20);
    for number in 0..1000 {
        scene.read(number, Fill::Normal);
        assert!(scene.charged() <= 1 << 20, "{}", scene.charged());
    }
    assert!(scene.charged() > (1 << 20) - 2 * SLAB);
    assert_eq!(scene.store.metrics().cache_bytes, scene.charged());
    // The slabs are full: little of 1 MiB is unused.
    assert!(scene.cached(0..1000) > 190, "{}", scene.cached(0..1000));

    scene.memtable.resize(BUDGET - (256 << 10));
    assert!(!scene.store.shrink());
    assert!(scene.charged() <= 256 << 10);
    for number in 0..200 {
        scene.read(number, Fill::Low);
        assert!(scene.charged() <= 256 << 10);
    }
    // Blocks can be read without room for a slab.
    scene.memtable.resize(BUDGET - 10_000);
    scene.store.shrink();
    scene.read(300, Fill::Normal);
    assert!(scene.charged() <= 10_000);
    let budget = scene.budget.clone();
    drop(scene);
    assert_eq!(budget.used_total(), 0);
}

#[test]
fn a_reader_keeps_the_slab_of_its_block_and_its_charge() {
    let mut scene = Scene::new(2, 1 << 20);
    let (group, index) = (scene.group, scene.index.clone());
    let block = scene.store.block(&group, &index, 0, Fill::Normal).unwrap();
    let (expected, bytes) = (block.bytes().to_vec(), block.bytes().as_ptr());
    for number in 1..600 {
        scene.read(number, Fill::Normal);
    }
    scene.memtable.resize(BUDGET);
    scene.store.shrink();
    assert_eq!(scene.store.metrics().cache_entries, 0);
    assert_eq!(scene.charged(), SLAB, "the slab of the block");
    assert_eq!(
        (block.bytes(), block.bytes().as_ptr()),
        (&expected[..], bytes)
    );
    drop(block);
    assert_eq!(scene.charged(), 0);
}

#[test]
fn only_used_blocks_survive_their_slabs() {
    let scene = Scene::new(3, 1 << 20);
    // The blocks are spread over the slabs of the first 200.
    let hot: Vec<usize> = (0..200).step_by(9).collect();
    (0..200).for_each(|number| scene.read(number, Fill::Normal));
    for round in 0..8 {
        hot.iter()
            .for_each(|&number| scene.read(number, Fill::Normal));
        let cold = 200 + round * 100;
        (cold..cold + 100).for_each(|number| scene.read(number, Fill::Normal));
    }
    let others = scene.cached((0..200).filter(|number| !hot.contains(number)));
    assert_eq!((scene.cached(hot.iter().copied()), others), (hot.len(), 0));
}

#[test]
fn only_first_uses_in_the_oldest_quarter_are_counted() {
    let scene = Scene::new(9, 1 << 20);
    let last = 1000;
    for number in 0..last {
        scene.read(number, Fill::Normal);
    }
    let rescues = || scene.store.metrics().block_rescues;
    for number in last - 20..last {
        scene.read(number, Fill::Normal);
    }
    assert_eq!(rescues(), 0, "the youngest");
    // The lookup is a use.
    let held = scene.cached(0..last) as u64;
    let first = rescues();
    assert!(first > held / 5 && first < held / 3, "{first} of {held}");
    assert_eq!(scene.cached(0..last) as u64, held);
    assert_eq!(rescues(), first, "second uses");
}

#[test]
fn asking_whether_a_block_is_cached_is_no_use() {
    let scene = Scene::new(14, 1 << 20);
    (0..200).for_each(|number| scene.read(number, Fill::Normal));
    let before = scene.store.metrics();
    let has = |number: &usize| scene.store.has_block(&scene.group, *number);
    assert_eq!(
        (0..400).filter(has).collect::<Vec<_>>(),
        Vec::from_iter(0..200)
    );
    assert_eq!(scene.store.metrics(), before);
    // The question kept none of these blocks.
    (400..800).for_each(|number| scene.read(number, Fill::Normal));
    assert_eq!((0..200).filter(has).count(), 0);
}

#[test]
fn an_emptied_cache_keeps_only_what_readers_hold_and_fills_again() {
    let scene = Scene::new(9, 1 << 20);
    let read = |number| {
        scene
            .store
            .block(&scene.group, &scene.index, number, Fill::Normal)
    };
    let block = read(0).unwrap();
    let expected = block.bytes().to_vec();
    (1..150).for_each(|number| scene.read(number, Fill::Normal));
    (150..200).for_each(|number| scene.read(number, Fill::Low));
    let before = scene.store.metrics();
    scene.store.empty_caches();
    let after = scene.store.metrics();
    assert_eq!((after.cache_entries, after.cache_bytes), (0, 0));
    assert_eq!((after.hits, after.misses), (before.hits, before.misses));
    assert_eq!(scene.charged(), SLAB, "the slab of the block");
    assert_eq!(block.bytes(), expected);
    drop(block);
    assert_eq!(scene.charged(), 0);
    (0..150).for_each(|number| scene.read(number, Fill::Normal));
    assert_eq!(scene.cached(0..150), 150);
}

#[test]
fn used_blocks_outlive_a_long_scan() {
    let scene = Scene::new(4, 1 << 20);
    let hot: Vec<usize> = (0..60).collect();
    let scanned: Vec<usize> = (100..110).collect();
    for _ in 0..2 {
        hot.iter()
            .for_each(|&number| scene.read(number, Fill::Normal));
        scanned
            .iter()
            .for_each(|&number| scene.read(number, Fill::Low));
    }
    (200..1000).for_each(|number| scene.read(number, Fill::Low));
    let (hot, scanned) = (
        scene.cached(hot.into_iter()),
        scene.cached(scanned.into_iter()),
    );
    assert!(hot >= 45, "{hot} of 60 blocks of gets");
    assert!(scanned >= 6, "{scanned} of 10 blocks of scans");
}

#[test]
fn a_cache_of_used_blocks_makes_room_with_bounded_work() {
    let scene = Scene::new(5, 1 << 20);
    for _ in 0..5 {
        (0..150).for_each(|number| scene.read(number, Fill::Normal));
    }
    let before = scene.store.metrics().evictions;
    (400..500).for_each(|number| scene.read(number, Fill::Normal));
    let evicted = scene.store.metrics().evictions - before;
    assert!(evicted <= 150, "{evicted} blocks went for 100");
    assert!(scene.cached(400..500) > 60);
}

#[test]
fn sparse_slabs_of_freed_pages_are_joined() {
    let store = create(&SimDisk::new(6), options(BUDGET, 0));
    let groups: Vec<_> = (0..8).map(|_| write_group(&store, 2000)).collect();
    let generation = checkpoint(&store, added(&groups));
    // Every slab holds blocks of all groups.
    for number in 0..50 {
        for group in &groups {
            let index = store.index(group).unwrap();
            store.block(group, &index, number, Fill::Normal).unwrap();
        }
    }
    let before = store.metrics();
    let pin = store.pin(generation);
    checkpoint(&store, released(groups[2..].iter().map(|group| group.id)));
    drop(pin);
    reclaim_all(&store);
    let after = store.metrics();
    assert_eq!(after.evictions, before.evictions, "nothing alive left");
    for group in &groups[..2] {
        assert!((0..50).all(|n| store.cached_block(group, n).is_some()));
    }
    // A quarter of the blocks is left, in slabs that are at least half full.
    assert!(after.cache_bytes < before.cache_bytes * 6 / 10);
}

#[test]
fn metadata_ages_with_evicted_blocks() {
    let scene = Scene::new(7, 1 << 20);
    let groups: Vec<_> = (0..8).map(|_| write_group(&scene.store, 1000)).collect();
    let ask = || {
        let before = scene.store.metrics().misses;
        for group in &groups {
            scene.store.index(group).unwrap();
            let found = scene.store.may_contain(group, hash64(&key(1)));
            assert!(found.unwrap());
        }
        let after = scene.store.metrics().misses;
        (after.indexes - before.indexes) + (after.filters - before.filters)
    };
    ask();
    // With four times the room, metadata outlives blocks.
    (0..1000).for_each(|number| scene.read(number, Fill::Normal));
    assert_eq!(ask(), 0);
    // Metadata leaves after many times the room without a use.
    for _ in 0..4 {
        (0..1000).for_each(|number| scene.read(number, Fill::Normal));
    }
    assert_eq!(ask(), 16);
}

#[test]
fn blocks_that_readers_keep_evict_no_metadata() {
    let mut scene = Scene::new(13, 2 << 20);
    let groups: Vec<_> = (0..8).map(|_| write_group(&scene.store, 1000)).collect();
    let ask = || {
        let before = scene.store.metrics().misses.indexes;
        for group in &groups {
            scene.store.index(group).unwrap();
        }
        scene.store.metrics().misses.indexes - before
    };
    assert_eq!(ask(), 0, "cached as they were written");
    let read = |number| {
        scene
            .store
            .block(&scene.group, &scene.index, number, Fill::Normal)
    };
    let kept: Vec<_> = (0..200).map(|number| read(number).unwrap()).collect();
    // First less room than the reader's block takes, then that and less than one block more.
    for (parts, more) in [(2, 0), (1, 2000)] {
        let room = scene.budget.used(Purpose::Blocks) / parts + more;
        scene.memtable.resize(BUDGET - room);
        (300..320).for_each(|number| scene.read(number, Fill::Normal));
        (320..340).for_each(|number| scene.read(number, Fill::Low));
        assert_eq!(ask(), 0, "blocks beside {room} bytes");
        let large = write_group(&scene.store, 20_000);
        assert!(scene.store.index(&large).unwrap().memory_bytes() > 2000);
        assert_eq!(ask(), 0, "metadata beside {room} bytes");
    }
    // Smaller entries can still enter the cache.
    drop(kept);
    scene.read(300, Fill::Normal);
    assert_eq!(scene.cached(300..301), 1);
}

#[test]
fn threads_that_fill_and_evict_slabs_find_what_was_written() {
    let scene = Scene::new(8, 512 << 10);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let scene = &scene;
            scope.spawn(move || {
                let mut at = thread * 17;
                for step in 0..3000 {
                    at = (at * 5 + 3) % 400;
                    let fill = [Fill::Normal, Fill::Low, Fill::No][step % 3];
                    scene.read(at, fill);
                    assert!(scene.charged() <= (512 << 10) + 8 * SLAB);
                }
            });
        }
    });
    while scene.store.shrink() {}
    assert!(scene.charged() <= 512 << 10);
    assert_eq!(scene.store.metrics().cache_bytes, scene.charged());
}

/// Writes the scene's group anew with shorter values, as a merge does that replaces it.
fn replace(scene: &Scene) -> (GroupRef, Arc<GroupIndex>) {
    let mut builder = builder(false);
    let mut last = None;
    for i in 0..40_000 {
        let block = scene.index.find(&key(i));
        if last != Some(block) {
            builder.takes_place_of(scene.store.bequeath_block(&scene.group, block));
            last = Some(block);
        }
        let added = builder.add(&key(i), Message::Put(&value(i, 60)));
        assert!(added.unwrap().is_none());
    }
    let group = builder.finish().remove(0);
    let group = scene.store.write_group(group, SpaceClass::Normal).unwrap();
    let index = scene.store.index(&group).unwrap();
    (group, index)
}

#[test]
fn replacing_blocks_take_over_the_standing_of_cached_ones() {
    let mut scene = Scene::new(10, 16 << 20);
    (0..100).for_each(|number| scene.read(number, Fill::Normal));
    (0..50).for_each(|number| scene.read(number, Fill::Normal));
    (200..300).for_each(|number| scene.read(number, Fill::Low));
    let before = scene.store.metrics();
    let (group, index) = replace(&scene);
    // The records of a block of the old group, and the new blocks that hold them.
    let records = |block: usize| scene.index.records_before(block) as usize;
    let cached = |from: usize, to: usize| {
        let blocks = index.find(&key(records(from)))..=index.find(&key(records(to) - 1));
        let count = blocks.clone().count();
        let found = blocks.filter(|&number| {
            let block = scene.store.cached_block_as(&group, number, Fill::No);
            block.is_some_and(|block| index.find(&block.key(0)) == number)
        });
        (found.count(), count)
    };
    for (from, to) in [(0, 50), (50, 100), (200, 300)] {
        let (found, count) = cached(from, to);
        assert!(found + 2 >= count, "{found} of {count} from {from} to {to}");
    }
    for (from, to) in [(101, 199), (301, 1000)] {
        assert_eq!(cached(from, to).0, 0);
    }
    assert_eq!(scene.store.metrics().read, before.read);

    // The old blocks have no lives left, so all of them leave and make room for the new ones.
    scene.memtable.resize(BUDGET - (1 << 20));
    scene.store.shrink_fully();
    (400..600).for_each(|number| scene.read(number, Fill::Normal));
    assert_eq!(scene.cached(0..300), 0);
    let (used, of_used) = cached(0, 50);
    assert!(used * 10 >= of_used * 6, "{used} of {of_used}");
}

#[test]
fn a_full_cache_takes_replacing_blocks_only_of_used_ones() {
    let scene = Scene::new(12, 1 << 20);
    (0..400).for_each(|number| scene.read(number, Fill::Normal));
    (350..370).for_each(|number| scene.read(number, Fill::Normal));
    let (group, index) = replace(&scene);
    let first = |block: usize| index.find(&key(scene.index.records_before(block) as usize));
    let found: Vec<usize> = (0..index.blocks())
        .filter(|&number| {
            scene
                .store
                .cached_block_as(&group, number, Fill::No)
                .is_some()
        })
        .collect();
    assert!(found.len() >= 10, "{found:?}");
    assert!(
        found
            .iter()
            .all(|number| (first(350)..=first(370)).contains(number)),
        "{found:?}"
    );
}

#[test]
fn a_replacing_group_keeps_within_the_room() {
    let mut scene = Scene::new(11, 1 << 20);
    for room in [1 << 20, 200 << 10, SLAB / 2, 0] {
        scene.memtable.resize(BUDGET - room);
        scene.store.shrink_fully();
        for number in 0..1000 {
            scene.read(number, Fill::Normal);
            scene.read(number, Fill::Normal);
        }
        assert!(scene.charged() <= room);
        let (group, index) = replace(&scene);
        assert!(scene.charged() <= room, "{} of {room}", scene.charged());
        let found = (0..index.blocks())
            .filter(|&number| scene.store.cached_block(&group, number).is_some());
        assert_eq!(found.count() > 0, room > 0, "{room} bytes of room");
    }
}
