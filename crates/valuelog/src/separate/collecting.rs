//! The end of a merge: notes which values became dead, and collects pages with much garbage.
//!
//! Collecting writes no tree and looks nothing up. A page that cannot be read stays where it is.
//!
//! Where dead records cover whole extents of a page, the file system takes these back, and nothing
//! is copied. A hole is made only of records that are dead in the version that the merge begins
//! from, which both superblock slots hold, and that no pin can see (D14). The table notes holes
//! that were made: a crash before it does makes them again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrapin_base::sync::Mutex;
use terrapin_base::{Error, ErrorKind, Purpose, Result, mutant};
use terrapin_pages::{Extent, PageUse, ReadFor, SpaceClass};
use terrapin_structure::{MergeOptions, Version};

use super::Separating;
use super::births::{class_of, page_options};
use super::version::{DeadPlaces, SeparatedVersion, dead_key};
use crate::collect::{CollectFacts, LEAST_PERMILLE, PageLoad, choose};
use crate::handle::{Handle, dangling};
use crate::page::{PageBuilder, copy_live, expected_hole_bytes, holes};
use crate::table::{PartRef, TableEdit};

/// The space amplification of value pages where none is asked for, in per cent.
const ACCEPTED_PERCENT: u32 = 130;
/// Bytes of a record besides its value, about: for the count of bytes that died.
const RECORD_BYTES: u64 = 64;
/// Bytes of a record's header and padding, about.
const HEAD_BYTES: u64 = 44;
/// Bytes of a key, about, where compression hides them.
const KEY_BYTES: u64 = 16;
/// Bytes of a handle, about.
const HANDLE_BYTES: u64 = 9;
/// Bytes of a part in a table, about.
const PART_BYTES: u64 = 45;

/// The accepted space amplification of value pages, in permille.
fn accepted_permille(options: &MergeOptions) -> u32 {
    let percent = options.space_amplification_percent;
    percent.unwrap_or(ACCEPTED_PERCENT).saturating_mul(10)
}

/// Whether the dead values of a table take more than what is accepted. Directories and padding come
/// on top: what is garbage here is garbage for [`choose`], too.
pub(super) fn has_garbage(base: &SeparatedVersion, options: &MergeOptions) -> bool {
    let accepted = accepted_permille(options).saturating_sub(1000);
    let accepted = u128::from(accepted.max(LEAST_PERMILLE));
    base.table.root().is_some_and(|root| {
        let live = u128::from(root.bytes.saturating_sub(root.dead_bytes).max(1));
        let waste = root.dead_bytes.saturating_sub(root.hole_bytes);
        u128::from(waste) * 1000 > live * accepted
    })
}

/// Sums over the live records of value pages.
#[derive(Default)]
struct Live {
    parts: u64,
    records: u64,
    /// Bytes of the records, and of their values as stored.
    bytes: u64,
    value_bytes: u64,
}

impl Live {
    fn add(&mut self, part: &PartRef) {
        let records = u64::from(part.records.saturating_sub(part.dead_records));
        let bytes = u64::from(part.bytes).saturating_sub(part.dead_bytes());
        let values = part.value_bytes.saturating_sub(part.dead_value_bytes);
        let most = bytes.saturating_sub(records.saturating_mul(HEAD_BYTES));
        self.parts = self.parts.saturating_add(1);
        self.records = self.records.saturating_add(records);
        self.bytes = self.bytes.saturating_add(bytes);
        self.value_bytes = self.value_bytes.saturating_add(values.min(most));
    }

    /// Bytes of all keys: what heads and values leave. Compressed values leave none.
    fn key_bytes(&self) -> u64 {
        let heads = self.records.saturating_mul(HEAD_BYTES);
        let keys = self
            .bytes
            .saturating_sub(heads.saturating_add(self.value_bytes));
        match keys {
            0 => self.records.saturating_mul(KEY_BYTES),
            keys => keys,
        }
    }

