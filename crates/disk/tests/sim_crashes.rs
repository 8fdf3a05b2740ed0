//! The harsher crashes of the simulated disk: what each mode may leave, and writes that land after
//! the death of their process.

mod common;

use std::collections::BTreeSet;

use common::{CREATE, READ, WRITE, durable_file};
use terrapin_base::ErrorKind;
use terrapin_disk::sim::{CrashMode, Landing, SECTOR_BYTES};
use terrapin_disk::{OpenOptions, RingOptions, SimDisk};

/// Writes eight sectors twice after the last sync, by sixteen writes. Returns what is left of each
/// sector.
fn left(seed: u64, mode: CrashMode) -> Vec<u8> {
    let medium = SimDisk::new(seed);
    let file = durable_file(&medium, "f", &[1; 4096]);
    for version in [2, 3] {
        for sector in 0..8 {
            file.write_at(&[version; 512], sector * SECTOR_BYTES)
                .unwrap();
        }
    }
    medium.crash_power(mode);
    let content = medium.content("f").unwrap();
    let firsts = content.chunks(512).map(|sector| {
        assert!(sector.iter().all(|&b| b == sector[0]), "a sector is torn");
        sector[0]
    });
    firsts.collect()
}

fn outcomes(mode: CrashMode) -> BTreeSet<Vec<u8>> {
    (0..200).map(|seed| left(seed, mode)).collect()
}

#[test]
fn only_the_newest_changes_are_kept() {
    let newest = |n| [vec![1; 8 - n], vec![3; n]].concat();
    assert_eq!(
        outcomes(CrashMode::NewestOnly),
        (1..=3).map(newest).collect()
    );
}

#[test]
fn only_the_oldest_changes_are_lost() {
    // The second pass would cover what the first one lost, so this test writes a file once.
    assert_eq!(outcomes(CrashMode::OldestLost), [vec![3; 8]].into());
    let lost: BTreeSet<Vec<u8>> = (0..100)
        .map(|seed| {
            let medium = SimDisk::new(seed);
            let file = durable_file(&medium, "f", &[1; 4096]);
            for sector in 0..8 {
                file.write_at(&[2; 512], sector * SECTOR_BYTES).unwrap();
            }
            medium.crash_power(CrashMode::OldestLost);
            let content = medium.content("f").unwrap();
            content.chunks(512).map(|sector| sector[0]).collect()
        })
        .collect();
    let oldest = |n| [vec![1; n], vec![2; 8 - n]].concat();
    assert_eq!(lost, (1..=3).map(oldest).collect());
}

#[test]
fn sizes_and_names_are_kept_without_the_data() {
    let medium = SimDisk::new(1);
    let file = durable_file(&medium, "f", &[1; 512]);
    file.write_at(&[2; 1024], 0).unwrap();
    let disk = medium.handle();
    let new = disk.open("new", CREATE).unwrap();
    new.write_at(&[3; 700], 5000).unwrap();
    disk.rename("new", "renamed").unwrap();
    medium.crash_power(CrashMode::SizeBeforeData);
    let expected = [[1; 512], [0; 512]].concat();
    assert_eq!(medium.content("f").unwrap(), expected, "stale, then zeros");
    assert_eq!(medium.content("renamed").unwrap(), vec![0; 5700]);
    assert_eq!(medium.content("new"), None);
}

#[test]
fn only_sectors_that_were_being_written_hold_garbage() {
    let (mut old, mut new, mut torn, mut garbage) = (0, 0, 0, 0);
    for seed in 0..100 {
        let medium = SimDisk::new(seed);
        let file = durable_file(&medium, "f", &[1; 4096]);
        file.write_at(&[2; 1024], 1024).unwrap();
        medium.crash_power(CrashMode::GarbageInFlight);
        let content = medium.content("f").unwrap();
        assert_eq!(content[..1024], [1; 1024], "what no write touched");
        assert_eq!(content[2048..], [1; 2048], "what no write touched");
        for sector in content[1024..2048].chunks(512) {
            let is_new = sector.iter().take_while(|&&b| b == 2).count();
            match is_new {
                512 => new += 1,
                n if sector[n..].iter().all(|&b| b == 1) && n > 0 => torn += 1,
                _ if sector.iter().all(|&b| b == 1) => old += 1,
                _ => garbage += 1,
            }
        }
    }
    for count in [old, new, torn, garbage] {
        assert!(count > 20, "{old} {new} {torn} {garbage}");
    }
}

