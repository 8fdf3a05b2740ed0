//! Models of the page store for the checker of interleavings, in a build with `--cfg
//! terrapin_shuttle`. The cache is too small for what the models read, and blocks are both alone
//! and in slabs. Pages die under readers that have pinned them.
#![cfg(terrapin_shuttle)]

mod common;

use std::sync::Arc;
use std::sync::Mutex; // the checker need not interleave the models' own notes

use common::{added, checkpoint, create, key, make_durable, open, options, pending, value};
use terrapin_base::sync::explore::{explore, spawn};
use terrapin_base::{Budget, Condition, Env, Purpose};
use terrapin_disk::SimDisk;
use terrapin_pages::{
    Changes, Fill, PageKind, PageRef, PageStore, PageUse, Pin, SpaceClass, StoreOptions,
};

const RECORDS: usize = 160;
const VALUE_BYTES: usize = 100;

/// Threads want the same blocks at once, and the reads of each evict the blocks of others. One
/// thread shrinks the cache, and one forgets the group's entries. Each read must find what was
/// written, and every charged byte must return to the budget.
#[test]
fn threads_read_share_and_evict_blocks_at_once() {
    // The room holds the index and two or three blocks.
    explore("pages-cache", || read_and_evict(16 << 10, 16 << 10, 1));
}

/// Like the first model, with blocks in slabs. There is room for one slab, and readers of two kinds
/// want one each.
#[test]
fn threads_fill_and_empty_slabs_at_once() {
    explore("pages-slabs", || read_and_evict(17 << 20, 36 << 10, 4));
}

/// Readers want `times` as many records as fill a few blocks, in `room` bytes for caches under a
/// budget. Another thread shrinks the cache.
fn read_and_evict(budget_bytes: u64, room: u64, times: usize) {
    let records = RECORDS * times;
    let medium = SimDisk::new(1);
    let store = create(&medium, options(4 << 20, 0));
    let group = store
        .write_group(pending(0, records, VALUE_BYTES, true), SpaceClass::Normal)
        .unwrap();
    checkpoint(&store, added([&group]));
    drop(store);
    medium.crash_process();
    let budget = Budget::new(budget_bytes);
    let _memtable = budget.charge(Purpose::Memtable, budget_bytes - room);
    let small = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 0,
        system_cache: false,
    };
    let (store, _) = open(&medium, small, &[PageUse::from(&group)], 2);
    let readers: Vec<_> = (0..3usize)
        .map(|reader| {
            let (store, group) = (store.clone(), group.clone());
            spawn(move || {
                let index = store.index(&group).unwrap();
                for look in 0..4 {
                    // The keys are near each other, so that threads meet at the same blocks.
                    let record = ((look + reader / 2) * records / 5) % records;
                    let number = index.find(&key(record));
                    let fill = if reader == 2 { Fill::Low } else { Fill::Normal };
                    let block = store.block(&group, &index, number, fill).unwrap();
                    let at = block.search(&key(record)).expect("the record is there");
                    let found = block.message(at).put_value().map(<[u8]>::to_vec);
                    assert_eq!(found, Some(value(record, VALUE_BYTES)));
                }
            })
        })
        .collect();
    let shrinker = {
        let store = store.clone();
        spawn(move || while store.shrink() {})
    };
    for reader in readers {
        reader.join().unwrap();
    }
    shrinker.join().unwrap();
    let used = budget.used(Purpose::Blocks) + budget.used(Purpose::Metadata);
    assert!(used <= budget.room_for_caches(), "{used} bytes");
    assert_eq!(store.metrics().cache_bytes, used);
    assert!(store.metrics().evictions > 0, "the cache was not too small");
    drop(store);
    let used = budget.used(Purpose::Blocks) + budget.used(Purpose::Metadata);
    assert_eq!(used, 0, "charged and not given back");
}

/// The signal must reach a thread that waits for pages to purge once there is something to purge.
/// Without the signal the thread waits for ever, and the checker reports a deadlock.
#[test]
fn the_purge_is_notified_once_the_cache_knows_the_pages() {
    explore("pages-told", || {
        let store = create(&SimDisk::new(3), options(4 << 20, 0));
        let write = |byte: u8| store.write_page(PageKind::Node, &[byte; 3000], SpaceClass::Normal);
        // One page stays. Without it, a whole growth step would be free, which also wakes the
        // thread.
        let (_kept, gone) = (write(1).unwrap(), write(2).unwrap());
        assert!(!store.reclaim_needed());
        let giver = {
            let store = store.clone();
            spawn(move || store.abandon(added([&gone])))
        };
        let needed = {
            let (store, signal) = (store.clone(), store.reclaim_signal());
            Condition::new(signal, move || store.reclaim_needed())
        };
        Env::threads().wait(&needed).unwrap();
        giver.join().unwrap();
    });
}

/// A page, and the pin that keeps it.
type Current = Arc<Mutex<(Arc<Pin>, PageRef, u8)>>;

/// Replaces the last page by the next one, as a checkpoint does. Readers see the new state before
/// the old one is dropped.
fn replace(store: &Arc<PageStore>, current: &Current, round: u8) {
    let page = store
        .write_page(PageKind::Node, &[round; 3000], SpaceClass::Normal)
        .unwrap();
    let last = current.lock().unwrap().1;
    let generation = make_durable(store, None);
    let changes = Changes {
        released: vec![last.id],
        ..added([&page])
    };
    store.commit(generation, changes);
    let next = (Arc::new(store.pin(generation)), page, round);
    // The pin of the last state is dropped outside of the lock.
    let _last = std::mem::replace(&mut *current.lock().unwrap(), next);
}

/// Readers pin generations whose pages later checkpoints replace. Meanwhile the store reclaims
/// space and writes it again. A pinned page must never be overwritten (D1, D5).
#[test]
fn a_pinned_page_is_not_overwritten_before_its_last_pin_is_dropped() {
    explore("pages-pins", || {
        let medium = SimDisk::new(2);
        let store = create(&medium, options(4 << 20, 0));
        let first = store
            .write_page(PageKind::Node, &[1; 3000], SpaceClass::Normal)
            .unwrap();
        let generation = checkpoint(&store, added([&first]));
        let current: Current = Arc::new(Mutex::new((Arc::new(store.pin(generation)), first, 1)));
        let writer = {
            let (store, current) = (store.clone(), current.clone());
            spawn(move || (2..7).for_each(|round| replace(&store, &current, round)))
        };
        let reclaimer = {
            let store = store.clone();
            spawn(move || {
                for _ in 0..4 {
                    store.reclaim_step().unwrap();
                }
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (store, current) = (store.clone(), current.clone());
                spawn(move || {
                    for _ in 0..3 {
                        let (pin, page, round) = current.lock().unwrap().clone();
                        for _ in 0..2 {
                            let found = store.read_page(&page, PageKind::Node);
                            assert_eq!(found.unwrap(), [round; 3000], "overwritten");
                        }
                        drop(pin);
                    }
                })
            })
            .collect();
        writer.join().unwrap();
        reclaimer.join().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
        let last = current.lock().unwrap().clone();
        assert_eq!(last.2, 6);
        drop((last, current));
        while store.reclaim_step().unwrap() {}
        assert_eq!(
            store.retired_bytes(),
            0,
            "a page that nobody reaches is kept"
        );
        assert_eq!(store.live_bytes(), 4096);
    });
}
