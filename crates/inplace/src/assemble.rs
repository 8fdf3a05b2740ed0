//! Writes the map's changed nodes, from the leaves up. A node below which nothing changed stays.
//!
//! What changed in a node's entries is a list of *items*: entries that stay, and open lists of what
//! goes into the entries' pages. Neighbouring open lists are joined and cut into new pages of
//! about equal weight. A list under a quarter of a page takes in its neighbour.

use terrapin_base::{Error, Result, mutant};
use terrapin_pages::group::{Deadlines, GroupRef};
use terrapin_pages::{Changes, PageKind, PageRef, PageUse};
use terrapin_runs::writing::separator;

use crate::format::{
    ABOVE_LEAVES, Entry, Inner, MapRef, NODE_HEADER_BYTES, Root, Sums, encode_leaf,
};
use crate::node::{cache_leaf, cache_node, load_leaf};
use crate::plan::Mirror;
use crate::task::{Context, Outcome, Segment, Task};

/// A page is full at this weight.
const FULL: u64 = 1 << 20;
/// Most segments of a leaf.
const SEGMENTS_MAX: u64 = 90;

/// How large pages of the map become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) node_bytes: u64,
    /// Bytes of the extents of a leaf's segments.
    pub(crate) leaf_extents: u64,
    /// Of the base's root; 0 without one.
    pub(crate) height: u8,
}

impl Limits {
    fn content_bytes(&self) -> u64 {
        // A page has a header of its own, too.
        self.node_bytes
            .saturating_sub(NODE_HEADER_BYTES as u64 + 64)
            .max(256)
    }

    fn of_segment(&self, segment: &Segment) -> u64 {
        let bytes = segment.entry.len() as u64 * FULL / self.content_bytes();
        let extents = segment.stored * FULL / self.leaf_extents.max(1);
        bytes.max(extents).max(FULL / SEGMENTS_MAX)
    }

    fn of_entry(&self, entry: &Entry) -> u64 {
        entry.encoded_bytes() * FULL / self.content_bytes()
    }
}

/// An entry of a node, and what becomes of it.
enum Item<T> {
    Stays(Entry),
    /// What goes into pages in its place. Its bound, if these pages have none of their own.
    Open(Box<[u8]>, Vec<T>),
}

/// Writes all nodes that change, and returns the root. The tasks come by number.
pub(crate) fn write_nodes(
    context: &Context,
    mirror: Option<&Mirror>,
    limits: &Limits,
    tasks: Vec<Task>,
    changes: &mut Changes,
) -> Result<Root> {
    let outcomes = tasks
        .into_iter()
        .map(|mut task| (task.number, task.outcome()));
    let mut writer = Writer {
        context,
        limits: *limits,
        changes,
        outcomes: outcomes.collect::<Vec<_>>().into_iter().peekable(),
        leaf: 0,
    };
    let (mut height, mut entries) = match mirror {
        Some(mirror) => (limits.height, writer.rebuild(mirror)?),
        None => {
            let mut all = Vec::new();
            for (_, outcome) in writer.outcomes.by_ref() {
                if let Outcome::Merged(segments) = outcome {
                    all.extend(segments);
                }
            }
            let mut entries = Vec::new();
            writer.write_leaves(Box::default(), all, &mut entries)?;
            (ABOVE_LEAVES, Some(entries))
        }
    };
    let Some(top) = &mut entries else {
        return Err(Error::internal("a merge with tasks changed nothing"));
    };
    // A root with a single entry is left out.
    let mut top = std::mem::take(top);
    while height > ABOVE_LEAVES && top.len() == 1 {
        let page = top[0].page;
        height -= 1;
        writer.changes.released.push(page.id);
        top = crate::node::load(&context.store, &page, height)?
            .inner
            .entries
            .clone();
    }
    while top.len() > 1 && writer.pages_of(&top) > 1 {
        let mut above = Vec::new();
        writer.write_nodes(height, top, &mut above)?;
        (top, height) = (above, height + 1);
    }
    if top.is_empty() {
        return Ok(Root::Empty);
    }
    let mut above = Vec::new();
    writer.write_node(height, top, &mut above)?;
    let map = above.first().map(|entry| MapRef {
        page: entry.page,
        height,
        sums: entry.sums,
    });
    Ok(map.map_or(Root::Empty, Root::Map))
}

struct Writer<'a> {
    context: &'a Context,
    limits: Limits,
    changes: &'a mut Changes,
    outcomes: std::iter::Peekable<std::vec::IntoIter<(usize, Outcome)>>,
    /// The number of the next leaf of the base.
    leaf: usize,
}