    /// Key and value bytes that readers see, if they see `seen` of `stored` bytes of the tree.
    fn seen_bytes(&self, (seen, stored): (u64, u64)) -> u64 {
        let all = self.key_bytes().saturating_add(self.value_bytes);
        if mutant::active("hidden-values-take-no-room") {
            return self.bytes;
        }
        let seen = u128::from(all) * u128::from(seen.min(stored)) / u128::from(stored.max(1));
        u64::try_from(seen).unwrap_or(all)
    }

    /// Bytes that keys and handles take in the tree, with an eighth for blocks, indexes and
    /// filters, and bytes of the value table.
    fn tree_bytes(&self) -> u64 {
        let handles = self.records.saturating_mul(HANDLE_BYTES);
        let tree = self.key_bytes().saturating_add(handles);
        let table = self.parts.saturating_mul(PART_BYTES);
        tree.saturating_add(tree / 8).saturating_add(table)
    }
}

/// The space amplification of the tree of keys and handles, in per cent, where values of
/// `value_bytes` bytes lie outside of its `tree_bytes` bytes. A superseded message in a buffer
/// hides a whole value and takes the room of dead ones. A merge into the leaves costs less than the
/// copies that this room saves, so buffers hide a twentieth where values are most of the bytes.
pub(super) fn tree_percent(accepted: u32, tree_bytes: u64, value_bytes: u64) -> u32 {
    let share = tree_bytes.saturating_mul(20) / value_bytes.max(1);
    accepted.min(105 + share.clamp(5, 1000) as u32)
}

/// Holes are made in a page once this part (1/n) of it has died since they were made last.
const PUNCHED_PART: u64 = 8;

/// About how many bytes of a page can be made holes now. 0 if few have died since the last time, or
/// if the live rest is small and costs little to copy. `dead` are the parts with dead records when
/// the merge began. `all` are the parts as the merge leaves them.
fn hole_bytes_due(dead: &[PartRef], all: &[PartRef]) -> u64 {
    let (mut due, mut died, mut waste, mut live) = (0u64, 0u64, 0u64, 0u64);
    for part in dead {
        let (records, bytes) = (part.records.max(1), u64::from(part.bytes));
        let expected = expected_hole_bytes(records, bytes, part.dead_records);
        let new = u64::from(part.dead_records.saturating_sub(part.punched_records));
        due = due.saturating_add(expected.saturating_sub(part.page.hole_bytes));
        died = died.saturating_add(bytes.saturating_mul(new) / u64::from(records));
    }
    for part in all {
        let bytes = u64::from(part.bytes);
        waste = waste.saturating_add(part.waste_bytes());
        live = live.saturating_add(bytes.saturating_sub(part.dead_bytes()));
    }
    let page_bytes = all.first().map_or(0, |part| part.page.bytes);
    let is_due = due.min(died) >= page_bytes / PUNCHED_PART && live > waste / 4;
    if is_due { due } else { 0 }
}

/// Changes to the tree of dead places: whether a place becomes dead, or is given up.
pub(super) type Places = BTreeMap<[u8; 12], bool>;

/// What a merge of the inner structure leaves to do.
pub(super) struct Collecting {
    base: SeparatedVersion,
    pub(super) inner: Arc<dyn Version>,
    pub(super) next_birth: u64,
    pub(super) edit: TableEdit,
    pub(super) places: Places,
    /// Parts of pages to collect, page by page, the next one last.
    victims: Vec<Vec<PartRef>>,
    /// Parts of pages to make holes in, likewise.
    holed: Vec<Vec<PartRef>>,
    builder: PageBuilder,
    /// Births whose records wait in the builder, and their dead places in the tree.
    moved: Vec<(u64, Vec<u32>)>,
    class: SpaceClass,
    copies: bool,
    written: Arc<Mutex<Vec<PageUse>>>,
    /// Errors of pages that stay.
    pub(super) unread: Vec<Error>,
}

