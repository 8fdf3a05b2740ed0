//! Pages of maplets: partitions behind one another, without a header. The page's reference and the
//! maplet's shape say all that a reader needs. Each partition is read, checked and cached alone.

use terrapin_base::sync::OnceLock;
use terrapin_base::{PageId, Result};
use terrapin_disk::AlignedBuf;
use terrapin_filter::{MapletShape, PARTITION_BYTES_MAX, check_partition, seal_partition};

use super::PageStore;
use super::filter_page::FilterPage;
use super::handle::{Handle, PARTITIONS_MAX};
use crate::block::{PART_MAPLET, part_seed};
use crate::cache::{Key, Kind};
use crate::metrics::{ReadFor, WriteOf};
use crate::page::PageRef;
use crate::space::SpaceClass;

/// Direct pointers to the partitions of one maplet, made when it is first asked.
#[derive(Debug, Default)]
pub struct MapletHandle(OnceLock<Box<[Handle<FilterPage>]>>);

impl MapletHandle {
    /// Most bytes of memory that a maplet's handle takes, the handle itself included.
    #[must_use]
    pub fn memory_bytes(shape: &MapletShape) -> usize {
        size_of::<Self>() + with_handles(shape) as usize * size_of::<Handle<FilterPage>>()
    }
}

/// Partitions that get handles.
fn with_handles(shape: &MapletShape) -> u32 {
    shape.partitions().min(PARTITIONS_MAX)
}

fn seed(id: PageId, partition: u32) -> u32 {
    part_seed(id, PART_MAPLET | partition)
}

/// Checks a partition that was read from a maplet's page.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`], with page and partition, if the bytes are not that
/// partition of that page.
pub fn check_maplet_partition(bytes: &[u8], id: PageId, partition: u32) -> Result<()> {
    check_partition(bytes, seed(id, partition))
        .map_err(|e| e.with("page", id).with("partition", partition))
}

impl PageStore {
    /// Writes a maplet's partitions as a page of their own. Not durable before [`PageStore::sync`].
    /// They go into the cache while there is room.
    ///
    /// # Errors
    ///
    /// As [`PageStore::write_group`].
    pub fn write_maplet(&self, partitions: &[u8], class: SpaceClass) -> Result<PageRef> {
        let sealed = |id: PageId, _: u64| {
            let mut image = AlignedBuf::with_capacity(partitions.len());
            image.extend_from_slice(partitions);
            for (number, partition) in (0..).zip(image.chunks_exact_mut(PARTITION_BYTES_MAX)) {
                seal_partition(partition, seed(id, number));
            }
            image
        };
        let bytes = partitions.len();
        let page = self.write_laid_out(WriteOf::Segment, bytes as u64, class, sealed)?;
        let memory_bytes = FilterPage::memory_bytes(PARTITION_BYTES_MAX);
        for (number, partition) in (0..).zip(partitions.chunks_exact(PARTITION_BYTES_MAX)) {
            if !self.cache.has_room(memory_bytes) {
                break;
            }
            let partition = FilterPage::copy(partition).into();
            self.cache
                .insert(key(page.id, number), partition, memory_bytes);
        }
        let bytes = u32::try_from(bytes)
            .map_err(|_| terrapin_base::Error::internal("a maplet of 4 GiB or more"))?;
        Ok(PageRef {
            id: page.id,
            offset: page.offset,
            bytes,
        })
    }

    /// The values that a maplet has for a hash, as a set of bits: asks one partition, through a
    /// handle and the cache.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the partition is damaged; those of the read.
    #[inline]
    pub fn ask_maplet(
        &self,
        page: &PageRef,
        shape: &MapletShape,
        handle: &MapletHandle,
        hash: u64,
    ) -> Result<u64> {
        let number = shape.partition_of(hash);
        let handles = handle.0.get_or_init(|| {
            let handles = (0..with_handles(shape)).map(|_| Handle::default());
            handles.collect()
        });
        let visit = |uncounted| self.maplet_partition(page, number, uncounted);
        let partition = match handles.get(number as usize) {
            Some(handle) => handle.get_or(visit),
            None => visit(0),
        }?;
        shape
            .find(&partition.bytes, hash)
            .map_err(|e| self.place_page(e, page.id).with("partition", number))
    }

    fn maplet_partition(
        &self,
        page: &PageRef,
        number: u32,
        uncounted: u64,
    ) -> Result<std::sync::Arc<FilterPage>> {
        let key = key(page.id, number);
        if let Some(partition) = self.cache.get_counting(key, uncounted) {
            return Ok(partition);
        }
        let offset = page.offset + u64::from(number) * PARTITION_BYTES_MAX as u64;
        let partition = self
            .with_bytes(ReadFor::Meta, offset, PARTITION_BYTES_MAX, |bytes| {
                check_maplet_partition(bytes, page.id, number)?;
                Ok(FilterPage::copy(bytes))
            })
            .map_err(|e| self.place_page(e, page.id))?;
        let memory_bytes = FilterPage::memory_bytes(PARTITION_BYTES_MAX);
        Ok(self.cache.insert(key, partition.into(), memory_bytes))
    }

    /// All partitions of a maplet, checked, without the cache: for merges, and to verify them.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if a partition is damaged; those of the read.
    pub fn read_maplet(&self, page: &PageRef, reader: ReadFor) -> Result<Vec<u8>> {
        self.with_bytes(reader, page.offset, page.bytes as usize, |bytes| {
            for (number, partition) in (0..).zip(bytes.chunks(PARTITION_BYTES_MAX)) {
                check_maplet_partition(partition, page.id, number)?;
            }
            Ok(bytes.to_vec())
        })
        .map_err(|e| self.place_page(e, page.id))
    }
}

fn key(page: PageId, number: u32) -> Key {
    Key {
        page,
        kind: Kind::Filter,
        number,
    }
}
