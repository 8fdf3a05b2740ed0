//! Keeps the kernel's map of a file coarse, where reads would make it fine.
//!
//! ext4 remembers where the parts of a file lie that were asked for, each as long as the read was. Once its map of a large file was dropped
//! (by a reboot, or short of memory), random reads fill it with one entry for each of their blocks: hundreds of thousands, in a tree
//! that no cache of the processor holds, and every read that finds nothing there searches the file's extents besides. Asked for the
//! map of the whole file, it finds out how long each extent is, and puts one entry in the place of all those.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;
use rustix::ioctl::{self, Opcode, Updater, opcode};
use terrapin_base::sync::{AtomicI64, Ordering};

/// ext4's number among file systems, which its predecessors share.
const EXT4: i128 = 0xef53;
/// Reads between two looks at the map, at least,
const READS_MIN: i64 = 1 << 15;
/// and for each extent, as a look takes as long as it has extents: so it takes some nanoseconds of each read.
const READS_OF_EXTENT: i64 = 64;

/// What is asked about a file's map, and the answer: `struct fiemap` of the kernel without room for extents.
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
        // SAFETY: that is the request's structure, and without room for extents the kernel writes to it alone.
        let asked = unsafe { ioctl::ioctl(file, Updater::<MAP, Map>::new(&mut map)) };
        // It is of no use where the kernel refuses.
        if asked.is_ok() {
            let next = READS_MIN.max(i64::from(map.extents) * READS_OF_EXTENT);
            self.left.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn file() -> File {
        let path = std::env::temp_dir().join(format!("terrapin-extents-{}", std::process::id()));
        let file = File::create(&path).expect("a file can be made");
        std::fs::remove_file(&path).expect("and its name taken away");
        file
    }

    #[test]
    fn the_map_is_looked_at_before_the_first_read_and_then_once_in_many() {
        let file = file();
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
        let file = file();
        let extents = Extents::new(&file, false);
        extents.count(&file, 1);
        extents.count(&file, 1 << 20);
        assert!(extents.left.load(Ordering::Relaxed) < 0);
    }
}
