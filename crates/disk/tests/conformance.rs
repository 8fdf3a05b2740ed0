//! The contract of a disk: every script runs on the simulated disk and on a real directory.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use terrapin_base::sync::{AtomicU64, Ordering};
use terrapin_base::{Env, ErrorKind};
use terrapin_disk::{AlignedBuf, Disk, OpenOptions, RealDisk, RingOptions, Show, SimDisk};

use common::{CREATE, READ, WRITE, content_of, flight, shown};

fn direct(options: OpenOptions) -> OpenOptions {
    OpenOptions {
        direct: true,
        ..options
    }
}

/// A directory that is removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("terrapin-disk-{}-{number}", std::process::id());
        // Beside the build, not in /tmp, which is often in memory and has no direct I/O.
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        Directory(base.join(name).join("nested"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().expect("it is nested"));
    }
}

/// Runs a script on both disks. The script gets two handles, as of two engines over the same files.
fn on_both(script: impl Fn(Arc<dyn Disk>, Arc<dyn Disk>)) {
    let sim = SimDisk::new(7);
    script(sim.handle(), sim.handle());
    let directory = Directory::new();
    // With the simulated clock, waits for locks take no time.
    let (env, _) = Env::simulated(1);
    let open = || -> Arc<dyn Disk> {
        Arc::new(RealDisk::open(env.clone(), &directory.0, true).expect("a new directory"))
    };
    script(open(), open());
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| ((i * 31 + seed * 17) >> 3) as u8 ^ i as u8)
        .collect()
}

fn kind<T>(result: terrapin_base::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => error.kind(),
    }
}

#[test]
fn written_bytes_are_read_at_any_offset_and_length() {
    on_both(|disk, _| {
        for (name, options) in [("buffered", CREATE), ("direct", direct(CREATE))] {
            let file = disk.open(name, options).unwrap();
            let unit = file.alignment() as usize;
            let content = pattern(1, 64 * unit);
            // From aligned memory, and from memory that is off by one.
            let mut shifted = AlignedBuf::from(&[0u8][..]);
            shifted.extend_from_slice(&content[32 * unit..]);
            file.write_at(&AlignedBuf::from(&content[..32 * unit]), 0)
                .unwrap();
            file.write_at(&shifted[1..], 32 * unit as u64).unwrap();
            assert_eq!(file.bytes().unwrap(), content.len() as u64);
            file.sync().unwrap();
            for (offset, bytes) in [
                (0, 0),
                (0, 1),
                (1, 1),
                (511, 2),
                (unit - 1, unit + 2),
                (unit, unit),
                (3, 60 * unit),
                (0, 64 * unit),
                (64 * unit - 1, 1),
                (64 * unit, 0),
            ] {
                let mut buffer = vec![0xee; bytes];
                file.read_at(&mut buffer, offset as u64).unwrap();
                assert_eq!(buffer, content[offset..offset + bytes]);
                let mut aligned = AlignedBuf::zeroed(bytes);
                file.read_at(&mut aligned, offset as u64).unwrap();
                assert_eq!(aligned[..], content[offset..offset + bytes]);
            }
            assert_eq!(content_of(&*file), content);
        }
    });
}

