//! Damage: recovery refuses damaged synced records and names the place. It cuts only a torn tail.
//! No bytes make recovery panic (D8).

mod common;

use common::{DATABASE, Process, Random, append, assert_prefix, collect, tiny};
use terrapin_base::checksum::crc32c;
use terrapin_base::{ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_wal::LogOptions;

const OPTIONS: LogOptions = LogOptions {
    ring_bytes: 64 << 10,
    segment_bytes: 512 << 10,
    sync_interval_ns: 1_000_000,
    database_id: DATABASE,
    branch: DATABASE,
    known_branches: [DATABASE; 2],
};

/// Builds a log in one segment that syncs now and then, but not at the end. Returns the number of
/// records, of synced records, and of records below the last mark.
fn build(medium: &SimDisk, options: LogOptions) -> (u64, u64, u64) {
    let process = Process::new(medium, 0);
    let log = process.create(options).unwrap();
    let (mut synced, mut marked) = (0, 0);
    for index in 0..400 {
        process.append(&log, index).unwrap();
        if index % 70 == 69 {
            log.sync(log.tail()).unwrap();
            (marked, synced) = (synced, index + 1);
        }
    }
    (400, synced, marked)
}

#[test]
fn a_flipped_byte_below_a_mark_is_refused_and_above_it_cuts_the_tail() {
    let medium = SimDisk::new(1);
    let (count, synced, marked) = build(&medium, OPTIONS);
    medium.crash_power(CrashMode::LoseUnsynced);
    let name = "log-0000000000000001";
    let process = Process::new(&medium.fork(), 0);
    let recovery = process.scan(OPTIONS, Lsn(4096)).unwrap();
    let (end, mut replay) = (recovery.end(), recovery.read_only());
    let records = collect(&mut replay).unwrap();
    assert!(records.len() as u64 >= synced && (records.len() as u64) < count);
    let marked_end = records[marked as usize].0;
    let (mut refused, mut cut) = (0, 0);
    for lsn in (4096..end.0).step_by(197) {
        let medium = medium.fork();
        let offset = 4096 + (lsn - 4096);
        assert!(medium.corrupt(name, offset, 0x20));
        let process = Process::new(&medium, 0);
        match process.scan(OPTIONS, Lsn(4096)) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                let text = error.to_string();
                assert!(
                    text.contains(name) && text.contains("offset") && text.contains("lsn"),
                    "{text}"
                );
                refused += 1;
            }
            Ok(recovery) => {
                // The kernel may have written a page of the ring back in time. Then the record is
                // whole there.
                let kept = collect(&mut recovery.read_only()).unwrap();
                assert_eq!(kept, records[..kept.len()]);
                let seen = kept.len() == records.len() || lsn >= marked_end.0;
                assert!(seen, "damage at {lsn} below {marked_end} cut the log");
                assert!(kept.len() as u64 >= marked);
                cut += 1;
            }
        }
    }
    assert!(refused > 500 && cut > 5, "{refused} refused, {cut} cut");
}

#[test]
fn a_flipped_byte_anywhere_gives_an_error_or_a_prefix() {
    let medium = SimDisk::new(2);
    build(&medium, OPTIONS);
    medium.crash_process();
    let all = collect(
        &mut Process::new(&medium.fork(), 0)
            .scan(OPTIONS, Lsn(4096))
            .unwrap()
            .read_only(),
    )
    .unwrap();
    let mut random = Random(3);
    for _ in 0..300 {
        let medium = medium.fork();
        for _ in 0..=random.below(3) {
            let (name, bytes) = match random.below(3) {
                0 => ("ring", 64 << 10),
                _ => ("log-0000000000000001", 200 << 10),
            };
            medium.corrupt(name, random.below(bytes), 1 << random.below(8));
        }
        let process = Process::new(&medium, 0);
        if let Ok((_, records)) = process.recover(OPTIONS) {
            assert_eq!(records, all[..records.len()]);
        }
    }
}

