//! The state of each page: references from trees, the generations of its birth and death, and the
//! pins that keep it.
//!
//! A page is first *fresh*: written, in no durable tree. It becomes *live* when its generation is
//! in both superblock slots; its references are counted. It becomes *retired* when no reference is
//! left, while a pin on a generation in [born, died) may still read it. Then it is free. A *large*
//! page is written by a user's write and owned by a memtable until a checkpoint adopts it. Views
//! may have read it from the memtable, so it is born in the generation that was committed when it
//! was allocated. All this
//! is derived from a walk over the trees at open (D4) and from the changes that merges report.
//! Nothing is logged. A page's extent is the one recorded when the page was written, never one that
//! a caller names later.

use std::collections::{BTreeMap, HashMap};

use terrapin_base::{EXTENT_ALIGNMENT, Error, Generation, Incarnation, PageId, Result, mutant};

use crate::cache::IdHash;
use crate::page::{Changes, Extent, PageUse};
use crate::superblock::PAGES_START;

type Map<V> = HashMap<PageId, V, IdHash>;

#[derive(Clone, Copy, Debug)]
struct Page {
    extent: Extent,
    references: u32,
    born: Generation,
    holes: Holes,
}

/// What is known about holes within a page.
#[derive(Clone, Copy, Debug, Default)]
struct Holes {
    bytes: u64,
    /// There may be holes, known or not.
    are_possible: bool,
}

#[derive(Clone, Copy, Debug)]
struct Retired {
    id: PageId,
    extent: Extent,
    born: Generation,
    died: Generation,
    holes: Holes,
}

/// A large page that no checkpoint has adopted.
#[derive(Clone, Copy, Debug)]
struct Large {
    extent: Extent,
    /// The generation that was committed when the page was allocated.
    born: Generation,
}

/// A page whose space is free again.
pub(crate) struct Freed {
    pub(crate) id: PageId,
    pub(crate) extent: Extent,
    /// The file system has all of its space allocated.
    pub(crate) is_whole: bool,
}

/// Every page that occupies space. Byte counts are of whole extents.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    fresh: Map<Extent>,
    large: Map<Large>,
    live: Map<Page>,
    retired: Vec<Retired>,
    /// Pages that readers keep one by one, with the number of readers.
    held: Map<u32>,
    pins: BTreeMap<Generation, u64>,
    /// The newest generation in both slots.
    committed: Generation,
    /// A pin was dropped since the last sweep.
    loosened: bool,
    /// The walk at open did not see all pages.
    is_partial: bool,
    fresh_bytes: u64,
    live_bytes: u64,
    retired_bytes: u64,
    /// Known holes of live pages, and of retired ones.
    live_hole_bytes: u64,
    retired_hole_bytes: u64,
    newest_incarnation: Option<Incarnation>,
}

