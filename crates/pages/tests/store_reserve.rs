//! The reserve (D10): from the start, after an open, on a full disk, and beside holes.

mod common;

use common::{
    MIB, added, checkpoint, create, fill_with, open, options, pending, reclaim_all, released,
    write_group, write_node,
};
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::{DATA_FILE, PAGES_START, PageKind, PageUse, SpaceClass};

#[test]
fn the_reserve_exists_from_the_start_and_serves_its_class_only() {
    let medium = SimDisk::new(5);
    medium.set_capacity(4 * MIB);
    let store = create(&medium, options(4 * MIB, 2 * MIB));
    assert_eq!(store.reserve_held_bytes(), 2 * MIB);
    let (pages, error) = fill_with(&store, 60_000, SpaceClass::Normal);
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let text = error.to_string();
    assert!(
        text.contains(DATA_FILE) && text.contains("bytes wanted 61440"),
        "{text}"
    );
    assert_eq!(store.reserve_held_bytes(), 2 * MIB);
    assert!(pages.len() as u64 * 61_440 > MIB, "{} pages", pages.len());
    checkpoint(&store, added(&pages));

    // Deletes pass on the full disk: a new, smaller tree is written from the reserve. The old pages
    // are freed, and normal writes resume.
    let large = store
        .write_group(pending(0, 8000, 100, true), SpaceClass::Reserve)
        .unwrap();
    assert!(large.bytes > MIB / 2);
    assert!(store.space_is_short());
    assert_eq!(
        store
            .write_page(PageKind::Node, b"x", SpaceClass::Normal)
            .unwrap_err()
            .kind(),
        ErrorKind::NoSpace
    );
    let mut changes = added([&large]);
    changes.merge(released(pages.iter().map(|page| page.id)));
    checkpoint(&store, changes);
    assert!(!store.space_is_short());
    assert_eq!(store.reserve_held_bytes(), 2 * MIB);
    store
        .write_page(PageKind::Node, b"x", SpaceClass::Normal)
        .unwrap();
}

#[test]
fn one_run_across_the_bound_of_the_reserve_can_be_allocated() {
    let medium = SimDisk::new(18);
    medium.set_capacity(MIB / 2);
    let store = create(&medium, options(4 * MIB, 64 << 10));
    let (pages, error) = fill_with(&store, 60_000, SpaceClass::Normal);
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    checkpoint(&store, added(&pages));
    // The page right behind the reserve is released. That makes sixteen extents and fifteen side by
    // side, and the test wants twenty.
    checkpoint(&store, released([pages[0].id]));
    assert_eq!(pages[0].offset, PAGES_START + (64 << 10));
    assert_eq!(store.reserve_held_bytes(), 64 << 10);
    assert_eq!(store.free_bytes(), (64 << 10) + 61_440);
    let content = vec![7; 80_000];
    let write = |class| store.write_page(PageKind::Node, &content, class);
    let refused = write(SpaceClass::Normal).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let page = write(SpaceClass::Reserve).unwrap();
    assert_eq!(store.read_page(&page, PageKind::Node).unwrap(), content);
    // The rest of both is the reserve.
    assert_eq!(store.free_bytes(), 11 * EXTENT_ALIGNMENT);
    assert_eq!(store.reserve_held_bytes(), store.free_bytes());
}

#[test]
fn normal_writes_get_no_hole_while_the_reserve_is_short() {
    let medium = SimDisk::new(14);
    let store = create(&medium, options(4 * MIB, MIB));
    let groups: Vec<_> = (0..6).map(|_| write_group(&store, 10_000)).collect();
    checkpoint(&store, added(&groups));
    checkpoint(
        &store,
        released(groups.iter().step_by(2).map(|group| group.id)),
    );
    store.begin_reclaim();
    reclaim_all(&store);
    assert!(store.free_bytes() > 2 * MIB, "no holes");
    medium.set_capacity(medium.used_bytes());
    let taken = store
        .write_group(pending(0, 2000, 100, true), SpaceClass::Reserve)
        .unwrap();
    assert!(store.space_is_short());
    medium.set_capacity(medium.used_bytes() + 3 * 4096);
    let write = || store.write_page(PageKind::Node, b"x", SpaceClass::Normal);
    assert_eq!(write().unwrap_err().kind(), ErrorKind::NoSpace);
    store.abandon(added([&taken]));
    write().unwrap();
}

