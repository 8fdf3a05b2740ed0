//! Edits of a value table: a new table that shares unchanged leaves with the old one.

use std::collections::{BTreeMap, BTreeSet};

use terrapin_base::{PageId, Result};
use terrapin_pages::{Changes, PageKind, PageRef, PageUse, SpaceClass};

use super::format::{Leaf, Leaves, Listed, PartRef, TableRef};
use super::{ValueTable, contradiction};

/// What a checkpoint changes in a table.
#[derive(Clone, Debug, Default)]
pub struct TableEdit {
    /// The new part of each changed birth; `None` for births without live records.
    parts: BTreeMap<u64, Option<PartRef>>,
    /// Pages of large values that the table takes over, or that nothing refers to any more.
    adopted: BTreeSet<PageId>,
    let_go: BTreeSet<PageId>,
}

impl TableEdit {
    /// Adds a part, or replaces the part of its birth.
    pub fn put(&mut self, part: PartRef) {
        self.parts.insert(part.birth, Some(part));
    }

    /// Removes a birth: no live record is left of it.
    pub fn remove(&mut self, birth: u64) {
        self.parts.insert(birth, None);
    }

    /// Adds a large value, whose page a memtable owns. The page becomes the table's.
    pub fn adopt(&mut self, part: PartRef) {
        self.adopted.insert(part.page.id);
        self.put(part);
    }

    /// Ends a large value. One that this edit added goes with its page.
    pub fn end_large(&mut self, birth: u64) {
        let id = PageId(birth);
        if self.adopted.contains(&id) {
            self.parts.remove(&birth);
            self.let_go.insert(id);
        } else {
            self.remove(birth);
        }
    }

    /// The part of a birth as this edit leaves it: `None` if the edit does not name the birth.
    #[must_use]
    pub fn part(&self, birth: u64) -> Option<Option<PartRef>> {
        self.parts.get(&birth).copied()
    }

