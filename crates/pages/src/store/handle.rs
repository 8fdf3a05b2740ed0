//! Handles: direct pointers to cached metadata, kept beside the reference to the page. A lookup
//! through a handle skips the cache. The cache owns the memory, and a handle keeps no value alive.
//! One of every `USES` uses goes through the cache, so that the cache counts the uses and keeps
//! the value.

use std::any::Any;

use terrapin_base::Result;
use terrapin_base::sync::{Arc, Mutex, OnceLock, Weak};
use terrapin_filter::partition_of;

use super::PageStore;
use super::filter_page::FilterPage;
use super::read::DecodePage;
use crate::group::{GroupIndex, GroupRef, NodeIndex};
use crate::page::{PageKind, PageRef};

/// One of this many uses of a handle goes through the cache.
const USES: u8 = 16;
/// Most partitions of a filter that get handles: far more than a group of the largest target has. A
/// larger filter is asked through the cache, so a hostile reference cannot allocate many handles.
pub(super) const PARTITIONS_MAX: u32 = 256;

/// A direct pointer to a decoded page while the cache holds the page.
#[derive(Debug)]
pub struct Handle<T>(Mutex<Way<T>>);

#[derive(Debug)]
struct Way<T> {
    value: Weak<T>,
    /// Uses before the next that goes through the cache.
    left: u8,
}

impl<T> Default for Handle<T> {
    fn default() -> Self {
        Handle(Mutex::new(Way {
            value: Weak::new(),
            left: 0,
        }))
    }
}

impl<T> Handle<T> {
    /// The value, or the number of uses that the cache has not counted. On the latter, the caller
    /// must go through the cache.
    #[inline]
    fn get(&self) -> Result<Arc<T>, u64> {
        let mut way = self.0.lock();
        if way.left > 0
            && let Some(value) = way.value.upgrade()
        {
            way.left -= 1;
            return Ok(value);
        }
        let uncounted = if way.value.strong_count() > 0 {
            USES - 1 - way.left
        } else {
            0
        };
        way.left = 0;
        Err(u64::from(uncounted))
    }

    fn set(&self, value: &Arc<T>) {
        let mut way = self.0.lock();
        way.value = Arc::downgrade(value);
        way.left = USES - 1;
    }

    /// The value through the handle, or from `visit`, which takes the number of uncounted uses.
    #[inline(always)] // each lookup
    pub(super) fn get_or(&self, visit: impl FnOnce(u64) -> Result<Arc<T>>) -> Result<Arc<T>> {
        match self.get() {
            Ok(value) => Ok(value),
            Err(uncounted) => {
                let value = visit(uncounted)?;
                self.set(&value);
                Ok(value)
            }
        }
    }
}

/// Direct pointers to the index and filter partitions of one [`GroupRef`].
#[derive(Debug, Default)]
pub struct GroupHandle {
    index: Handle<GroupIndex>,
    /// One handle for each partition, made when the filter is first asked.
    filter: OnceLock<Box<[Handle<FilterPage>]>>,
}

/// Partitions of a group's filter, if there is one and handles are made for it.
#[inline]
pub(super) fn partitions_with_handles(group: &GroupRef) -> Option<u32> {
    let partitions = group.filter_partitions();
    (1..=PARTITIONS_MAX)
        .contains(&partitions)
        .then_some(partitions)
}

impl GroupHandle {
    /// Most bytes of memory that a group's handle takes, the handle itself included.
    #[must_use]
    pub fn memory_bytes(group: &GroupRef) -> usize {
        let partitions = partitions_with_handles(group).unwrap_or(0) as usize;
        size_of::<Self>() + partitions * size_of::<Handle<FilterPage>>()
    }
}

impl PageStore {
    /// The index of a group, like [`PageStore::index`], through a handle.
    #[inline]
    pub fn index_by(&self, group: &GroupRef, handle: &GroupHandle) -> Result<Arc<GroupIndex>> {
        handle
            .index
            .get_or(|uncounted| self.index_counting(group, uncounted))
    }

