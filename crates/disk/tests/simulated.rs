//! The promises of the simulated disk: what a crash leaves, what a fault does, and that the seed
//! decides both.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::{ErrorKind, Result};
use terrapin_disk::sim::{CrashMode, Fault, FaultError, IoStats, Op, PAGE_BYTES, SECTOR_BYTES};
use terrapin_disk::{Disk, File, OpenOptions, RingOptions, Show, SimDisk};

mod common;

use common::{CREATE, READ, WRITE, content_of, durable_file, flight, shown};

#[test]
fn written_bytes_survive_the_process_and_its_handles_do_not() {
    let medium = SimDisk::new(1);
    let disk = medium.handle();
    let file = disk.open("f", CREATE).unwrap();
    file.write_at(b"never synced", 0).unwrap();
    let ring = RingOptions {
        bytes: 4096,
        create: true,
    };
    let (mut writer, _reader, _) = disk.open_ring("ring", ring).unwrap().split(0);
    writer.write(0, b"stored");
    assert!(medium.is_alive());
    medium.crash_process();
    assert!(!medium.is_alive());
    writer.write(0, b"ghosts");
    for outcome in [
        file.write_at(b"x", 0),
        file.sync(),
        file.read_at(&mut [0], 0),
        file.bytes().map(drop),
        disk.list().map(drop),
        disk.open("f", READ).map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("dead"), "{error}");
    }
    let disk = medium.handle();
    assert!(medium.is_alive());
    let again = disk.open("f", WRITE).unwrap();
    assert_eq!(content_of(&*again), b"never synced");
    drop((file, writer)); // handles of the dead process release nothing of the living one
    assert!(disk.open("f", WRITE).is_err());
    let ring = disk
        .open_ring(
            "ring",
            RingOptions {
                create: false,
                ..ring
            },
        )
        .unwrap();
    let mut out = [0; 6];
    ring.read(0, &mut out);
    assert_eq!(&out, b"stored");
}

#[test]
fn a_power_cut_keeps_synced_data_in_every_mode() {
    for mode in CrashMode::ALL {
        for seed in 0..50 {
            let medium = SimDisk::new(seed);
            let file = durable_file(&medium, "f", &[1; 5000]);
            file.write_at(&[2; 3000], 2000).unwrap();
            file.punch_hole(0, 100).unwrap();
            file.set_bytes(4900).unwrap();
            file.sync().unwrap();
            medium.handle().open("g", CREATE).unwrap();
            medium.crash_power(mode);
            let content = medium.content("f").unwrap();
            let expected = [&[0; 100][..], &[1; 1900], &[2; 2900]].concat();
            assert!(content == expected, "{mode:?} {seed}");
        }
    }
}

#[test]
fn the_mode_decides_what_survives_of_unsynced_data() {
    // Ten sectors in two overlapping writes, and a third file whose name is never synced.
    let run = |seed, mode| {
        let medium = SimDisk::new(seed);
        let file = durable_file(&medium, "f", &[1; 5120]);
        file.write_at(&[2; 5120], 0).unwrap();
        file.write_at(&[3; 2048], 1024).unwrap();
        medium.handle().open("new", CREATE).unwrap();
        medium.crash_power(mode);
        let content = medium.content("f").unwrap();
        assert_eq!(content.len(), 5120);
        let sectors: Vec<u8> = content
            .chunks(SECTOR_BYTES as usize)
            .map(|sector| {
                assert!(sector.iter().all(|&b| b == sector[0]), "a sector is torn");
                sector[0]
            })
            .collect();
        // What is left is durable now.
        medium.crash_power(CrashMode::LoseUnsynced);
        assert_eq!(medium.content("f").unwrap(), content);
        (sectors, medium.content("new").is_some())
    };
    let all = |mode| {
        (0..300)
            .map(|seed| run(seed, mode))
            .collect::<BTreeSet<_>>()
    };
    let kept = vec![2, 2, 3, 3, 3, 3, 2, 2, 2, 2];
    assert_eq!(all(CrashMode::LoseUnsynced), [(vec![1; 10], false)].into());
    assert_eq!(all(CrashMode::KeepAll), [(kept.clone(), true)].into());

    let prefixes = all(CrashMode::Prefix);
    let mut expected = BTreeSet::new();
    for n in 0..10 {
        expected.insert((
            ((0..10).map(|i| if i < n { 2 } else { 1 })).collect::<Vec<u8>>(),
            false,
        ));
    }
    for n in 0..=4 {
        let sectors = (0..10).map(|i| if (2..2 + n).contains(&i) { 3 } else { 2 });
        expected.insert((sectors.collect(), false));
    }
    expected.insert((kept, true));
    assert_eq!(prefixes, expected);

    let mixed = all(CrashMode::RandomSubset);
    assert!(mixed.len() > 200, "subsets differ: {}", mixed.len());
    let versions = |i: usize| mixed.iter().map(|(s, _)| s[i]).collect::<BTreeSet<u8>>();
    assert_eq!(versions(0), [1, 2].into());
    assert_eq!(
        versions(3),
        [1, 2, 3].into(),
        "an older version may be what is left"
    );
    assert_eq!(
        mixed
            .iter()
            .map(|(_, new)| *new)
            .collect::<BTreeSet<_>>()
            .len(),
        2
    );
}

