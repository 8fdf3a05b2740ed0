//! Reads through the kernel's page cache of a file that is otherwise read and written past it.
//!
//! They have a descriptor of their own for the same file. The kernel keeps both views of the file
//! one: a direct write puts out of the page cache what it has of the range, before it and once it
//! is over. A read of pages that a write is under way to may come to either state, as with any two
//! descriptors.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Advice, Mode, OFlags, fadvise, fstat, openat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use terrapin_base::sync::{AtomicBool, Ordering};

use super::retry::retry;

/// The descriptor of reads that are to be cached.
pub(super) struct Cached {
    descriptor: OwnedFd,
    /// The kernel says at once whether it has something.
    tells: AtomicBool,
}

impl Cached {
    /// Of the file that is open by that name; none where another one has the name by now, or there
    /// is no descriptor to be had: then reads go past the page cache.
    pub(super) fn open(directory: &OwnedFd, name: &str, file: &OwnedFd) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let descriptor = retry(|| openat(directory, name, flags, Mode::empty())).ok()?;
        let (this, that) = (fstat(&descriptor).ok()?, fstat(file).ok()?);
        if (this.st_dev, this.st_ino) != (that.st_dev, that.st_ino) {
            return None;
        }
        // Blocks are asked for here and there; what lies beside them nobody has asked for.
        let _ = fadvise(&descriptor, 0, None, Advice::Random);
        Some(Cached {
            descriptor,
            tells: AtomicBool::new(true),
        })
    }

    /// Reads what the page cache has of it, from its beginning on; none where it has nothing, or
    /// does not tell.
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
                // An old kernel, or a file system without this. What is wrong with the file itself
                // the read that follows tells.
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
    fn another_file_that_has_the_name_by_now_is_not_read() {
        let path = std::env::temp_dir().join(format!("terrapin-cached-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let directory = OwnedFd::from(std::fs::File::open(&path).unwrap());
        std::fs::write(path.join("f"), b"this").unwrap();
        let file = OwnedFd::from(std::fs::File::open(path.join("f")).unwrap());
        let cached = Cached::open(&directory, "f", &file).expect("the same file");
        // What was just written is in the page cache.
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
