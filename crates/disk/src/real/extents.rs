//! The kernel's extent map of a file: keeps the map coarse, and asks it what is allocated.
//!
//! ext4 caches one map entry for each range that was asked for. After it dropped the map of a large
//! file (reboot, memory pressure), random reads fill the map again with one entry for each block.
//! Such a map has hundreds of thousands of entries, and each read that misses in it searches the
//! file's extents too. A question for the map of the whole file replaces these entries by one entry
//! for each extent. So this module asks that question now and then.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;
use rustix::ioctl::{self, Opcode, Updater, opcode};
use terrapin_base::sync::{AtomicI64, Ordering};

/// The file system number of ext4, which ext2 and ext3 share.
const EXT4: i128 = 0xef53;
/// Least number of reads between two questions for the map.
const READS_MIN: i64 = 1 << 15;
/// Reads between two questions, for each extent. A question takes time in proportion to the
/// extents, so its share of each read is a few nanoseconds.
const READS_OF_EXTENT: i64 = 64;

/// A question about a file's map, and its answer: the kernel's `struct fiemap`, without extents.
#[repr(C)]
#[derive(Default)]
struct Map {
    start: u64,
    bytes: u64,
    flags: u32,
    /// The answer: number of extents.
    extents: u32,
    /// Number of extents that the answer has room for.
    room: u32,
    reserved: u32,
}

/// One extent of an answer: the kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    start: u64,
    physical: u64,
    bytes: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// A question with room for some extents.
#[repr(C)]
struct Extended {
    map: Map,
    extents: [Extent; EXTENTS],
}

const EXTENTS: usize = 32;
/// Flags of an extent where a write may need more space: its location is unknown or not chosen yet,
/// or another file shares it.
const UNSURE: u32 = 0x2 | 0x4 | 0x2000;

const MAP: Opcode = opcode::read_write::<Map>(b'f', 11);

/// When to ask for a file's map next.
pub(super) struct Extents {
    /// Reads until the next question. Not positive while a thread asks, or if the file needs no
    /// questions.
    left: AtomicI64,
}

impl Extents {
    /// The state for a newly opened file. The first read asks for the map, if that helps this file.
    pub(super) fn new(file: &impl AsFd, direct: bool) -> Self {
        let of_use = direct && fstatfs(file).is_ok_and(|fs| i128::from(fs.f_type) == EXT4);
        Extents {
            left: AtomicI64::new(i64::from(of_use)),
        }
    }

    /// Counts reads that are about to begin.
    #[inline]
    pub(super) fn count(&self, file: &impl AsFd, reads: usize) {
        let reads = i64::try_from(reads).unwrap_or(i64::MAX);
        // For a file without questions the count falls with each read; it never falls by 2^63.
        let before = self.left.fetch_sub(reads, Ordering::Relaxed);
        if before > 0 && before <= reads {
            self.look(file);
        }
    }

    #[cold]
    fn look(&self, file: &impl AsFd) {
        let mut map = Map {
            bytes: u64::MAX,
            ..Map::default()
        };
        // SAFETY: this is the request's structure. It has no room for extents, so the kernel writes
        // into it alone.
        let asked = unsafe { ioctl::ioctl(file, Updater::<MAP, Map>::new(&mut map)) };
        // After a refusal by the kernel, no thread asks again.
        if asked.is_ok() {
            let next = READS_MIN.max(i64::from(map.extents) * READS_OF_EXTENT);
            self.left.store(next, Ordering::Relaxed);
        }
    }
}

/// Whether a range of a file is fully allocated to this file alone. `None` if the file system
/// cannot tell.
pub(super) fn is_allocated(file: &impl AsFd, start: u64, end: u64) -> Option<bool> {
    let mut start = start;
    while start < end {
        let mut asked = Extended {
            map: Map {
                start,
                bytes: end - start,
                room: EXTENTS as u32,
                ..Map::default()
            },
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: this is the request's structure. The kernel writes at most `room` extents after
        // it, and there is space for them.
        unsafe { ioctl::ioctl(file, Updater::<MAP, Extended>::new(&mut asked)) }.ok()?;
        let count = (asked.map.extents as usize).min(EXTENTS);
        let from = start;
        for extent in &asked.extents[..count] {
            if extent.start > start || extent.flags & UNSURE != 0 {
                return Some(false);
            }
            start = start.max(extent.start.saturating_add(extent.bytes));
        }
        if start == from {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    fn file(test: &str) -> File {
        let name = format!("terrapin-extents-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).expect("a file can be made");
        std::fs::remove_file(&path).expect("and its name taken away");
        file
    }

    #[test]
    fn the_map_is_asked_for_before_the_first_read_and_rarely_after() {
        let file = file("counted");
        let extents = Extents {
            left: AtomicI64::new(1),
        };
        extents.count(&file, 1);
        let left = extents.left.load(Ordering::Relaxed);
        if left <= 0 {
            return; // the file system has no such map
        }
        assert_eq!(left, READS_MIN);
        extents.count(&file, READS_MIN as usize - 1);
        assert_eq!(extents.left.load(Ordering::Relaxed), 1);
        extents.count(&file, 8);
        assert_eq!(extents.left.load(Ordering::Relaxed), READS_MIN);
    }

    #[test]
    fn a_file_without_direct_io_never_asks_for_the_map() {
        let file = file("unused");
        let extents = Extents::new(&file, false);
        extents.count(&file, 1);
        extents.count(&file, 1 << 20);
        assert!(extents.left.load(Ordering::Relaxed) < 0);
    }

    #[test]
    fn each_part_of_a_file_tells_whether_it_is_allocated() {
        const MIB: u64 = 1 << 20;
        let file = file("allocated");
        let allocated = |start: u64, end: u64| is_allocated(&file, start, end);
        if fallocate(&file, FallocateFlags::empty(), 0, 80 * MIB).is_err()
            || allocated(0, MIB).is_none()
        {
            return; // the file system cannot allocate, or cannot tell
        }
        assert_eq!(allocated(0, 80 * MIB), Some(true));
        assert_eq!(allocated(79 * MIB, 81 * MIB), Some(false));
        // More extents than one answer has room for.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for hole in 0..40 {
            fallocate(&file, flags, hole * 2 * MIB, MIB).expect("a hole");
        }
        for hole in 0..40 {
            let start = hole * 2 * MIB;
            assert_eq!(allocated(start + MIB, start + 2 * MIB), Some(true));
            assert_eq!(allocated(start + MIB, start + 2 * MIB + 1), Some(false));
            assert_eq!(allocated(start + MIB - 1, start + 2 * MIB), Some(false));
        }
        // In pieces that the file system cannot join to one extent.
        for at in (0..40).map(|piece| piece * 2 * MIB) {
            std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8192], at).expect("written");
            fallocate(&file, FallocateFlags::empty(), at, MIB).expect("allocated");
        }
        rustix::fs::fsync(&file).expect("synced");
        assert_eq!(allocated(0, 80 * MIB), Some(true));
        assert_eq!(allocated(0, 80 * MIB + 1), Some(false));
    }
}