/// The page cache always shows what direct writes made.
#[test]
fn cached_reads_see_direct_writes() {
    on_both(|disk, _| {
        let options = OpenOptions {
            cached: true,
            ..direct(CREATE)
        };
        let file = disk.open("f", options).unwrap();
        let (page, pages) = (4096, 64);
        let mut content = pattern(5, pages * page);
        file.write_at(&AlignedBuf::from(&content[..]), 0).unwrap();
        let check = |content: &[u8]| {
            for (offset, bytes) in [
                (0, 1),
                (511, 2),
                (page - 1, page + 2),
                (3, content.len() - page),
                (content.len() - 1, 1),
                (content.len(), 0),
            ] {
                let mut buffer = vec![0xee; bytes];
                file.read_cached_at(&mut buffer, offset as u64).unwrap();
                assert_eq!(buffer, content[offset..offset + bytes]);
            }
            let mut flight = flight(content.len()).cached(true);
            for at in (0..content.len()).step_by(page) {
                flight.push(at as u64, page).unwrap();
            }
            for (at, read) in shown(&*file, &mut flight, Show::Some).iter().enumerate() {
                assert_eq!(read.as_ref().unwrap(), &content[at * page..][..page]);
            }
        };
        check(&content);
        for round in 0..20 {
            let at = round * 7 % pages;
            let new = pattern(100 + round as u64, 3 * page);
            let new = &new[..(pages - at).min(3) * page];
            content[at * page..][..new.len()].copy_from_slice(new);
            file.write_at(&AlignedBuf::from(new), (at * page) as u64)
                .unwrap();
            check(&content);
        }
        file.set_bytes(40 * page as u64).unwrap();
        content.truncate(40 * page);
        check(&content);
        for (offset, bytes) in [(40 * page, 1), (40 * page - 1, 2), (30 * page, 16 * page)] {
            let mut buffer = vec![0; bytes];
            let error = file.read_cached_at(&mut buffer, offset as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        // Beyond the end and back: the bytes read as zeros.
        file.set_bytes(64 * page as u64).unwrap();
        content.resize(64 * page, 0);
        check(&content);
    });
}

#[test]
fn work_during_a_read_is_done_once_for_every_outcome() {
    on_both(|disk, _| {
        let content = pattern(6, 64 << 10);
        let ways = [
            ("buffered", CREATE),
            ("direct", direct(CREATE)),
            (
                "cached",
                OpenOptions {
                    cached: true,
                    ..direct(CREATE)
                },
            ),
        ];
        for (name, options) in ways {
            let file = disk.open(name, options).unwrap();
            file.write_at(&AlignedBuf::from(&content[..]), 0).unwrap();
            // More reads than one mode of waiting gets before the other is tried.
            for read in 0..200 {
                let (offset, bytes) = [(0, 4096), (3, 700), (8192, 32 << 10), (5, 0)][read % 4];
                for cached in [false, true] {
                    let mut buffer = AlignedBuf::zeroed(bytes);
                    let mut done = 0;
                    file.read_meanwhile(&mut buffer, offset as u64, cached, &mut || done += 1)
                        .unwrap();
                    assert_eq!(buffer[..], content[offset..offset + bytes], "{name}");
                    assert_eq!(done, 1, "{name}");
                }
            }
            let mut done = 0;
            let end = content.len() as u64;
            let past_end = file.read_meanwhile(&mut [0; 4096], end, false, &mut || done += 1);
            assert_eq!((kind(past_end), done), (ErrorKind::Corrupt, 1), "{name}");
        }
    });
}

#[test]
fn a_read_past_the_end_is_corruption_for_any_size() {
    on_both(|disk, _| {
        let file = disk.open("f", CREATE).unwrap();
        file.write_at(&pattern(2, 5000), 0).unwrap();
        drop(file);
        for options in [READ, direct(READ)] {
            let file = disk.open("f", options).unwrap();
            let mut tail = vec![0; 1000];
            file.read_at(&mut tail, 4000).unwrap();
            assert_eq!(tail, pattern(2, 5000)[4000..]);
            for (offset, bytes) in [
                (4000, 1001),
                (5000, 1),
                (4999, 2),
                (0, 8192),
                (4096, 1024),
                (1 << 40, 1),
                (u64::MAX, 1),
                (u64::MAX - 5, 4096),
            ] {
                let mut buffer = AlignedBuf::zeroed(bytes);
                let error = file.read_at(&mut buffer, offset).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert!(error.to_string().contains('f'), "{error}");
            }
        }
    });
}

#[test]
fn a_flight_does_all_reads_and_reports_each_error() {
    on_both(|disk, _| {
        let content = pattern(3, 1 << 20);
        let file = disk.open("f", direct(CREATE)).unwrap();
        file.write_at(&content, 0).unwrap();
        // Aligned, unaligned and empty reads, more than fly at once, and more than a bounce buffer.
        for (count, bytes, step, shift) in [
            (200, 4096, 4096, 0),
            (200, 4096, 4096, 100),
            (130, 700, 777, 3),
            (40, 100_000, 5000, 1),
            (1, 50, 1, 1),
            (70, 0, 512, 0),
        ] {
            for which in [Show::Oldest, Show::Some] {
                let mut flight = flight(count * (bytes + 4096));
                let offsets: Vec<usize> = (0..count).map(|i| i * step + shift).collect();
                for (i, &offset) in offsets.iter().enumerate() {
                    assert_eq!(flight.push(offset as u64, bytes), Some(i as u64));
                    if i % 7 == 0 {
                        file.start(&mut flight).unwrap();
                    }
                }
                let shown = shown(&*file, &mut flight, which);
                assert_eq!(shown.len(), count);
                for (shown, &start) in shown.iter().zip(&offsets) {
                    assert_eq!(shown.as_ref().unwrap()[..], content[start..start + bytes]);
                }
            }
        }
        // Failing reads among good ones.
        let offsets = [
            0,
            4096,
            1 << 20,
            8192,
            (1 << 20) - 512,
            512,
            u64::MAX,
            3,
            100,
            1 << 19,
        ];
        for which in [Show::Oldest, Show::Some] {
            let mut flight = flight(10 * 4096);
            for offset in offsets {
                flight.push(offset, 4096).unwrap();
            }
            file.start(&mut flight).unwrap();
            let shown = shown(&*file, &mut flight, which);
            for (shown, offset) in shown.into_iter().zip(offsets) {
                if let Some(there) = content.get(offset as usize..).and_then(|c| c.get(..4096)) {
                    assert_eq!(shown.unwrap(), there);
                } else {
                    let error = shown.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    assert!(error.to_string().contains(&format!("offset {offset}")));
                }
            }
        }
        let mut empty = flight(0);
        assert!(empty.is_empty() && empty.push(0, 1).is_none());
        file.start(&mut empty).unwrap();
        assert!(shown(&*file, &mut empty, Show::Some).is_empty());
    });
}

#[test]
fn memory_of_shown_reads_is_reused() {
    on_both(|disk, _| {
        let file = disk.open("f", direct(CREATE)).unwrap();
        let content = pattern(4, 300 * 4096);
        file.write_at(&AlignedBuf::from(&content[..]), 0).unwrap();
        let mut flight = flight(5 * 4096);
        let (mut next, mut seen) = (0, 0u64);
        // Of one to three pages each: they wrap around the memory.
        while seen < 150 {
            while let pages = next % 3 + 1
                && next < 150
                && flight.push(next as u64 * 4096, pages * 4096) == Some(next as u64)
            {
                next += 1;
            }
            assert!(next == 150 || !flight.has_room(4096 * (next % 3 + 1)));
            file.start(&mut flight).unwrap();
            let which = [Show::Oldest, Show::Some][next % 2];
            file.show(&mut flight, which, &mut |number, bytes| {
                let (start, pages) = (number as usize * 4096, number as usize % 3 + 1);
                assert_eq!(bytes.unwrap(), &content[start..start + pages * 4096]);
                seen += 1;
            })
            .unwrap();
            if next >= 150 {
                seen += shown(&*file, &mut flight, Show::Some).len() as u64;
            }
        }
        assert_eq!(seen, 150);
        // A full memory has no room, and a read longer than the memory never has.
        let mut full = common::flight(8192);
        assert!(full.push(0, 8192 + 1).is_none());
        full.push(0, 8192).unwrap();
        assert!(full.push(0, 0).is_none());
    });
}

#[test]
fn a_dropped_flight_leaves_no_read_in_flight() {
    on_both(|disk, _| {
        let file = disk.open("f", direct(CREATE)).unwrap();
        let content: Vec<u8> = (0..256 * 4096usize).map(|i| (i / 4096) as u8).collect();
        file.write_at(&AlignedBuf::from(&content[..]), 0).unwrap();
        for looked_at in [0, 1, 40, 200] {
            let mut under_way = flight(content.len());
            for page in 0..256 {
                under_way.push(page * 4096, 4096).unwrap();
            }
            file.start(&mut under_way).unwrap();
            let mut left = looked_at;
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                while looked_at > 0 && !under_way.is_empty() {
                    file.show(&mut under_way, Show::Some, &mut |_, _| {
                        assert!(left > 0, "enough");
                        left -= 1;
                    })
                    .unwrap();
                }
            }));
            assert_eq!(panicked.is_err(), looked_at > 0);
            let mut memory = under_way.into_memory();
            // No read writes there any more, and the next flight works.
            memory.resize(content.len(), 0);
            memory.fill(255);
            let mut whole = flight(content.len());
            for page in 0..256 {
                whole.push(page * 4096, 4096).unwrap();
            }
            let shown = shown(&*file, &mut whole, Show::Some);
            for (page, shown) in shown.into_iter().enumerate() {
                assert_eq!(shown.unwrap(), vec![page as u8; 4096]);
            }
            assert!(memory.iter().all(|&byte| byte == 255));
        }
    });
}

