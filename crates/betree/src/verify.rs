//! The full check of a version: every byte of every page that it refers to, and the rules between
//! pages (see [`crate::node`]). Pages are read from the device, not from the cache. What cannot be
//! read is reported and skipped; everything else is still checked.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{PageId, Result};
use terrapin_filter::PARTITION_BYTES_MAX;
use terrapin_pages::group::{Deadlines, GroupIndex, GroupRef, check_group};
use terrapin_pages::{PageKind, PageRef, PageStore, PageUse, ReadFor};
use terrapin_structure::{Direction, Finding};

use crate::load::LoadedNode;
use crate::maplet::Maplet;
use crate::node::{Child, Node, Root, Segment, Sums};
use terrapin_runs::bounds::{lets_in_above, lets_in_below};
use terrapin_runs::cursor::GroupCursor;
use terrapin_runs::walk::ReadAhead;

/// Checks everything below a root.
///
/// # Errors
///
/// Errors that are not about the data, such as
/// [`ErrorKind::Closed`](terrapin_base::ErrorKind::Closed). Damage and device errors are findings.
pub(crate) fn verify(
    store: &Arc<PageStore>,
    root: &Root,
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    let mut check = Check {
        store,
        found,
        groups: HashMap::new(),
        pages: HashMap::new(),
    };
    match root {
        Root::Empty => {}
        Root::Leaf(group, deadlines) => {
            check.leaf((group, deadlines), Bound::Unbounded, Bound::Unbounded)?;
        }
        Root::Node(page, height) => {
            if check
                .node(page, *height, Bound::Unbounded, Bound::Unbounded)?
                .is_some_and(|(sums, _)| sums.records == 0)
            {
                check.report(
                    "root",
                    "the root is a node, but there is no record below it",
                );
            }
        }
    }
    check.overlaps();
    Ok(())
}

struct Check<'a> {
    store: &'a Arc<PageStore>,
    found: &'a mut dyn FnMut(Finding),
    /// Groups met so far, and whether the bytes of each are sound.
    groups: HashMap<PageId, (GroupRef, bool)>,
    /// Pages of all kinds met so far.
    pages: HashMap<PageId, PageUse>,
}