#[test]
fn a_size_may_survive_without_its_data_and_data_without_its_size() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let medium = SimDisk::new(seed);
        durable_file(&medium, "f", b"")
            .write_at(&[7; 512], 0)
            .unwrap();
        medium.crash_power(CrashMode::RandomSubset);
        let content = medium.content("f").unwrap();
        seen.insert((content.len(), content.first().copied()));
        let file = medium.handle().open("f", WRITE).unwrap();
        file.set_bytes(512).unwrap();
        if content.is_empty() {
            assert_eq!(
                medium.content("f").unwrap(),
                [0; 512],
                "nothing lurks behind the end"
            );
        }
    }
    let expected = [(0, None), (512, Some(0)), (512, Some(7))];
    assert_eq!(seen, expected.into());
}

#[test]
fn names_are_durable_after_a_sync_of_the_directory() {
    let medium = SimDisk::new(3);
    durable_file(&medium, "a", b"a");
    durable_file(&medium, "b", b"b");
    let disk = medium.handle();
    let change = || -> Result<()> {
        disk.rename("a", "b")?;
        let new = disk.open("new", CREATE)?;
        new.write_at(b"new", 0)?;
        new.sync()
    };
    change().unwrap();
    let names = |medium: &SimDisk| medium.handle().list().unwrap();
    let lost = medium.fork();
    lost.crash_power(CrashMode::LoseUnsynced);
    assert_eq!(names(&lost), ["a", "b"]);
    assert_eq!(lost.content("b").unwrap(), b"b");
    let kept = medium.fork();
    kept.crash_power(CrashMode::KeepAll);
    assert_eq!(names(&kept), ["b", "new"]);
    assert_eq!(kept.content("b").unwrap(), b"a");
    disk.sync_directory().unwrap();
    disk.remove("new").unwrap();
    let synced = medium.fork();
    synced.crash_power(CrashMode::LoseUnsynced);
    assert_eq!(names(&synced), ["b", "new"]);
    assert_eq!(synced.content("new").unwrap(), b"new");
    assert_eq!(names(&medium), ["b"]);
}

#[test]
fn a_fork_is_an_independent_disk() {
    let medium = SimDisk::new(4);
    let file = durable_file(&medium, "f", &[1; 4096]);
    file.write_at(&[2; 10], 0).unwrap();
    medium.inject(Fault::nth(1, FaultError::Io).lasting());
    let fork = medium.fork();
    let theirs = fork.handle().open("f", WRITE).unwrap();
    theirs.write_at(&[3; 10], 0).unwrap();
    medium.clear_faults();
    file.write_at(&[4; 10], 0).unwrap();
    assert_eq!(fork.content("f").unwrap()[..10], [3; 10]);
    assert_eq!(medium.content("f").unwrap()[..10], [4; 10]);
    fork.crash_power(CrashMode::LoseUnsynced);
    assert_eq!(fork.content("f").unwrap(), [1; 4096]);
    file.sync().unwrap();
}

