//! Handles: direct ways to cached metadata, kept beside the reference to it. A lookup through a
//! handle costs no visit to the cache. The memory stays the cache's: a handle keeps nothing alive,
//! and of every so many uses one goes through the cache, so that what is used counts as used there
//! and is not evicted.

use std::any::Any;

use terrapin_base::Result;
use terrapin_base::sync::{Arc, Mutex, OnceLock, Weak};
use terrapin_filter::partition_of;

use super::PageStore;
use super::filter_page::FilterPage;
use super::read::DecodePage;
use crate::group::{GroupIndex, GroupRef};
use crate::page::{PageKind, PageRef};

/// Uses of a handle, of which one goes through the cache.
const USES: u8 = 16;
/// A filter of more partitions (far more than groups of the largest target have) is asked through
/// the cache alone, so that a reference that lies cannot make handles for it.
const PARTITIONS_MAX: u32 = 256;

/// A direct way to a decoded page, if it is in the cache.
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
    /// The value; or how many uses the cache has not counted, if this one is to go through the
    /// cache.
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

    /// The value through the handle, else by `visit`, which is told what to count besides.
    #[inline]
    fn get_or(&self, visit: impl FnOnce(u64) -> Result<Arc<T>>) -> Result<Arc<T>> {
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

/// Direct ways to a group's index and filter partitions; belongs to one [`GroupRef`].
#[derive(Debug, Default)]
pub struct GroupHandle {
    index: Handle<GroupIndex>,
    /// One a partition; made when the filter is first asked.
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
    /// Bytes of memory that a group's handle comes to take, itself included.
    #[must_use]
    pub fn memory_bytes(group: &GroupRef) -> usize {
        let partitions = partitions_with_handles(group).unwrap_or(0) as usize;
        size_of::<Self>() + partitions * size_of::<Handle<FilterPage>>()
    }
}

impl PageStore {
    /// As [`PageStore::index`], by a handle.
    #[inline]
    pub fn index_by(&self, group: &GroupRef, handle: &GroupHandle) -> Result<Arc<GroupIndex>> {
        handle
            .index
            .get_or(|uncounted| self.index_counting(group, uncounted))
    }

    /// As [`PageStore::may_contain`], by a handle.
    #[inline]
    pub fn may_contain_by(
        &self,
        group: &GroupRef,
        handle: &GroupHandle,
        hash: u64,
    ) -> Result<bool> {
        self.ask_by(group, handle, hash, |_, _| Ok(()))
    }

    /// As [`PageStore::may_contain_by`]; `see` is shown the partition that is asked, unless there
    /// are no handles for it.
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

    /// A partition's page, by the handle of its group, of which it is one of so many.
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

    /// As [`PageStore::object`], by a handle.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_so_many_uses_go_through_the_cache_and_are_counted_there() {
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
    fn a_handle_keeps_nothing_alive() {
        let handle = Handle::default();
        for round in 0..3 {
            let mut visits = 0;
            let mut get = |value: &Arc<u32>| {
                handle.get_or(|_| {
                    visits += 1;
                    Ok(value.clone())
                })
            };
            let value = Arc::new(round);
            assert_eq!(
                (*get(&value).unwrap(), *get(&value).unwrap()),
                (round, round)
            );
            assert_eq!(visits, 1, "of a value that was dropped nothing was left");
        }
    }
}