impl Check<'_> {
    fn report(&mut self, place: impl Into<String>, message: impl Into<String>) {
        (self.found)(Finding::new(place, message));
    }

    /// Turns an error about the data into a finding.
    fn survive<T>(
        &mut self,
        place: impl FnOnce() -> String,
        result: Result<T>,
    ) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_of_data() => {
                self.report(place(), error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks a node and all below it. The recursion is as deep as the height, which is bounded
    /// when a root is decoded.
    fn node(
        &mut self,
        page: &PageRef,
        height: u16,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<Option<(Sums, Deadlines)>> {
        let place = || node_place(page);
        if self.pages.insert(page.id, PageUse::from(page)).is_some() {
            self.report(place(), "the node is referred to twice");
            return Ok(None);
        }
        let read = self.store.read_page(page, PageKind::Node);
        let node = read.and_then(|content| LoadedNode::new(Node::decode(&content)?));
        let Some(node) = self.survive(place, node)? else {
            return Ok(None);
        };
        if node.height != height {
            self.report(
                place(),
                format!("height {} instead of {height}", node.height),
            );
            return Ok(None);
        }
        for pivot in &node.pivots[1..] {
            if !lets_in_above(lower, &pivot.lower) || !lets_in_below(upper, &pivot.lower) {
                self.report(
                    place(),
                    format!(
                        "a pivot is outside of the node's key range: {}",
                        shown(&pivot.lower)
                    ),
                );
            }
        }
        for (number, level) in node.levels.iter().enumerate() {
            for segment in level {
                self.segment(
                    &node,
                    segment,
                    &format!("{}, level {number}", place()),
                    lower,
                    upper,
                )?;
            }
        }
        for number in 0..node.pivots.len() {
            self.maplet(&node, number, upper, &place())?;
        }
        // A node's sums are computed from its children's, down to the leaves. So they are correct
        // if each child's are.
        let mut all_known = true;
        for (number, pivot) in node.pivots.iter().enumerate() {
            let lower = if number == 0 {
                lower
            } else {
                Bound::Included(&pivot.lower[..])
            };
            let upper = node
                .pivots
                .get(number + 1)
                .map_or(upper, |next| Bound::Excluded(&next.lower[..]));
            match &pivot.child {
                Child::Leaf(group) => self.leaf((group, &pivot.deadlines), lower, upper)?,
                Child::Node { page, sums } => {
                    let said = (*sums, pivot.deadlines.clone());
                    let found = self.node(page, height - 1, lower, upper)?;
                    all_known &= found.is_some();
                    if let Some(found) = found.filter(|found| *found != said) {
                        let message = format!("the child's sums are {found:?}, not {said:?}");
                        self.report(format!("{}, pivot {number}", place()), message);
                    }
                }
            }
        }
        Ok(all_known.then(|| (node.sums(), node.deadlines())))
    }

    /// Checks a leaf against its key range.
    fn leaf(
        &mut self,
        (group, deadlines): (&GroupRef, &Deadlines),
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<()> {
        if self.groups.contains_key(&group.id) {
            self.report(group_place(group), "the leaf is referred to twice");
        }
        if !self.group(group)? {
            return Ok(());
        }
        if group.tombstones > 0 {
            self.report(
                group_place(group),
                format!("the leaf has {} deletes", group.tombstones),
            );
        }
        let index = self.store.index(group);
        if let Some(index) = self.survive(|| group_place(group), index)? {
            self.deadlines(group, &index, deadlines);
            for key in [index.first_key(), index.last_key()] {
                if !lets_in_above(lower, key) || !lets_in_below(upper, key) {
                    self.report(
                        group_place(group),
                        format!("a key is outside of the leaf's key range: {}", shown(key)),
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks a segment: its group, and the counts of its live parts against the group's content.
    fn segment(
        &mut self,
        node: &LoadedNode,
        segment: &Segment,
        place: &str,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<()> {
        let (min, max) = (&segment.min[..], &segment.max[..]);
        if !lets_in_above(lower, min) || !(lets_in_below(upper, max) || is_cut(segment, upper)) {
            self.report(
                place,
                format!(
                    "a segment is outside of the node's key range: {} to {}",
                    shown(min),
                    shown(max)
                ),
            );
        }
        if !self.group(&segment.group)? {
            return Ok(());
        }
        let content = self.content(node, segment, upper);
        let Some(content) = self.survive(|| place.to_owned(), content)? else {
            return Ok(());
        };
        let index = self.store.index(&segment.group);
        let Some(index) = self.survive(|| place.to_owned(), index)? else {
            return Ok(());
        };
        self.deadlines(&segment.group, &index, &segment.deadlines);
        for part in &segment.live {
            let (records, bytes, separated) = content
                .get(&usize::from(part.pivot))
                .copied()
                .unwrap_or_default();
            if (records, bytes) != (u64::from(part.records), part.bytes) {
                let message = format!(
                    "group {} holds {records} messages of {bytes} bytes for pivot {}, not {} of {}",
                    segment.group.id, part.pivot, part.records, part.bytes
                );
                self.report(place, message);
            }
            if separated != part.separated_bytes {
                let message = format!(
                    "group {} has {separated} separated bytes for pivot {}, not {}",
                    segment.group.id, part.pivot, part.separated_bytes
                );
                self.report(place, message);
            }
            let number = usize::from(part.pivot);
            let lower = (number > 0).then(|| &node.pivots[number].lower[..]);
            let upper = node.pivots.get(number + 1).map(|next| &next.lower[..]);
            let (least, most) = hidden_bounds(&index, segment, lower, upper);
            if !(least..=most).contains(&part.hidden_bytes) {
                let message = format!(
                    "group {} hides {least} to {most} bytes for pivot {}, not {}",
                    segment.group.id, part.pivot, part.hidden_bytes
                );
                self.report(place, message);
            }
        }
        Ok(())
    }

    /// Checks a pivot's maplet: its own bytes, and that it finds each key of each group that it
    /// covers.
    fn maplet(
        &mut self,
        node: &LoadedNode,
        pivot: usize,
        upper: Bound<&[u8]>,
        node_place: &str,
    ) -> Result<()> {
        let Some(maplet) = &node.pivots[pivot].maplet else {
            return Ok(());
        };
        let place = || format!("{node_place}, maplet {} of pivot {pivot}", maplet.page.id);
        let page = PageUse::from(&maplet.page);
        if self.pages.insert(maplet.page.id, page).is_some() {
            self.report(place(), "the maplet has the id of another page");
        }
        let read = self.store.read_maplet(&maplet.page, ReadFor::Verify);
        let read = read.and_then(|bytes| {
            for (number, partition) in (0..).zip(bytes.chunks(PARTITION_BYTES_MAX)) {
                maplet.shape.entries(partition, number, |_, _| ())?;
            }
            Ok(bytes)
        });
        let Some(bytes) = self.survive(place, read)? else {
            return Ok(());
        };
        let (lower, upper) = (
            (pivot > 0).then(|| &node.pivots[pivot].lower[..]),
            match (node.pivots.get(pivot + 1), upper) {
                (Some(next), _) => Some(&next.lower[..]),
                (None, Bound::Excluded(upper)) => Some(upper),
                (None, _) => None,
            },
        );
        for segment in node.segments_for(pivot) {
            let Some(value) = maplet.value_of(segment.group.id) else {
                continue;
            };
            if !self.group(&segment.group)? {
                continue;
            }
            let missing = self.keys_not_in(maplet, &bytes, (segment, value), (lower, upper));
            if let Some(missing @ 1..) = self.survive(place, missing)? {
                let group = segment.group.id;
                self.report(
                    place(),
                    format!("{missing} keys of group {group} are missing"),
                );
            }
        }
        Ok(())
    }

    /// How many keys of a segment for a pivot a maplet does not find.
    fn keys_not_in(
        &self,
        maplet: &Maplet,
        bytes: &[u8],
        (segment, value): (&Segment, usize),
        (lower, upper): (Option<&[u8]>, Option<&[u8]>),
    ) -> Result<u64> {
        let min = lower.map_or(&segment.min[..], |lower| lower.max(&segment.min[..]));
        let max = match upper {
            Some(upper) if upper <= &segment.max[..] => Bound::Excluded(upper),
            _ => Bound::Included(&segment.max[..]),
        };
        if matches!(max, Bound::Excluded(max) if max <= min) || min > &segment.max[..] {
            return Ok(0);
        }
        let bounds = (Bound::Included(min), max);
        let (store, forward) = (self.store, Direction::Forward);
        let mut cursor =
            GroupCursor::prepare(store, &segment.group, bounds, forward, ReadAhead::MERGE)?;
        cursor.start()?;
        let mut missing = 0;
        while let Some(key) = cursor.current_key() {
            let hash = hash64(key);
            let number = maplet.shape.partition_of(hash) as usize;
            let partition = bytes.chunks(PARTITION_BYTES_MAX).nth(number);
            let found = maplet.shape.find(partition.unwrap_or_default(), hash)?;
            missing += u64::from(found >> value & 1 == 0);
            cursor.step()?;
        }
        Ok(missing)
    }

    /// Checks what a reference says of deadlines against the group's index.
    fn deadlines(&mut self, group: &GroupRef, index: &GroupIndex, said: &Deadlines) {
        let found = index.deadlines();
        if found != *said {
            let message = format!("the group's deadlines are {found:?}, not {said:?}");
            self.report(group_place(group), message);
        }
    }

    /// Messages, bytes and separated bytes of a segment for each pivot, including flushed ones.
    fn content(
        &self,
        node: &LoadedNode,
        segment: &Segment,
        upper: Bound<&[u8]>,
    ) -> Result<BTreeMap<usize, (u64, u64, u64)>> {
        let most = match is_cut(segment, upper) {
            true => upper,
            false => Bound::Included(&segment.max[..]),
        };
        let bounds = (Bound::Included(&segment.min[..]), most);
        let mut cursor = GroupCursor::prepare(
            self.store,
            &segment.group,
            bounds,
            Direction::Forward,
            ReadAhead::MERGE,
        )?;
        cursor.start()?;
        let mut content = BTreeMap::new();
        while let Some(key) = cursor.current_key() {
            let message = cursor.current_message();
            let (records, bytes, separated) =
                content.entry(node.pivot_of(key)).or_insert((0, 0, 0));
            *records += 1;
            *bytes += (key.len() + message.value_bytes()) as u64;
            *separated += message.separated_bytes();
            cursor.step()?;
        }
        Ok(content)
    }

    /// Checks a group's own bytes once. Returns whether they are sound.
    fn group(&mut self, group: &GroupRef) -> Result<bool> {
        if let Some((before, sound)) = self.groups.get(&group.id) {
            let sound = *sound;
            if before != group {
                self.report(
                    group_place(group),
                    "two references describe the group differently",
                );
                return Ok(false);
            }
            return Ok(sound);
        }
        let bytes = self.store.read_whole_group(group);
        let report = bytes.and_then(|bytes| check_group(&bytes, group));
        let sound = self.survive(|| group_place(group), report)?.is_some();
        self.groups.insert(group.id, (*group, sound));
        if self.pages.insert(group.id, PageUse::from(group)).is_some() {
            self.report(group_place(group), "the group has the id of another page");
        }
        Ok(sound)
    }

    /// Reports pages that overlap.
    fn overlaps(&mut self) {
        let mut pages: Vec<PageUse> = self.pages.values().copied().collect();
        pages.sort_unstable_by_key(|page| (page.offset, page.id));
        let mut reached: Option<(u64, PageId)> = None;
        for page in &pages {
            let Some(extent) = page.extent() else {
                self.report(
                    format!("page {}", page.id),
                    format!("impossible offset {}", page.offset),
                );
                continue;
            };
            if let Some((_, other)) = reached.filter(|(end, _)| *end > extent.offset) {
                self.report(
                    format!("page {}", page.id),
                    format!("overlaps page {other}, at offset {}", page.offset),
                );
            }
            if reached.is_none_or(|(end, _)| end < extent.end()) {
                reached = Some((extent.end(), page.id));
            }
        }
    }
}

/// Whether a segment's upper bound was cut at that of its node.
fn is_cut(segment: &Segment, upper: Bound<&[u8]>) -> bool {
    upper == Bound::Excluded(&segment.max[..])
}

/// Least and most bytes that a segment can hide for a pivot. If a block also has messages for other
/// pivots, the share of each is not known.
fn hidden_bounds(
    index: &GroupIndex,
    segment: &Segment,
    lower: Option<&[u8]>,
    upper: Option<&[u8]>,
) -> (u64, u64) {
    let from = lower.map_or(&segment.min[..], |lower| lower.max(&segment.min[..]));
    let first = index.find(from);
    let last = match upper {
        Some(upper) if upper <= &segment.max[..] => index.find(upper),
        _ => index.find(&segment.max),
    };
    let most = index.hidden_before(last + 1) - index.hidden_before(first);
    let inner = (first + 1).min(last);
    (index.hidden_before(last) - index.hidden_before(inner), most)
}

fn node_place(page: &PageRef) -> String {
    format!("node {} at offset {}", page.id, page.offset)
}

fn group_place(group: &GroupRef) -> String {
    format!("group {} at offset {}", group.id, group.offset)
}

/// A key as text: at most 64 bytes, with unprintable bytes escaped.
fn shown(key: &[u8]) -> String {
    let cut = &key[..key.len().min(64)];
    format!(
        "{}{}",
        cut.escape_ascii(),
        if cut.len() < key.len() { "…" } else { "" }
    )
}