impl Writer<'_> {
    /// The new entries of a node; `None` if nothing changed below it.
    fn rebuild(&mut self, mirror: &Mirror) -> Result<Option<Vec<Entry>>> {
        let entries = match mirror.height {
            ABOVE_LEAVES => self.rebuild_leaves(mirror)?,
            _ => self.rebuild_nodes(mirror)?,
        };
        if entries.is_some() {
            self.changes.released.push(mirror.page.id);
        }
        Ok(entries)
    }

    fn rebuild_leaves(&mut self, mirror: &Mirror) -> Result<Option<Vec<Entry>>> {
        let mut items = Vec::new();
        let mut has_changed = false;
        for entry in &mirror.entries {
            let number = self.leaf;
            self.leaf += 1;
            let outcome = self.outcomes.next_if(|(next, _)| *next == number);
            has_changed |= outcome.is_some();
            items.push(match outcome {
                None => Item::Stays(entry.clone()),
                Some((_, Outcome::Waits { new, joined })) => {
                    Item::Stays(with_waiting(entry, new, joined))
                }
                Some((_, Outcome::Merged(segments))) => Item::Open(entry.bound.clone(), segments),
            });
        }
        if !has_changed {
            return Ok(None);
        }
        let limits = self.limits;
        let mut items = joined(items);
        for at in 0..items.len() {
            let weight: u64 = match &items[at] {
                Item::Open(_, list) if !list.is_empty() => {
                    list.iter().map(|segment| limits.of_segment(segment)).sum()
                }
                _ => continue,
            };
            if weight >= FULL / 4 {
                continue;
            }
            // A neighbour for which nothing waits is taken in: only its page of the map is written.
            let may_be_taken =
                |entry: &Entry| entry.waiting.is_empty() && !self.context.around.has(entry.page.id);
            let near = [at.checked_sub(1), Some(at + 1)];
            let near = near.into_iter().flatten().find(
                |&near| matches!(items.get(near), Some(Item::Stays(entry)) if may_be_taken(entry)),
            );
            if let Some(near) = near
                && let Item::Stays(entry) = &items[near]
            {
                let (bound, page) = (entry.bound.clone(), entry.page);
                let leaf = load_leaf(&self.context.store, &page)?;
                let segments = (0..leaf.len()).map(|number| Segment::kept(&leaf, number));
                items[near] = Item::Open(bound, segments.collect::<Result<_>>()?);
                self.changes.released.push(page.id);
            }
        }
        let mut entries = Vec::new();
        for item in joined(items) {
            match item {
                Item::Stays(entry) => entries.push(entry),
                Item::Open(bound, segments) => self.write_leaves(bound, segments, &mut entries)?,
            }
        }
        Ok(Some(entries))
    }

    fn rebuild_nodes(&mut self, mirror: &Mirror) -> Result<Option<Vec<Entry>>> {
        let mut items = Vec::new();
        let mut has_changed = false;
        for (entry, node) in mirror.entries.iter().zip(&mirror.nodes) {
            items.push(match self.rebuild(node)? {
                None => Item::Stays(entry.clone()),
                Some(entries) => {
                    has_changed = true;
                    Item::Open(entry.bound.clone(), entries)
                }
            });
        }
        if !has_changed {
            return Ok(None);
        }
        let limits = self.limits;
        let mut items: Vec<Item<Entry>> = joined(items);
        for at in 0..items.len() {
            let (weight, count): (u64, usize) = match &items[at] {
                Item::Open(_, list) if !list.is_empty() => (
                    list.iter().map(|entry| limits.of_entry(entry)).sum(),
                    list.len(),
                ),
                _ => continue,
            };
            if weight >= FULL / 4 && count > 1 {
                continue;
            }
            let near = [at.checked_sub(1), Some(at + 1)];
            let near = near.into_iter().flatten();
            let mut near = near;
            let near = near.find(|&near| matches!(items.get(near), Some(Item::Stays(_))));
            if let Some(near) = near
                && let Item::Stays(entry) = &items[near]
            {
                let node = mirror.nodes.iter().find(|node| node.page == entry.page);
                if let Some(node) = node {
                    self.changes.released.push(node.page.id);
                    items[near] = Item::Open(entry.bound.clone(), node.entries.clone());
                }
            }
        }
        let mut entries = Vec::new();
        for item in joined(items) {
            match item {
                Item::Stays(entry) => entries.push(entry),
                Item::Open(_, list) => self.write_nodes(mirror.height - 1, list, &mut entries)?,
            }
        }
        Ok(Some(entries))
    }

    /// Writes leaves with these segments. The first one's keys begin at `bound`.
    fn write_leaves(
        &mut self,
        bound: Box<[u8]>,
        segments: Vec<Segment>,
        out: &mut Vec<Entry>,
    ) -> Result<()> {
        let weights = segments
            .iter()
            .map(|segment| self.limits.of_segment(segment));
        let cuts = cuts(&weights.collect::<Vec<_>>(), 1);
        let mut rest = &segments[..];
        let mut bound = bound;
        for count in cuts {
            let (own, behind) = rest.split_at(count);
            let content = encode_leaf(own.iter().map(|segment| &segment.entry[..]))?;
            let page = self.write(&content)?;
            cache_leaf(&self.context.store, &page, &content)?;
            let (mut sums, mut deadlines) = (Sums::default(), Deadlines::default());
            for segment in own {
                sums.records += segment.records;
                sums.bytes += segment.bytes;
                deadlines.add(&segment.deadlines);
            }
            let next = match (own.last(), behind.first()) {
                (Some(last), Some(next)) => Box::from(&*separator(&last.last_key, &next.first_key)),
                _ => Box::default(),
            };
            out.push(Entry {
                bound: std::mem::replace(&mut bound, next),
                page,
                sums,
                deadlines,
                waiting: Vec::new(),
            });
            rest = behind;
        }
        Ok(())
    }

    /// The number of pages that a node's entries take.
    fn pages_of(&self, entries: &[Entry]) -> usize {
        let weights = entries.iter().map(|entry| self.limits.of_entry(entry));
        cuts(&weights.collect::<Vec<_>>(), 2).len()
    }

    /// Writes nodes of a height with these entries.
    fn write_nodes(&mut self, height: u8, entries: Vec<Entry>, out: &mut Vec<Entry>) -> Result<()> {
        let weights = entries.iter().map(|entry| self.limits.of_entry(entry));
        let cuts = cuts(&weights.collect::<Vec<_>>(), 2);
        let mut rest = entries;
        for count in cuts {
            let behind = rest.split_off(count);
            self.write_node(height, rest, out)?;
            rest = behind;
        }
        Ok(())
    }

    fn write_node(&mut self, height: u8, entries: Vec<Entry>, out: &mut Vec<Entry>) -> Result<()> {
        let inner = Inner { height, entries };
        let page = self.write(&inner.encode()?)?;
        let bound = inner.entries.first().map(|entry| entry.bound.clone());
        let (sums, deadlines) = (inner.sums(), inner.deadlines());
        cache_node(&self.context.store, &page, inner);
        out.push(Entry {
            bound: bound.unwrap_or_default(),
            page,
            sums,
            deadlines,
            waiting: Vec::new(),
        });
        Ok(())
    }

    fn write(&mut self, content: &[u8]) -> Result<PageRef> {
        let (store, class) = (&self.context.store, self.context.class);
        let page = store.write_page(PageKind::MapNode, content, class)?;
        self.changes.added.push(PageUse::from(&page));
        Ok(page)
    }
}

