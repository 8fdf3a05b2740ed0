//! The space of the data file: generations and pins, side roots, the reserve, a full disk, and the
//! return of space.

mod common;

use std::collections::BTreeMap;

use common::{
    added, checkpoint, create, fill_with, open, options, pending, reclaim_all, released,
    write_group, write_node,
};
use proptest::prelude::*;
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind, Generation, PageId};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Media, MediaFault, Op};
use terrapin_pages::group::GroupRef;
use terrapin_pages::{
    Changes, DATA_FILE, PAGES_START, PageKind, PageRef, PageStore, PageUse, SpaceClass,
};

const MIB: u64 = 1 << 20;

fn extent_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(EXTENT_ALIGNMENT)
}

#[test]
fn released_space_is_reused_only_after_the_commit_and_the_last_pin() {
    let medium = SimDisk::new(1);
    let store = create(&medium, options(4 * MIB, 0));
    let page = write_node(&store, 4000);
    let born = checkpoint(&store, added([&page]));
    let pin = store.pin(born);
    let clone = pin.clone();
    let live = store.live_bytes();
    let died = checkpoint(&store, released([page.id]));
    let newer = store.pin(died); // keeps no page that died with this generation
    assert_eq!(
        (store.live_bytes(), store.retired_bytes()),
        (live - 4096, 4096)
    );
    let other = write_node(&store, 4000);
    assert_ne!(other.offset, page.offset);
    drop(pin);
    assert_eq!(store.retired_bytes(), 4096);
    assert!(!store.reclaim_needed());
    assert_eq!(store.read_page(&page, PageKind::Node).unwrap(), [7; 4000]);
    drop(clone);
    assert!(store.reclaim_needed());
    store.reclaim_step().unwrap();
    assert_eq!(store.retired_bytes(), 0);
    assert_eq!(write_node(&store, 4000).offset, page.offset);
    drop(newer);
}

#[test]
fn a_pin_older_than_a_page_does_not_keep_it() {
    let medium = SimDisk::new(2);
    let store = create(&medium, options(4 * MIB, 0));
    let old = store.pin(Generation(1));
    let page = write_node(&store, 100);
    checkpoint(&store, added([&page]));
    checkpoint(&store, released([page.id]));
    assert_eq!(store.retired_bytes(), 0);
    drop(old);
}

#[test]
fn references_are_counted_over_several_merges() {
    let medium = SimDisk::new(3);
    let store = create(&medium, options(4 * MIB, 0));
    let (page, brief) = (write_node(&store, 100), write_node(&store, 100));
    let mut changes = added([&page, &brief]);
    // A later merge of the same checkpoint shares one page and drops the other again.
    changes.merge(Changes {
        retained: vec![page.id],
        released: vec![brief.id],
        ..Changes::default()
    });
    checkpoint(&store, changes);
    assert_eq!((store.live_bytes(), store.retired_bytes()), (4096, 0));
    checkpoint(&store, released([page.id]));
    assert_eq!(store.live_bytes(), 4096);
    checkpoint(&store, released([page.id]));
    assert_eq!((store.live_bytes(), store.retired_bytes()), (0, 0));
}

#[test]
fn abandoned_and_private_pages_are_free_at_once() {
    let medium = SimDisk::new(4);
    let store = create(&medium, options(4 * MIB, 0));
    let group = write_group(&store, 500);
    let live = store.live_bytes();
    assert_eq!(live, extent_bytes(group.bytes));
    store.abandon(added([&group]));
    assert_eq!(store.live_bytes(), 0);
    let side = write_group(&store, 500);
    assert_eq!(side.offset, group.offset);
    let guard = store.private(added([&side]));
    assert_eq!((guard.bytes(), store.live_bytes()), (side.bytes, live));
    drop(guard);
    assert_eq!(store.live_bytes(), 0);
}

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