#[test]
fn ring_stores_survive_the_process_but_no_sync_covers_them() {
    let mut old_state_seen = false;
    for seed in 0..60 {
        let medium = SimDisk::new(seed);
        let options = RingOptions {
            bytes: 4 * PAGE_BYTES,
            create: true,
        };
        let ring = medium.handle().open_ring("ring", options).unwrap();
        let (mut writer, _reader, _) = ring.split(0);
        for round in 1..=40u8 {
            for page in 0..4 {
                writer.write(page * PAGE_BYTES, &[round; 600]);
            }
        }
        let pages = |mode| {
            let fork = medium.fork();
            fork.crash_power(mode);
            let content = fork.content("ring").unwrap();
            let open = RingOptions {
                create: false,
                ..options
            };
            assert_eq!(
                fork.handle().open_ring("ring", open).unwrap().bytes(),
                options.bytes
            );
            let firsts: Vec<u8> = content.chunks(PAGE_BYTES as usize).map(|p| p[0]).collect();
            for page in content.chunks(PAGE_BYTES as usize) {
                for sector in [&page[..512], &page[512..600]] {
                    assert!(sector.iter().all(|&b| b == sector[0]), "a sector is torn");
                }
                assert!(page[600..].iter().all(|&b| b == 0));
            }
            firsts
        };
        assert_eq!(pages(CrashMode::KeepAll), [40; 4]);
        let durable = pages(CrashMode::LoseUnsynced);
        old_state_seen |= durable.iter().any(|&b| b > 0 && b < 40);
        for mode in [CrashMode::RandomSubset, CrashMode::Prefix] {
            for (page, old) in pages(mode).into_iter().zip(&durable) {
                assert!(
                    page == 40 || page == *old,
                    "a sector is as on the medium or as in memory"
                );
            }
        }
    }
    assert!(old_state_seen, "the kernel's writeback leaves old states");
}

#[test]
fn the_nth_call_fails_once_or_always() {
    let medium = SimDisk::new(5);
    let file = durable_file(&medium, "f", &[1; 4096]);
    let mut buffer = [0; 8];
    medium.inject(Fault::nth(2, FaultError::Io));
    let before = medium.io_count();
    assert!(file.read_at(&mut buffer, 0).is_ok());
    let error = file.read_at(&mut buffer, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains('f'), "{error}");
    assert!(file.read_at(&mut buffer, 0).is_ok());
    assert_eq!(medium.io_count(), before + 3);

    medium.inject(
        Fault::nth(2, FaultError::NoSpace)
            .on(Op::Write)
            .of("f")
            .lasting(),
    );
    medium
        .handle()
        .open("g", CREATE)
        .unwrap()
        .write_at(b"g", 0)
        .unwrap();
    file.write_at(b"1", 0).unwrap();
    for _ in 0..3 {
        let error = file.write_at(b"2", 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        file.sync().unwrap();
    }
    medium.clear_faults();
    file.write_at(b"2", 0).unwrap();

    // In a flight each read is a call, and all are tried.
    medium.inject(Fault::nth(2, FaultError::TooManyFiles));
    let mut reads = flight(3 * 4096);
    for offset in 0..3 {
        reads.push(offset, 1).unwrap();
    }
    let before = medium.io_count();
    file.start(&mut reads).unwrap();
    assert_eq!(medium.io_count(), before + 3, "done when they are begun");
    let read = shown(&*file, &mut reads, Show::Oldest);
    assert_eq!(read[0].as_ref().unwrap(), b"2");
    assert!(read[1].is_err());
    assert_eq!(read[2].as_ref().unwrap(), &[1]);
}

#[test]
fn a_failed_write_leaves_some_of_its_first_sectors() {
    let mut lengths = BTreeSet::new();
    for seed in 0..60 {
        let medium = SimDisk::new(seed);
        let file = durable_file(&medium, "f", &[]);
        medium.inject(Fault::nth(1, FaultError::Io));
        file.write_at(&[1; 2048], 0).unwrap_err();
        lengths.insert(file.bytes().unwrap());
    }
    assert_eq!(lengths, [0, 512, 1024, 1536, 2048].into());
}

#[test]
fn no_later_sync_brings_back_what_a_failed_one_lost() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..60 {
        let medium = SimDisk::new(seed);
        let file = durable_file(&medium, "f", &[1; 1024]);
        file.write_at(&[2; 1024], 0).unwrap();
        medium.inject(Fault::nth(1, FaultError::Io).on(Op::Sync));
        file.sync().unwrap_err();
        assert_eq!(medium.content("f").unwrap(), [2; 1024], "reads do not tell");
        file.sync().unwrap();
        medium.crash_power(CrashMode::Prefix);
        let content = medium.content("f").unwrap();
        outcomes.insert((content[0], content[1023]));
    }
    assert_eq!(outcomes, [(1, 1), (1, 2), (2, 1), (2, 2)].into());
}