impl Collecting {
    /// `parts`: new births. `adopted`: large values of the input. `dropped`: handles that the merge
    /// dropped.
    pub(super) fn begin(
        owner: &Separating,
        base: SeparatedVersion,
        inner: Arc<dyn Version>,
        (parts, adopted, next_birth): (Vec<PartRef>, Vec<PartRef>, u64),
        mut dropped: Vec<Handle>,
        options: &MergeOptions,
        written: Arc<Mutex<Vec<PageUse>>>,
    ) -> Result<Self> {
        dropped.sort_unstable();
        dropped.dedup();
        let mut collecting = Self::new(owner, base, inner, next_birth, options, written);
        let Collecting {
            base, edit, places, ..
        } = &mut collecting;
        parts.into_iter().for_each(|part| edit.put(part));
        adopted.into_iter().for_each(|part| edit.adopt(part));
        let mut died_bytes = 0u64;
        for handle in &dropped {
            if handle.is_large() {
                // No other value is in its page, which goes with it.
                let is_known =
                    edit.part(handle.birth).is_some() || base.table.part(handle.birth)?.is_some();
                if !is_known {
                    return Err(dangling(*handle));
                }
                edit.end_large(handle.birth);
                continue;
            }
            let known = match edit.part(handle.birth) {
                Some(part) => part,
                None => base.table.part(handle.birth)?,
            };
            let mut part = known.ok_or_else(|| dangling(*handle))?;
            part.dead_records += 1;
            part.dead_value_bytes += u64::from(handle.value_bytes);
            if part.dead_records > part.records || part.dead_value_bytes > part.value_bytes {
                return Err(dangling(*handle));
            }
            edit.put(part);
            places.insert(dead_key(handle.birth, handle.place), true);
            died_bytes += u64::from(handle.value_bytes) + RECORD_BYTES;
        }
        collecting.choose(owner, options, died_bytes, 0)?;
        Ok(collecting)
    }

    /// Collects without a merge of the inner structure: garbage beyond the limit, at most about
    /// `bytes_max` bytes of it. `None` if there is no such garbage.
    pub(super) fn at_rest(
        owner: &Separating,
        base: SeparatedVersion,
        bytes_max: u64,
        options: &MergeOptions,
        written: Arc<Mutex<Vec<PageUse>>>,
    ) -> Result<Option<Self>> {
        let (inner, next_birth) = (base.inner.clone(), base.next_birth);
        let mut collecting = Self::new(owner, base, inner, next_birth, options, written);
        collecting.choose(owner, options, 0, bytes_max.max(1))?;
        let is_due = !collecting.victims.is_empty() || !collecting.holed.is_empty();
        Ok(is_due.then_some(collecting))
    }

    fn new(
        owner: &Separating,
        base: SeparatedVersion,
        inner: Arc<dyn Version>,
        next_birth: u64,
        options: &MergeOptions,
        written: Arc<Mutex<Vec<PageUse>>>,
    ) -> Self {
        Collecting {
            builder: PageBuilder::new(page_options(options, &owner.store)),
            base,
            inner,
            next_birth,
            edit: TableEdit::default(),
            places: Places::new(),
            victims: Vec::new(),
            holed: Vec::new(),
            moved: Vec::new(),
            class: class_of(options),
            copies: !options.space_is_short,
            written,
            unread: Vec::new(),
        }
    }

