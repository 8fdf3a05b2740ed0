//! Builds value pages, from new values and from copies of records.

use terrapin_base::{PageId, VALUE_BYTES_MAX};
use terrapin_disk::AlignedBuf;
use terrapin_pages::block::{Compression, Compressor};

use super::directory::{Directory, PartEntry};
use super::footer::{FOOTER_BYTES, Footer, page_bytes};
use crate::record::{self, Identity, Record};
use crate::{PLACE_BYTES, PLACES_MAX, TARGET_BYTES_MAX};

/// Stands for the id of the page that is being built.
pub(crate) const THIS_PAGE: PageId = PageId(u64::MAX);

/// How value pages are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// A page is full from this many bytes of records on: at most [`TARGET_BYTES_MAX`].
    pub target_bytes: u32,
    /// Records together, and the page, are multiples of this, in bytes: a power of two.
    pub unit: u32,
    /// Compression of new values, each by itself.
    pub compression: Compression,
}

/// Bytes of the records of a part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartBytes {
    pub(crate) records: u32,
    /// Of the values, decompressed.
    pub(crate) values: u64,
}

/// Builds one value page after the other.
///
/// ```
/// use terrapin_base::PageId;
/// use terrapin_pages::block::Compression;
/// use terrapin_valuelog::page::{PageBuilder, PageOptions, record_at};
/// use terrapin_valuelog::{Handle, PLACE_BYTES};
/// let options =
///     PageOptions { target_bytes: 1 << 16, unit: 512, compression: Compression::None };
/// let mut builder = PageBuilder::new(options);
/// builder.add(7, b"apple", b"a long value");
/// let place = builder.add(7, b"pear", b"another value");
/// let (page, image) = builder.finish().unwrap().place(PageId(1), 1 << 20);
/// let handle = Handle { birth: 7, place, value_bytes: 13 };
/// let record = &image[place as usize * PLACE_BYTES..];
/// assert_eq!(&record_at(record, page.id, handle, b"pear")?[..], b"another value");
/// # Ok::<(), terrapin_base::Error>(())
/// ```
pub struct PageBuilder {
    options: PageOptions,
    compressor: Compressor,
    scratch: Vec<u8>,
    image: AlignedBuf,
    parts: Vec<(PartEntry, PartBytes)>,
    logical_bytes: u64,
    records: u32,
}

impl PageBuilder {
    /// A builder without records. Panics if the target is 0 or above [`TARGET_BYTES_MAX`], or the
    /// unit is not a power of two.
    #[must_use]
    pub fn new(options: PageOptions) -> Self {
        assert!((1..=TARGET_BYTES_MAX).contains(&options.target_bytes));
        assert!(options.unit.is_power_of_two());
        PageBuilder {
            options,
            compressor: Compressor::new(options.compression),
            scratch: Vec::new(),
            image: AlignedBuf::with_capacity(0),
            parts: Vec::new(),
            logical_bytes: 0,
            records: 0,
        }
    }