#[test]
fn a_flight_outlives_its_file_and_goes_to_another_thread() {
    on_both(|disk, _| {
        let file = disk.open("f", direct(CREATE)).unwrap();
        let content = pattern(9, 64 * 4096);
        file.write_at(&AlignedBuf::from(&content[..]), 0).unwrap();
        let begun = || {
            let mut flight = flight(content.len());
            for page in 0..64 {
                flight.push(page * 4096, 4096).unwrap();
            }
            file.start(&mut flight).unwrap();
            flight
        };
        let mut moved = begun();
        let elsewhere =
            std::thread::scope(|s| s.spawn(|| shown(&*file, &mut moved, Show::Oldest)).join());
        let read: Vec<u8> = elsewhere
            .unwrap()
            .into_iter()
            .flat_map(Result::unwrap)
            .collect();
        assert_eq!(read, content);
        let under_way = begun();
        drop(file);
        std::thread::scope(|s| s.spawn(move || drop(under_way)).join()).unwrap();
    });
}

#[test]
fn unaligned_direct_writes_are_refused_without_effect() {
    on_both(|disk, _| {
        let file = disk.open("f", direct(CREATE)).unwrap();
        let unit = u64::from(file.alignment());
        assert!(unit >= 512 && unit.is_power_of_two());
        let block = AlignedBuf::zeroed(unit as usize);
        for (bytes, offset) in [(unit - 1, 0), (unit, 1), (unit, unit - 1), (1, unit)] {
            let outcome = file.write_at(&block[..bytes as usize], offset);
            assert_eq!(kind(outcome), ErrorKind::InvalidArgument);
        }
        assert_eq!(file.bytes().unwrap(), 0);
        assert_eq!(
            kind(file.write_at(b"x", u64::MAX)),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            kind(file.allocate(i64::MAX as u64, 1)),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            kind(file.punch_hole(u64::MAX, 1)),
            ErrorKind::InvalidArgument
        );
        assert_eq!(kind(file.set_bytes(u64::MAX)), ErrorKind::InvalidArgument);
    });
}