#[test]
fn a_process_can_die_in_any_call_and_leave_any_part_of_it() {
    // Five calls: open, write, sync, rename, sync_directory.
    let run = |disk: &dyn Disk| -> Result<()> {
        let file = disk.open("new", CREATE)?;
        file.write_at(&[1; 2048], 0)?;
        file.sync()?;
        disk.rename("new", "f")?;
        disk.sync_directory()
    };
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        for n in 1..=6 {
            let medium = SimDisk::new(seed);
            let disk = medium.handle();
            medium.die_at_call(n);
            let outcome = run(&*disk);
            assert_eq!(outcome.is_err(), n <= 5);
            assert_eq!(medium.is_alive(), n > 5);
            if n <= 5 {
                assert!(disk.list().is_err());
            }
            let lengths = ["new", "f"].map(|name| medium.content(name).map(|c| c.len()));
            seen.insert((n, lengths));
        }
    }
    let cut = [0, 512, 1024, 1536, 2048].map(|bytes| (2, [Some(bytes), None]));
    let mut expected: BTreeSet<_> = cut.into();
    expected.extend([(1, [None, None]), (1, [Some(0), None])]);
    expected.extend([
        (3, [Some(2048), None]),
        (4, [Some(2048), None]),
        (4, [None, Some(2048)]),
    ]);
    expected.extend([(5, [None, Some(2048)]), (6, [None, Some(2048)])]);
    assert_eq!(seen, expected);
}

#[test]
fn a_process_can_die_during_a_ring_store() {
    let mut lengths = BTreeSet::new();
    for seed in 0..100 {
        let medium = SimDisk::new(seed);
        let options = RingOptions {
            bytes: 4096,
            create: true,
        };
        let ring = medium.handle().open_ring("ring", options).unwrap();
        let (mut writer, _reader, _) = ring.split(0);
        medium.die_at_ring_write(2);
        writer.write(0, &[1; 10]);
        writer.write(10, &[2; 10]);
        assert!(!medium.is_alive());
        writer.write(20, &[3; 10]);
        assert_eq!(medium.ring_writes(), 2);
        let content = medium.content("ring").unwrap();
        let length = content.iter().position(|&b| b == 0).unwrap();
        assert_eq!(content[..10], [1; 10]);
        assert!(content[10..length].iter().all(|&b| b == 2));
        lengths.insert(length);
    }
    assert_eq!(lengths, (10..=20).collect());
}

