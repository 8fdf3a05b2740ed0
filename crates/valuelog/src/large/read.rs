//! Reads large values: whole, in part, as a stream, and to check them.

use std::ops::Range;

use terrapin_base::sync::Arc;
use terrapin_base::{EXTENT_ALIGNMENT, Error, ErrorKind, PageId, Result, Slice, mutant};
use terrapin_pages::{HeldPage, PageStore, PageUse, ReadFor};

use super::LargeRef;
use super::format::{PIECE_BYTES, Tail, page_bytes, piece_checksum, pieces};
use crate::handle::{Handle, dangling};

/// A get or a range returns a large value of at most this part (1/n) of the memory.
const GET_PART: u64 = 4;

/// Reads the large values of a data file by their handles.
#[derive(Clone)]
pub struct LargeValues {
    store: Arc<PageStore>,
}

impl LargeValues {
    /// Reads those of a store.
    #[must_use]
    pub fn new(store: &Arc<PageStore>) -> Self {
        LargeValues {
            store: store.clone(),
        }
    }

    /// The longest large value in bytes that [`LargeValues::get`] returns.
    #[must_use]
    pub fn get_bytes_max(&self) -> u64 {
        self.store.memory_limit() / GET_PART
    }

    /// The value of a handle of `key`, whole. One read for each MiB, and one for the checksums.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLarge`] above [`LargeValues::get_bytes_max`];
    /// [`ErrorKind::Corrupt`] if the value cannot be found or is damaged; those of reads.
    pub fn get(&self, handle: Handle, key: &[u8], purpose: ReadFor) -> Result<Slice> {
        self.check_length(u64::from(handle.value_bytes))?;
        let page = self.place_of(handle, key)?;
        self.get_in(&page, handle, key, purpose)
    }

    /// As [`LargeValues::get`], of a value whose page is known.
    ///
    /// # Errors
    ///
    /// As for [`LargeValues::get`].
    pub fn get_in(
        &self,
        page: &PageUse,
        handle: Handle,
        key: &[u8],
        purpose: ReadFor,
    ) -> Result<Slice> {
        self.check_length(u64::from(handle.value_bytes))?;
        let length = u64::from(handle.value_bytes);
        let tail = read_tail(&self.store, page, length, Some(key), purpose)?;
        let mut value = Vec::with_capacity(handle.value_bytes as usize);
        for number in 0..pieces(length) {
            read_piece(
                &self.store,
                (page, length),
                &tail,
                number,
                purpose,
                |piece| {
                    value.extend_from_slice(piece);
                },
            )?;
        }
        Ok(Slice::from_vec(value))
    }

    /// Checks that a get may return a value of this many bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLarge`], which names what reads longer values.
    pub fn check_length(&self, bytes: u64) -> Result<()> {
        if bytes <= self.get_bytes_max() {
            return Ok(());
        }
        let message = "the value is large and takes too much of the memory at once: read it with \
                       reader or get_range, or open with more memory";
        Err(Error::new(ErrorKind::TooLarge, message)
            .with("bytes", bytes)
            .with("limit", self.get_bytes_max()))
    }

    /// A reader of the value of a handle of `key`. It keeps the value's page, whatever happens to
    /// the key. The caller keeps the page until this returns.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the value cannot be found; those of reads.
    pub fn open(&self, handle: Handle, key: &[u8]) -> Result<LargeReader> {
        self.place_of(handle, key)?;
        let held = self.store.hold_page(PageId(handle.birth));
        let held = held.ok_or_else(|| dangling(handle))?;
        let page = *held.page();
        self.reader((page, Some(held)), handle, key, ReadFor::Get)
    }

    /// A reader of the value of a handle of `key`, whose page is known. The caller keeps the page
    /// as long as the reader is there.
    ///
    /// # Errors
    ///
    /// As for [`LargeValues::open`].
    pub fn open_in(
        &self,
        page: &PageUse,
        handle: Handle,
        key: &[u8],
        purpose: ReadFor,
    ) -> Result<LargeReader> {
        self.reader((*page, None), handle, key, purpose)
    }

    fn reader(
        &self,
        (page, held): (PageUse, Option<HeldPage>),
        handle: Handle,
        key: &[u8],
        purpose: ReadFor,
    ) -> Result<LargeReader> {
        let length = u64::from(handle.value_bytes);
        let tail = read_tail(&self.store, &page, length, Some(key), purpose)?;
        Ok(LargeReader {
            store: self.store.clone(),
            page,
            _held: held,
            length,
            tail,
            purpose,
        })
    }

    /// The page of a handle of `key`.
    fn place_of(&self, handle: Handle, key: &[u8]) -> Result<PageUse> {
        let page = self.store.place_of(PageId(handle.birth));
        let bytes = page_bytes(u64::from(handle.value_bytes), key.len());
        page.filter(|page| handle.is_large() && page.bytes == bytes)
            .ok_or_else(|| dangling(handle))
    }
}