/// A leaf's entry with new groups in place of its `joined` newest ones.
fn with_waiting(entry: &Entry, new: Vec<GroupRef>, joined: usize) -> Entry {
    let mut waiting = new;
    let left = match mutant::active("joined-groups-take-one-more-along") {
        true => (joined + usize::from(joined > 0)).min(entry.waiting.len()),
        false => joined,
    };
    waiting.extend_from_slice(&entry.waiting[left..]);
    Entry {
        sums: entry.sums.with_waiting(&waiting),
        waiting,
        ..entry.clone()
    }
}

/// Joins neighbouring open lists.
fn joined<T>(items: Vec<Item<T>>) -> Vec<Item<T>> {
    let mut out: Vec<Item<T>> = Vec::with_capacity(items.len());
    for item in items {
        match (out.last_mut(), item) {
            (Some(Item::Open(bound, list)), Item::Open(own, more)) => {
                if list.is_empty() {
                    *bound = own;
                }
                list.extend(more);
            }
            (_, item) => out.push(item),
        }
    }
    out
}

/// Cuts a sequence into pieces of about equal weight, of at most a full page each unless a piece
/// has but `least` members. Returns the pieces' numbers of members.
fn cuts(weights: &[u64], least: usize) -> Vec<usize> {
    let total: u64 = weights.iter().sum();
    let mut pieces = Vec::new();
    let mut left = total.div_ceil(FULL).max(1);
    let (mut count, mut weight, mut passed) = (0, 0u64, 0u64);
    for (at, &own) in weights.iter().enumerate() {
        let behind = weights.len() - at;
        let fair = (total - passed) / left.max(1);
        let is_full = weight > 0 && (weight + own > FULL || weight + own / 2 > fair);
        if is_full && count >= least && behind >= least {
            pieces.push(count);
            passed += weight;
            left = left.saturating_sub(1).max((total - passed).div_ceil(FULL));
            (count, weight) = (0, 0);
        }
        count += 1;
        weight += own;
    }
    if count > 0 {
        pieces.push(count);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_even_and_not_too_small() {
        assert_eq!(cuts(&[], 1), Vec::<usize>::new());
        assert_eq!(cuts(&[FULL / 100; 90], 1), vec![90]);
        assert_eq!(cuts(&[FULL / 100; 110], 1), vec![55, 55]);
        assert_eq!(cuts(&[FULL * 3; 4], 1), vec![1, 1, 1, 1]);
        assert_eq!(cuts(&[FULL * 3; 5], 2), vec![2, 3]);
        for count in 1..400usize {
            for weight in [FULL / 90, FULL / 7, FULL / 3, FULL, FULL + 5] {
                let pieces = cuts(&vec![weight; count], 2);
                assert_eq!(pieces.iter().sum::<usize>(), count);
                let fits = |&piece: &usize| piece as u64 * weight <= FULL || piece <= 3;
                assert!(pieces.iter().all(fits), "{count} {weight}: {pieces:?}");
                assert!(count == 1 || pieces.iter().all(|&piece| piece >= 2));
            }
        }
    }
}
