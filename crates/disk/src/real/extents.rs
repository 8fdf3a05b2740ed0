//! The kernel's map of a file: keeps it coarse where reads would make it fine, and asks it what is
//! allocated.
//!
//! ext4 remembers where the parts of a file lie that were asked for, each as long as the read was.
//! Once its map of a large file was dropped (by a reboot, or short of memory), random reads fill it
//! with one entry for each of their blocks: hundreds of thousands, in a tree that no cache of the
//! processor holds, and every read that finds nothing there searches the file's extents besides.
//! Asked for the map of the whole file, it finds out how long each extent is, and puts one entry in
//! the place of all those.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;
use rustix::ioctl::{self, Opcode, Updater, opcode};
use terrapin_base::sync::{AtomicI64, Ordering};

/// ext4's number among file systems, which its predecessors share.
const EXT4: i128 = 0xef53;
/// Reads between two looks at the map, at least,
const READS_MIN: i64 = 1 << 15;
/// and for each extent, as a look takes as long as it has extents: so it takes some nanoseconds of
/// each read.
const READS_OF_EXTENT: i64 = 64;

/// What is asked about a file's map, and the answer: `struct fiemap` of the kernel without room for
/// extents.
#[repr(C)]
#[derive(Default)]
struct Map {
    start: u64,
    bytes: u64,
    flags: u32,
    /// The answer: how many extents there are.
    extents: u32,
    /// How many there is room for.
    room: u32,
    reserved: u32,
}

/// One extent of an answer: `struct fiemap_extent` of the kernel.
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

/// What is asked about a file's extents, and room for some.
#[repr(C)]
struct Extended {
    map: Map,
    extents: [Extent; EXTENTS],
}

const EXTENTS: usize = 32;
/// Flags of an extent that a write may need more space for: its place is not known or not chosen
/// yet, or another file has it too.
const UNSURE: u32 = 0x2 | 0x4 | 0x2000;

const MAP: Opcode = opcode::read_write::<Map>(b'f', 11);

/// When a file's map is to be looked at next.
pub(super) struct Extents {
    /// Reads until then; below, somebody looks, or nobody is to.
    left: AtomicI64,
}

impl Extents {
    /// For a file that was just opened: its first read looks at the map, if that is of use.
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
        // Without a use it falls by a read for each: 2^63 never come.
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
        // SAFETY: that is the request's structure, and without room for extents the kernel writes
        // to it alone.
        let asked = unsafe { ioctl::ioctl(file, Updater::<MAP, Map>::new(&mut map)) };
        // It is of no use where the kernel refuses.
        if asked.is_ok() {
            let next = READS_MIN.max(i64::from(map.extents) * READS_OF_EXTENT);
            self.left.store(next, Ordering::Relaxed);
        }
    }
}

/// Whether all of a range of a file is allocated, for that file alone; none where the file system
/// does not tell.
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
        // SAFETY: that is the request's structure, and behind it the kernel writes to as many
        // extents as there is room for.
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
    fn the_map_is_looked_at_before_the_first_read_and_then_once_in_many() {
        let file = file("counted");
        let extents = Extents {
            left: AtomicI64::new(1),
        };
        extents.count(&file, 1);
        let left = extents.left.load(Ordering::Relaxed);
        if left <= 0 {
            return; // a file system without such maps
        }
        assert_eq!(left, READS_MIN);
        extents.count(&file, READS_MIN as usize - 1);
        assert_eq!(extents.left.load(Ordering::Relaxed), 1);
        extents.count(&file, 8);
        assert_eq!(extents.left.load(Ordering::Relaxed), READS_MIN);
    }

    #[test]
    fn nobody_looks_where_it_is_of_no_use() {
        let file = file("unused");
        let extents = Extents::new(&file, false);
        extents.count(&file, 1);
        extents.count(&file, 1 << 20);
        assert!(extents.left.load(Ordering::Relaxed) < 0);
    }

    #[test]
    fn what_is_allocated_is_told_of_each_part_of_a_file() {
        const MIB: u64 = 1 << 20;
        let file = file("allocated");
        let allocated = |start: u64, end: u64| is_allocated(&file, start, end);
        if fallocate(&file, FallocateFlags::empty(), 0, 80 * MIB).is_err()
            || allocated(0, MIB).is_none()
        {
            return; // a file system that cannot allocate, or does not tell
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
        // In pieces that the file system cannot make one of.
        for at in (0..40).map(|piece| piece * 2 * MIB) {
            std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8192], at).expect("written");
            fallocate(&file, FallocateFlags::empty(), at, MIB).expect("allocated");
        }
        rustix::fs::fsync(&file).expect("synced");
        assert_eq!(allocated(0, 80 * MIB), Some(true));
        assert_eq!(allocated(0, 80 * MIB + 1), Some(false));
    }
}