#[test]
fn a_failed_write_or_allocation_frees_its_space() {
    let medium = SimDisk::new(7);
    let store = create(&medium, options(4 * MIB, 0));
    write_node(&store, 100);
    let (free, live) = (store.free_bytes(), store.live_bytes());
    medium.inject(Fault::nth(1, FaultError::Io).on(Op::Write).of(DATA_FILE));
    let error = store
        .write_group(pending(0, 500, 100, true), SpaceClass::Normal)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!((store.free_bytes(), store.live_bytes()), (free, live));
    medium.set_capacity(medium.used_bytes());
    let error = store
        .write_group(pending(0, 20_000, 100, true), SpaceClass::Normal)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!((store.free_bytes(), store.live_bytes()), (free, live));
    medium.set_capacity(64 * MIB);
    store
        .write_group(pending(0, 20_000, 100, true), SpaceClass::Normal)
        .unwrap();
}

/// Guards against one bad extent that fails every merge. Its space was free again at once, and was
/// the best fit for each next page.
#[test]
fn an_extent_that_cannot_be_written_is_not_tried_next() {
    let medium = SimDisk::new(18);
    let store = create(&medium, options(4 * MIB, 0));
    let groups: Vec<_> = (0..4).map(|_| write_group(&store, 1000)).collect();
    checkpoint(&store, added(&groups));
    checkpoint(&store, released([groups[1].id]));
    let hole = PageUse::from(&groups[1]);
    let bad = MediaFault::nth(1, Media::WriteError)
        .of(DATA_FILE)
        .within(hole.offset + 512..hole.offset + 1024)
        .lasting();
    medium.inject_media(bad);
    let free = store.free_bytes();
    let write = || store.write_group(pending(0, 1000, 100, true), SpaceClass::Normal);
    assert_eq!(write().unwrap_err().kind(), ErrorKind::Io, "it fits best");
    assert_eq!(store.free_bytes(), free);
    for _ in 0..3 {
        assert_ne!(write().unwrap().offset, hole.offset);
    }
    // With no other extent left, the bad one is tried again.
    medium.set_capacity(medium.used_bytes());
    medium.clear_media();
    while let Ok(group) = write() {
        if group.offset == hole.offset {
            return;
        }
    }
    panic!("an extent that could not be written is never tried again");
}

#[test]
fn free_space_returns_to_the_file_system() {
    let medium = SimDisk::new(8);
    let store = create(&medium, options(32 * MIB, 0));
    let groups: Vec<_> = (0..16).map(|_| write_group(&store, 10_000)).collect();
    checkpoint(&store, added(&groups));
    let full = store.allocated_bytes().unwrap();
    assert!(full > 16 * MIB);
    // Every other group is released. That leaves holes in the middle, and a slack of a ninety-sixth
    // stays.
    checkpoint(
        &store,
        released(groups.iter().step_by(2).map(|group| group.id)),
    );
    assert!(store.reclaim_needed());
    reclaim_all(&store);
    let (live, allocated) = (store.live_bytes(), store.allocated_bytes().unwrap());
    assert!(
        allocated <= live + live / 96 + PAGES_START + EXTENT_ALIGNMENT,
        "{allocated} of {live} live"
    );
    assert!(
        allocated >= live + live / 192,
        "the next checkpoint has some"
    );
    // At rest no slack stays, until the next checkpoint.
    store.begin_reclaim();
    reclaim_all(&store);
    assert_eq!(store.allocated_bytes().unwrap(), live + PAGES_START);
    // Holes are allocated before they are used again. So no write meets a full disk, and no hole
    // counts for the reserve.
    medium.set_capacity(medium.used_bytes());
    let writes = medium.stats(DATA_FILE).writes;
    let refused = store.write_group(pending(0, 10_000, 100, true), SpaceClass::Normal);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(medium.stats(DATA_FILE).writes, writes);
    medium.set_capacity(1 << 40);
    let before = store.file_bytes();
    let again = write_group(&store, 10_000);
    assert_eq!(store.file_bytes(), before, "a hole was there for it");
    store.abandon(added([&again]));
    // All pages are released, and the file shrinks to the superblocks.
    checkpoint(
        &store,
        released(groups.iter().skip(1).step_by(2).map(|group| group.id)),
    );
    store.begin_reclaim();
    reclaim_all(&store);
    assert_eq!((store.file_bytes(), store.live_bytes()), (PAGES_START, 0));
    assert_eq!(store.allocated_bytes().unwrap(), PAGES_START);
    assert!(store.metrics().reclaimed_bytes >= 16 * MIB);
}

