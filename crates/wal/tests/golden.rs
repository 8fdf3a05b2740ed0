//! Compares a whole small log, byte by byte, with an annotated dump. So a change of the format
//! fails here first. The test has its own decoder, which follows `docs/FORMAT.md` and shares no
//! code with the crate.

mod common;

use std::fmt::Write;

use common::{DATABASE, Process};
use terrapin_base::checksum::crc32c;
use terrapin_disk::SimDisk;
use terrapin_wal::{Append, Log, LogOptions};

/// The log's branch.
const BRANCH: u64 = 0x0102_0304_0506_0708;

const GOLDEN: &str = include_str!("golden/segment.txt");

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// One line for each field of a segment.
fn dump(file: &[u8]) -> String {
    let mut out = String::new();
    let mut line = |at: usize, bytes: &[u8], note: &str| {
        let shown = match bytes.len() {
            0..=24 => hex(bytes),
            long => format!("{} .. ({long} bytes)", hex(&bytes[..8])),
        };
        let shown = if shown.is_empty() {
            "-".to_string()
        } else {
            shown
        };
        writeln!(out, "{at:06x}  {shown:<48}  {note}").unwrap();
    };
    let mut at = 0;
    let fields = [
        (8, "magic"),
        (4, "format version"),
        (4, "incarnation"),
        (8, "database id"),
        (8, "segment number"),
        (8, "start LSN"),
        (8, "previous end LSN"),
        (8, "whole below LSN"),
        (8, "first record LSN"),
        (8, "capacity"),
        (8, "branch"),
        (4, "branch before, lower half"),
        (4, "CRC32C of the bytes before"),
    ];
    for (bytes, note) in fields {
        line(at, &file[at..at + bytes], note);
        at += bytes;
    }
    assert_eq!(number(&file[84..88]), u64::from(crc32c(&file[..84])));
    assert!(file[88..4096].iter().all(|&byte| byte == 0));
    line(88, &file[88..4096], "zeros");
    let (incarnation, start) = (&file[12..16], number(&file[32..40]));
    at = 4096;
    while file[at + 8] != 0 {
        let lsn = start + at as u64 - 4096;
        let length = number(&file[at + 4..at + 8]) as usize;
        let payload = &file[at + 9..at + 9 + length];
        let kind = file[at + 8];
        let summed = [
            payload,
            &BRANCH.to_le_bytes(),
            incarnation,
            &file[at + 4..at + 9],
            &lsn.to_le_bytes(),
        ]
        .concat();
        assert_eq!(number(&file[at..at + 4]), u64::from(crc32c(&summed)));
        let name = match kind {
            1 => "filler".to_string(),
            2 => format!("mark: synced below {}", number(payload)),
            3 => "clean close".to_string(),
            kind => format!("a user's record of kind {kind}"),
        };
        line(at, &file[at..at + 4], &format!("LSN {lsn}: {name}; CRC32C"));
        line(
            at + 4,
            &file[at + 4..at + 8],
            &format!("payload of {length} bytes"),
        );
        line(at + 8, &[kind], "kind");
        line(at + 9, payload, "payload");
        at += 9 + length;
    }
    line(at, &file[at..], "not written");
    assert!(file[at..].iter().all(|&byte| byte == 0));
    out
}

#[test]
fn a_small_log_matches_its_dump() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let options = LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 32 << 10,
        sync_interval_ns: 1,
        database_id: DATABASE,
        branch: BRANCH,
        known_branches: [BRANCH; 2],
    };
    let log: Log = process.create(options).unwrap();
    let append = |kind, pieces: &[&[u8]]| {
        let Append::Done(appended) = log.try_append(kind, pieces).unwrap() else {
            panic!("full")
        };
        log.publish(&appended);
        appended.end
    };
    append(16, &[b"the first ", b"record"]);
    let end = append(255, &[]);
    log.sync(end).unwrap();
    // The record ends five bytes before a block's end, so the filler takes the next block too.
    let end = append(17, &[&[0xab; 4096 - 17 - 9 - 5]]);
    log.sync(end).unwrap();
    append(16, &[b"last"]);
    log.close().unwrap();
    let actual = dump(&medium.content("log-0000000000000001").unwrap());
    assert!(
        actual.trim_end() == GOLDEN.trim_end(),
        "the log's bytes are now:\n{actual}"
    );
}