    /// Whether the page has reached its target.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.image.len() >= self.options.target_bytes as usize
    }

    /// Whether the page has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a new value of a birth, and returns its place. Linear in key and value. Panics if the
    /// page is full, if key or value exceed their limits, or if the birth was added before and
    /// another one since.
    pub fn add(&mut self, birth: u64, key: &[u8], value: &[u8]) -> u32 {
        assert!(!self.is_full() && value.len() <= VALUE_BYTES_MAX);
        let place = self.position();
        record::append(
            key,
            value,
            &mut self.compressor,
            &mut self.scratch,
            &mut self.image,
        );
        self.count(birth, THIS_PAGE, (place, place), (key.len(), value.len()));
        place
    }

    /// Adds a copy of a sound record that was born elsewhere. Places of a birth must ascend. The
    /// page may be full already if the birth's part began before.
    pub(crate) fn add_copy(&mut self, birth: u64, bytes: &[u8], record: &Record<'_>) {
        let Identity { born_in, place } = record.identity;
        let position = self.position();
        self.image.extend_from_slice(&bytes[..record.bytes]);
        let lengths = (record.key.len(), record.value_bytes as usize);
        self.count(birth, born_in, (place, position), lengths);
    }

    /// Where the next record begins.
    fn position(&self) -> u32 {
        let place = self.image.len() / PLACE_BYTES;
        debug_assert!(place < PLACES_MAX as usize);
        place as u32
    }

    /// Counts the last record of the image, with the lengths of its key and value.
    fn count(&mut self, birth: u64, born_in: PageId, at: (u32, u32), lengths: (usize, usize)) {
        let bytes = (self.image.len() - at.1 as usize * PLACE_BYTES) as u32;
        let is_begun = self
            .parts
            .last()
            .is_some_and(|(part, _)| part.birth == birth);
        if !is_begun {
            let part = PartEntry::new(birth, born_in, Vec::new());
            self.parts.push((part, PartBytes::default()));
        }
        let (part, part_bytes) = self.parts.last_mut().expect("a part was begun");
        assert_eq!(part.born_in, born_in, "one birth was born in two pages");
        part.push(at);
        part_bytes.records += bytes;
        part_bytes.values += lengths.1 as u64;
        self.records += 1;
        self.logical_bytes += (lengths.0 + lengths.1) as u64;
    }

    /// Bytes of memory that the builder has touched.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let records = self.records as usize * 2 * size_of::<(u32, u32)>();
        self.image.capacity() + self.scratch.capacity() + records
    }

    /// Finishes the page. `None` without records. The builder can be used again.
    pub fn finish(&mut self) -> Option<PendingPage> {
        if self.parts.is_empty() {
            return None;
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.sort_unstable_by_key(|(part, _)| part.birth);
        let ascend = |pair: &[(PartEntry, PartBytes)]| pair[0].0.birth < pair[1].0.birth;
        assert!(parts.windows(2).all(ascend), "a birth in pieces");
        let (parts, part_bytes): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let directory = Directory::new(parts);
        let unit = self.options.unit as usize;
        let mut image = std::mem::take(&mut self.image);
        image.resize(image.len().next_multiple_of(unit), 0);
        let record_bytes = image.len() as u32;
        // The id has a fixed length: the directory is as long for every page.
        let directory_bytes = directory.encode(THIS_PAGE).len() as u32;
        let bytes = page_bytes(record_bytes, directory_bytes, self.options.unit);
        image.resize(bytes as usize, 0);
        let footer = Footer {
            id: THIS_PAGE,
            offset: 0,
            bytes,
            record_bytes,
            directory_bytes,
            records: std::mem::take(&mut self.records),
            parts: directory.parts().len() as u32,
            logical_bytes: std::mem::take(&mut self.logical_bytes),
            unit: self.options.unit,
        };
        Some(PendingPage {
            image,
            directory,
            part_bytes,
            footer,
        })
    }
}

/// A finished value page without id and position.
pub struct PendingPage {
    pub(crate) image: AlignedBuf,
    pub(crate) directory: Directory,
    pub(crate) part_bytes: Vec<PartBytes>,
    pub(crate) footer: Footer,
}

impl PendingPage {
    /// Bytes of the page, which must be allocated.
    #[must_use]
    pub fn bytes_needed(&self) -> u64 {
        self.footer.bytes
    }

    /// Gives the page its id and its position in the data file, in bytes. Computes every checksum:
    /// one pass over the new records. Returns the footer and the image for a direct write.
    #[must_use]
    pub fn place(mut self, id: PageId, offset: u64) -> (Footer, AlignedBuf) {
        let footer = self.seal(id, offset);
        (footer, self.image)
    }

    pub(crate) fn seal(&mut self, id: PageId, offset: u64) -> Footer {
        self.directory.born_here(THIS_PAGE, id, |place, position| {
            let record = &mut self.image[position as usize * PLACE_BYTES..];
            record::seal(record, Identity { born_in: id, place });
        });
        let footer = Footer {
            id,
            offset,
            ..self.footer
        };
        let directory = self.directory.encode(id);
        self.image[footer.record_bytes as usize..][..directory.len()].copy_from_slice(&directory);
        let start = self.image.len() - FOOTER_BYTES;
        self.image[start..].copy_from_slice(&footer.encode());
        footer
    }
}