#[test]
fn a_full_disk_refuses_only_new_pages() {
    let medium = SimDisk::new(6);
    let file = durable_file(&medium, "f", &[1; 2 * PAGE_BYTES as usize]);
    medium.set_capacity(4 * PAGE_BYTES);
    let disk = medium.handle();
    assert_eq!(disk.free_bytes().unwrap(), 2 * PAGE_BYTES);
    assert_eq!(
        file.allocate(0, 5 * PAGE_BYTES).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    assert_eq!(file.bytes().unwrap(), 2 * PAGE_BYTES, "nothing was done");
    let error = file
        .write_at(&[2; 5 * PAGE_BYTES as usize], 100)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(
        file.bytes().unwrap(),
        4 * PAGE_BYTES,
        "what fits was written"
    );
    file.write_at(&[3; 4 * PAGE_BYTES as usize], 0).unwrap();
    let other = disk.open("g", CREATE).unwrap();
    assert_eq!(
        other.write_at(b"g", 0).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    file.punch_hole(0, PAGE_BYTES + 1).unwrap();
    assert_eq!(file.allocated_bytes().unwrap(), 3 * PAGE_BYTES);
    other.write_at(b"g", 0).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 0);
    // An unlinked file frees its space when it is closed.
    disk.remove("f").unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 0);
    drop(file);
    assert_eq!(disk.free_bytes().unwrap(), 3 * PAGE_BYTES);
    assert_eq!(medium.used_bytes(), PAGE_BYTES);
    medium.set_capacity(0);
    let ring = RingOptions {
        bytes: 4096,
        create: true,
    };
    assert_eq!(
        disk.open_ring("ring", ring).map(drop).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
}

#[test]
fn reads_writes_and_syncs_are_counted_by_file() {
    let medium = SimDisk::new(8);
    let file = durable_file(&medium, "f", &[1; 1000]);
    let before = medium.stats("f");
    file.read_at(&mut [0; 10], 0).unwrap();
    let mut reads = flight(2 * 4096);
    reads.push(0, 100).unwrap();
    reads.push(5, 200).unwrap();
    shown(&*file, &mut reads, Show::Some);
    let after = medium.stats("f");
    let expected = IoStats {
        reads: 3,
        read_bytes: 310,
        ..before
    };
    assert_eq!(after, expected);
    assert_eq!(
        (before.writes, before.written_bytes, before.syncs),
        (1, 1000, 1)
    );
    assert_eq!(medium.stats("none"), IoStats::default());
    assert_eq!(medium.stats_total(), expected);
}

#[test]
fn rot_shows_in_reads_and_after_a_crash() {
    let medium = SimDisk::new(9);
    let file = durable_file(&medium, "f", &[1; 10]);
    assert!(medium.corrupt("f", 3, 0x80));
    assert!(!medium.corrupt("f", 10, 1) && !medium.corrupt("g", 0, 1));
    let expected = [1, 1, 1, 0x81, 1, 1, 1, 1, 1, 1];
    assert_eq!(content_of(&*file), expected);
    medium.crash_power(CrashMode::LoseUnsynced);
    assert_eq!(medium.content("f").unwrap(), expected);
    medium.plant("g", b"hostile");
    medium.crash_power(CrashMode::LoseUnsynced);
    assert_eq!(medium.content("g").unwrap(), b"hostile");
}

#[test]
fn direct_writes_need_the_alignment_that_is_set() {
    let medium = SimDisk::new(10);
    medium.set_alignment(4096);
    let options = OpenOptions {
        direct: true,
        ..CREATE
    };
    let file = medium.handle().open("f", options).unwrap();
    assert_eq!(file.alignment(), 4096);
    assert_eq!(
        file.write_at(&[0; 512], 0).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    file.write_at(&[0; 4096], 4096).unwrap();
}

/// Makes random calls and crashes, and returns the trace's hash after each step.
fn wander(seed: u64) -> Vec<u64> {
    let medium = SimDisk::new(seed);
    let mut state = seed;
    let mut random = move |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut hashes = Vec::new();
    for _ in 0..30 {
        let disk = medium.handle();
        medium.inject(Fault::nth(1 + random(60), FaultError::Io));
        medium.die_at_call(1 + random(200));
        let mut files: Vec<Arc<dyn File>> = Vec::new();
        for _ in 0..100 {
            let name = format!("f{}", random(5));
            let (offset, bytes) = (random(20_000), random(9000));
            // Errors are part of the run, since the outcome of each call shows in the next trace.
            let _ = match (random(9), files.last()) {
                (0, _) => disk.open(&name, CREATE).map(|f| files.push(f)),
                (1, _) => disk.open(&name, WRITE).map(|f| files.push(f)),
                (2, _) => disk.remove(&name),
                (3, _) => disk.rename(&name, &format!("f{}", random(5))),
                (4, _) => disk.sync_directory(),
                (5, Some(file)) => file.write_at(&vec![bytes as u8; bytes as usize], offset),
                (6, Some(file)) => file.sync(),
                (7, Some(file)) => file
                    .set_bytes(offset)
                    .and(file.punch_hole(bytes, 5000).map(drop)),
                _ => {
                    if !files.is_empty() {
                        files.remove(0);
                    }
                    Ok(())
                }
            };
        }
        medium.crash_power(CrashMode::ALL[random(4) as usize]);
        hashes.push(medium.trace_hash());
        for name in medium.handle().list().unwrap_or_default() {
            let content = medium.content(&name).unwrap_or_default();
            hashes.push(u64::from(terrapin_base::checksum::crc32c(&content)));
        }
    }
    hashes
}

#[test]
fn equal_seeds_give_equal_runs() {
    let runs: BTreeSet<Vec<u64>> = (0..20).map(wander).collect();
    assert_eq!(runs.len(), 20, "seeds differ");
    assert_eq!(runs, (0..20).map(wander).collect());
}

#[test]
fn a_trace_lists_the_calls() {
    let medium = SimDisk::new(11);
    durable_file(&medium, "f", b"x");
    medium.record_trace(true);
    let file = medium.handle().open("f", WRITE).map(drop);
    assert!(file.is_ok());
    durable_file(&medium, "g", b"yz");
    let ops: Vec<(Op, String, u64)> = medium
        .take_trace()
        .into_iter()
        .map(|event| (event.op, event.file, event.bytes))
        .collect();
    let expected = [
        (Op::Open, "f", 0),
        (Op::Open, "g", 0),
        (Op::Write, "g", 2),
        (Op::Sync, "g", 0),
        (Op::SyncDirectory, "", 0),
    ];
    assert_eq!(
        ops,
        expected.map(|(op, file, bytes)| (op, file.to_owned(), bytes))
    );
    assert!(medium.take_trace().is_empty());
}
