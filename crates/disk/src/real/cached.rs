//! Reads through the kernel's page cache, of a file that is otherwise opened for direct I/O.
//!
//! These reads use a second descriptor of the file. The kernel keeps both consistent: a direct
//! write drops its range from the page cache, before the write and after it. A read during a write
//! of the same pages may see either state, as with any two descriptors.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Advice, Mode, OFlags, fadvise, fstat, openat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use terrapin_base::sync::{AtomicBool, Ordering};

use super::retry::retry;

/// The descriptor of reads through the page cache.
pub(super) struct Cached {
    descriptor: OwnedFd,
    /// Whether the kernel can tell without waiting what it has cached.
    tells: AtomicBool,
}

impl Cached {
    /// Opens the file by its name again. `None` if another file has the name by now, or if the
    /// system refuses a descriptor. The caller then uses direct I/O.
    pub(super) fn open(directory: &OwnedFd, name: &str, file: &OwnedFd) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let descriptor = retry(|| openat(directory, name, flags, Mode::empty())).ok()?;
        let (this, that) = (fstat(&descriptor).ok()?, fstat(file).ok()?);
        if (this.st_dev, this.st_ino) != (that.st_dev, that.st_ino) {
            return None;
        }
        // Reads are of single blocks, so read-ahead would bring in bytes that no caller needs.
        let _ = fadvise(&descriptor, 0, None, Advice::Random);
        Some(Cached {
            descriptor,
            tells: AtomicBool::new(true),
        })
    }

    /// Reads what the page cache has of the range, from its start. `None` if it has nothing, or if
    /// the kernel cannot tell.
    pub(super) fn at_hand(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        if !self.tells.load(Ordering::Relaxed) {
            return None;
        }
        let read = retry(|| {
            let mut pieces = [IoSliceMut::new(&mut *buffer)];
            preadv2(
                &self.descriptor,
                &mut pieces,
                offset,
                ReadWriteFlags::NOWAIT,
            )
        });
        match read {
            Ok(count) => Some(count).filter(|&count| count > 0),
            Err(Errno::AGAIN) => None,
            Err(_) => {
                // The kernel or the file system does not support this. The read that follows
                // reports any error of the file itself.
                self.tells.store(false, Ordering::Relaxed);
                None
            }
        }
    }
}

impl AsFd for Cached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_with_the_same_name_is_not_read() {
        let path = std::env::temp_dir().join(format!("terrapin-cached-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let directory = OwnedFd::from(std::fs::File::open(&path).unwrap());
        std::fs::write(path.join("f"), b"this").unwrap();
        let file = OwnedFd::from(std::fs::File::open(path.join("f")).unwrap());
        let cached = Cached::open(&directory, "f", &file).expect("the same file");
        // The page cache has what was just written.
        let mut buffer = [0; 10];
        assert!(matches!(cached.at_hand(&mut buffer, 1), None | Some(3)));
        assert_eq!(cached.at_hand(&mut buffer, 4), None, "the end");
        std::fs::write(path.join("g"), b"that").unwrap();
        std::fs::rename(path.join("g"), path.join("f")).unwrap();
        assert!(Cached::open(&directory, "f", &file).is_none());
        std::fs::remove_file(path.join("f")).unwrap();
        assert!(Cached::open(&directory, "f", &file).is_none());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