#[test]
fn a_ring_is_lost_kept_or_garbled_by_sector() {
    let options = RingOptions {
        bytes: 8192,
        create: true,
    };
    let pages = |seed, mode| {
        let medium = SimDisk::new(seed);
        let ring = medium.handle().open_ring("ring", options).unwrap();
        let (mut writer, _reader, _) = ring.split(0);
        writer.write(0, &[7; 8192]);
        medium.crash_power(mode);
        medium.content("ring").unwrap()
    };
    let mut parted = 0;
    let mut garbled = 0;
    for seed in 0..50 {
        assert_eq!(pages(seed, CrashMode::NewestOnly), [7; 8192]);
        let subset = pages(seed, CrashMode::RandomSubset);
        assert!(
            subset
                .chunks(512)
                .all(|s| s.iter().all(|&b| b == s[0]) && [0, 7].contains(&s[0]))
        );
        parted += u32::from(subset[..4096].chunks(512).any(|s| s[0] != subset[0]));
        let garbage = pages(seed, CrashMode::GarbageInFlight);
        garbled += u32::from(garbage.iter().any(|b| ![0, 7].contains(b)));
    }
    assert!(parted > 40 && garbled > 40, "{parted} {garbled}");
}

/// A process that dies during a write of eight sectors, which lands later.
fn dies_writing(seed: u64) -> SimDisk {
    let medium = SimDisk::new(seed);
    let file = durable_file(&medium, "f", &[1; 4096]);
    durable_file(&medium, "other", b"");
    medium.set_landing(Landing::Later);
    medium.die_at_call(1);
    assert!(file.write_at(&[2; 4096], 0).is_err());
    assert!(!medium.is_alive());
    medium
}

fn sectors_landed(medium: &SimDisk) -> usize {
    let content = medium.content("f").unwrap();
    content.chunks(512).filter(|s| **s == [2; 512]).count()
}

#[test]
fn a_write_in_flight_lands_before_its_file_can_be_locked_again() {
    let mut landed_between = 0;
    let mut landed_at_the_lock = 0;
    for seed in 0..100 {
        let medium = dies_writing(seed);
        let at_death = sectors_landed(&medium);
        let disk = medium.handle();
        let looking = disk.open("f", READ).unwrap();
        for _ in 0..4 {
            disk.list().unwrap();
        }
        let between = sectors_landed(&medium);
        assert!(between >= at_death);
        landed_between += usize::from(between > at_death);
        let shared = seed % 2 == 0;
        let options = if shared {
            OpenOptions {
                shared: true,
                ..READ
            }
        } else {
            WRITE
        };
        let _locked = disk.open("f", options).unwrap();
        let locked = sectors_landed(&medium);
        landed_at_the_lock += usize::from(locked > between);
        for _ in 0..50 {
            looking.read_at(&mut [0], 0).unwrap();
        }
        assert_eq!(sectors_landed(&medium), locked, "nothing lands afterwards");
    }
    assert!(
        landed_between > 20 && landed_at_the_lock > 20,
        "{landed_between} {landed_at_the_lock}"
    );
}

#[test]
fn a_write_in_flight_may_be_lost_with_the_power() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let medium = dies_writing(seed);
        medium.crash_power(CrashMode::KeepAll);
        seen.insert(sectors_landed(&medium));
        let medium = dies_writing(seed);
        medium.crash_power(CrashMode::LoseUnsynced);
        assert_eq!(sectors_landed(&medium), 0);
        let disk = medium.handle();
        let file = disk.open("f", WRITE).unwrap();
        let error = disk.open("f", WRITE).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        drop(file);
        assert_eq!(sectors_landed(&medium), 0, "nor does it land afterwards");
    }
    assert!(seen.len() > 4, "{seen:?}");
}

#[test]
fn the_seed_decides_harsh_crashes() {
    for mode in CrashMode::ALL {
        let run = |seed| {
            let medium = dies_writing(seed);
            let file = medium.handle().open("other", WRITE).unwrap();
            file.write_at(&[3; 5000], 100).unwrap();
            medium.crash_power(mode);
            let seen = (medium.content("f"), medium.content("other"));
            let file = medium.handle().open("f", READ).unwrap();
            file.read_at(&mut [0; 512], 0).unwrap();
            (seen, medium.trace_hash())
        };
        for seed in 0..10 {
            assert_eq!(run(seed), run(seed), "{mode:?} {seed}");
        }
        let hashes: BTreeSet<u64> = (0..10).map(|seed| run(seed).1).collect();
        assert_eq!(hashes.len(), 10, "{mode:?}");
    }
    let hash = |mode| {
        let medium = SimDisk::new(1);
        durable_file(&medium, "f", &[1; 4096]);
        medium.crash_power(mode);
        medium.trace_hash()
    };
    let hashes: BTreeSet<u64> = CrashMode::ALL.into_iter().map(hash).collect();
    assert_eq!(hashes.len(), CrashMode::ALL.len(), "the hash tells crashes");
}