#[test]
fn the_slack_is_what_checkpoints_write() {
    let medium = SimDisk::new(12);
    let store = create(&medium, options(32 * MIB, 0));
    let large: Vec<_> = (0..24).map(|_| write_group(&store, 10_000)).collect();
    checkpoint(&store, added(&large));
    // Checkpoints of one page each follow. The store forgets the large checkpoint and the slack for
    // it.
    let mut small = write_group(&store, 100);
    checkpoint(&store, added([&small]));
    for _ in 0..60 {
        let next = write_group(&store, 100);
        let mut changes = added([&next]);
        changes.merge(released([small.id]));
        checkpoint(&store, changes);
        small = next;
    }
    checkpoint(&store, released(large[..6].iter().map(|group| group.id)));
    reclaim_all(&store);
    let (live, allocated) = (store.live_bytes(), store.allocated_bytes().unwrap());
    assert!(
        allocated <= live + PAGES_START + 2 * MIB,
        "{allocated} of {live} live: a growth step, and little else"
    );
}

#[test]
fn a_growing_store_keeps_the_space_that_it_frees() {
    let medium = SimDisk::new(13);
    let store = create(&medium, options(32 * MIB, 0));
    let first: Vec<_> = (0..4).map(|_| write_group(&store, 10_000)).collect();
    checkpoint(&store, added(&first));
    let grow = |from: &[GroupRef], count: usize| {
        let groups: Vec<_> = (0..count).map(|_| write_group(&store, 10_000)).collect();
        let mut changes = added(&groups);
        changes.merge(released(from.iter().map(|group| group.id)));
        checkpoint(&store, changes);
        groups
    };
    let second = grow(&first, 8);
    reclaim_all(&store);
    assert_eq!(
        store.reclaimed_bytes(),
        0,
        "it grew by half of what it wrote"
    );
    grow(&second, 8);
    reclaim_all(&store);
    assert!(store.reclaimed_bytes() > 0, "it only replaced");
}

#[test]
fn free_space_left_by_a_crash_is_found_and_returned() {
    let medium = SimDisk::new(9);
    let store = create(&medium, options(32 * MIB, 0));
    let groups: Vec<_> = (0..8).map(|_| write_group(&store, 10_000)).collect();
    checkpoint(&store, added(&groups));
    drop(store);
    medium.crash_process();
    let kept = PageUse::from(&groups[7]); // the rest was released just before the crash
    let (store, _) = open(&medium, options(32 * MIB, 0), &[kept], 2);
    assert!(store.reclaim_needed());
    reclaim_all(&store);
    let allocated = store.allocated_bytes().unwrap();
    assert!(
        allocated <= store.live_bytes() * 17 / 16 + PAGES_START + EXTENT_ALIGNMENT,
        "{allocated}"
    );
    assert!(store.read_whole_group(&groups[7]).is_ok());
}

#[test]
fn a_failed_punch_or_truncation_loses_no_space() {
    for op in [Op::PunchHole, Op::SetBytes] {
        let medium = SimDisk::new(10);
        let store = create(&medium, options(32 * MIB, 0));
        let groups: Vec<_> = (0..8).map(|_| write_group(&store, 10_000)).collect();
        checkpoint(&store, added(&groups));
        checkpoint(
            &store,
            released(groups.iter().skip(1).step_by(2).map(|group| group.id)),
        );
        let (free, file_bytes) = (store.free_bytes(), store.file_bytes());
        medium.inject(Fault::nth(1, FaultError::Io).on(op).of(DATA_FILE));
        let failed = (0..100).any(|_| store.reclaim_step().is_err());
        assert!(failed, "no {op:?}");
        assert!(store.free_bytes() + (file_bytes - store.file_bytes()) == free);
        reclaim_all(&store);
        let live = store.live_bytes();
        assert!(
            store.allocated_bytes().unwrap() <= live + live / 96 + PAGES_START + EXTENT_ALIGNMENT
        );
    }
}