#[test]
fn files_are_created_found_renamed_and_removed_by_name() {
    on_both(|disk, _| {
        assert_eq!(disk.list().unwrap(), Vec::<String>::new());
        assert_eq!(kind(disk.open("a", READ)), ErrorKind::NotFound);
        assert_eq!(kind(disk.open("a", WRITE)), ErrorKind::NotFound);
        for name in ["b", "a", "c"] {
            let file = disk.open(name, CREATE).unwrap();
            file.write_at(name.as_bytes(), 0).unwrap();
        }
        assert_eq!(disk.list().unwrap(), ["a", "b", "c"]);
        assert_eq!(kind(disk.open("a", CREATE)), ErrorKind::AlreadyExists);
        let old = disk.open("b", READ).unwrap();
        disk.rename("a", "b").unwrap();
        assert_eq!(disk.list().unwrap(), ["b", "c"]);
        let mut byte = [0];
        old.read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"b", "an open file outlives its name");
        let new = disk.open("b", READ).unwrap();
        new.read_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"a");
        disk.remove("c").unwrap();
        assert_eq!(kind(disk.remove("c")), ErrorKind::NotFound);
        assert_eq!(kind(disk.rename("c", "d")), ErrorKind::NotFound);
        disk.sync_directory().unwrap();
        assert_eq!(disk.list().unwrap(), ["b"]);
        assert!(disk.free_bytes().unwrap() > 0);
    });
}

#[test]
fn names_that_lead_out_of_the_directory_are_refused() {
    on_both(|disk, _| {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b", &long] {
            assert_eq!(kind(disk.open(name, CREATE)), ErrorKind::InvalidArgument);
            assert_eq!(kind(disk.remove(name)), ErrorKind::InvalidArgument);
            assert_eq!(kind(disk.rename(name, "x")), ErrorKind::InvalidArgument);
            assert_eq!(kind(disk.rename("x", name)), ErrorKind::InvalidArgument);
            let ring = RingOptions {
                bytes: 4096,
                create: true,
            };
            assert_eq!(kind(disk.open_ring(name, ring)), ErrorKind::InvalidArgument);
        }
        let options = OpenOptions {
            create_new: true,
            ..READ
        };
        assert_eq!(kind(disk.open("f", options)), ErrorKind::InvalidArgument);
        let options = OpenOptions {
            shared: true,
            ..CREATE
        };
        assert_eq!(kind(disk.open("f", options)), ErrorKind::InvalidArgument);
    });
}

