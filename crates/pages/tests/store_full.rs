//! A full disk whose free space is in short runs. The store exchanges short runs for a long one,
//! also after an open.

mod common;

use common::{MIB, added, checkpoint, create, fill_with, open, options, released};
use terrapin_base::sync::Arc;
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::{DATA_FILE, PAGES_START, PageKind, PageRef, PageStore, PageUse, SpaceClass};

/// A disk full of pages of one extent each, of which every other page is released.
fn full_of_short_runs(medium: &SimDisk) -> (Arc<PageStore>, Vec<PageRef>) {
    medium.set_capacity(MIB);
    let store = create(medium, options(4 * MIB, MIB / 4));
    let (mut pages, error) = fill_with(&store, 4000, SpaceClass::Normal);
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let (more, error) = fill_with(&store, 4000, SpaceClass::Reserve);
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(store.free_bytes(), 0);
    pages.extend(more);
    checkpoint(&store, added(&pages));
    pages.sort_by_key(|page| page.offset);
    let every_other = pages.iter().step_by(2).map(|page| page.id);
    checkpoint(&store, released(every_other));
    assert_eq!(store.reserve_held_bytes(), MIB / 4);
    let kept = pages.iter().skip(1).step_by(2).copied().collect();
    (store, kept)
}

#[test]
fn short_runs_are_exchanged_for_a_long_one_on_a_full_disk() {
    let medium = SimDisk::new(19);
    let (store, kept) = full_of_short_runs(&medium);
    let content = vec![7; 100_000];
    let write = |class| store.write_page(PageKind::Node, &content, class);
    // Pages first use the free space beside the reserve, then the reserve, until neither suffices.
    let mut pages = Vec::new();
    for class in [SpaceClass::Normal, SpaceClass::Reserve] {
        let refused = loop {
            match write(class) {
                Ok(page) => pages.push(page),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        if class == SpaceClass::Normal {
            assert_eq!(store.reserve_held_bytes(), MIB / 4);
            assert!(!pages.is_empty(), "nothing beside the reserve");
        }
    }
    assert!(pages.len() as u64 * 102_400 > MIB / 4, "{}", pages.len());
    assert!(medium.used_bytes() <= MIB);
    for page in &pages {
        assert_eq!(store.read_page(page, PageKind::Node).unwrap(), content);
    }
    for page in &kept {
        assert_eq!(store.read_page(page, PageKind::Node).unwrap(), [1; 4000]);
    }
}

/// Bytes of a disk that are neither in pages nor in the reserve.
fn unused_bytes(capacity: u64, store: &PageStore) -> u64 {
    capacity - PAGES_START - store.live_bytes() - store.reserve_held_bytes()
}

/// Guards against losing the free space after an open. The store does not know then which of it is
/// allocated. Once, all but the reserve was unusable until pages were freed.
#[test]
fn short_runs_are_exchanged_after_a_reopen_on_a_full_disk() {
    let medium = SimDisk::new(21);
    let (store, kept) = full_of_short_runs(&medium);
    drop(store);
    medium.crash_process();
    let uses: Vec<_> = kept.iter().map(PageUse::from).collect();
    let (store, _) = open(&medium, options(4 * MIB, MIB / 4), &uses, 2);
    assert_eq!(store.reserve_held_bytes(), MIB / 4);
    let (pages, refused) = fill_with(&store, 100_000, SpaceClass::Normal);
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let unused = unused_bytes(MIB, &store);
    assert!(unused < 102_400, "{unused} after {} pages", pages.len());
    // The reserve is whole and usable.
    assert_eq!(store.reserve_held_bytes(), MIB / 4);
    let (more, refused) = fill_with(&store, 100_000, SpaceClass::Reserve);
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(more.len() >= 2, "{} pages of the reserve", more.len());
    assert!(medium.used_bytes() <= MIB);
    let content = vec![1_u8; 100_000];
    for page in pages.iter().chain(&more) {
        assert_eq!(store.read_page(page, PageKind::Node).unwrap(), content);
    }
    for page in &kept {
        assert_eq!(store.read_page(page, PageKind::Node).unwrap(), [1; 4000]);
    }
}

/// A refused run that is allocated in part goes back to the file system. The next run then gets its
/// blocks.
#[test]
fn runs_with_holes_are_used_after_a_reopen_on_a_full_disk() {
    let medium = SimDisk::new(22);
    let (store, kept) = full_of_short_runs(&medium);
    // The lowest short runs become holes. Then the pages between them are released.
    let page = store
        .write_page(PageKind::Node, &[1; 100_000], SpaceClass::Normal)
        .unwrap();
    let (gone, kept) = kept.split_at(26);
    let mut changes = added([&page]);
    changes.merge(released(gone.iter().map(|page| page.id)));
    checkpoint(&store, changes);
    drop(store);
    medium.crash_process();
    let capacity = medium.used_bytes();
    medium.set_capacity(capacity);
    let uses: Vec<_> = kept.iter().chain([&page]).map(PageUse::from).collect();
    let (store, _) = open(&medium, options(4 * MIB, 0), &uses, 2);
    let (pages, refused) = fill_with(&store, 100_000, SpaceClass::Normal);
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    // The map of a real file system may take some blocks for each exchange.
    let maps = pages.len() as u64 * 2 * EXTENT_ALIGNMENT;
    let unused = unused_bytes(capacity, &store);
    assert!(
        unused < 102_400 + maps,
        "{unused} after {} pages",
        pages.len()
    );
    for page in kept {
        assert_eq!(store.read_page(page, PageKind::Node).unwrap(), [1; 4000]);
    }
    let content = vec![1_u8; 100_000];
    for page in pages.iter().chain([&page]) {
        assert_eq!(store.read_page(page, PageKind::Node).unwrap(), content);
    }
}

/// No free space is lost if the file system takes the runs and gives none.
#[test]
fn a_failed_exchange_leaves_the_reserve_unchanged() {
    let medium = SimDisk::new(20);
    let (store, _) = full_of_short_runs(&medium);
    let free = store.free_bytes();
    let write = || store.write_page(PageKind::Node, &[7; 100_000], SpaceClass::Reserve);
    // The file tries to grow twice before.
    for (op, nth) in [(Op::PunchHole, 2), (Op::Allocate, 3)] {
        medium.inject(Fault::nth(nth, FaultError::NoSpace).on(op).of(DATA_FILE));
        let refused = write().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert_eq!(store.free_bytes(), free);
        assert_eq!(store.reserve_held_bytes(), MIB / 4);
    }
    write().unwrap();
}

/// Guards against repeated refusals. Each page once asked the file system for holes that it could
/// not fill, and for growth that it had refused before. A real file system takes milliseconds for
/// each refusal, so merges on a full ext4 took minutes.
#[test]
fn each_page_does_not_ask_a_full_file_system_again() {
    let refused = |medium: &SimDisk| medium.stats(DATA_FILE).refusals;

    // Short runs are exchanged for long ones.
    let medium = SimDisk::new(23);
    let (store, _) = full_of_short_runs(&medium);
    let before = refused(&medium);
    let (pages, _) = fill_with(&store, 40_000, SpaceClass::Normal);
    assert!(pages.len() > 4, "{} pages", pages.len());
    let count = refused(&medium) - before;
    // The last page asks again before it fails: for growth, and for a piece.
    assert!(count <= 4 + 2, "{count} refusals for {} pages", pages.len());

    // Holes are known, and each page lowers the reserve.
    let medium = SimDisk::new(24);
    let store = create(&medium, options(4 * MIB, MIB));
    let (pages, _) = {
        medium.set_capacity(6 * MIB);
        fill_with(&store, 200_000, SpaceClass::Normal)
    };
    checkpoint(&store, added(&pages));
    let every_other = pages.iter().step_by(2).map(|page| page.id);
    checkpoint(&store, released(every_other));
    store.begin_reclaim();
    while store.reclaim_step().unwrap() {}
    medium.set_capacity(medium.used_bytes());
    let before = refused(&medium);
    let (pages, _) = fill_with(&store, 30_000, SpaceClass::Reserve);
    assert!(pages.len() > 20, "{} pages", pages.len());
    let count = refused(&medium) - before;
    assert!(count <= 8, "{count} refusals for {} pages", pages.len());
}