impl std::fmt::Debug for LargeValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LargeValues").finish_non_exhaustive()
    }
}

/// Reads one large value, of which it keeps the page.
#[derive(Debug)]
pub struct LargeReader {
    store: Arc<PageStore>,
    page: PageUse,
    /// Keeps the page.
    _held: Option<HeldPage>,
    length: u64,
    tail: Tail,
    purpose: ReadFor,
}

impl LargeReader {
    /// Bytes of the value.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The checksum of the page's footer.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        self.tail.checksum
    }

    /// Passes bytes of the value to `take`, in their order, piece by piece. Reads the pieces that
    /// have them, whole.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for a damaged piece; those of reads.
    pub fn read(&self, bytes: Range<u64>, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let end = bytes.end.min(self.length);
        let mut at = bytes.start;
        if mutant::active("parts-of-large-values-are-off") && at >= EXTENT_ALIGNMENT {
            at -= EXTENT_ALIGNMENT;
        }
        while at < end {
            let number = at / PIECE_BYTES;
            let start = number * PIECE_BYTES;
            let value = (&self.page, self.length);
            let upto = end.min(start + PIECE_BYTES);
            read_piece(
                &self.store,
                value,
                &self.tail,
                number,
                self.purpose,
                |piece| {
                    take(&piece[(at - start) as usize..(upto - start) as usize]);
                },
            )?;
            at = upto;
        }
        Ok(())
    }
}

/// Reads what stands behind a value.
fn read_tail(
    store: &PageStore,
    page: &PageUse,
    length: u64,
    key: Option<&[u8]>,
    purpose: ReadFor,
) -> Result<Tail> {
    if length > page.bytes {
        return Err(Error::corrupt("a large value is longer than its page").with("page", page.id));
    }
    let tail = store.read_piece(page, length..page.bytes, purpose, |bytes| {
        Tail::decode(bytes, page, length)
    })?;
    match key {
        Some(key) if *tail.key != *key => {
            Err(Error::corrupt("a large page has another key's value").with("page", page.id))
        }
        _ => Ok(tail),
    }
}

/// Reads and checks a piece of a value.
fn read_piece(
    store: &PageStore,
    (page, length): (&PageUse, u64),
    tail: &Tail,
    number: u64,
    purpose: ReadFor,
    take: impl FnOnce(&[u8]),
) -> Result<()> {
    let start = number * PIECE_BYTES;
    let piece = start..length.min(start + PIECE_BYTES);
    store.read_piece(page, piece, purpose, |bytes| {
        let is_sound =
            tail.checksums.get(number as usize) == Some(&piece_checksum(page.id, number, bytes));
        if !is_sound && !mutant::active("large-copies-are-not-checked") {
            return Err(
                Error::corrupt("checksum of a piece of a large value").with("piece", number)
            );
        }
        take(bytes);
        Ok(())
    })
}

/// Checks that a large page has the value of a key that a record names: all of the value or,
/// without `all`, what stands behind it. Linear.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for the first fault; those of reads.
pub fn check_large(store: &PageStore, large: &LargeRef, key: &[u8], all: bool) -> Result<()> {
    let (page, length) = (&large.page, large.length);
    let tail = read_tail(store, page, length, Some(key), ReadFor::Verify)?;
    if tail.checksum != large.checksum || page.bytes != page_bytes(length, key.len()) {
        return Err(Error::corrupt("another large value lies here").with("page", page.id));
    }
    check_pieces(store, (page, length), &tail, all)
}

/// Checks that the page of a large value has the value of a key. Reads no piece of it.
///
/// # Errors
///
/// As for [`check_large`].
pub(crate) fn check_key(store: &PageStore, page: &PageUse, length: u64, key: &[u8]) -> Result<()> {
    read_tail(store, page, length, Some(key), ReadFor::Verify).map(drop)
}

/// Checks the page of a large value that a value table lists. Returns the key.
///
/// # Errors
///
/// As for [`check_large`].
pub(crate) fn check_listed(store: &PageStore, page: &PageUse, length: u64) -> Result<Box<[u8]>> {
    let tail = read_tail(store, page, length, None, ReadFor::Verify)?;
    check_pieces(store, (page, length), &tail, true)?;
    Ok(tail.key)
}

fn check_pieces(store: &PageStore, value: (&PageUse, u64), tail: &Tail, all: bool) -> Result<()> {
    let count = if all { pieces(value.1) } else { 0 };
    (0..count)
        .try_for_each(|number| read_piece(store, value, tail, number, ReadFor::Verify, |_| ()))
}