#[test]
fn lost_short_and_foreign_files_are_refused() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    for index in 0..400 {
        append(&process.env, &log, index).unwrap();
    }
    medium.crash_process();
    let second = "log-0000000000000002";
    let refusal = |change: &dyn Fn(&SimDisk, &Process)| {
        let medium = medium.fork();
        let process = Process::new(&medium, 0);
        change(&medium, &process);
        process.scan(tiny(), Lsn(4096)).err().unwrap().to_string()
    };
    let text = refusal(&|_, p| p.disk.remove(second).unwrap());
    assert!(text.contains("begins after"), "{text}");
    let text = refusal(&|m, _| m.plant(second, &m.content(second).unwrap()[..8192]));
    assert!(text.contains("shorter than its content"), "{text}");
    let text = refusal(&|m, _| m.plant(second, &[]));
    assert!(text.contains("too short"), "{text}");
    let text = refusal(&|m, _| m.plant(second, &m.content("log-0000000000000003").unwrap()));
    assert!(text.contains("name of another segment"), "{text}");
    let text = refusal(&|m, _| m.plant("ring", &[0; 5000]));
    assert!(text.contains("impossible size"), "{text}");
    for place in [8, 40] {
        let text = refusal(&|m, _| assert!(m.corrupt(second, place, 0x40)));
        assert!(text.contains("checksum"), "{text}");
    }
    let text = refusal(&|m, _| {
        let mut content = m.content(second).unwrap();
        content[8] = 0x40;
        let crc = crc32c(&content[..84]);
        content[84..88].copy_from_slice(&crc.to_le_bytes());
        m.plant(second, &content);
    });
    assert!(text.contains("newer"), "{text}");
    let empty = Process::new(&SimDisk::new(1), 0);
    assert_eq!(
        empty.scan(tiny(), Lsn(4096)).err().unwrap().kind(),
        ErrorKind::NotFound
    );
}

/// Encodes a segment's first block after `docs/FORMAT.md`, without code of the crate.
fn header(fields: [u64; 7], incarnation: u32) -> Vec<u8> {
    let mut block = b"TERRALOG".to_vec();
    block.extend(2u32.to_le_bytes());
    block.extend(incarnation.to_le_bytes());
    for field in fields {
        block.extend(field.to_le_bytes());
    }
    block.extend(DATABASE.to_le_bytes()); // the branch
    block.extend((DATABASE as u32).to_le_bytes()); // the branch before
    block.extend(crc32c(&block).to_le_bytes());
    block.resize(4096, 0);
    block
}

/// Encodes a record after `docs/FORMAT.md`.
fn record(kind: u8, payload: &[u8], incarnation: u32, lsn: u64) -> Vec<u8> {
    let length = payload.len() as u32;
    let mut summed = payload.to_vec();
    summed.extend(DATABASE.to_le_bytes());
    summed.extend(incarnation.to_le_bytes());
    summed.extend(length.to_le_bytes());
    summed.push(kind);
    summed.extend(lsn.to_le_bytes());
    let mut out = crc32c(&summed).to_le_bytes().to_vec();
    out.extend(length.to_le_bytes());
    out.push(kind);
    out.extend(payload);
    out
}

/// Regression: recovery allocated as many bytes as there are between, and the process died.
#[test]
fn a_first_record_behind_the_end_of_the_log_is_refused() {
    for first in [8192, 8203, 8192 + (1 << 20), 1 << 30, 1 << 40] {
        let medium = SimDisk::new(0);
        let mut one = header([DATABASE, 1, 4096, 4096, 4096, 4096, 4096], 1);
        one.extend(record(16, &[7; 4096 - 9], 1, 4096));
        medium.plant("log-0000000000000001", &one);
        let mut two = header([DATABASE, 2, 8192, 8192, 8192, first, 16384], 1);
        two.extend(record(16, b"x", 1, 8192));
        two.resize(4096 + 16384, 0);
        medium.plant("log-0000000000000002", &two);
        medium.plant("ring", &[0; 64 << 10]);
        let found = Process::new(&medium, 0).scan(tiny(), Lsn(4096));
        match found.and_then(|recovery| recovery.begin()) {
            Ok(_) => assert_eq!(first, 8192),
            Err(error) => {
                assert_ne!(first, 8192, "{error}");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{first}: {error}");
            }
        }
    }
}