    /// Chooses the pages to collect.
    fn choose(
        &mut self,
        owner: &Separating,
        options: &MergeOptions,
        died_bytes: u64,
        rest_bytes: u64,
    ) -> Result<()> {
        let mut pages: BTreeMap<_, Vec<PartRef>> = BTreeMap::new();
        let mut add = |part: PartRef| pages.entry(part.page.id).or_default().push(part);
        let edit = &self.edit;
        // What dies in this merge is no hole yet.
        let mut before: BTreeMap<_, Vec<PartRef>> = BTreeMap::new();
        self.base.table.parts(&mut |part| {
            if part.dead_records > part.punched_records {
                before.entry(part.page.id).or_default().push(*part);
            }
            if edit.part(part.birth).is_none() && !part.is_large() {
                add(*part);
            }
            Ok(())
        })?;
        edit.parts()
            .filter(|part| !part.is_large())
            .for_each(&mut add);
        let (mut overhead_bytes, mut live) = (0u64, Live::default());
        let mut loads: Vec<_> = pages
            .into_values()
            .map(|parts| {
                let bytes: u64 = parts.iter().map(|part| u64::from(part.bytes)).sum();
                let dead_bytes: u64 = parts.iter().map(PartRef::dead_bytes).sum();
                let waste_bytes: u64 = parts.iter().map(PartRef::waste_bytes).sum();
                let page_bytes = parts.first().map_or(0, |part| part.page.bytes);
                overhead_bytes += page_bytes.saturating_sub(bytes);
                parts.iter().for_each(|part| live.add(part));
                let is_dead = parts.iter().all(|part| part.dead_records == part.records);
                let live_bytes = match is_dead {
                    true => 0,
                    false => bytes.saturating_sub(dead_bytes).max(1),
                };
                let dead_before = parts.first().and_then(|part| before.get(&part.page.id));
                let hole_bytes = match dead_before {
                    Some(dead) if owner.store.may_punch(dead[0].page.id) => {
                        hole_bytes_due(dead, &parts)
                    }
                    _ => 0,
                };
                PageLoad {
                    page: parts,
                    live_bytes,
                    dead_bytes: waste_bytes,
                    hole_bytes,
                }
            })
            .collect();
        let mut facts = CollectFacts {
            accepted_permille: accepted_permille(options),
            seen_bytes: live.bytes,
            overhead_bytes: 0,
            died_bytes,
            rest_bytes,
        };
        // Without a bound for the tree's buffers, what they hide is not known to end.
        if options.space_amplification_percent.is_some() {
            let (seen, stored) = (self.inner.live_bytes()?, self.inner.stored_bytes()?);
            let dead = self.base.dead.stored_bytes()?;
            facts.seen_bytes = live.seen_bytes((seen, stored));
            facts.overhead_bytes = overhead_bytes
                .saturating_add(live.tree_bytes())
                .saturating_add(dead);
        }
        let choice = choose(&mut loads, &facts);
        let mut pages = loads.into_iter().map(|load| load.page);
        self.victims.extend(pages.by_ref().take(choice.dead));
        self.holed.extend(pages.by_ref().take(choice.punched));
        if self.copies {
            self.victims.extend(pages.take(choice.copied));
        }
        self.victims.reverse();
        Ok(())
    }

    /// Collects a page. Returns whether all was done.
    pub(super) fn step(&mut self, owner: &Separating) -> Result<bool> {
        let done = if let Some(parts) = self.holed.pop() {
            self.punch(owner, &parts)
        } else if let Some(parts) = self.victims.pop() {
            self.collect(owner, &parts)
        } else {
            self.write(owner)?;
            return Ok(true);
        };
        if let Err(error) = done {
            match error.kind() {
                // What cannot be read stays where it is.
                ErrorKind::Corrupt => self.unread.push(error),
                // Collecting may wait: the merge goes on.
                ErrorKind::NoSpace => self.victims.clear(),
                _ => return Err(error),
            }
        }
        Ok(false)
    }