    /// The index of a group of whose index a node has a copy, through a handle and the cache, where
    /// it counts as metadata. Decodes the copy if the index is not cached, and reads nothing.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the copy is not of that group's index.
    #[inline]
    pub fn index_of_copy(
        &self,
        group: &GroupRef,
        handle: &Handle<GroupIndex>,
        copy: NodeIndex<'_>,
    ) -> Result<Arc<GroupIndex>> {
        handle.get_or(|uncounted| {
            if let Some(index) = self.cached_index(group, uncounted) {
                return Ok(index);
            }
            let index = copy.decode(group, &mut Vec::new())?;
            Ok(self.cache_index(group.id, index))
        })
    }

    /// Whether a group may hold a key, like [`PageStore::may_contain`], through a handle.
    #[inline]
    pub fn may_contain_by(
        &self,
        group: &GroupRef,
        handle: &GroupHandle,
        hash: u64,
    ) -> Result<bool> {
        self.ask_by(group, handle, hash, |_, _| Ok(()))
    }

    /// Whether a group may hold a key, like [`PageStore::may_contain_by`]. The call passes the
    /// asked partition to `see` if the group has handles for its filter.
    #[inline(always)]
    pub(super) fn ask_by(
        &self,
        group: &GroupRef,
        handle: &GroupHandle,
        hash: u64,
        see: impl FnOnce(u32, &FilterPage) -> Result<()>,
    ) -> Result<bool> {
        let Some(partitions) = partitions_with_handles(group) else {
            return self.may_contain(group, hash);
        };
        let number = partition_of(hash, partitions);
        let page = self.filter_page_by(group, handle, partitions, number)?;
        see(number, &page)?;
        self.ask(&page, group, number, hash)
    }

    /// The page of filter partition `number` of `partitions`, through the handle of its group.
    #[inline]
    fn filter_page_by(
        &self,
        group: &GroupRef,
        handle: &GroupHandle,
        partitions: u32,
        number: u32,
    ) -> Result<Arc<FilterPage>> {
        let handles = handle
            .filter
            .get_or_init(|| (0..partitions).map(|_| Handle::default()).collect());
        let visit = |uncounted| self.filter_page(group, number, uncounted);
        match handles.get(number as usize) {
            Some(handle) => handle.get_or(visit),
            None => visit(0),
        }
    }

    /// The decoded page, like [`PageStore::object`], through a handle.
    #[inline]
    pub fn object_by<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        kind: PageKind,
        handle: &Handle<T>,
        decode: DecodePage<'_, T>,
    ) -> Result<Arc<T>> {
        handle.get_or(|uncounted| self.object_counting(page, kind, uncounted, decode))
    }

    /// What `make` makes of one or more pages, through a handle and the cache, where it counts as
    /// metadata. It is cached in the place of the decoded page `page`, which is never cached
    /// itself. `make` also returns the bytes of memory that its value takes. Its errors are passed
    /// on, and nothing is cached then.
    pub fn derived_by<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        handle: &Handle<T>,
        make: &dyn Fn() -> Result<(T, usize)>,
    ) -> Result<Arc<T>> {
        handle.get_or(|uncounted| {
            if let Some(cached) = self.cached_object(page, uncounted) {
                return Ok(cached);
            }
            let (value, memory_bytes) = make()?;
            let value = Arc::new(value);
            self.cache_object(page, value.clone(), memory_bytes);
            Ok(value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_sixteen_uses_goes_through_the_cache_which_counts_all() {
        let handle = Handle::default();
        let value = Arc::new(7);
        let mut counted = 0;
        for uses in 1..=10 * u64::from(USES) {
            let got = handle.get_or(|uncounted| {
                counted += 1 + uncounted;
                Ok(value.clone())
            });
            assert_eq!(got.unwrap(), value);
            assert_eq!(counted, (uses - 1) / u64::from(USES) * u64::from(USES) + 1);
        }
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_handle_keeps_no_value_alive() {
        let handle = Handle::default();
        for expected in 0..3 {
            let mut visits = 0;
            let mut get = |value: &Arc<u32>| {
                handle.get_or(|_| {
                    visits += 1;
                    Ok(value.clone())
                })
            };
            let value = Arc::new(expected);
            assert_eq!(
                (*get(&value).unwrap(), *get(&value).unwrap()),
                (expected, expected)
            );
            assert_eq!(visits, 1, "the handle kept a dropped value");
        }
    }
}