#[test]
fn a_file_has_one_writer_and_any_readers() {
    on_both(|disk, other| {
        let file = disk.open("f", CREATE).unwrap();
        assert_eq!(kind(disk.open("f", WRITE)), ErrorKind::Locked);
        assert_eq!(kind(other.open("f", WRITE)), ErrorKind::Locked);
        let reader = other.open("f", READ).unwrap();
        assert_eq!(kind(reader.write_at(b"x", 0)), ErrorKind::ReadOnly);
        assert_eq!(kind(reader.set_bytes(0)), ErrorKind::ReadOnly);
        assert_eq!(kind(reader.allocate(0, 1)), ErrorKind::ReadOnly);
        assert_eq!(kind(reader.punch_hole(0, 1)), ErrorKind::ReadOnly);
        drop(file);
        let file = other.open("f", WRITE).unwrap();
        assert_eq!(kind(disk.open("f", WRITE)), ErrorKind::Locked);
        drop((file, reader));
        drop(disk.open("f", WRITE).unwrap());
    });
}

#[test]
fn sharers_and_writers_of_a_file_exclude_each_other() {
    const SHARED: OpenOptions = OpenOptions {
        shared: true,
        ..READ
    };
    on_both(|disk, other| {
        let writer = disk.open("f", CREATE).unwrap();
        assert_eq!(kind(disk.open("f", SHARED)), ErrorKind::Locked);
        assert_eq!(kind(other.open("f", SHARED)), ErrorKind::Locked);
        drop(writer);
        let first = other.open("f", SHARED).unwrap();
        let second = disk.open("f", SHARED).unwrap();
        let third = disk.open("f", SHARED).unwrap();
        assert_eq!(kind(first.write_at(b"x", 0)), ErrorKind::ReadOnly);
        drop(disk.open("f", READ).unwrap());
        for reader in [first, second, third] {
            assert_eq!(kind(disk.open("f", WRITE)), ErrorKind::Locked);
            assert_eq!(kind(other.open("f", WRITE)), ErrorKind::Locked);
            drop(reader);
        }
        drop(other.open("f", WRITE).unwrap());
    });
}

#[test]
fn a_ring_is_locked_while_either_half_lives() {
    on_both(|disk, other| {
        let create = RingOptions {
            bytes: 8192,
            create: true,
        };
        let open = RingOptions {
            bytes: 0,
            create: false,
        };
        let ring = disk.open_ring("ring", create).unwrap();
        assert_eq!(kind(other.open_ring("ring", open)), ErrorKind::Locked);
        assert_eq!(kind(disk.open("ring", WRITE)), ErrorKind::Locked);
        let (writer, reader, space) = ring.split(100);
        drop(writer);
        assert_eq!(kind(other.open_ring("ring", open)), ErrorKind::Locked);
        drop(reader);
        assert_eq!(space.bytes(), 8192);
        assert_eq!(other.open_ring("ring", open).unwrap().bytes(), 8192);
        assert_eq!(
            kind(disk.open_ring("ring", create)),
            ErrorKind::AlreadyExists
        );
    });
}

#[test]
fn ring_stores_reach_the_file_without_a_sync() {
    on_both(|disk, _| {
        let create = RingOptions {
            bytes: 4096,
            create: true,
        };
        let (mut writer, mut reader, space) = disk.open_ring("ring", create).unwrap().split(4000);
        let text = pattern(9, 300);
        writer.write(4000, &text);
        assert_eq!(space.published(), 4000, "written is not published");
        writer.publish(4300);
        let mut out = vec![0; 300];
        reader.read(4000, &mut out);
        assert_eq!(out, text, "over the ring's end");
        reader.free(4200);
        assert_eq!((space.published(), space.freed()), (4300, 4200));
        let file = disk.open("ring", READ).unwrap();
        let content = content_of(&*file);
        assert_eq!(content[4000..], text[..96]);
        assert_eq!(content[..204], text[96..]);
        drop((writer, reader));
        let again = RingOptions {
            bytes: 1,
            create: false,
        };
        let ring = disk.open_ring("ring", again).unwrap();
        ring.read(4000, &mut out);
        assert_eq!(out, text);
        let mut all = vec![0; 4096];
        ring.read(8192, &mut all);
        assert_eq!(all, content);
    });
}