#[test]
fn hostile_trees_are_refused_at_rebuild() {
    let medium = SimDisk::new(11);
    let store = create(&medium, options(MIB, 0));
    let page = PageUse {
        id: PageId(1),
        offset: 8192,
        bytes: 5000,
    };
    let attempt = |uses: &[PageUse]| {
        store
            .rebuild(&mut uses.iter().copied().map(Ok), Generation(1))
            .map(|()| 0)
    };
    write_node(&store, 50_000); // the file has some length
    attempt(&[page, page]).unwrap();
    let other = |offset, bytes| PageUse {
        id: PageId(2),
        offset,
        bytes,
    };
    for bad in [
        &[page, other(12_288, 100)][..],
        &[page, other(8192, 1)],
        &[
            page,
            PageUse {
                bytes: 9000,
                ..page
            },
        ],
        &[
            page,
            PageUse {
                offset: 16_384,
                ..page
            },
        ],
        &[other(0, 4096)],
        &[other(8193, 100)],
        &[other(8192, 0)],
        &[other(u64::MAX - 4095, 4096)],
        &[other(8192, u64::MAX)],
        &[other(1 << 40, 4096)],
    ] {
        let error = attempt(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{bad:?}");
        assert!(error.to_string().contains("page"), "{error}");
    }
    let overlap = attempt(&[page, other(12_288, 100)])
        .unwrap_err()
        .to_string();
    assert!(
        overlap.contains("page 1") && overlap.contains("other page 2"),
        "{overlap}"
    );
}

/// The operations of a random run.
#[derive(Clone, Debug)]
enum Act {
    Write { kib: u16, class: bool },
    Commit,
    Release(u8),
    Retain(u8),
    Abandon,
    Pin,
    Unpin(u8),
    Reclaim,
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1u16..200, any::<bool>()).prop_map(|(kib, class)| Act::Write { kib, class }),
        3 => Just(Act::Commit),
        6 => any::<u8>().prop_map(Act::Release),
        1 => any::<u8>().prop_map(Act::Retain),
        1 => Just(Act::Abandon),
        2 => Just(Act::Pin),
        2 => any::<u8>().prop_map(Act::Unpin),
        2 => Just(Act::Reclaim),
        1 => Just(Act::Reopen),
    ]
}

/// A page, its content's length, and the byte that fills it.
type Content = (PageRef, usize, u8);

/// The store beside a model that knows each page's content. No reachable page ever changes, no two
/// pages overlap, and every byte of the file is live, retired or free.
#[derive(Default)]
struct Model {
    /// Page, fill byte, references.
    live: BTreeMap<PageId, (PageRef, usize, u8, u32)>,
    fresh: Vec<Content>,
    changes: Changes,
    /// Pins with the pages that were live when they were taken.
    pins: Vec<(terrapin_pages::Pin, Vec<Content>)>,
}

impl Model {
    fn reachable(&self) -> Vec<Content> {
        let live = self
            .live
            .values()
            .map(|&(page, length, fill, _)| (page, length, fill));
        live.chain(self.fresh.iter().copied())
            .chain(self.pins.iter().flat_map(|(_, pages)| pages.clone()))
            .collect()
    }

    fn uses(&self) -> Vec<PageUse> {
        self.live
            .values()
            .flat_map(|(page, _, _, n)| vec![PageUse::from(page); *n as usize])
            .collect()
    }

    fn check(&self, store: &PageStore) {
        let mut places = BTreeMap::new();
        for (page, length, fill) in self.reachable() {
            let content = store.read_page(&page, PageKind::Node).unwrap();
            assert!(
                content.len() == length && content.iter().all(|&b| b == fill),
                "page {} changed",
                page.id
            );
            places.insert(page.offset, (page.id, extent_bytes(page.bytes.into())));
        }
        let list: Vec<_> = places.into_iter().collect();
        for pair in list.windows(2) {
            assert!(pair[0].0 + pair[0].1.1 <= pair[1].0, "{pair:?} overlap");
        }
        let used = store.live_bytes() + store.retired_bytes();
        assert_eq!(used + store.free_bytes() + PAGES_START, store.file_bytes());
        assert!(used >= list.iter().map(|page| page.1.1).sum());
    }
}