#[test]
fn the_reserve_survives_a_reopen_on_a_full_disk() {
    let medium = SimDisk::new(6);
    let store = create(&medium, options(4 * MIB, MIB));
    let page = write_node(&store, 100);
    checkpoint(&store, added([&page]));
    drop(store);
    medium.crash_process();
    medium.set_capacity(medium.used_bytes());
    let (store, _) = open(&medium, options(4 * MIB, MIB), &[PageUse::from(&page)], 2);
    assert_eq!(store.reserve_held_bytes(), MIB);
    store
        .write_group(pending(0, 1000, 100, true), SpaceClass::Reserve)
        .unwrap();
    drop(store);
    medium.crash_process();
    // A disk too full for the reserve can still be opened.
    let (store, _) = open(
        &medium,
        options(4 * MIB, 64 * MIB),
        &[PageUse::from(&page)],
        3,
    );
    assert!(store.space_is_short());
    assert!(
        store
            .write_page(PageKind::Node, b"x", SpaceClass::Normal)
            .is_err()
    );
    store
        .write_page(PageKind::Node, b"x", SpaceClass::Reserve)
        .unwrap();
}

/// The reserve is one free run with the hole beside it, and other holes would be large enough for
/// it too.
#[test]
fn the_reserve_is_found_beside_holes_on_a_full_disk() {
    let medium = SimDisk::new(15);
    let store = create(&medium, options(4 * MIB, MIB / 2));
    let groups: Vec<_> = (0..6).map(|_| write_group(&store, 10_000)).collect();
    checkpoint(&store, added(&groups));
    let every_other = groups.iter().step_by(2).map(|group| group.id);
    checkpoint(&store, released(every_other));
    store.begin_reclaim();
    reclaim_all(&store);
    medium.set_capacity(medium.used_bytes());
    drop(store);
    medium.crash_process();
    let kept: Vec<_> = groups.iter().skip(1).step_by(2).collect();
    let uses: Vec<_> = kept.iter().map(|&group| PageUse::from(group)).collect();
    let (store, _) = open(&medium, options(4 * MIB, MIB / 2), &uses, 2);
    assert_eq!(store.reserve_held_bytes(), MIB / 2);
    let write = |class| store.write_page(PageKind::Node, b"x", class);
    let refused = write(SpaceClass::Normal).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    write(SpaceClass::Reserve).unwrap();
    for group in kept {
        assert!(store.read_whole_group(group).is_ok());
    }
}

/// Holes are on both sides of the reserve, at any offset relative to the pieces of the search.
#[test]
fn the_reserve_is_found_between_holes_on_a_full_disk() {
    for records in [700, 2000, 3100, 4300] {
        let medium = SimDisk::new(16);
        let store = create(&medium, options(4 * MIB, 0));
        let before = write_group(&store, records);
        checkpoint(&store, added(&[before]));
        drop(store);
        medium.crash_process();
        let uses = [PageUse::from(&before)];
        let (store, _) = open(&medium, options(4 * MIB, MIB / 2), &uses, 2);
        let behind: Vec<_> = (0..2).map(|_| write_group(&store, 10_000)).collect();
        checkpoint(&store, added(&behind));
        checkpoint(&store, released([before.id, behind[0].id]));
        store.begin_reclaim();
        reclaim_all(&store);
        medium.set_capacity(medium.used_bytes());
        drop(store);
        medium.crash_process();
        let uses = [PageUse::from(&behind[1])];
        let (store, _) = open(&medium, options(4 * MIB, MIB / 2), &uses, 3);
        // Some bytes may be missing: pieces that contained a part of a hole.
        let held = store.reserve_held_bytes();
        assert!(held + 2 * (64 << 10) >= MIB / 2, "{records}: {held}");
        assert!(store.free_bytes() > MIB, "no holes");
        store
            .write_group(pending(0, 2000, 100, true), SpaceClass::Reserve)
            .unwrap();
    }
}

/// Space whose return failed stays allocated, but nothing may rely on it.
#[test]
fn a_used_up_reserve_finds_allocated_space_behind_a_hole() {
    let medium = SimDisk::new(17);
    let store = create(&medium, options(4 * MIB, MIB / 2));
    let groups: Vec<_> = (0..3).map(|_| write_group(&store, 10_000)).collect();
    checkpoint(&store, added(&groups));
    checkpoint(&store, released([groups[0].id]));
    store.begin_reclaim();
    reclaim_all(&store);
    checkpoint(&store, released([groups[1].id]));
    store.begin_reclaim();
    medium.inject(
        Fault::nth(1, FaultError::Io)
            .on(Op::PunchHole)
            .of(DATA_FILE),
    );
    assert!((0..100).any(|_| store.reclaim_step().is_err()));
    medium.set_capacity(medium.used_bytes());
    let write = || store.write_group(pending(0, 3500, 100, true), SpaceClass::Reserve);
    write().unwrap();
    assert!(store.space_is_short());
    write().unwrap();
    assert!(store.read_whole_group(&groups[2]).is_ok());
}
