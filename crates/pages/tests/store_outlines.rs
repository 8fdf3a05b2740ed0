//! Filters and their outlines: what lookups read and know, and the memory that outlines take.

mod common;

use common::{
    MIB, RECORDS, builder, cold, create, fill, get, key, options, pending, reads, value,
    write_group,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, ErrorKind, Purpose, Result};
use terrapin_disk::SimDisk;
use terrapin_pages::group::GroupRef;
use terrapin_pages::{
    DATA_FILE, GroupHandle, OutlinePlaces, PageStore, SegmentOutlines, SpaceClass,
};

#[test]
fn a_filter_probe_reads_one_partition_once_and_knows_every_key() {
    let medium = SimDisk::new(2);
    let (store, group) = cold(&medium, 4 * MIB);
    let before = reads(&medium);
    for i in 0..RECORDS {
        assert!(store.may_contain(&group, hash64(&key(i))).unwrap());
    }
    assert_eq!(
        reads(&medium) - before,
        u64::from(group.filter_partitions())
    );
    let lies = (RECORDS..RECORDS + 4000)
        .filter(|&i| store.may_contain(&group, hash64(&key(i))).unwrap())
        .count();
    assert!(lies < 40, "{lies} of 4000");
    let bare = store
        .write_group(pending(0, 10, 10, false), SpaceClass::Normal)
        .unwrap();
    let before = reads(&medium);
    assert!(store.may_contain(&bare, 1).unwrap());
    assert_eq!(reads(&medium), before);
}

/// A node's only segment, with its outlines.
struct Segment {
    group: GroupRef,
    handle: GroupHandle,
    outlines: SegmentOutlines,
    places: OutlinePlaces,
}

impl Segment {
    fn new(group: GroupRef) -> Self {
        let mut outlines = SegmentOutlines::default();
        Segment {
            group,
            handle: GroupHandle::default(),
            places: outlines.add(&group),
            outlines,
        }
    }

    fn ask(&self, store: &PageStore, i: usize) -> Result<bool> {
        let hash = hash64(&key(i));
        store.segment_may_contain(&self.group, &self.handle, &self.outlines, self.places, hash)
    }

    fn denies(&self, i: usize) -> bool {
        self.outlines.known().deny(self.places, hash64(&key(i)))
    }
}

#[test]
fn outlines_deny_most_keys_that_a_segment_lacks() {
    let medium = SimDisk::new(13);
    let (store, group) = cold(&medium, 4 * MIB);
    let segment = Segment::new(group);
    let ask = |i| segment.ask(&store, i);
    let filter = group.filter_partition_offset(0);
    let others = || RECORDS..RECORDS + 4000;
    assert!(medium.corrupt(DATA_FILE, filter + 9, 1));
    assert_eq!(ask(0).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!others().any(|i| segment.denies(i)), "nothing is known");
    assert!(medium.corrupt(DATA_FILE, filter + 9, 1));
    let before = reads(&medium);
    assert!((0..RECORDS).all(|i| ask(i).unwrap()));
    assert_eq!(
        reads(&medium) - before,
        u64::from(group.filter_partitions())
    );
    assert!(!(0..RECORDS).any(|i| segment.denies(i)));
    let denied = others().filter(|&i| segment.denies(i)).count();
    assert!(denied > 3750, "{denied} of 4000");
    for i in others() {
        let hash = hash64(&key(i));
        assert_eq!(ask(i).unwrap(), store.may_contain(&group, hash).unwrap());
        assert!(!segment.denies(i) || !ask(i).unwrap());
    }
    // Another node with the same group knows the outline as soon as it asks.
    let next = Segment::new(group);
    next.ask(&store, 0).unwrap();
    assert!(others().any(|i| next.denies(i)));
}

#[test]
fn outlines_are_charged_while_held_and_take_little_memory() {
    let medium = SimDisk::new(14);
    let budget = Budget::new(640_000);
    let mut options = options(0, 0);
    options.budget = budget.clone();
    let store = create(&medium, options);
    let groups: Vec<_> = (0..24).map(|_| write_group(&store, RECORDS)).collect();
    let cached = || store.metrics().cache_bytes;
    let outlines = || budget.used(Purpose::Metadata) + budget.used(Purpose::Blocks) - cached();
    let segments: Vec<_> = groups.iter().map(|&group| Segment::new(group)).collect();
    assert_eq!(outlines(), 0);
    for segment in &segments {
        assert!((0..RECORDS).all(|i| segment.ask(&store, i).unwrap()));
    }
    let all = groups.iter().map(|group| u64::from(group.filter_bytes));
    let taken = outlines();
    assert!(taken > 20_000 && taken <= 40_000, "{taken}");
    assert!(taken < all.sum(), "some do without");
    let denies = |segment: &&Segment| (0..1000).any(|i| segment.denies(RECORDS + i));
    let denying = segments.iter().filter(denies).count();
    assert!((1..groups.len()).contains(&denying), "{denying}");
    drop(segments);
    drop(store);
    assert_eq!(budget.used(Purpose::Metadata), 0);
}

#[test]
fn a_new_segment_has_outlines_while_there_is_room() {
    let medium = SimDisk::new(15);
    let budget = Budget::new(4 * MIB);
    let mut options = options(0, 0);
    options.budget = budget.clone();
    let store = create(&medium, options);
    let write = || {
        let mut builder = builder(true);
        builder.outline_filters();
        let pending = fill(builder, 0, RECORDS, 100);
        store.write_segment(pending, SpaceClass::Normal).unwrap()
    };
    let outlines = || {
        let metadata = budget.used(Purpose::Metadata) + budget.used(Purpose::Blocks);
        metadata - store.metrics().cache_bytes
    };
    let group = write();
    let before = outlines();
    assert!(before >= u64::from(group.filter_bytes), "{before}");
    let segment = Segment::new(group);
    assert!((0..RECORDS).all(|i| segment.ask(&store, i).unwrap()));
    assert!(!(0..RECORDS).any(|i| segment.denies(i)));
    let denied = (RECORDS..RECORDS + 4000).filter(|&i| segment.denies(i));
    assert!(denied.count() > 3850);
    assert_eq!(outlines(), before, "none was made for who asked");

    assert!(store.has_room_for_outlines());
    for _ in 0..200 {
        write();
    }
    assert!(!store.has_room_for_outlines());
    assert!(outlines() <= 4 * MIB / 16);
    drop(segment);
    drop(store);
    assert_eq!(budget.used(Purpose::Metadata), 0);
}

#[test]
fn a_new_group_s_metadata_is_cached() {
    let medium = SimDisk::new(3);
    let store = create(&medium, options(4 * MIB, 0));
    let group = write_group(&store, RECORDS);
    let before = reads(&medium);
    assert!(store.may_contain(&group, hash64(&key(3))).unwrap());
    assert_eq!(get(&store, &group, 3), Some(value(3, 100)));
    assert_eq!(reads(&medium) - before, 1);
}