#[test]
fn ring_files_of_invalid_sizes_are_refused() {
    on_both(|disk, _| {
        for bytes in [0, 1, 4095, 4097, 12288, 1 << 40, u64::MAX] {
            let ring = RingOptions {
                bytes,
                create: true,
            };
            assert_eq!(
                kind(disk.open_ring("ring", ring)),
                ErrorKind::InvalidArgument
            );
        }
        assert!(disk.list().unwrap().is_empty());
        let open = RingOptions {
            bytes: 4096,
            create: false,
        };
        assert_eq!(kind(disk.open_ring("ring", open)), ErrorKind::NotFound);
        for bytes in [0, 1, 2048, 4097, 12288, 1 << 40] {
            let file = disk.open(&format!("ring{bytes}"), CREATE).unwrap();
            file.set_bytes(bytes).unwrap();
            drop(file);
            let outcome = disk.open_ring(&format!("ring{bytes}"), open);
            assert_eq!(kind(outcome), ErrorKind::Corrupt);
        }
        // A sparse file of a valid size is allocated before it is mapped.
        let file = disk.open("sparse", CREATE).unwrap();
        file.set_bytes(1 << 16).unwrap();
        assert_eq!(file.allocated_bytes().unwrap(), 0);
        drop(file);
        let ring = disk.open_ring("sparse", open).unwrap();
        assert_eq!(ring.bytes(), 1 << 16);
        let file = disk.open("sparse", READ).unwrap();
        assert!(file.allocated_bytes().unwrap() >= 1 << 16);
    });
}

#[test]
fn a_truncated_and_extended_file_reads_as_zeros() {
    on_both(|disk, _| {
        let file = disk.open("f", CREATE).unwrap();
        file.write_at(&pattern(4, 10_000), 0).unwrap();
        file.set_bytes(4500).unwrap();
        file.set_bytes(12_000).unwrap();
        let content = content_of(&*file);
        assert_eq!(content.len(), 12_000);
        assert_eq!(content[..4500], pattern(4, 10_000)[..4500]);
        assert!(content[4500..].iter().all(|&b| b == 0));
        file.write_at(b"far", 20_000).unwrap();
        assert_eq!(file.bytes().unwrap(), 20_003);
        file.set_bytes(0).unwrap();
        assert_eq!(file.bytes().unwrap(), 0);
    });
}

#[test]
fn allocated_space_is_given_back_with_its_content() {
    on_both(|disk, _| {
        let file = disk.open("f", CREATE).unwrap();
        file.allocate(0, 1 << 20).unwrap();
        assert_eq!(file.bytes().unwrap(), 1 << 20, "the file grows");
        assert!(file.allocated_bytes().unwrap() >= 1 << 20);
        let content = content_of(&*file);
        assert!(content.iter().all(|&b| b == 0));
        file.write_at(&pattern(5, 1 << 20), 0).unwrap();
        file.allocate(0, 4096).unwrap();
        file.sync().unwrap();
        let full = file.allocated_bytes().unwrap();
        assert!(file.punch_hole(4096, 512 << 10).unwrap());
        file.punch_hole(1 << 19 | 5000, 100).unwrap();
        file.punch_hole(7, 0).unwrap();
        file.sync().unwrap();
        assert_eq!(file.bytes().unwrap(), 1 << 20);
        let content = content_of(&*file);
        let mut expected = pattern(5, 1 << 20);
        expected[4096..4096 + (512 << 10)].fill(0);
        expected[1 << 19 | 5000..(1 << 19 | 5000) + 100].fill(0);
        assert!(content == expected);
        assert!(file.allocated_bytes().unwrap() <= full - (512 << 10));
    });
}

#[test]
fn many_threads_use_one_file_at_once() {
    on_both(|disk, _| {
        let file = disk.open("f", direct(CREATE)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let file = file.clone();
                scope.spawn(move || {
                    for round in 0..20 {
                        let content = AlignedBuf::from(&pattern(thread * 100 + round, 8192)[..]);
                        file.write_at(&content, thread * 8192).unwrap();
                        let mut flight = flight(8192);
                        flight.push(thread * 8192 + 4096, 4096).unwrap();
                        flight.push(thread * 8192 + 13, 777).unwrap();
                        let mut read = shown(&*file, &mut flight, Show::Some).into_iter();
                        let mut read = || read.next().unwrap().unwrap();
                        assert_eq!(read(), content[4096..]);
                        assert_eq!(read(), content[13..790]);
                    }
                });
            }
        });
    });
}
