//! The memory of reads: the cache within its budget, charges of batches, and what is evicted first.

mod common;

use common::{
    MIB, RECORDS, added, checkpoint, create, key, options, pending, released, value, write_group,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Message, Purpose};
use terrapin_disk::SimDisk;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, PageStore, SpaceClass};

fn cache_use(budget: &Budget) -> u64 {
    budget.used(Purpose::Blocks) + budget.used(Purpose::Metadata)
}

#[test]
fn the_cache_keeps_within_the_budget() {
    let medium = SimDisk::new(9);
    let memory = options(300_000, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let group = write_group(&store, 20_000);
    let index = store.index(&group).unwrap();
    assert!(index.blocks() > 300);
    for i in 0..index.blocks() {
        store.block(&group, &index, i, Fill::Normal).unwrap();
        assert!(cache_use(&budget) <= 300_000);
    }
    assert!(
        cache_use(&budget) > 250_000,
        "{} is little",
        cache_use(&budget)
    );
    let metrics = store.metrics();
    assert_eq!(metrics.cache_bytes, cache_use(&budget));
    assert!(metrics.evictions > 200);
    // When a memtable grows, the caches shrink on request, and every insert keeps below the limit.
    let charge = budget.charge(Purpose::Memtable, 200_000);
    assert!(store.shrink_needed());
    assert!(!store.shrink());
    assert!(cache_use(&budget) <= 100_000);
    for i in 0..index.blocks() {
        store.block(&group, &index, i, Fill::Low).unwrap();
        assert!(cache_use(&budget) <= 100_000);
    }
    // Reads work without any room for caches.
    let all = budget.charge(Purpose::Merge, 200_000);
    store.shrink();
    assert_eq!(cache_use(&budget), 0);
    store.block(&group, &index, 7, Fill::Normal).unwrap();
    assert_eq!((cache_use(&budget), store.metrics().cache_entries), (0, 0));
    drop((charge, all));
    store.block(&group, &index, 7, Fill::Normal).unwrap();
    assert!(cache_use(&budget) > 0);
    drop(store);
    assert_eq!(budget.used_total(), 0, "what was charged is given back");
}

/// Guards against uncharged memory: threads that read many keys at once took up to 768 KiB each.
#[test]
fn the_memory_of_many_reads_at_once_is_charged_while_it_lives() {
    let medium = SimDisk::new(15);
    let memory = options(8 << 20, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let few = store.reading(4, Fill::Normal);
    assert_eq!(budget.used(Purpose::Merge), 0);
    let many = [200, 200].map(|blocks| store.reading(blocks, Fill::Normal));
    assert!(budget.used(Purpose::Merge) >= 1 << 20);
    drop((few, many));
    assert_eq!(budget.used(Purpose::Merge), 0);
}

/// Guards against a batch with memory for short blocks only. Its long blocks were read one after
/// the other.
#[test]
fn large_blocks_of_a_batch_are_read_at_once() {
    let medium = SimDisk::new(17);
    let memory = options(64 * MIB, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let value_bytes = 32 << 10;
    let group = store
        .write_group(pending(0, 64, value_bytes, true), SpaceClass::Normal)
        .unwrap();
    let index = store.index(&group).unwrap();
    assert_eq!(index.blocks(), 64);
    for (count, together) in [(2, 2), (8, 8), (32, 16)] {
        let mut reading = store.reading(count, Fill::Normal);
        // No other block fits beside this one.
        let asked = (0..count)
            .take_while(|&i| {
                let wanted = store.want(&mut reading, &group, &index, 2 * i).unwrap();
                wanted.is_some()
            })
            .count();
        assert!((together..=count).contains(&asked), "{asked} of {count}");
        let charged = budget.used(Purpose::Merge);
        assert!(charged >= (asked * value_bytes) as u64, "{charged}");
        assert!(charged <= MIB, "{charged}");
        let mut taken = 0;
        store
            .finish(&mut reading, &mut |number, block| {
                assert_eq!(block.key(0), key(2 * number));
                let expected = value(2 * number, value_bytes);
                assert_eq!(block.message(0), Message::Put(&expected));
                taken += 1;
            })
            .unwrap();
        assert_eq!(taken, asked);
        drop(reading);
        assert_eq!(budget.used(Purpose::Merge), 0);
    }
}

#[test]
fn a_batch_that_begins_with_a_small_block_reads_large_ones_at_once() {
    let medium = SimDisk::new(18);
    let store = create(&medium, options(64 * MIB, 0));
    let small = write_group(&store, RECORDS);
    let large = store
        .write_group(pending(0, 64, 32 << 10, true), SpaceClass::Normal)
        .unwrap();
    let index = |group| store.index(group).unwrap();
    let (small_index, large_index) = (index(&small), index(&large));
    let mut reading = store.reading(9, Fill::Normal);
    let mut finished = 0;
    let mut want = |group: &GroupRef, index: &GroupIndex, number| {
        let wanted = store.want(&mut reading, group, index, number).unwrap();
        if wanted.is_none() {
            finished += 1;
            store.finish(&mut reading, &mut |_, _| {}).unwrap();
            let wanted = store.want(&mut reading, group, index, number).unwrap();
            assert_eq!(wanted, Some(0));
        }
    };
    want(&small, &small_index, 7);
    (0..8).for_each(|i| want(&large, &large_index, 2 * i));
    assert_eq!(finished, 1);
}

#[test]
fn threads_together_exceed_the_budget_by_no_more_than_an_entry_each() {
    let medium = SimDisk::new(10);
    let memory = options(200_000, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let group = write_group(&store, 10_000);
    let index = store.index(&group).unwrap();
    let entry_bytes = 4096 + 4096;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, group, index, budget) = (&store, &group, &index, &budget);
            scope.spawn(move || {
                let mut at = thread * 17;
                for _ in 0..2000 {
                    at = (at * 5 + 3) % index.blocks();
                    let block = store.block(group, index, at, Fill::Normal).unwrap();
                    assert_eq!(index.find(&block.key(0)), at);
                    assert!(cache_use(budget) <= 200_000 + 4 * entry_bytes);
                }
            });
        }
    });
    assert!(cache_use(&budget) <= 200_000);
    assert_eq!(store.metrics().cache_bytes, cache_use(&budget));
}

