//! The ring's halves check their bounds, and carry a stream between two threads unchanged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use terrapin_base::Env;
use terrapin_disk::{
    Disk, LogRing, RealDisk, RingOptions, RingReader, RingSpace, RingWriter, SimDisk,
};

fn with_rings(bytes: u64, script: impl Fn(LogRing)) {
    let options = RingOptions {
        bytes,
        create: true,
    };
    script(SimDisk::new(1).handle().open_ring("ring", options).unwrap());
    let thread = std::thread::current();
    let name = format!(
        "ring-{}-{}",
        std::process::id(),
        thread.name().unwrap_or("main")
    );
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let disk = Arc::new(RealDisk::open(Env::threads(), &path, true).unwrap());
    script(disk.open_ring("ring", options).unwrap());
    std::fs::remove_dir_all(path).unwrap();
}

/// The byte that a test stores at a position.
fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes_at(position: u64, count: usize) -> Vec<u8> {
    (position..position + count as u64).map(byte_at).collect()
}

#[test]
fn a_new_ring_is_zeros() {
    with_rings(8192, |ring| {
        let mut out = vec![1; 8192];
        ring.read(77, &mut out);
        assert!(out.iter().all(|&b| b == 0));
    });
}

#[test]
fn each_bound_of_each_half_is_checked() {
    type Step = fn(&mut RingWriter, &mut RingReader);
    // published 6000, freed 5000, size 4096: the writer may reach 9096.
    let wrong: [(&str, Step); 12] = [
        ("write below published", |w, _| w.write(5999, &[1])),
        ("write over what is not freed", |w, _| w.write(9096, &[1])),
        ("write across the limit", |w, _| w.write(9000, &[1; 97])),
        ("write more than a ring", |w, _| w.write(6000, &[1; 4097])),
        ("write past 2^64", |w, _| w.write(u64::MAX, &[1, 2])),
        ("publish backwards", |w, _| w.publish(5999)),
        ("publish beyond the limit", |w, _| w.publish(9097)),
        ("read below freed", |_, r| r.read(4999, &mut [0])),
        ("read beyond published", |_, r| r.read(5999, &mut [0; 2])),
        ("read past 2^64", |_, r| r.read(u64::MAX, &mut [0; 2])),
        ("free backwards", |_, r| r.free(4999)),
        ("free beyond published", |_, r| r.free(6001)),
    ];
    let right: [(&str, Step); 6] = [
        ("write to the limit", |w, _| w.write(6000, &[1; 3096])),
        ("write nothing at the limit", |w, _| w.write(9096, &[])),
        ("publish to the limit", |w, _| w.publish(9096)),
        ("read all", |_, r| r.read(5000, &mut [0; 1000])),
        ("read nothing", |_, r| r.read(6000, &mut [])),
        ("free all, then write more", |w, r| {
            r.free(6000);
            w.write(6000, &[1; 4096]);
        }),
    ];
    for (steps, ok) in [(&wrong[..], false), (&right[..], true)] {
        for (name, step) in steps {
            with_rings(4096, |ring| {
                let (mut writer, mut reader, space) = ring.split(4000);
                writer.write(4000, &[7; 2000]);
                writer.publish(6000);
                reader.free(5000);
                let outcome = catch_unwind(AssertUnwindSafe(|| step(&mut writer, &mut reader)));
                assert_eq!(outcome.is_ok(), ok, "{name}");
                if !ok {
                    assert_eq!((space.freed(), space.published()), (5000, 6000), "{name}");
                }
            });
        }
    }
}

#[test]
fn a_recovery_read_longer_than_the_ring_is_refused() {
    with_rings(4096, |ring| {
        assert!(catch_unwind(AssertUnwindSafe(|| ring.read(0, &mut [0; 4097]))).is_err());
    });
}

#[test]
fn a_ring_works_at_any_position_below_two_to_the_64() {
    let start = u64::MAX - 5000;
    with_rings(4096, |ring| {
        let (mut writer, mut reader, _) = ring.split(start);
        let mut out = vec![0; 2500];
        for at in [start, start + 2500] {
            let text: Vec<u8> = (0..2500).map(|i| (i % 251) as u8).collect();
            writer.write(at, &text);
            writer.publish(at + 2500);
            reader.read(at, &mut out);
            assert_eq!(out, text);
            reader.free(at + 2500);
        }
    });
}

/// Writes records of many lengths whenever there is room, and publishes some of them late.
fn produce(writer: &mut RingWriter, space: &RingSpace, start: u64, end: u64) {
    let (mut at, mut length) = (start, 1u64);
    while at < end {
        length = length * 7 % 1009 + 1;
        let count = length.min(end - at);
        if at + count > space.freed() + space.bytes() {
            writer.publish(at);
            std::thread::yield_now();
            continue;
        }
        writer.write(at, &bytes_at(at, count as usize));
        at += count;
        if length.is_multiple_of(3) || at == end {
            writer.publish(at);
        }
    }
}

#[test]
fn a_stream_passes_between_threads_unchanged() {
    let (start, end) = (12_345, 12_345 + 600_000);
    with_rings(4096, |ring| {
        let (mut writer, mut reader, space) = ring.split(start);
        std::thread::scope(|scope| {
            let theirs = space.clone();
            scope.spawn(move || produce(&mut writer, &theirs, start, end));
            let mut at = start;
            let mut out = vec![0; 4096];
            while at < end {
                let published = space.published();
                let count = (published - at) as usize;
                if count == 0 {
                    std::thread::yield_now();
                    continue;
                }
                reader.read(at, &mut out[..count]);
                assert!(out[..count] == bytes_at(at, count));
                at = published;
                reader.free(at);
            }
        });
    });
}

#[test]
fn a_lent_slice_has_published_bytes_up_to_the_rings_end() {
    with_rings(8192, |ring| {
        let (mut writer, mut reader, _) = ring.split(4096);
        writer.write(4096, &bytes_at(4096, 6000));
        writer.publish(4096 + 6000);
        assert_eq!(reader.lend(4096, 6000), bytes_at(4096, 4096));
        assert_eq!(reader.lend(8192, 1904), bytes_at(8192, 1904));
        assert_eq!(reader.lend(5000, 10), bytes_at(5000, 10));
        reader.free(8192);
        assert!(catch_unwind(AssertUnwindSafe(|| reader.lend(8191, 1).len())).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| reader.lend(8192, 1905).len())).is_err());
    });
}
