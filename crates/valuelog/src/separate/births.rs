//! Writes the long values of a merge's input into value pages.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::sync::Mutex;
use terrapin_base::{Charge, Error, Message, PageId, Purpose, Result, Stack, StackBase};
use terrapin_pages::{PageStore, PageUse, SpaceClass};
use terrapin_structure::{MergeInput, MergeOptions, MessageCursor};

use super::Separating;
use crate::handle::Handle;
use crate::large::part_of;
use crate::page::{PageBuilder, PageOptions};
use crate::{PartRef, TARGET_BYTES_MAX};

/// Bytes of input that one step passes at most, beside the values that it writes.
const STEP_BYTES: usize = 1 << 20;
/// Births have about this many page groups, up to [`TARGET_BYTES_MAX`].
const GROUPS: u64 = 4;

/// The options of value pages of a merge.
pub(super) fn page_options(options: &MergeOptions, store: &PageStore) -> PageOptions {
    let target = options.group_bytes.saturating_mul(GROUPS);
    PageOptions {
        target_bytes: target.clamp(1, u64::from(TARGET_BYTES_MAX)) as u32,
        unit: store.unit(),
        compression: options.compression,
    }
}

/// The space that a merge writes to.
pub(super) fn class_of(options: &MergeOptions) -> SpaceClass {
    match options.space_is_short {
        true => SpaceClass::Reserve,
        false => SpaceClass::Normal,
    }
}

/// Handles of separated values by the hash of their keys. Two keys with one hash stay inline.
pub(super) type Handles = HashMap<u64, Option<Handle>>;

/// Walks an input once and writes its long values.
pub(super) struct Births {
    cursor: Option<Box<dyn MessageCursor>>,
    builder: PageBuilder,
    birth: u64,
    class: SpaceClass,
    separate_from: usize,
    handles: Handles,
    /// Values that stay inline although they were written.
    unused: Vec<Handle>,
    parts: Vec<PartRef>,
    /// Large values, whose pages the version adopts.
    adopted: Vec<PartRef>,
    written: Arc<Mutex<Vec<PageUse>>>,
    pub(super) passed_bytes: u64,
    charge: Charge,
}

impl Births {
    pub(super) fn begin(
        owner: &Separating,
        input: Arc<dyn MergeInput>,
        next_birth: u64,
        separate_from: usize,
        options: &MergeOptions,
        written: Arc<Mutex<Vec<PageUse>>>,
    ) -> Result<Self> {
        Ok(Births {
            cursor: Some(input.cursor(None, None)?),
            builder: PageBuilder::new(page_options(options, &owner.store)),
            birth: next_birth,
            class: class_of(options),
            separate_from,
            handles: HashMap::new(),
            unused: Vec::new(),
            parts: Vec::new(),
            adopted: Vec::new(),
            written,
            passed_bytes: 0,
            charge: owner.budget.charge(Purpose::Merge, 0),
        })
    }

    /// Passes a piece of the input. Returns whether all of it was passed.
    pub(super) fn step(&mut self, store: &PageStore) -> Result<bool> {
        let Some(mut cursor) = self.cursor.take() else {
            return Ok(true);
        };
        let mut passed = 0;
        while let Some(key) = cursor.key() {
            let message = cursor.message();
            passed += key.len() + message.value_bytes();
            match message {
                Message::Put(value) if value.len() >= self.separate_from => {
                    self.add(key, value);
                    if self.builder.is_full() {
                        self.write(store)?;
                    }
                }
                Message::Separated(handle) => self.adopted.push(adopted(store, handle)?),
                Message::Stack(bytes) => {
                    if let StackBase::Handle(handle) = Stack::decode(bytes)?.base {
                        self.adopted.push(adopted(store, handle)?);
                    }
                }
                Message::Put(_) | Message::Delete | Message::Merge(_) | Message::Expiring(_) => {}
            }
            cursor.advance()?;
            if passed >= STEP_BYTES {
                self.passed_bytes += passed as u64;
                self.cursor = Some(cursor);
                let handle_bytes = self.handles.capacity() * size_of::<(u64, Option<Handle>)>();
                self.charge
                    .resize((self.builder.memory_bytes() + handle_bytes) as u64);
                return Ok(false);
            }
        }
        self.passed_bytes += passed as u64;
        self.write(store)?;
        Ok(true)
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        match self.handles.entry(hash64(key)) {
            Entry::Vacant(entry) => {
                let place = self.builder.add(self.birth, key, value);
                let value_bytes = value.len() as u32;
                entry.insert(Some(Handle {
                    birth: self.birth,
                    place,
                    value_bytes,
                }));
            }
            // Another key has this hash.
            Entry::Occupied(mut entry) => self.unused.extend(entry.insert(None)),
        }
    }

    fn write(&mut self, store: &PageStore) -> Result<()> {
        let Some(pending) = self.builder.finish() else {
            return Ok(());
        };
        let (page, parts) = pending.write(store, self.class)?;
        self.written.lock().push(page);
        self.parts.extend(parts);
        self.birth += 1;
        Ok(())
    }

    pub(super) fn finish(self) -> Born {
        Born {
            handles: self.handles,
            unused: self.unused,
            parts: self.parts,
            adopted: self.adopted,
            next_birth: self.birth,
            charge: self.charge,
        }
    }
}

/// The part of a large value of an input.
pub(super) fn adopted(store: &PageStore, handle: &[u8]) -> Result<PartRef> {
    let handle = Handle::decode(handle)?;
    let page = store.place_of(PageId(handle.birth));
    page.filter(|_| handle.is_large())
        .map(|page| part_of(handle, page))
        .ok_or_else(|| Error::internal("a memtable's large value has no page"))
}

/// What was written of an input.
pub(super) struct Born {
    pub(super) handles: Handles,
    /// Values that nothing refers to.
    pub(super) unused: Vec<Handle>,
    pub(super) parts: Vec<PartRef>,
    /// Large values.
    pub(super) adopted: Vec<PartRef>,
    pub(super) next_birth: u64,
    pub(super) charge: Charge,
}