    /// The parts that this edit puts, births ascending.
    pub fn parts(&self) -> impl Iterator<Item = PartRef> {
        self.parts.values().copied().flatten()
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl ValueTable {
    /// The table with an edit. Adds to `changes`: the value pages `written`, table pages that the
    /// call writes, and references of parts gained and lost. Writes the leaves with changes and the
    /// root. Not durable before a sync.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::NoSpace`]; those of reads and writes. The caller abandons
    /// `changes` then.
    pub fn edited(
        &self,
        edit: &TableEdit,
        written: &[PageUse],
        class: SpaceClass,
        changes: &mut Changes,
    ) -> Result<ValueTable> {
        changes.added.extend_from_slice(written);
        changes.adopted.extend(&edit.adopted);
        changes.released.extend(&edit.let_go);
        if edit.is_empty() {
            return Ok(self.clone());
        }
        let old = self.leaves()?;
        let old: &[Listed] = old.as_ref().map_or(&[], |leaves| &leaves.leaves);
        let adopted = edit.adopted.difference(&edit.let_go).copied();
        let mut unused: BTreeSet<_> = written.iter().map(|page| page.id).collect();
        unused.extend(adopted);
        let mut totals = self.root.map_or([0; 4], |root| {
            [root.records, root.bytes, root.dead_bytes, root.hole_bytes]
        });
        let mut leaves = Vec::with_capacity(old.len() + 1);
        // Parts of changed leaves that are adjacent, until the next unchanged leaf.
        let mut open: Vec<PartRef> = Vec::new();
        for at in 0..old.len().max(1) {
            let from = if at == 0 { 0 } else { old[at].first_birth };
            let changed = match old.get(at + 1) {
                Some(next) => edit.parts.range(from..next.first_birth),
                None => edit.parts.range(from..),
            };
            let mut changed = changed.peekable();
            let Some(listed) = old.get(at) else {
                self.apply(&[], changed, &mut open, &mut totals, &mut unused, changes)?;
                continue;
            };
            if changed.peek().is_none() {
                self.write_leaves(&mut open, class, &mut leaves, changes)?;
                leaves.push(*listed);
                continue;
            }
            let leaf = self.leaf(listed)?;
            self.apply(
                &leaf.parts,
                changed,
                &mut open,
                &mut totals,
                &mut unused,
                changes,
            )?;
            changes.released.push(listed.page.id);
        }
        self.write_leaves(&mut open, class, &mut leaves, changes)?;
        if let Some(page) = unused.first() {
            return Err(contradiction("a value page without parts", page.0));
        }
        if let Some(root) = &self.root {
            changes.released.push(root.page.id);
        }
        let root = match leaves.is_empty() {
            true => None,
            false => {
                let leaves = Leaves { leaves };
                let page =
                    self.write_page(PageKind::ValueTableRoot, &leaves.encode(), class, changes)?;
                Some(TableRef {
                    page,
                    leaves: leaves.leaves.len() as u64,
                    parts: leaves.leaves.iter().map(|listed| listed.parts).sum(),
                    records: totals[0],
                    bytes: totals[1],
                    dead_bytes: totals[2],
                    hole_bytes: totals[3],
                })
            }
        };
        Ok(ValueTable {
            store: self.store.clone(),
            root,
        })
    }

    /// Appends a leaf's parts to `open`, with its changes.
    fn apply<'a>(
        &self,
        parts: &[PartRef],
        changed: impl Iterator<Item = (&'a u64, &'a Option<PartRef>)>,
        open: &mut Vec<PartRef>,
        totals: &mut [u64; 4],
        unused: &mut BTreeSet<PageId>,
        changes: &mut Changes,
    ) -> Result<()> {
        let mut parts = parts.iter().peekable();
        for (&birth, new) in changed {
            while let Some(part) = parts.next_if(|part| part.birth < birth) {
                open.push(*part);
            }
            let old = parts.next_if(|part| part.birth == birth);
            if let Some(old) = old {
                changes.released.push(old.page.id);
                for (total, less) in totals.iter_mut().zip(counts(old)) {
                    *total = total.saturating_sub(less);
                }
            }
            match (old, new) {
                (None, None) => return Err(contradiction("an unknown birth is removed", birth)),
                (_, None) => {}
                (_, Some(new)) => {
                    for (total, more) in totals.iter_mut().zip(counts(new)) {
                        *total = total.saturating_add(more);
                    }
                    // A page that was written has its first reference already.
                    if !unused.remove(&new.page.id) {
                        changes.retained.push(new.page.id);
                    }
                    open.push(*new);
                }
            }
        }
        open.extend(parts);
        Ok(())
    }

    fn write_leaves(
        &self,
        open: &mut Vec<PartRef>,
        class: SpaceClass,
        leaves: &mut Vec<Listed>,
        changes: &mut Changes,
    ) -> Result<()> {
        let mut rest = &open[..];
        while let Some(first) = rest.first() {
            let (parts, behind) = rest.split_at(Leaf::fitting(rest));
            let page = self.write_page(
                PageKind::ValueTableLeaf,
                &Leaf::encode(parts),
                class,
                changes,
            )?;
            leaves.push(Listed {
                first_birth: first.birth,
                page,
                parts: parts.len() as u64,
            });
            rest = behind;
        }
        open.clear();
        Ok(())
    }

    fn write_page(
        &self,
        kind: PageKind,
        content: &[u8],
        class: SpaceClass,
        changes: &mut Changes,
    ) -> Result<PageRef> {
        let page = self.store.write_page(kind, content, class)?;
        changes.added.push(PageUse::from(&page));
        Ok(page)
    }
}

fn counts(part: &PartRef) -> [u64; 4] {
    [
        u64::from(part.records),
        u64::from(part.bytes),
        part.dead_bytes(),
        part.page.hole_bytes,
    ]
}
