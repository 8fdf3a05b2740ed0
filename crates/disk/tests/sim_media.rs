//! Media faults of the simulated disk: each has its effect where and as often as it says, and
//! reports its hits.

mod common;

use std::sync::Arc;

use common::{READ, WRITE, durable_file};
use terrapin_base::ErrorKind;
use terrapin_disk::sim::{CrashMode, Media, MediaFault, MediaHit};
use terrapin_disk::{File, SimDisk};

const OLD: [u8; 4096] = [1; 4096];
const NEW: [u8; 1024] = [2; 1024];

/// A durable file of eight sectors with a fault.
fn faulty(seed: u64, fault: MediaFault) -> (SimDisk, Arc<dyn File>) {
    let medium = SimDisk::new(seed);
    let file = durable_file(&medium, "f", &OLD);
    durable_file(&medium, "g", &[9; 4096]);
    medium.inject_media(fault);
    (medium, file)
}

fn read(file: &dyn File) -> Vec<u8> {
    let mut content = vec![0; 4096];
    file.read_at(&mut content, 0).unwrap();
    content
}

fn hit(media: Media, offset: u64, bytes: u64) -> MediaHit {
    MediaHit {
        media,
        file: "f".into(),
        offset,
        bytes,
        astray: None,
    }
}

#[test]
fn a_lost_write_is_acknowledged_and_never_stored() {
    let (medium, file) = faulty(1, MediaFault::nth(2, Media::LostWrite).of("f"));
    file.write_at(&NEW, 0).unwrap();
    file.write_at(&NEW, 1024).unwrap();
    file.write_at(&NEW, 4096).unwrap();
    file.sync().unwrap();
    let expected = [&NEW[..], &OLD[1024..], &NEW].concat();
    assert_eq!(medium.content("f").unwrap(), expected);
    assert_eq!(medium.media_hits(), [hit(Media::LostWrite, 1024, 1024)]);
    medium.crash_power(CrashMode::KeepAll);
    assert_eq!(medium.content("f").unwrap(), expected);
}

#[test]
fn a_lost_write_past_the_end_leaves_zeros() {
    let (medium, file) = faulty(1, MediaFault::nth(1, Media::LostWrite));
    file.write_at(&NEW, 4096).unwrap();
    let expected = [&OLD[..], &[0; 1024]].concat();
    assert_eq!(medium.content("f").unwrap(), expected);
}

#[test]
fn a_fault_without_effect_is_no_hit() {
    let (medium, file) = faulty(1, MediaFault::nth(1, Media::LostWrite));
    file.write_at(&[1; 512], 0).unwrap();
    assert_eq!(medium.media_hits(), []);
}

#[test]
fn a_torn_write_lacks_at_least_one_sector() {
    for seed in 0..30 {
        let (medium, file) = faulty(seed, MediaFault::nth(1, Media::TornWrite));
        file.write_at(&[2; 4096], 0).unwrap();
        let content = read(&*file);
        let old: Vec<u64> = (0..8)
            .filter(|i| content[*i as usize * 512..][..512] == [1; 512])
            .collect();
        assert!(!old.is_empty() && content.iter().all(|b| [1, 2].contains(b)));
        let hits = medium.media_hits();
        assert!(hits.len() == 1 && old.contains(&(hits[0].offset / 512)));
    }
}

#[test]
fn a_misdirected_write_lands_elsewhere() {
    let mut elsewhere = [0; 2];
    for seed in 0..40 {
        let (medium, file) = faulty(seed, MediaFault::nth(1, Media::MisdirectedWrite));
        file.write_at(&NEW, 512).unwrap();
        file.sync().unwrap();
        let [hit] = &medium.media_hits()[..] else {
            panic!("one fault, one hit");
        };
        assert_eq!((hit.offset, hit.bytes), (512, 1024));
        medium.crash_power(CrashMode::LoseUnsynced);
        let (f, g) = (medium.content("f").unwrap(), medium.content("g").unwrap());
        let Some((name, at)) = &hit.astray else {
            assert_eq!((f, g), (OLD.to_vec(), vec![9; 4096]));
            continue;
        };
        elsewhere[usize::from(name == "g")] += 1;
        let (mut f_expected, mut g_expected) = (OLD.to_vec(), vec![9; 4096]);
        let target = match name.as_str() {
            "f" => &mut f_expected,
            _ => &mut g_expected,
        };
        target[*at as usize..][..1024].copy_from_slice(&NEW);
        assert!(f == f_expected && g == g_expected, "{seed}");
    }
    assert!(elsewhere.iter().all(|&n| n > 5), "{elsewhere:?}");
}

#[test]
fn a_flipped_write_is_wrong_in_one_byte_of_its_range() {
    let fault = MediaFault::nth(1, Media::FlippedWrite(0x10)).within(1536..1540);
    let (medium, file) = faulty(1, fault);
    file.write_at(&NEW, 0).unwrap();
    file.write_at(&NEW, 1024).unwrap();
    let content = read(&*file);
    let wrong: Vec<usize> = (0..2048).filter(|&i| content[i] != 2).collect();
    assert!(wrong.len() == 1 && (1536..1540).contains(&wrong[0]));
    assert_eq!(content[wrong[0]], 0x12);
    let expected = hit(Media::FlippedWrite(0x10), wrong[0] as u64, 1);
    assert_eq!(medium.media_hits(), [expected]);
}

