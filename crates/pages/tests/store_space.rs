//! The space of the data file: generations and pins, side roots, the reserve, a full disk, and the
//! return of space.

mod common;

use common::{
    MIB, added, checkpoint, create, open, options, pending, reclaim_all, released, write_group,
    write_node,
};
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind, Generation, PageId};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Media, MediaFault, Op};
use terrapin_pages::group::GroupRef;
use terrapin_pages::{Changes, DATA_FILE, PAGES_START, PageKind, PageUse, SpaceClass};

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
    let page = PageUse::whole(PageId(1), 8192, 5000);
    let attempt = |uses: &[PageUse]| {
        store
            .rebuild(&mut uses.iter().copied().map(Ok), Generation(1))
            .map(|()| 0)
    };
    write_node(&store, 50_000); // the file has some length
    attempt(&[page, page]).unwrap();
    let other = |offset, bytes| PageUse::whole(PageId(2), offset, bytes);
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
