//! Writes a large value into its page, piece by piece.

use terrapin_base::sync::{Arc, AtomicBool, Ordering};
use terrapin_base::{
    Budget, Charge, Error, ErrorKind, Generation, LARGE_VALUE_BYTES_MAX, Purpose, Result,
};
use terrapin_disk::AlignedBuf;
use terrapin_pages::{PageStore, PageUse};

use super::format::{PIECE_BYTES, append_tail, page_bytes, piece_checksum};
use super::{LARGE_BIRTHS, LargeRef};

/// Writes one large value. Memory holds a piece of it. A writer that is dropped before
/// [`LargeWriter::finish`] gives its page back.
pub struct LargeWriter {
    store: Arc<PageStore>,
    page: PageUse,
    key: Box<[u8]>,
    length: u64,
    written: u64,
    piece: AlignedBuf,
    checksums: Vec<u32>,
    is_bad: bool,
    is_done: bool,
    _memory: Charge,
}

impl LargeWriter {
    /// Allocates the page of a value of `length` bytes, at least one. `born`: the generation that
    /// is committed now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLarge`]; [`ErrorKind::NoSpace`], and those of the store.
    pub fn begin(
        store: &Arc<PageStore>,
        budget: &Arc<Budget>,
        key: &[u8],
        length: u64,
        born: Generation,
    ) -> Result<Self> {
        if length == 0 || length > LARGE_VALUE_BYTES_MAX {
            let message = "the value is longer than the limit: split it over several keys";
            return Err(Error::new(ErrorKind::TooLarge, message)
                .with("bytes", length)
                .with("limit", LARGE_VALUE_BYTES_MAX));
        }
        let page = store.begin_large(page_bytes(length, key.len()), born)?;
        if page.id.0 < LARGE_BIRTHS {
            store.abandon_large(page.id, false);
            return Err(Error::internal("a large page of life 0"));
        }
        Ok(LargeWriter {
            store: store.clone(),
            page,
            key: key.into(),
            length,
            written: 0,
            piece: AlignedBuf::with_capacity(PIECE_BYTES.min(page.bytes) as usize),
            checksums: Vec::new(),
            is_bad: false,
            is_done: false,
            _memory: budget.charge(Purpose::Merge, PIECE_BYTES.min(page.bytes)),
        })
    }

    /// Bytes of the value that are still missing.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.length - self.written - self.piece.len() as u64
    }

    /// Appends bytes of the value.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] for more bytes than the value has; those of the device.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.missing() {
            return Err(
                Error::invalid("more bytes were written than the value was said to have")
                    .with("length", self.length),
            );
        }
        while !bytes.is_empty() {
            let room = PIECE_BYTES as usize - self.piece.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() as u64 == PIECE_BYTES {
                self.write_piece()?;
            }
        }
        Ok(())
    }

    fn write_piece(&mut self) -> Result<()> {
        let number = self.checksums.len() as u64;
        let checksum = piece_checksum(self.page.id, number, &self.piece);
        self.checksums.push(checksum);
        self.put_down()
    }

    /// Writes the buffer where it belongs, and empties it.
    fn put_down(&mut self) -> Result<()> {
        let at = self.written;
        self.written += self.piece.len() as u64;
        self.store
            .write_large(&self.page, at, &mut self.piece)
            .inspect_err(|_| self.is_bad = true)?;
        self.piece.clear();
        Ok(())
    }

    /// Ends the value, of which no byte may be missing. Its page is written, and may be named by a
    /// record. It is durable after [`PageStore::sync_large`]. The value may have a deadline, in
    /// milliseconds since 1970.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if bytes are missing; those of the device.
    pub fn finish(mut self, deadline_ms: Option<u64>) -> Result<OwnedLarge> {
        if self.missing() > 0 {
            return Err(
                Error::invalid("fewer bytes were written than the value was said to have")
                    .with("length", self.length)
                    .with("missing", self.missing()),
            );
        }
        if !self.piece.is_empty() {
            let number = self.checksums.len() as u64;
            let checksum = piece_checksum(self.page.id, number, &self.piece);
            self.checksums.push(checksum);
        }
        let mut tail = Vec::new();
        let value = (&self.page, self.length);
        let checksum = append_tail(value, &self.key, &self.checksums, &mut tail);
        self.piece.extend_from_slice(&tail);
        self.put_down()?;
        self.is_done = true;
        self.store.large_is_written();
        Ok(OwnedLarge {
            store: self.store.clone(),
            large: LargeRef {
                page: self.page,
                length: self.length,
                checksum,
                deadline_ms,
            },
            is_given: AtomicBool::new(false),
        })
    }
}

impl Drop for LargeWriter {
    fn drop(&mut self) {
        if !self.is_done {
            self.store.abandon_large(self.page.id, self.is_bad);
        }
    }
}

impl std::fmt::Debug for LargeWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LargeWriter")
            .field("page", &self.page.id)
            .field("length", &self.length)
            .field("missing", &self.missing())
            .finish_non_exhaustive()
    }
}

/// A large value that was written and that no record names yet. Dropping it gives its page back,
/// unless [`OwnedLarge::give`] was called.
pub struct OwnedLarge {
    store: Arc<PageStore>,
    large: LargeRef,
    is_given: AtomicBool,
}

impl OwnedLarge {
    /// What the log's record says.
    #[must_use]
    pub fn large(&self) -> &LargeRef {
        &self.large
    }

    /// A record names the value: a memtable owns the page from now on.
    pub fn give(&self) {
        self.is_given.store(true, Ordering::Release);
    }

    /// Whether a record names the value.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Acquire)
    }
}

impl Drop for OwnedLarge {
    fn drop(&mut self) {
        if !self.is_given() {
            self.store.abandon_large(self.large.page.id, false);
        }
    }
}

impl std::fmt::Debug for OwnedLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OwnedLarge").field(&self.large).finish()
    }
}
