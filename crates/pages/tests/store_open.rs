//! How a data file is created, opened and refused.

mod common;

use std::sync::Arc;

use common::{DATABASE, checkpoint, create, make_durable, open, options, write_node};
use terrapin_base::{ErrorKind, Generation, Incarnation};
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Op};
use terrapin_disk::{Disk, SimDisk};
use terrapin_pages::{
    DATA_FILE, PAGES_START, PageKind, PageRef, PageStore, PageUse, Presence, SpaceClass,
    Superblock, UNFINISHED_FILE,
};

fn try_open(medium: &SimDisk, read_only: bool) -> terrapin_base::Result<Superblock> {
    let disk: Arc<dyn Disk> = medium.handle();
    PageStore::open(&disk, options(1 << 20, 0), read_only).map(|(_, superblock)| superblock)
}

fn kind(medium: &SimDisk) -> ErrorKind {
    try_open(medium, false).unwrap_err().kind()
}

#[test]
fn a_created_store_opens_and_remembers_its_catalog() {
    let medium = SimDisk::new(1);
    assert_eq!(
        PageStore::presence(&medium.handle()).unwrap(),
        Presence::Absent
    );
    assert_eq!(kind(&medium), ErrorKind::NotFound);
    let store = create(&medium, options(1 << 20, 0));
    assert_eq!(store.superblock().generation, Generation(1));
    let catalog = store
        .write_page(PageKind::CatalogRoot, b"catalog", SpaceClass::Normal)
        .unwrap();
    let generation = make_durable(&store, Some(catalog));
    drop(store);
    medium.crash_power(CrashMode::LoseUnsynced);
    assert_eq!(
        PageStore::presence(&medium.handle()).unwrap(),
        Presence::Present
    );
    let (store, superblock) = open(&medium, options(1 << 20, 0), &[PageUse::from(&catalog)], 2);
    assert_eq!(
        (superblock.generation, superblock.catalog),
        (generation, Some(catalog))
    );
    assert_eq!((superblock.database_id, superblock.unit), (DATABASE, 512));
    assert_eq!(
        store.read_page(&catalog, PageKind::CatalogRoot).unwrap(),
        b"catalog"
    );
    assert_eq!(
        store
            .read_page(&catalog, PageKind::Node)
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
    let disk: Arc<dyn Disk> = medium.handle();
    let again = PageStore::create(&disk, options(1 << 20, 0), 5).unwrap_err();
    assert!(
        matches!(again.kind(), ErrorKind::AlreadyExists | ErrorKind::Locked),
        "{again}"
    );
}

#[test]
fn a_creation_killed_at_any_call_is_absent_unfinished_or_whole() {
    for seed in 0..20 {
        for call in 1.. {
            let medium = SimDisk::new(seed);
            let disk: Arc<dyn Disk> = medium.handle();
            medium.die_at_call(call);
            let done = PageStore::create(&disk, options(1 << 20, 8192), DATABASE);
            let alive = medium.is_alive();
            drop((done, disk));
            let medium = medium.fork(); // the copy has no planned death
            medium.crash_power(CrashMode::ALL[(seed + call) as usize % CrashMode::ALL.len()]);
            let presence = PageStore::presence(&medium.handle()).unwrap();
            if presence == Presence::Present {
                assert_eq!(try_open(&medium, false).unwrap().database_id, DATABASE);
            } else {
                assert!(!alive, "a created store is gone");
                create(&medium, options(1 << 20, 0));
            }
            if alive {
                break;
            }
        }
    }
}

#[test]
fn one_damaged_slot_is_harmless_and_two_are_corrupt() {
    for slot in 0..2u64 {
        let medium = SimDisk::new(slot);
        let store = create(&medium, options(1 << 20, 0));
        let page = write_node(&store, 100);
        checkpoint(&store, common::added([&page]));
        drop(store);
        medium.crash_process();
        assert!(medium.corrupt(DATA_FILE, slot * 4096 + 30, 0x10));
        assert_eq!(try_open(&medium, true).unwrap().generation, Generation(2));
        // The first page that is written brings the damaged slot up to date.
        let (store, _) = open(&medium, options(1 << 20, 0), &[PageUse::from(&page)], 2);
        write_node(&store, 10);
        drop(store);
        medium.crash_power(CrashMode::LoseUnsynced);
        assert!(medium.corrupt(DATA_FILE, (1 - slot) * 4096 + 30, 0x10));
        assert_eq!(try_open(&medium, true).unwrap().generation, Generation(2));
        assert!(medium.corrupt(DATA_FILE, slot * 4096 + 100, 0x80));
        let error = try_open(&medium, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(DATA_FILE), "{error}");
    }
}

#[test]
fn an_unreadable_slot_counts_as_damaged() {
    let medium = SimDisk::new(3);
    drop(create(&medium, options(1 << 20, 0)));
    medium.crash_process();
    medium.inject(Fault::nth(1, FaultError::Io).on(Op::Read).of(DATA_FILE));
    assert_eq!(try_open(&medium, true).unwrap().generation, Generation(1));
    medium.inject(
        Fault::nth(1, FaultError::Io)
            .on(Op::Read)
            .of(DATA_FILE)
            .lasting(),
    );
    assert_eq!(try_open(&medium, true).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn other_files_and_newer_formats_are_refused() {
    for foreign in [&b"hello"[..], &[0xab; 20_000], &[]] {
        let medium = SimDisk::new(4);
        medium.plant(DATA_FILE, foreign);
        assert_eq!(kind(&medium), ErrorKind::NotADatabase);
        let disk: Arc<dyn Disk> = medium.handle();
        let created = PageStore::create(&disk, options(1 << 20, 0), 1);
        match created.map(drop).map_err(|error| error.kind()) {
            Ok(()) => assert!(foreign.is_empty()),
            Err(kind) => assert_eq!(
                (kind, foreign.is_empty()),
                (ErrorKind::AlreadyExists, false)
            ),
        }
    }
    let medium = SimDisk::new(5);
    drop(create(&medium, options(1 << 20, 0)));
    medium.crash_process();
    for (version, kind, advice) in [
        (9, ErrorKind::NewerFormat, "newer version of Terrapin"),
        (2, ErrorKind::Unsupported, "export it with that version"),
    ] {
        let mut bytes = medium.content(DATA_FILE).unwrap();
        bytes[8] = version;
        let crc = terrapin_base::checksum::crc32c(&bytes[..508]);
        bytes[508..512].copy_from_slice(&crc.to_le_bytes());
        medium.plant(DATA_FILE, &bytes);
        let error = try_open(&medium, false).unwrap_err();
        assert_eq!(error.kind(), kind);
        let text = error.to_string();
        for part in [advice, &format!("format {version}"), "here 3"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// Guards against overwriting a foreign file of a few KiB named `data`, as if it were an
/// interrupted creation.
#[test]
fn a_small_foreign_file_is_not_taken_for_an_unfinished_one() {
    let torn = |bytes: usize| {
        let medium = SimDisk::new(8);
        drop(create(&medium, options(1 << 20, 0)));
        let mut content = medium.content(DATA_FILE).unwrap()[..bytes].to_vec();
        content.resize(PAGES_START as usize, 0);
        content
    };
    let presence_of = |content: &[u8], beside: Option<&str>| {
        let medium = SimDisk::new(9);
        medium.plant(DATA_FILE, content);
        if let Some(name) = beside {
            medium.plant(name, b"somebody's");
        }
        let presence = PageStore::presence(&medium.handle()).unwrap();
        let disk: Arc<dyn Disk> = medium.handle();
        let created = PageStore::create(&disk, options(1 << 20, 0), 1);
        assert_eq!(created.is_ok(), presence == Presence::Unfinished);
        if presence == Presence::Present {
            assert_eq!(medium.content(DATA_FILE).unwrap(), content);
        }
        presence
    };
    // Such files were overwritten if they were alone and had the length of whole sectors.
    for foreign in [1, 511, 512, 4095, 4096, 8191, 8192].map(|bytes| vec![b'x'; bytes]) {
        for beside in [None, Some("notes")] {
            assert_eq!(presence_of(&foreign, beside), Presence::Present);
        }
        // Bytes that a power cut may leave.
        let marked = presence_of(&foreign, Some(UNFINISHED_FILE));
        assert_eq!(marked, Presence::Unfinished);
    }
    assert_eq!(presence_of(b"TERRAPI", None), Presence::Present);
    for unfinished in [vec![], vec![0; 100], vec![0; 8192], torn(8), torn(511)] {
        assert_eq!(
            presence_of(&unfinished, Some("notes")),
            Presence::Unfinished
        );
    }
}

/// A store whose slot 0 durably holds generation 3 with a new page. Slot 1 holds an older
/// generation, with the page that generation 3 released.
fn released_by_slot_0(medium: &SimDisk) -> (Arc<PageStore>, PageRef, Superblock) {
    let store = create(medium, options(1 << 20, 0));
    let old = store
        .write_page(PageKind::CatalogRoot, b"old", SpaceClass::Normal)
        .unwrap();
    make_durable(&store, Some(old));
    store.commit(Generation(2), common::added([&old]));
    let new = store
        .write_page(PageKind::CatalogRoot, b"new", SpaceClass::Normal)
        .unwrap();
    store.sync().unwrap();
    let superblock = Superblock {
        generation: Generation(3),
        catalog: Some(new),
        ..store.superblock()
    };
    store.write_superblock(0, &superblock).unwrap();
    store.sync().unwrap();
    (store, new, superblock)
}

#[test]
fn a_crash_between_the_slots_overwrites_no_page_of_the_older_root() {
    // Slot 0 holds generation 2. Slot 1 still holds generation 1, with a page that generation 2
    // released. After the reopen that page's space is free. Before the space is used, slot 1 must
    // durably hold generation 2. Otherwise a torn write of slot 0 would lead back to a root with
    // overwritten pages.
    let medium = SimDisk::new(6);
    let (store, new, superblock) = released_by_slot_0(&medium);
    drop(store);
    medium.crash_power(CrashMode::LoseUnsynced);

    let (store, found) = open(&medium, options(1 << 20, 0), &[PageUse::from(&new)], 2);
    assert_eq!(found, superblock);
    for _ in 0..8 {
        store
            .write_page(PageKind::Node, &[1; 4000], SpaceClass::Normal)
            .unwrap();
    }
    drop(store);
    medium.crash_power(CrashMode::KeepAll);
    assert!(medium.corrupt(DATA_FILE, 40, 0xff)); // slot 0 tears
    let disk: Arc<dyn Disk> = medium.handle();
    let (store, found) = PageStore::open(&disk, options(1 << 20, 0), true).unwrap();
    assert_eq!(found, superblock);
    assert_eq!(
        store
            .read_page(&found.catalog.unwrap(), PageKind::CatalogRoot)
            .unwrap(),
        b"new"
    );
}

#[test]
fn an_unsynced_second_slot_never_leads_to_overwritten_pages() {
    // Both slots show generation 3, but the process died before it synced slot 1. A power cut takes
    // slot 1 back to generation 2, whose page counts as free by then.
    let medium = SimDisk::new(6);
    let (store, new, superblock) = released_by_slot_0(&medium);
    store.write_superblock(1, &superblock).unwrap();
    drop(store);
    medium.crash_process();

    let (store, _) = open(&medium, options(1 << 20, 0), &[PageUse::from(&new)], 2);
    for _ in 0..8 {
        store
            .write_page(PageKind::Node, &[1; 4000], SpaceClass::Normal)
            .unwrap();
    }
    drop(store);
    medium.crash_power(CrashMode::LoseUnsynced);
    assert!(medium.corrupt(DATA_FILE, 40, 0xff)); // slot 0 rots
    let disk: Arc<dyn Disk> = medium.handle();
    let (_, found) = PageStore::open(&disk, options(1 << 20, 0), true).unwrap();
    assert_eq!(found, superblock);
}

#[test]
fn a_slot_whose_sync_failed_is_written_again_before_the_next_page() {
    // Both slots show generation 3, but the sync of slot 1 failed. No later sync makes that write
    // durable, and a power cut takes the slot back to generation 2.
    let slots = |medium: &SimDisk| {
        let content = medium.content(DATA_FILE).unwrap();
        [content[..512].to_vec(), content[4096..4608].to_vec()]
    };
    for settles in [true, false] {
        let medium = SimDisk::new(6);
        let (store, new, superblock) = released_by_slot_0(&medium);
        store.write_superblock(1, &superblock).unwrap();
        medium.inject(Fault::nth(1, FaultError::Io).on(Op::Sync).of(DATA_FILE));
        assert!(store.sync().is_err());
        drop(store);
        medium.crash_process();
        let [first, second] = slots(&medium);
        assert_eq!(first, second);
        let lost = medium.fork();
        lost.crash_power(CrashMode::LoseUnsynced);
        assert_ne!(slots(&lost)[1], second, "the failed sync lost it");

        let (store, _) = open(&medium, options(1 << 20, 0), &[PageUse::from(&new)], 2);
        if settles {
            store.settle_slots().unwrap();
        } else {
            write_node(&store, 4000);
        }
        drop(store);
        medium.crash_power(CrashMode::LoseUnsynced);
        assert_eq!(slots(&medium), [first, second]);
    }
}

#[test]
fn a_file_that_ends_within_the_slots_has_its_pages_behind_them() {
    // The power failed during the creation. Slot 0 exists, and the file is shorter than the slots.
    let medium = SimDisk::new(7);
    drop(create(&medium, options(1 << 20, 0)));
    let slots = medium.content(DATA_FILE).unwrap();
    for bytes in [512, 4096, 4608] {
        let medium = SimDisk::new(7);
        medium.plant(DATA_FILE, &slots[..bytes]);
        let (store, found) = open(&medium, options(1 << 20, 8192), &[], 2);
        let page = store
            .write_page(PageKind::Node, b"page", SpaceClass::Normal)
            .unwrap();
        assert!(page.offset >= PAGES_START, "{bytes}: {page:?}");
        store.sync().unwrap();
        drop(store);
        medium.crash_power(CrashMode::LoseUnsynced);
        assert!(medium.corrupt(DATA_FILE, 40, 0xff)); // slot 0 rots
        let disk: Arc<dyn Disk> = medium.handle();
        let (store, again) = PageStore::open(&disk, options(1 << 20, 0), true).unwrap();
        assert_eq!(again, found);
        assert_eq!(store.read_page(&page, PageKind::Node).unwrap(), b"page");
    }
}

#[test]
fn a_read_only_store_writes_nothing() {
    let medium = SimDisk::new(7);
    let store = create(&medium, options(1 << 20, 0));
    let page = write_node(&store, 100);
    checkpoint(&store, common::added([&page]));
    drop(store);
    medium.crash_process();
    let before = medium.stats(DATA_FILE);
    let disk: Arc<dyn Disk> = medium.handle();
    let (store, superblock) = PageStore::open(&disk, options(1 << 20, 1 << 20), true).unwrap();
    store
        .rebuild(
            &mut [Ok(PageUse::from(&page))].into_iter(),
            superblock.generation,
        )
        .unwrap();
    store.begin_life(Incarnation(2));
    assert_eq!(store.read_page(&page, PageKind::Node).unwrap(), [7; 100]);
    let refused = |error: terrapin_base::Error| assert_eq!(error.kind(), ErrorKind::ReadOnly);
    refused(
        store
            .write_page(PageKind::Node, b"x", SpaceClass::Normal)
            .unwrap_err(),
    );
    refused(store.sync().unwrap_err());
    refused(store.write_superblock(0, &superblock).unwrap_err());
    store.begin_reclaim();
    assert!(!store.reclaim_step().unwrap());
    let after = medium.stats(DATA_FILE);
    assert_eq!((before.writes, before.syncs), (after.writes, after.syncs));
    assert_eq!(
        medium.content(DATA_FILE).map(|c| c.len() as u64),
        Some(store.file_bytes())
    );
}

#[test]
fn a_write_before_the_life_or_in_a_used_life_is_reported() {
    let medium = SimDisk::new(8);
    let disk: Arc<dyn Disk> = medium.handle();
    let store = PageStore::create(&disk, options(1 << 20, 0), DATABASE).unwrap();
    let write = |store: &PageStore| store.write_page(PageKind::Node, b"x", SpaceClass::Normal);
    assert_eq!(write(&store).unwrap_err().kind(), ErrorKind::Internal);
    store.begin_life(Incarnation(4));
    let page = write(&store).unwrap();
    checkpoint(&store, common::added([&page]));
    drop((store, disk));
    medium.crash_process();
    let (store, _) = open(&medium, options(1 << 20, 0), &[PageUse::from(&page)], 4);
    assert_eq!(write(&store).unwrap_err().kind(), ErrorKind::Internal);
    store.begin_life(Incarnation(5));
    assert_ne!(write(&store).unwrap().id, page.id);
}

#[test]
fn a_failed_sync_or_superblock_write_poisons_and_reads_continue() {
    for op in [Op::Sync, Op::Write] {
        let medium = SimDisk::new(9);
        let store = create(&medium, options(1 << 20, 0));
        let page = write_node(&store, 100);
        medium.inject(Fault::nth(1, FaultError::Io).on(op).of(DATA_FILE));
        let next = Superblock {
            generation: Generation(2),
            ..store.superblock()
        };
        let first = store
            .sync()
            .and_then(|()| store.write_superblock(0, &next))
            .unwrap_err();
        assert_eq!(first.kind(), ErrorKind::Io);
        assert_eq!(store.sync().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(
            store.write_superblock(1, &next).unwrap_err().kind(),
            ErrorKind::Poisoned
        );
        let refused = store
            .write_page(PageKind::Node, b"x", SpaceClass::Normal)
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned);
        assert_eq!(store.read_page(&page, PageKind::Node).unwrap(), [7; 100]);
    }
}

#[test]
fn superblocks_that_cannot_follow_are_refused() {
    let medium = SimDisk::new(10);
    let store = create(&medium, options(1 << 20, 0));
    let good = store.superblock();
    for (slot, bad) in [
        (2, good),
        (
            0,
            Superblock {
                database_id: 1,
                ..good
            },
        ),
        (0, Superblock { unit: 4096, ..good }),
        (
            0,
            Superblock {
                generation: Generation(0),
                ..good
            },
        ),
        (
            0,
            Superblock {
                generation: Generation(u64::MAX),
                ..good
            },
        ),
    ] {
        assert_eq!(
            store.write_superblock(slot, &bad).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
    store.sync().unwrap();
}

#[test]
fn writes_are_aligned_to_a_device_with_blocks_larger_than_the_unit() {
    let medium = SimDisk::new(11);
    let store = create(&medium, options(1 << 20, 0));
    let page = write_node(&store, 100);
    assert_eq!(page.bytes, 512);
    checkpoint(&store, common::added([&page]));
    drop(store);
    medium.crash_process();
    medium.set_alignment(4096);
    let (store, superblock) = open(&medium, options(1 << 20, 0), &[PageUse::from(&page)], 2);
    assert_eq!(superblock.unit, 512);
    let group = common::write_group(&store, 50);
    assert_eq!(
        store.read_whole_group(&group).unwrap().len() as u64,
        group.bytes
    );
    assert_eq!(store.read_page(&page, PageKind::Node).unwrap(), [7; 100]);
}