#[test]
fn a_stale_read_returns_the_old_content_once() {
    let (medium, file) = faulty(1, MediaFault::nth(1, Media::StaleRead));
    file.write_at(&NEW, 1024).unwrap();
    file.sync().unwrap();
    file.read_at(&mut [0; 1024], 0).unwrap();
    assert_eq!(medium.media_hits(), [], "that read is not of it");
    let mut half = [0; 1024];
    file.read_at(&mut half, 512).unwrap();
    assert_eq!(half, [1; 1024]);
    assert_eq!(medium.media_hits(), [hit(Media::StaleRead, 1024, 512)]);
    file.read_at(&mut half, 512).unwrap();
    assert_eq!(half, [[1; 512], [2; 512]].concat()[..]);
}

#[test]
fn a_reverted_write_lasts_until_the_sync() {
    let (medium, file) = faulty(1, MediaFault::nth(1, Media::RevertedWrite));
    file.write_at(&NEW, 1024).unwrap();
    file.write_at(&[3; 512], 1024).unwrap();
    assert_eq!(read(&*file)[1536..2048], [2; 512]);
    file.sync().unwrap();
    let expected = [&OLD[..1024], &[3; 512], &OLD[1536..]].concat();
    assert_eq!(
        read(&*file),
        expected,
        "what was written over is not undone"
    );
    assert_eq!(medium.media_hits(), [hit(Media::RevertedWrite, 1536, 512)]);
    medium.crash_power(CrashMode::KeepAll);
    assert_eq!(medium.content("f").unwrap(), expected);
}

#[test]
fn a_flipped_read_is_wrong_once_and_the_medium_is_right() {
    let (medium, file) = faulty(1, MediaFault::nth(2, Media::FlippedRead(0xff)));
    assert_eq!(read(&*file), OLD);
    let content = read(&*file);
    let wrong: Vec<usize> = (0..4096).filter(|&i| content[i] != 1).collect();
    assert_eq!(wrong.len(), 1);
    assert_eq!(content[wrong[0]], 0xfe);
    assert_eq!(read(&*file), OLD);
    let expected = hit(Media::FlippedRead(0xff), wrong[0] as u64, 1);
    assert_eq!(medium.media_hits(), [expected]);
}

#[test]
fn a_bad_sector_fails_all_its_reads_and_no_others_after_crashes_and_forks() {
    let fault = MediaFault::nth(1, Media::ReadError)
        .within(512..1024)
        .lasting();
    let (medium, file) = faulty(1, fault);
    file.read_at(&mut [0; 512], 0).unwrap();
    for _ in 0..2 {
        let error = file.read_at(&mut [0; 4096], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }
    let fork = medium.fork();
    medium.crash_power(CrashMode::KeepAll);
    for disk in [&medium, &fork] {
        let file = disk.handle().open("f", READ).unwrap();
        assert!(file.read_at(&mut [0; 1], 1023).is_err());
        file.read_at(&mut [0; 512], 1024).unwrap();
        disk.clear_media();
        assert_eq!(read(&*file), OLD);
        assert_eq!(disk.media_hits().len(), 3);
    }
}

#[test]
fn a_range_that_refuses_writes_keeps_its_content() {
    let fault = MediaFault::nth(1, Media::WriteError)
        .within(512..1024)
        .lasting();
    let (medium, file) = faulty(1, fault);
    for _ in 0..2 {
        let error = file.write_at(&[9; 1024], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(read(&*file), OLD);
    }
    file.write_at(&[9; 512], 1024).unwrap();
    assert_eq!(read(&*file)[1024..1536], [9; 512]);
    assert_eq!(medium.media_hits().len(), 2);
}

#[test]
fn a_read_error_may_come_once() {
    let (_medium, file) = faulty(1, MediaFault::nth(1, Media::ReadError));
    assert!(file.read_at(&mut [0; 1], 0).is_err());
    assert_eq!(read(&*file), OLD);
}

#[test]
fn a_short_read_looks_like_the_end_of_the_file() {
    let (medium, file) = faulty(1, MediaFault::nth(1, Media::ShortRead));
    let mut out = [7; 4096];
    let error = file.read_at(&mut out, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let [hit] = &medium.media_hits()[..] else {
        panic!("one fault, one hit");
    };
    let filled = hit.offset as usize;
    assert_eq!(out[..filled], OLD[..filled]);
    assert!(out[filled..].iter().all(|&b| b == 0));
    assert_eq!(read(&*file), OLD);
}

#[test]
fn equal_seeds_give_equal_faults_and_traces() {
    let all = [
        Media::LostWrite,
        Media::TornWrite,
        Media::MisdirectedWrite,
        Media::FlippedWrite(1),
        Media::StaleRead,
        Media::RevertedWrite,
        Media::FlippedRead(1),
        Media::ReadError,
        Media::ShortRead,
    ];
    let run = |seed, media: Option<Media>| {
        let medium = SimDisk::new(seed);
        durable_file(&medium, "f", &OLD);
        if let Some(media) = media {
            medium.inject_media(MediaFault::nth(2, media).lasting());
        }
        let file = medium.handle().open("f", WRITE);
        if let Ok(file) = file {
            for i in 0..4 {
                file.write_at(&[i + 2; 1024], u64::from(i) * 512).unwrap();
            }
            file.sync().unwrap();
            for _ in 0..3 {
                let _ = file.read_at(&mut [0; 4096], 0);
            }
        }
        (
            medium.media_hits(),
            medium.content("f"),
            medium.trace_hash(),
        )
    };
    let sound = run(1, None);
    for media in all {
        let faulty = run(1, Some(media));
        assert_eq!(faulty, run(1, Some(media)), "{media:?}");
        assert!(!faulty.0.is_empty(), "{media:?}");
        assert_ne!(faulty.2, sound.2, "{media:?}");
    }
}
