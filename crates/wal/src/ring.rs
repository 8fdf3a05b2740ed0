//! The log's ring file: making a new one, and opening the one that an earlier process left.

use terrapin_base::sync::Arc;
use terrapin_base::{Error, ErrorKind, Result, mutant};
use terrapin_disk::{Disk, File, LogRing, OpenOptions, RingOptions};

use crate::format::{RING_NAME, RING_NEW_NAME};
use crate::options::RING_BYTES_MIN;
use crate::segments::is_absent;

/// The ring as an earlier process left it.
#[derive(Clone)]
pub(crate) struct RingFile {
    pub(crate) file: Arc<dyn File>,
    pub(crate) bytes: u64,
    /// A copy of the whole ring, if a writer goes on storing into the file.
    pub(crate) copy: Option<Arc<[u8]>>,
}

impl RingFile {
    /// Reads the ring's bytes from the offset of `lsn` on; `out` is at most as large as the ring.
    pub(crate) fn read(&self, lsn: u64, out: &mut [u8]) -> Result<()> {
        let offset = lsn & (self.bytes - 1);
        let (head, tail) = out.split_at_mut(out.len().min((self.bytes - offset) as usize));
        if let Some(copy) = &self.copy {
            let from = offset as usize;
            head.copy_from_slice(&copy[from..from + head.len()]);
            tail.copy_from_slice(&copy[..tail.len()]);
            return Ok(());
        }
        self.file.read_at(head, offset)?;
        if tail.is_empty() {
            Ok(())
        } else {
            self.file.read_at(tail, 0)
        }
    }
}

/// Makes a new ring; its name is durable on return.
pub(crate) fn make_ring(disk: &Arc<dyn Disk>, bytes: u64) -> Result<LogRing> {
    disk.remove(RING_NEW_NAME).or_else(is_absent)?;
    let ring = disk.open_ring(
        RING_NEW_NAME,
        RingOptions {
            bytes,
            create: true,
        },
    )?;
    disk.rename(RING_NEW_NAME, RING_NAME)?;
    if !mutant::active("directory-unsynced-after-ring-naming") {
        disk.sync_directory()?;
    }
    Ok(ring)
}

/// Opens the ring file that an earlier process left, to read it.
pub(crate) fn open_ring_file(disk: &Arc<dyn Disk>) -> Result<RingFile> {
    let file = disk.open(RING_NAME, OpenOptions::default())?;
    let bytes = file.bytes()?;
    if !RingOptions::is_valid_size(bytes) || bytes < RING_BYTES_MIN {
        return Err(Error::corrupt("the log's ring has an impossible size")
            .with("file", RING_NAME)
            .with("bytes", bytes));
    }
    Ok(RingFile {
        file,
        bytes,
        copy: None,
    })
}

/// Copies the ring of a log that a writer goes on with.
pub(crate) fn copy_ring_file(disk: &Arc<dyn Disk>) -> Result<RingFile> {
    let ring = open_ring_file(disk)?;
    let mut copy = vec![0; ring.bytes as usize];
    ring.file.read_at(&mut copy, 0)?;
    Ok(RingFile {
        copy: Some(copy.into()),
        ..ring
    })
}

/// Opens the ring that an earlier process left, and replaces it if it is missing or has another
/// size than `wanted_bytes`. The new ring takes the name by one rename. If the disk has no room for
/// it, the old ring stays in use, whatever its size. So the open needs no space (D10).
pub(crate) fn open_or_make_ring(
    disk: &Arc<dyn Disk>,
    old: Option<RingFile>,
    wanted_bytes: u64,
) -> Result<LogRing> {
    let Some(old) = old else {
        return make_ring(disk, wanted_bytes);
    };
    if old.bytes != wanted_bytes {
        match make_ring(disk, wanted_bytes) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                tracing::warn!(%error, "no space for a ring of the size asked for; the old one is kept");
                disk.remove(RING_NEW_NAME).or_else(is_absent)?;
            }
            made => return made,
        }
    }
    let options = RingOptions {
        bytes: old.bytes,
        create: false,
    };
    disk.open_ring(RING_NAME, options)
}