    /// Makes holes in a page: the whole extents of records that are dead in the version which this
    /// merge began from. What dies in this merge waits for the next one.
    fn punch(&mut self, owner: &Separating, parts: &[PartRef]) -> Result<()> {
        let Some(first) = parts.first() else {
            return Ok(());
        };
        let directory = self.base.table.directory(first)?;
        let dead = DeadPlaces::of(&self.base, parts)?;
        let mut is_dead = |birth, place| {
            let early = mutant::active("holes-before-both-slots")
                && self.places.get(&dead_key(birth, place)) == Some(&true);
            early || dead.is_dead(birth, place)
        };
        let holes = holes(&directory, first.record_bytes, &mut is_dead);
        let mut share: BTreeMap<u64, u64> = BTreeMap::new();
        let mut extents = Vec::with_capacity(holes.len());
        for (birth, range) in holes {
            let (offset, bytes) = (first.page.offset + range.start, range.end - range.start);
            // The share of a birth that was given up goes to any other.
            let birth = match dead.of_birth(birth) {
                Some(_) => birth,
                None => first.birth,
            };
            *share.entry(birth).or_default() += bytes;
            extents.push(Extent { offset, bytes });
        }
        if !extents.is_empty() && owner.store.punch(&first.page, &extents)? == 0 {
            return Ok(());
        }
        for part in parts {
            let mut part = self.edit.part(part.birth).flatten().unwrap_or(*part);
            part.page.hole_bytes = share.get(&part.birth).copied().unwrap_or(0);
            part.punched_records = dead
                .of_birth(part.birth)
                .map_or(0, |dead| dead.len() as u32);
            self.edit.put(part);
        }
        Ok(())
    }

    fn collect(&mut self, owner: &Separating, parts: &[PartRef]) -> Result<()> {
        let is_dead = |part: &PartRef| part.dead_records == part.records;
        for part in parts.iter().filter(|part| is_dead(part)) {
            let dead = self.base.dead_places(part.birth)?;
            self.edit.remove(part.birth);
            self.forget(part.birth, dead);
        }
        let mut live = parts.iter().filter(|part| !is_dead(part)).peekable();
        let Some(first) = live.peek() else {
            return Ok(());
        };
        let directory = self.base.table.directory(first)?;
        let records = 0..u64::from(first.record_bytes);
        let held = self.builder.memory_bytes() as u64 + records.end;
        let _charge = owner.budget.charge(Purpose::Merge, held);
        let image = owner
            .store
            .read_piece(&first.page, records, ReadFor::Merge, |bytes| {
                Ok(bytes.to_vec())
            })?;
        for part in live {
            if self.builder.is_full() {
                self.write(owner)?;
            }
            let dead = match mutant::active("copies-take-dead-values-along") {
                true => Vec::new(),
                false => self.base.dead_places(part.birth)?,
            };
            let entry = directory.part(part.birth).ok_or_else(|| {
                Error::corrupt("a value page lacks a part of the table").with("birth", part.birth)
            })?;
            let mut is_dead = |birth, place| {
                dead.binary_search(&place).is_ok()
                    || self.places.get(&dead_key(birth, place)) == Some(&true)
            };
            copy_live(&image, entry, &mut is_dead, &mut self.builder)?;
            self.moved.push((part.birth, dead));
        }
        Ok(())
    }

    /// Gives up the dead places of a birth: those in the tree, and those of this merge.
    fn forget(&mut self, birth: u64, dead: Vec<u32>) {
        let range = dead_key(birth, 0)..=dead_key(birth, u32::MAX);
        let new: BTreeSet<_> = self.places.range(range).map(|(key, _)| *key).collect();
        for key in &new {
            self.places.remove(key);
        }
        for place in dead {
            self.places.insert(dead_key(birth, place), false);
        }
    }

    fn write(&mut self, owner: &Separating) -> Result<()> {
        let Some(pending) = self.builder.finish() else {
            return Ok(());
        };
        let moved = std::mem::take(&mut self.moved);
        let (page, parts) = pending.write(&owner.store, self.class)?;
        self.written.lock().push(page);
        parts.into_iter().for_each(|part| self.edit.put(part));
        moved
            .into_iter()
            .for_each(|(birth, dead)| self.forget(birth, dead));
        Ok(())
    }
}