impl Pages {
    /// Bytes of pages that trees refer to or will refer to. Fresh pages count, also those of side
    /// roots.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes + self.fresh_bytes
    }

    /// Bytes of pages that only pins keep.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.retired_bytes
    }

    /// Bytes of known holes in live pages, and in retired ones.
    pub(crate) fn hole_bytes(&self) -> (u64, u64) {
        (self.live_hole_bytes, self.retired_hole_bytes)
    }

    /// Whether nobody can see a part of a page any more that no tree of the newest generation
    /// reads. No pin keeps an older generation in which the page was there.
    pub(crate) fn may_punch(&self, id: PageId) -> bool {
        let committed = self.committed;
        self.live.get(&id).is_some_and(|page| {
            let is_seen =
                page.born < committed && self.pins.range(page.born..committed).next().is_some();
            !is_seen || mutant::active("pins-keep-no-parts-of-pages")
        })
    }

    /// Notes that a page gets holes now. Its space is not known to be allocated from here on.
    /// Returns false, and notes nothing, if its holes may be seen or it has another extent.
    pub(crate) fn begin_holes(&mut self, id: PageId, extent: Extent) -> bool {
        if !self.may_punch(id) {
            return false;
        }
        let Some(page) = self.live.get_mut(&id).filter(|page| page.extent == extent) else {
            return false;
        };
        page.holes.are_possible = true;
        true
    }

    /// Notes how many bytes of a page are holes now, in all.
    pub(crate) fn note_holes(&mut self, id: PageId, bytes: u64) {
        if let Some(page) = self.live.get_mut(&id) {
            let bytes = bytes.min(page.extent.bytes);
            self.live_hole_bytes = self.live_hole_bytes - page.holes.bytes + bytes;
            page.holes.bytes = bytes;
        }
    }

    /// The newest life that wrote a page, among the pages that the walk at open saw.
    pub(crate) fn newest_incarnation(&self) -> Option<Incarnation> {
        self.newest_incarnation
    }

    /// Whether a sweep may free a page.
    pub(crate) fn loosened(&self) -> bool {
        self.loosened && !self.retired.is_empty()
    }

    /// Adds a page that was just written.
    pub(crate) fn add_fresh(&mut self, id: PageId, extent: Extent) {
        self.fresh_bytes += extent.bytes;
        let before = self.fresh.insert(id, extent);
        debug_assert!(before.is_none(), "page id {id} given twice");
    }

    /// Adds a large page that is being written, born in a generation that was committed.
    pub(crate) fn add_large(&mut self, id: PageId, extent: Extent, born: Generation) {
        self.fresh_bytes += extent.bytes;
        let before = self.large.insert(id, Large { extent, born });
        debug_assert!(before.is_none(), "page id {id} given twice");
    }

    /// Forgets a large page that no memtable and no tree refers to. `None` if there is none.
    pub(crate) fn forget_large(&mut self, id: PageId) -> Option<Freed> {
        let Large { extent, .. } = self.large.remove(&id)?;
        self.fresh_bytes -= extent.bytes;
        Some(Freed {
            id,
            extent,
            is_whole: true,
        })
    }

    /// The large pages that no checkpoint has adopted.
    pub(crate) fn large(&self) -> impl Iterator<Item = PageId> + '_ {
        self.large.keys().copied()
    }

    /// Where a page is that a large value may be in. Linear in the retired pages at worst.
    pub(crate) fn extent_of(&self, id: PageId) -> Option<Extent> {
        let large = self.large.get(&id).map(|page| page.extent);
        let live = || self.live.get(&id).map(|page| page.extent);
        let retired = || self.retired.iter().find(|page| page.id == id);
        large
            .or_else(live)
            .or_else(|| retired().map(|page| page.extent))
    }

    /// Keeps a page, whatever happens to the trees, until [`Pages::let_go`].
    pub(crate) fn hold(&mut self, id: PageId) {
        *self.held.entry(id).or_default() += 1;
    }

    /// Ends one [`Pages::hold`]. Returns whether it was the page's last.
    pub(crate) fn let_go(&mut self, id: PageId) -> bool {
        let Some(count) = self.held.get_mut(&id) else {
            return false;
        };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.held.remove(&id);
            self.loosened = true;
        }
        is_last
    }

    /// Makes the large pages live that a checkpoint adopted.
    fn adopt(&mut self, adopted: &[PageId]) {
        for &id in adopted {
            let Some(Large { extent, born }) = self.large.remove(&id) else {
                self.missing("adopted", id);
                continue;
            };
            self.fresh_bytes -= extent.bytes;
            self.live_bytes += extent.bytes;
            self.live.insert(
                id,
                Page {
                    extent,
                    references: 1,
                    born,
                    holes: Holes::default(),
                },
            );
        }
    }

    /// Applies a checkpoint's changes. Returns the bytes of the pages that it added, and the bytes
    /// of those that it retired. A change of an unknown page is a bug: the call reports it and
    /// frees nothing. The next open heals a leak, but not a page that was freed too early.
    pub(crate) fn commit(&mut self, generation: Generation, changes: &Changes) -> (u64, u64) {
        debug_assert!(
            generation > self.committed,
            "generation {generation} after {}",
            self.committed
        );
        let (mut written, mut released) = (0, 0);
        self.adopt(&changes.adopted);
        for page in &changes.added {
            let Some(extent) = self.fresh.remove(&page.id) else {
                self.missing("added", page.id);
                continue;
            };
            written += extent.bytes;
            self.fresh_bytes -= extent.bytes;
            self.live_bytes += extent.bytes;
            self.live.insert(
                page.id,
                Page {
                    extent,
                    references: 1,
                    born: generation,
                    holes: Holes::default(),
                },
            );
        }
        for &id in &changes.retained {
            match self
                .live
                .get_mut(&id)
                .and_then(|page| Some((page.references.checked_add(1)?, page)))
            {
                Some((references, page)) => page.references = references,
                None => self.missing("retained", id),
            }
        }
        for id in &changes.released {
            let Some(page) = self.live.get_mut(id) else {
                self.missing("released", *id);
                continue;
            };
            page.references -= 1;
            if page.references == 0 {
                let Page {
                    extent,
                    born,
                    holes,
                    ..
                } = *page;
                self.live.remove(id);
                self.live_bytes -= extent.bytes;
                self.retired_bytes += extent.bytes;
                self.live_hole_bytes -= holes.bytes;
                self.retired_hole_bytes += holes.bytes;
                released += extent.bytes;
                self.retired.push(Retired {
                    id: *id,
                    extent,
                    born,
                    died: generation,
                    holes,
                });
                self.loosened = true;
            }
        }
        self.committed = generation;
        (written, released)
    }

    /// Forgets fresh pages that no tree will refer to. Their space is free at once.
    pub(crate) fn abandon(&mut self, added: &[PageUse]) -> Vec<Freed> {
        let mut freed = Vec::with_capacity(added.len());
        for page in added {
            match self.fresh.remove(&page.id) {
                Some(extent) => {
                    self.fresh_bytes -= extent.bytes;
                    freed.push(Freed {
                        id: page.id,
                        extent,
                        is_whole: true,
                    });
                }
                None => self.missing("abandoned", page.id),
            }
        }
        freed
    }

    /// Keeps pages of this generation until [`Pages::unpin`]. Pins are counted.
    pub(crate) fn pin(&mut self, generation: Generation) {
        debug_assert!(
            generation >= self.committed || self.pins.contains_key(&generation),
            "generation {generation} pinned after {} was committed",
            self.committed
        );
        *self.pins.entry(generation).or_default() += 1;
    }

    /// Drops one pin. Returns whether it was the generation's last.
    pub(crate) fn unpin(&mut self, generation: Generation) -> bool {
        let Some(count) = self.pins.get_mut(&generation) else {
            return false;
        };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.pins.remove(&generation);
            self.loosened = true;
        }
        last
    }

    /// Frees retired pages that no pin keeps. O(1) if no page or pin changed since the last sweep,
    /// else O(retired · log pins).
    pub(crate) fn sweep(&mut self) -> Vec<Freed> {
        let mut freed = Vec::new();
        if std::mem::take(&mut self.loosened) {
            let (pins, bytes) = (&self.pins, &mut self.retired_bytes);
            let hole_bytes = &mut self.retired_hole_bytes;
            let held = &self.held;
            self.retired.retain(|page| {
                let kept =
                    page.born < page.died && pins.range(page.born..page.died).next().is_some();
                let kept =
                    (kept && !mutant::active("pins-keep-no-pages")) || held.contains_key(&page.id);
                if !kept {
                    *bytes -= page.extent.bytes;
                    *hole_bytes -= page.holes.bytes;
                    let is_whole = !page.holes.are_possible;
                    freed.push(Freed {
                        id: page.id,
                        extent: page.extent,
                        is_whole,
                    });
                }
                kept
            });
        }
        freed
    }

    /// Learns every page from a walk over all trees (D4). Returns the pages' extents, ascending and
    /// disjoint. Another use of the same id is another reference. The file must contain each page
    /// whole. `logged` are the large pages that the log names; trees may have some of them.
    pub(crate) fn rebuild(
        &mut self,
        uses: &mut dyn Iterator<Item = Result<PageUse>>,
        logged: &[PageUse],
        generation: Generation,
        file_bytes: u64,
    ) -> Result<Vec<Extent>> {
        let mut live: Map<Page> = Map::default();
        let mut live_bytes = 0;
        let mut live_hole_bytes = 0u64;
        let mut newest_incarnation = None;
        for page in uses {
            let page = page?;
            let extent = extent_within(page, file_bytes)?;
            newest_incarnation = newest_incarnation.max(Some(page.id.incarnation()));
            let known = live.entry(page.id).or_insert(Page {
                extent,
                references: 0,
                born: generation,
                holes: Holes::default(),
            });
            if known.extent != extent {
                return Err(
                    in_page(Error::corrupt("two references to a page differ"), page)
                        .with("other offset", known.extent.offset)
                        .with("other extent's bytes", known.extent.bytes),
                );
            }
            known.references = known
                .references
                .checked_add(1)
                .ok_or_else(|| in_page(Error::corrupt("a page with too many references"), page))?;
            if known.references == 1 {
                live_bytes += extent.bytes;
            }
            // A part of a page has its share of the holes. No page is more than a hole.
            let more = page.hole_bytes.min(extent.bytes - known.holes.bytes);
            known.holes.bytes += more;
            known.holes.are_possible |= page.may_have_holes || more > 0;
            live_hole_bytes += more;
        }
        let mut large: Map<Large> = Map::default();
        let mut fresh_bytes = 0;
        for &page in logged.iter().filter(|page| !live.contains_key(&page.id)) {
            let extent = extent_within(page, file_bytes)?;
            newest_incarnation = newest_incarnation.max(Some(page.id.incarnation()));
            let born = generation;
            if large.insert(page.id, Large { extent, born }).is_none() {
                fresh_bytes += extent.bytes;
            }
        }
        let mut extents: Vec<(Extent, PageId)> =
            live.iter().map(|(&id, page)| (page.extent, id)).collect();
        extents.extend(large.iter().map(|(&id, page)| (page.extent, id)));
        extents.sort_unstable();
        for pair in extents.windows(2) {
            let [(a, a_id), (b, b_id)] = [pair[0], pair[1]];
            if a.end() > b.offset {
                return Err(Error::corrupt("two pages overlap")
                    .with("page", a_id)
                    .with("offset", a.offset)
                    .with("bytes", a.bytes)
                    .with("other page", b_id)
                    .with("other offset", b.offset)
                    .with("other bytes", b.bytes));
            }
        }
        debug_assert!(
            extents
                .iter()
                .all(|(e, _)| e.offset.is_multiple_of(EXTENT_ALIGNMENT))
        );
        *self = Pages {
            large,
            fresh_bytes,
            live,
            live_bytes,
            live_hole_bytes,
            committed: generation,
            newest_incarnation,
            ..Pages::default()
        };
        Ok(extents.into_iter().map(|(extent, _)| extent).collect())
    }

    /// Keeps every page after a walk that did not see all of the file. The unseen nodes may refer
    /// to each known page many times, and all other space may be pages, too.
    pub(crate) fn keep_all(&mut self, file_bytes: u64) {
        for page in self.live.values_mut() {
            page.references = page.references.saturating_add(u32::MAX / 2);
        }
        self.live_bytes = file_bytes - PAGES_START;
        self.is_partial = true;
    }

    /// Reports a change of an unknown page. Nothing is freed for it.
    fn missing(&self, change: &'static str, id: PageId) {
        debug_assert!(self.is_partial, "{change} page {id} is not there");
        if !self.is_partial {
            tracing::error!(
                page = id.0,
                change,
                "a merge reported an unknown page; its space stays in use until the next open"
            );
        }
    }

    /// Takes over the pins of the pages that these replace.
    pub(crate) fn adopt_pins(&mut self, before: &mut Pages) {
        self.pins = std::mem::take(&mut before.pins);
        self.held = std::mem::take(&mut before.held);
    }

    /// Every occupied extent with its page, for assertions and tests.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (PageId, Extent)> + '_ {
        let fresh = self.fresh.iter().map(|(&id, &extent)| (id, extent));
        let large = self.large.iter().map(|(&id, page)| (id, page.extent));
        let live = self.live.iter().map(|(&id, page)| (id, page.extent));
        fresh
            .chain(large)
            .chain(live)
            .chain(self.retired.iter().map(|page| (page.id, page.extent)))
    }
}

/// The extent of a page that must lie inside the file.
fn extent_within(page: PageUse, file_bytes: u64) -> Result<Extent> {
    let extent = page
        .extent()
        .filter(|e| e.offset >= PAGES_START && e.offset + page.bytes <= file_bytes);
    extent.ok_or_else(|| {
        in_page(
            Error::corrupt("a tree refers to a page outside of the file"),
            page,
        )
        .with("length of the file", file_bytes)
    })
}

fn in_page(error: Error, page: PageUse) -> Error {
    error
        .with("page", page.id)
        .with("offset", page.offset)
        .with("bytes", page.bytes)
}