#[test]
fn false_headers_and_records_with_good_checksums_never_panic() {
    let mut random = Random(11);
    let mut accepted = 0;
    for _ in 0..3000 {
        let medium = SimDisk::new(0);
        let mut start = 4096;
        let mut incarnation = 1;
        for number in 1..=1 + random.below(4) {
            let capacity = 4096 * (1 + random.below(4));
            let mut fields = [DATABASE, number, start, start, start, start, capacity];
            if random.below(3) == 0 {
                let value = [
                    0,
                    4096,
                    start + 8192,
                    u64::MAX,
                    u64::MAX - 4095,
                    1 << 61,
                    1 << 40,
                ][random.below(7) as usize];
                fields[random.below(7) as usize] = value;
            }
            let mut file = header(fields, incarnation);
            file.resize(4096 + capacity as usize, 0);
            let mut lsn = start;
            while lsn < start + capacity {
                let kind = [1, 2, 3, 4, 16, 16, 16, 255][random.below(8) as usize];
                let payload = vec![random.below(256) as u8; random.below(900) as usize];
                let record = record(kind, &payload, incarnation, lsn);
                let at = 4096 + (lsn - start) as usize;
                let count = record.len().min(file.len() - at);
                file[at..at + count].copy_from_slice(&record[..count]);
                if random.below(30) == 0 {
                    // A header alone; its length has no meaning.
                    let length = file.iter_mut().skip(at + 4).take(4);
                    length.for_each(|byte| *byte = 0x0f);
                }
                lsn += record.len() as u64;
            }
            medium.plant(&format!("log-{number:016x}"), &file);
            if random.below(3) == 0 {
                incarnation += 1;
            } else {
                start += capacity;
            }
        }
        medium.plant("ring", &[0; 64 << 10]);
        let process = Process::new(&medium, 0);
        if let Ok(recovery) = process.scan(tiny(), Lsn(4096)) {
            accepted += 1;
            let (_, mut replay) = recovery.begin().unwrap();
            while replay.next().unwrap().is_some() {}
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn recovery_reads_a_segment_built_from_the_documentation() {
    let medium = SimDisk::new(0);
    let mut file = header([DATABASE, 1, 4096, 4096, 4096, 4096, 16384], 7);
    file.extend(record(16, b"one", 7, 4096));
    file.extend(record(200, b"", 7, 4096 + 12));
    file.resize(4096 + 16384, 0);
    medium.plant("log-0000000000000001", &file);
    // The next record is in the ring, at the remainder of its LSN.
    let mut ring = vec![0; 64 << 10];
    let third = record(17, b"three", 7, 4117);
    ring[4117..4117 + third.len()].copy_from_slice(&third);
    medium.plant("ring", &ring);
    let process = Process::new(&medium, 0);
    let recovery = process.scan(tiny(), Lsn(4108)).unwrap();
    assert_eq!(
        (recovery.end(), recovery.incarnation().0),
        (Lsn(4117 + 14), 7)
    );
    let (log, mut replay) = recovery.begin().unwrap();
    assert_eq!(log.tail(), Lsn(8192));
    let mut seen = Vec::new();
    while let Some(record) = replay.next().unwrap() {
        seen.push((record.lsn.0, record.kind, record.payload.to_vec()));
    }
    assert_eq!(seen, [(4108, 200, vec![]), (4117, 17, b"three".to_vec())]);
}

/// Regression: page ids have room for 2^24 lives, the log's header for 2^32. A database with more
/// lives opened and took writes, but no checkpoint could end.
#[test]
fn no_life_follows_the_last_one_that_page_ids_can_hold() {
    for (life, begins) in [
        ((1 << 24) - 2, true),
        ((1 << 24) - 1, false),
        (1 << 30, false),
    ] {
        let medium = SimDisk::new(0);
        let mut file = header([DATABASE, 1, 4096, 4096, 4096, 4096, 16384], life);
        file.resize(4096 + 16384, 0);
        medium.plant("log-0000000000000001", &file);
        medium.plant("ring", &[0; 64 << 10]);
        let process = Process::new(&medium, 0);
        let recovery = process.scan(tiny(), Lsn(4096)).unwrap();
        match recovery.begin() {
            Ok(_) => assert!(begins, "{life}"),
            Err(error) => {
                assert!(!begins, "{life}: {error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported);
            }
        }
    }
}

/// Regression: segment numbers continued from the highest number in a header without a check for
/// overflow.
#[test]
fn no_segment_follows_the_highest_number() {
    for count in [0, 3] {
        for number in [u64::MAX - 1, u64::MAX] {
            let medium = SimDisk::new(1);
            let process = Process::new(&medium, 0);
            let log = process.create(tiny()).unwrap();
            for index in 0..count {
                process.append(&log, index).unwrap();
            }
            medium.crash_process();
            let mut content = medium.content("log-0000000000000001").unwrap();
            content[24..32].copy_from_slice(&number.to_le_bytes());
            let crc = crc32c(&content[..84]);
            content[84..88].copy_from_slice(&crc.to_le_bytes());
            let process = Process::new(&medium, 0);
            process.disk.remove("log-0000000000000001").unwrap();
            medium.plant(&format!("log-{number:016x}"), &content);
            let recovery = process.scan(tiny(), Lsn(4096)).unwrap();
            match recovery.begin() {
                // A life without writes leaves its number to the next one.
                Ok(_) => assert!(number < u64::MAX || count == 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
    }
}

/// Regression: the log needs a ring of 64 KiB or more. Recovery would have kept a ring of 4 KiB on
/// a disk too full for another one.
#[test]
fn a_ring_below_the_smallest_size_is_refused() {
    for bytes in [4 << 10, 32 << 10] {
        let medium = SimDisk::new(1);
        let process = Process::new(&medium, 0);
        let log = process.create(tiny()).unwrap();
        process.append(&log, 0).unwrap();
        log.close().unwrap();
        medium.crash_process();
        medium.plant("ring", &vec![0; bytes]);
        let error = Process::new(&medium, 0).recover(tiny()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("impossible size"), "{error}");
    }
}

/// Regression: recovery skipped a damaged block below a mark if the ring still had its records. It
/// replayed all of them and began the next life behind them. The records were lost once the ring
/// wrapped.
#[test]
fn recovery_mends_damage_of_which_the_ring_has_a_copy() {
    let options = LogOptions {
        ring_bytes: 512 << 10,
        ..OPTIONS
    };
    let medium = SimDisk::new(1);
    build(&medium, options);
    medium.crash_process();
    let recovery = Process::new(&medium.fork(), 0)
        .scan(options, Lsn(4096))
        .unwrap();
    let end = recovery.end().0;
    let records = collect(&mut recovery.read_only()).unwrap();
    let mut damaged = 0;
    for lsn in (4096..end).step_by(2531) {
        let medium = medium.fork();
        assert!(medium.corrupt("log-0000000000000001", lsn, 0x20));
        let (_, found) = Process::new(&medium, 0).recover(options).unwrap();
        assert!(found == records, "damage at {lsn}");
        medium.crash_power(CrashMode::LoseUnsynced);
        medium.plant("ring", &vec![0; 512 << 10]);
        let (_, found) = Process::new(&medium, 0).recover(options).unwrap();
        assert!(found == records, "damage at {lsn} came back");
        damaged += 1;
    }
    assert!(damaged > 100, "{damaged}");
}

/// Regression: a damaged record that was not needed reached into the last segment. The scan found
/// the log sound, but the copy of that segment failed on the record, so the open was refused.
#[test]
fn damage_before_the_needed_records_is_ignored() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..30 {
        let medium = SimDisk::new(seed);
        let process = Process::new(&medium, seed);
        let log = process.create(tiny()).unwrap();
        let mut ends = Vec::new();
        for index in 0..20 + seed {
            ends.push(process.append(&log, index).unwrap());
        }
        log.sync(log.tail()).unwrap();
        medium.crash_power(CrashMode::LoseUnsynced);
        medium.plant("ring", &[0; 64 << 10]);
        let needed = ends[ends.len() - 2].lsn;
        for lsn in (4096..needed.0).step_by(211) {
            let medium = medium.fork();
            let number = 1 + (lsn - 4096) / (16 << 10);
            let offset = 4096 + (lsn - 4096) % (16 << 10);
            if !medium.corrupt(&format!("log-{number:016x}"), offset, 0x20) {
                continue;
            }
            let process = Process::new(&medium, seed);
            if process.scan(tiny(), needed).is_err() {
                refused += 1;
                continue;
            }
            let (_, records) = process.recover_from(tiny(), needed).unwrap();
            assert_eq!(records.len(), 2, "damage at {lsn}");
            opened += 1;
        }
    }
    assert!(
        opened > 100 && refused > 10,
        "{opened} opened, {refused} refused"
    );
}

/// Regression: a copy of an open database may have segments older than its ring. The ring's marks
/// reach beyond their end, and the ring holds a closing record. Recovery computed a negative
/// length.
#[test]
fn a_ring_newer_than_the_segments_gives_an_error_or_all_its_records() {
    let mut opened = 0;
    for seed in 0..120 {
        let medium = SimDisk::new(seed);
        let process = Process::new(&medium, seed);
        let log = process.create(tiny()).unwrap();
        let mut random = Random(seed);
        let mut index = 0;
        let mut append = |count: u64| {
            for _ in 0..count {
                process.append(&log, index).unwrap();
                if random.below(4) == 0 {
                    log.sync(log.tail()).unwrap();
                }
                index += 1;
            }
        };
        append(seed % 20);
        log.sync(log.tail()).unwrap();
        let older = medium.fork();
        append(1 + seed % 50);
        log.close().unwrap();
        older.plant("ring", &medium.content("ring").unwrap());
        older.crash_power(CrashMode::LoseUnsynced);
        if let Ok((_, records)) = Process::new(&older, seed).recover(tiny()) {
            assert_prefix(&records);
            older.crash_power(CrashMode::LoseUnsynced);
            let (_, again) = Process::new(&older, seed).recover(tiny()).unwrap();
            assert_eq!(records, again, "seed {seed}");
            opened += 1;
        }
    }
    assert!(opened > 20, "{opened}");
}