fn run(acts: Vec<Act>, capacity: u64, reserve: u64) {
    let medium = SimDisk::new(12);
    let mut store = create(&medium, options(2 * MIB, reserve));
    medium.set_capacity(capacity);
    let mut model = Model::default();
    let mut life = 1;
    for (step, act) in acts.into_iter().enumerate() {
        match act {
            Act::Write { kib, class } => {
                let class = if class {
                    SpaceClass::Normal
                } else {
                    SpaceClass::Reserve
                };
                let (length, fill) = (usize::from(kib) * 1000, step as u8);
                match store.write_page(PageKind::Node, &vec![fill; length], class) {
                    Ok(page) => {
                        model.changes.added.push(PageUse::from(&page));
                        model.fresh.push((page, length, fill));
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
                }
            }
            Act::Commit => {
                checkpoint(&store, std::mem::take(&mut model.changes));
                for (page, length, fill) in model.fresh.drain(..) {
                    model.live.insert(page.id, (page, length, fill, 1));
                }
                model.live.retain(|_, page| page.3 > 0);
            }
            Act::Release(which) | Act::Retain(which) if !model.live.is_empty() => {
                let at = usize::from(which) % model.live.len();
                let (&id, page) = model.live.iter_mut().nth(at).unwrap();
                // The model counts references as of the next commit. A page without references
                // stays readable until then.
                if page.3 == 0 {
                } else if matches!(act, Act::Release(_)) {
                    page.3 -= 1;
                    model.changes.released.push(id);
                } else {
                    page.3 += 1;
                    model.changes.retained.push(id);
                }
            }
            Act::Abandon => {
                let added = std::mem::take(&mut model.changes.added);
                store.abandon(Changes {
                    added,
                    ..Changes::default()
                });
                model.fresh.clear();
            }
            Act::Pin => {
                let pin = store.pin(store.superblock().generation);
                let pages = model
                    .live
                    .values()
                    .map(|&(page, length, fill, _)| (page, length, fill))
                    .collect();
                model.pins.push((pin, pages));
            }
            Act::Unpin(which) if !model.pins.is_empty() => {
                let at = usize::from(which) % model.pins.len();
                model.pins.swap_remove(at);
            }
            Act::Reclaim => {
                if step % 2 == 0 {
                    store.begin_reclaim();
                }
                reclaim_all(&store);
            }
            Act::Reopen => {
                // Uncommitted changes and pins are lost.
                for id in std::mem::take(&mut model.changes.released) {
                    model.live.get_mut(&id).unwrap().3 += 1;
                }
                for id in std::mem::take(&mut model.changes.retained) {
                    model.live.get_mut(&id).unwrap().3 -= 1;
                }
                model.changes = Changes::default();
                model.fresh.clear();
                model.pins.clear();
                drop(store);
                medium.crash_process();
                life += 1;
                store = open(&medium, options(2 * MIB, reserve), &model.uses(), life).0;
            }
            Act::Release(_) | Act::Retain(_) | Act::Unpin(_) => {}
        }
        model.check(&store);
    }
    // All pages are released, and all space is free.
    model.changes.released.extend(
        model
            .live
            .values()
            .flat_map(|(page, _, _, n)| vec![page.id; *n as usize]),
    );
    model
        .changes
        .released
        .extend(model.fresh.iter().map(|(page, _, _)| page.id));
    model.pins.clear();
    checkpoint(&store, model.changes);
    store.reclaim_step().unwrap();
    assert_eq!((store.live_bytes(), store.retired_bytes()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_reachable_page_is_overwritten(
        acts in prop::collection::vec(act(), 1..120), short in any::<bool>(), reserve in prop::option::of(1u64..64),
    ) {
        run(acts, if short { 3 * MIB } else { 1 << 36 }, reserve.map_or(0, |units| units * 8192));
    }
}
