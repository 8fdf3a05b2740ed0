//! Sorted ingest of records of which some have large values, into a version without separated ones.
//!
//! The inner structure takes the handles in as it takes in short values. The end makes the value
//! table, which lists the large values and adopts their pages.

use std::sync::Arc;

use terrapin_base::{Error, Message, Result, mutant};
use terrapin_pages::{Changes, PageStore, SpaceClass};
use terrapin_structure::{Ingest, MergeOptions, Merged};

use super::Separating;
use super::births::{adopted, class_of};
use super::version::{DroppedValues, SeparatedVersion};
use crate::table::{TableEdit, ValueTable};

/// An ingest into a version without separated values.
pub(super) struct LargeIngest {
    inner: Box<dyn Ingest>,
    owner: Separating,
    values: Arc<DroppedValues>,
    class: SpaceClass,
    /// The large values so far.
    edit: TableEdit,
}

impl LargeIngest {
    /// The options of the inner structure's ingest, and what they tell of dropped handles.
    pub(super) fn options(
        owner: &Separating,
        options: &MergeOptions,
    ) -> (MergeOptions, Arc<DroppedValues>) {
        let values = DroppedValues::of(ValueTable::empty(&owner.store));
        let inner = MergeOptions {
            values: Some(values.clone()),
            ..options.clone()
        };
        (inner, values)
    }

    pub(super) fn new(
        owner: &Separating,
        inner: Box<dyn Ingest>,
        values: Arc<DroppedValues>,
        options: &MergeOptions,
    ) -> Self {
        LargeIngest {
            inner,
            owner: owner.clone(),
            values,
            class: class_of(options),
            edit: TableEdit::default(),
        }
    }

    fn store(&self) -> &Arc<PageStore> {
        &self.owner.store
    }
}

impl Ingest for LargeIngest {
    #[inline]
    fn add(&mut self, key: &[u8], message: Message<'_>) -> Result<()> {
        if let Message::Separated(handle) = message
            && !mutant::active("ingest-forgets-large-pages")
        {
            let part = adopted(self.store(), handle)?;
            self.edit.adopt(part);
        }
        self.inner.add(key, message)
    }

    fn finish(self: Box<Self>) -> Result<Merged> {
        let LargeIngest {
            inner,
            owner,
            values,
            class,
            mut edit,
        } = *self;
        let mut merged = inner.finish()?;
        if edit.is_empty() {
            return Ok(merged);
        }
        let mut changes = Changes::default();
        let made = (|| {
            // Deadlines that came during the ingest.
            for handle in values.take() {
                if edit.part(handle.birth).is_none() {
                    return Err(Error::internal("an ingest drops an unknown value"));
                }
                edit.end_large(handle.birth);
            }
            ValueTable::empty(&owner.store).edited(&edit, &[], class, &mut changes)
        })();
        merged.changes.merge(changes);
        let table = match made {
            Ok(table) => table,
            Err(error) => {
                owner.store.abandon(merged.changes);
                return Err(error);
            }
        };
        if table.root().is_some() {
            let dead = owner.places.empty();
            let around = SeparatedVersion::around(merged.version, &owner.store, dead);
            merged.version = Arc::new(SeparatedVersion { table, ..around });
        }
        Ok(merged)
    }
}
