//! A full disk whose free space lies in short runs: what is exchanged with the file system for a
//! long one, also after an open.

mod common;

use common::{added, checkpoint, create, fill_with, open, options, released};
use terrapin_base::sync::Arc;
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::{DATA_FILE, PAGES_START, PageKind, PageRef, PageStore, PageUse, SpaceClass};

const MIB: u64 = 1 << 20;

/// A disk full of pages of one extent each, of which every other one is let go.
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
fn on_a_full_disk_short_runs_are_exchanged_for_one() {
    let medium = SimDisk::new(19);
    let (store, kept) = full_of_short_runs(&medium);
    let content = vec![7; 100_000];
    let write = |class| store.write_page(PageKind::Node, &content, class);
    // First what is free beside the reserve, then that too, until there is not enough.
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

/// What of a disk that has nothing else is neither in pages nor in the reserve.
fn unused_bytes(capacity: u64, store: &PageStore) -> u64 {
    capacity - PAGES_START - store.live_bytes() - store.reserve_held_bytes()
}

/// Nobody knows after an open what of the free space is allocated: all but the reserve was out of
/// reach then until pages were freed.
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
    // The reserve is all there, and of use.
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

/// What is refused of runs that are allocated in part goes back to the file system, which has it
/// for the next one.
#[test]
fn runs_with_holes_are_used_after_a_reopen_on_a_full_disk() {
    let medium = SimDisk::new(22);
    let (store, kept) = full_of_short_runs(&medium);
    // The lowest short runs become holes, and then the pages between them are let go.
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
    // But for what the map of a real file system may take of each exchange.
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

/// Nothing is lost of what was free where the file system takes the runs and gives none.
#[test]
fn an_exchange_that_fails_leaves_the_reserve_as_it_was() {
    let medium = SimDisk::new(20);
    let (store, _) = full_of_short_runs(&medium);
    let free = store.free_bytes();
    let write = || store.write_page(PageKind::Node, &[7; 100_000], SpaceClass::Reserve);
    // The file is asked to grow twice before.
    for (op, nth) in [(Op::PunchHole, 2), (Op::Allocate, 3)] {
        medium.inject(Fault::nth(nth, FaultError::NoSpace).on(op).of(DATA_FILE));
        let refused = write().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert_eq!(store.free_bytes(), free);
        assert_eq!(store.reserve_held_bytes(), MIB / 4);
    }
    write().unwrap();
}

/// Each page asked the file system for holes that it could not fill, for growth that it had refused
/// for the page before, and for pieces of known holes. A real one takes milliseconds for each
/// refusal: merges on a full ext4 took minutes.
#[test]
fn a_full_file_system_is_not_asked_again_for_every_page() {
    let refused = |medium: &SimDisk| medium.stats(DATA_FILE).refusals;

    // Short runs are exchanged for long ones.
    let medium = SimDisk::new(23);
    let (store, _) = full_of_short_runs(&medium);
    let before = refused(&medium);
    let (pages, _) = fill_with(&store, 40_000, SpaceClass::Normal);
    assert!(pages.len() > 4, "{} pages", pages.len());
    let count = refused(&medium) - before;
    // The last page asks anew before it fails: for growth, and for a piece.
    assert!(count <= 4 + 2, "{count} refusals for {} pages", pages.len());

    // Holes are known, and the reserve gets less with each page.
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