fn cached_blocks(store: &PageStore, group: &GroupRef, index: &GroupIndex) -> Vec<usize> {
    (0..index.blocks())
        .filter(|&i| store.cached_block(group, i).is_some())
        .collect()
}

#[test]
fn used_entries_outlive_newer_ones() {
    let medium = SimDisk::new(11);
    let store = create(&medium, options(400_000, 0));
    let groups: Vec<_> = (0..8).map(|_| write_group(&store, 1000)).collect();
    let large = store
        .write_group(pending(0, 20_000, 100, false), SpaceClass::Normal)
        .unwrap();
    for group in &groups {
        store.index(group).unwrap();
        assert!(store.may_contain(group, hash64(&key(1))).unwrap());
    }
    let index = store.index(&large).unwrap();
    // Blocks of three times the cache's size pass through. The metadata was used before all of them
    // and stays.
    let before = store.metrics().misses;
    assert!(index.blocks() > 300);
    for i in 0..300 {
        store
            .block(
                &large,
                &index,
                i,
                if i % 2 == 0 { Fill::Normal } else { Fill::Low },
            )
            .unwrap();
    }
    for group in &groups {
        store.index(group).unwrap();
        assert!(store.may_contain(group, hash64(&key(1))).unwrap());
    }
    let after = store.metrics().misses;
    assert_eq!(
        (after.indexes, after.filters),
        (before.indexes, before.filters)
    );

    // A scan does not displace blocks that gets use again and again.
    let hot: Vec<usize> = (0..20).collect();
    for _ in 0..3 {
        for &i in &hot {
            store.block(&large, &index, i, Fill::Normal).unwrap();
        }
    }
    for i in 40..index.blocks() {
        store.block(&large, &index, i, Fill::Low).unwrap();
    }
    let cached = cached_blocks(&store, &large, &index);
    let kept = hot.iter().filter(|i| cached.contains(i)).count();
    assert!(
        kept >= 15,
        "{kept} of {} hot blocks survived a scan",
        hot.len()
    );
}

#[test]
fn entries_of_freed_pages_leave_the_cache() {
    let medium = SimDisk::new(12);
    let store = create(&medium, options(8 * MIB, 0));
    let (a, b) = (write_group(&store, RECORDS), write_group(&store, RECORDS));
    let generation = checkpoint(&store, added([&a, &b]));
    for group in [&a, &b] {
        let index = store.index(group).unwrap();
        (0..index.blocks())
            .for_each(|i| drop(store.block(group, &index, i, Fill::Normal).unwrap()));
    }
    let full = store.metrics().cache_entries;
    let pin = store.pin(generation);
    checkpoint(&store, released([a.id]));
    common::reclaim_all(&store);
    assert_eq!(
        store.metrics().cache_entries,
        full,
        "a pinned page is still read"
    );
    drop(pin);
    assert!(store.reclaim_needed());
    common::reclaim_all(&store);
    assert!(!store.reclaim_needed());
    assert_eq!(store.metrics().cache_entries, full / 2);
    assert!(store.cached_block(&a, 0).is_none() && store.cached_block(&b, 0).is_some());
}
