//! What a merge does with each leaf of the map: nothing, let the input's records wait beside it, or
//! merge it.
//!
//! - A leaf takes the input's records straight if the segments that it would rewrite have at most
//!   `STRAIGHT_FACTOR` times the records' bytes.
//! - Other records wait. Once more waits than the accepted space allows, the leaves with most
//!   waiting bytes per byte are merged, until no more than that waits, or the bytes of
//!   `MEMTABLES_MAX` memtables are rewritten. The rest stays for later checkpoints.
//! - A leaf has at most `GROUPS_MAX` waiting groups. The newest are joined beyond that.
//!
//! A leaf is merged with all that waits for it, so no record in the line is newer than one that
//! waits.
//!
//! A leaf that needs a damaged page is not merged. Records go on waiting beside it, and groups that
//! are newer than a damaged one are joined. The second try of a merge that met damage lets all
//! records wait, since that reads nothing but nodes above the leaves.

use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::group::{ExpiredPart, GroupRef};
use terrapin_pages::{PageRef, PageStore};
use terrapin_structure::{Around, MergeInput};

use crate::format::{ABOVE_LEAVES, Entry, MapRef, Root, WAITING_MAX};
use crate::node::{load, load_leaf};

/// A leaf takes records straight that rewrite up to this many times their bytes.
const STRAIGHT_FACTOR: u64 = 2;
/// One checkpoint rewrites the line for what waits up to this many times the input's bytes.
const MEMTABLES_MAX: u64 = 6;
/// Most groups that wait for a leaf.
const GROUPS_MAX: usize = 8;
/// When groups are joined, at least this many become one.
const JOINED_MIN: usize = 4;
/// Space amplification in per cent if the options accept any.
const SPACE_PERCENT_DEFAULT: u32 = 150;

/// Which records a merge moves.
pub(crate) enum Scope {
    /// The input's.
    Input,
    /// Those that wait for leaves that begin at or above one key and below another, and the expired
    /// ones of these leaves.
    Stretch {
        from: Box<[u8]>,
        to: Option<Box<[u8]>>,
    },
}

/// A node of the base's map, with all nodes below it but the leaves.
pub(crate) struct Mirror {
    pub(crate) page: PageRef,
    pub(crate) height: u8,
    pub(crate) entries: Vec<Entry>,
    /// The nodes of the entries; empty just above the leaves.
    pub(crate) nodes: Vec<Mirror>,
}

impl Mirror {
    /// Reads the base's map down to the nodes above the leaves.
    pub(crate) fn read(store: &PageStore, root: &Root) -> Result<Option<Mirror>> {
        match root {
            Root::Empty => Ok(None),
            Root::Map(MapRef { page, height, .. }) => {
                Self::read_node(store, page, *height, &[]).map(Some)
            }
        }
    }

    /// Reads a node whose keys begin at `bound`.
    fn read_node(store: &PageStore, page: &PageRef, height: u8, bound: &[u8]) -> Result<Mirror> {
        let mut entries = load(store, page, height)?.inner.entries.clone();
        if let Some(first) = entries.first_mut() {
            first.bound = bound.into();
        }
        let mut nodes = Vec::new();
        if height > ABOVE_LEAVES {
            for entry in &entries {
                let (below, bound) = (height - 1, &entry.bound);
                nodes.push(Self::read_node(store, &entry.page, below, bound)?);
            }
        }
        Ok(Mirror {
            page: *page,
            height,
            entries,
            nodes,
        })
    }

    /// All leaves, in order.
    pub(crate) fn leaves(&self) -> Vec<&Entry> {
        match self.height {
            ABOVE_LEAVES => self.entries.iter().collect(),
            _ => self.nodes.iter().flat_map(Mirror::leaves).collect(),
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let own = |entry: &Entry| size_of::<Entry>() as u64 + entry.encoded_bytes();
        let below = self.nodes.iter().map(Mirror::memory_bytes);
        self.entries.iter().map(own).sum::<u64>() + below.sum::<u64>()
    }
}

/// What a merge does with a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Nothing,
    /// The input's records wait, in one group with this many of the newest that wait already.
    Waits {
        joined: usize,
    },
    Merged,
}

/// The keys of a leaf, as bounds of cursors.
pub(crate) type KeySpan<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// The keys of the leaf of this number.
pub(crate) fn span<'a>(leaves: &[&'a Entry], number: usize) -> KeySpan<'a> {
    let lo = (number > 0).then(|| &leaves[number].bound[..]);
    (lo, leaves.get(number + 1).map(|next| &next.bound[..]))
}

/// What the plan knows of a leaf.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// Key and value bytes of the input there; 0 if it has no record there. A record counts as one
    /// of the line at least, since a delete of few bytes hides as much.
    arriving: u64,
    /// Key and value bytes that wait or are hidden, whichever is more.
    waiting: u64,
    line: u64,
}

/// Settings of a plan.
pub(crate) struct Policy<'a> {
    pub(crate) segment_bytes: u64,
    pub(crate) space_percent: Option<u32>,
    pub(crate) space_is_short: bool,
    pub(crate) around: &'a Around,
}

/// Decides what a merge of the input does with each leaf.
pub(crate) fn plan_input(
    store: &PageStore,
    leaves: &[&Entry],
    input: &Arc<dyn MergeInput>,
    policy: &Policy<'_>,
) -> Result<Vec<Fate>> {
    let facts = gather(leaves, input)?;
    let around = policy.around;
    let adds_only = around.adds_only && !mutant::active("second-try-merges-leaves");
    let is_blocked = blocked(store, leaves, around)?;
    let arriving: u64 = facts.iter().map(|leaf| leaf.arriving).sum();
    let mut fates = vec![Fate::Nothing; leaves.len()];
    for (number, leaf) in facts.iter().enumerate() {
        if leaf.arriving == 0 {
            continue;
        }
        let straight = !adds_only
            && !is_blocked(number)
            && (policy.space_is_short
                || takes_straight(store, leaves, number, (leaf, input), policy)?);
        fates[number] = match straight {
            true => Fate::Merged,
            false => waits(leaf.arriving, &leaves[number].waiting, around),
        };
    }
    if adds_only {
        return Ok(fates);
    }
    let line: u64 = facts
        .iter()
        .map(|leaf| leaf.line)
        .fold(0, u64::saturating_add);
    let percent = policy.space_percent.unwrap_or(SPACE_PERCENT_DEFAULT);
    let accepted = line / 200 * u64::from(percent.saturating_sub(100));
    let bytes_max = arriving.saturating_mul(MEMTABLES_MAX);
    merge_densest(&facts, &mut fates, &is_blocked, (accepted, bytes_max));
    Ok(fates)
}

/// Tells for each leaf whether it needs a page that is known to be damaged: its own page of the
/// map, a segment, or a group that waits.
pub(crate) fn blocked(
    store: &PageStore,
    leaves: &[&Entry],
    around: &Around,
) -> Result<impl Fn(usize) -> bool + use<>> {
    let mut blocked = Vec::new();
    if !around.pages.is_empty() && !mutant::active("damaged-leaves-are-merged") {
        for leaf in leaves {
            blocked.push(needs_damaged(store, leaf, around)?);
        }
    }
    Ok(move |number: usize| blocked.get(number).copied().unwrap_or(false))
}

fn needs_damaged(store: &PageStore, leaf: &Entry, around: &Around) -> Result<bool> {
    if around.has(leaf.page.id) || leaf.waiting.iter().any(|group| around.has(group.id)) {
        return Ok(true);
    }
    let page = match load_leaf(store, &leaf.page) {
        Err(error) if error.is_of_data() => return Ok(true),
        loaded => loaded?,
    };
    for number in 0..page.len() {
        if around.has(page.segment(number)?.group.id) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the input brings to each leaf, and what is there.
fn gather(leaves: &[&Entry], input: &Arc<dyn MergeInput>) -> Result<Vec<Facts>> {
    let fact = |entry: &&Entry| Facts {
        waiting: entry.sums.waiting_bytes.max(entry.sums.hidden_bytes),
        line: entry.sums.bytes,
        ..Facts::default()
    };
    let mut facts: Vec<_> = leaves.iter().map(fact).collect();
    let mut number = 0;
    while number < leaves.len() {
        let (lo, _) = span(leaves, number);
        let cursor = input.clone().cursor(lo, None)?;
        let Some(key) = cursor.key() else {
            break;
        };
        let behind = leaves[number + 1..].partition_point(|next| &next.bound[..] <= key);
        number += behind;
        let (lo, hi) = span(leaves, number);
        let estimate = input.estimate(lo, hi);
        let sums = &leaves[number].sums;
        let like_line = estimate
            .records
            .saturating_mul(sums.bytes / sums.records.max(1));
        facts[number].arriving = estimate.bytes.max(like_line).max(1);
        number += 1;
    }
    Ok(facts)
}

/// Whether a leaf takes the input's records straight: whether what it would rewrite is at most
/// [`STRAIGHT_FACTOR`] times their bytes.
fn takes_straight(
    store: &PageStore,
    leaves: &[&Entry],
    number: usize,
    (facts, input): (&Facts, &Arc<dyn MergeInput>),
    policy: &Policy<'_>,
) -> Result<bool> {
    let worth = facts.arriving.saturating_mul(STRAIGHT_FACTOR);
    if facts.line.saturating_add(facts.waiting) <= worth.max(policy.segment_bytes) {
        return Ok(true);
    }
    if facts.waiting > 0 {
        return Ok(false);
    }
    // Counts the segments that the input touches, as far as they are worth it.
    let worth = worth / policy.segment_bytes.max(1);
    if worth == 0 {
        return Ok(false);
    }
    let leaf = load_leaf(store, &leaves[number].page)?;
    let (mut lo, hi) = span(leaves, number);
    let mut touched = 0;
    loop {
        let cursor = input.clone().cursor(lo, hi)?;
        let Some(key) = cursor.key() else {
            return Ok(true);
        };
        touched += 1;
        if touched > worth {
            return Ok(false);
        }
        let next = leaf.up_to(key).max(1);
        if next == leaf.len() {
            return Ok(true);
        }
        lo = Some(leaf.first_key(next));
    }
}

/// How the input's records wait beside a leaf with these groups, newest first.
fn waits(arriving: u64, groups: &[GroupRef], around: &Around) -> Fate {
    let is_many = groups.len() >= GROUPS_MAX;
    if !is_many || around.adds_only && groups.len() < WAITING_MAX {
        return Fate::Waits { joined: 0 };
    }
    let (mut joined, mut bytes) = (0, arriving);
    for group in groups.iter().take_while(|group| !around.has(group.id)) {
        let is_small = group.logical_bytes <= bytes;
        if !is_small && joined + 1 >= JOINED_MIN && groups.len() - joined < GROUPS_MAX {
            break;
        }
        joined += 1;
        bytes = bytes.saturating_add(group.logical_bytes);
    }
    Fate::Waits { joined }
}

/// Merges the leaves with most waiting bytes per byte, until at most `accepted` bytes wait, or
/// `bytes_max` bytes are rewritten. Leaves that are blocked do not count.
fn merge_densest(
    facts: &[Facts],
    fates: &mut [Fate],
    is_blocked: &impl Fn(usize) -> bool,
    (accepted, bytes_max): (u64, u64),
) {
    let will_wait = |number: usize| facts[number].waiting.saturating_add(facts[number].arriving);
    let is_candidate = |number: &usize| {
        fates[*number] != Fate::Merged && will_wait(*number) > 0 && !is_blocked(*number)
    };
    let mut candidates: Vec<_> = (0..facts.len()).filter(is_candidate).collect();
    let mut waiting: u64 = candidates.iter().map(|&number| will_wait(number)).sum();
    // a/b > c/d, without division.
    candidates.sort_by(|&a, &b| {
        let share =
            |x: usize, y: usize| u128::from(will_wait(x)) * u128::from(facts[y].line.max(1));
        share(b, a).cmp(&share(a, b))
    });
    let mut rewritten = 0u64;
    for number in candidates {
        if waiting <= accepted || rewritten >= bytes_max {
            break;
        }
        fates[number] = Fate::Merged;
        waiting -= will_wait(number);
        rewritten = rewritten
            .saturating_add(facts[number].line)
            .saturating_add(will_wait(number));
    }
}

/// The leaf with most waiting bytes per byte, and its neighbours as far as the merge of them all
/// takes in at most `bytes_max` bytes. Also returns these bytes. `None` if nothing waits, or if
/// that leaf alone has more.
pub(crate) fn densest_stretch(
    leaves: &[&Entry],
    bytes_max: u64,
) -> Option<(std::ops::Range<usize>, u64)> {
    let cost = |number: usize| match &leaves[number].waiting[..] {
        [] => 0,
        _ => leaves[number].sums.merged_bytes(),
    };
    // a/b > c/d, without division.
    let share = |x: usize, y: usize| {
        u128::from(leaves[x].sums.waiting_bytes) * u128::from(leaves[y].sums.bytes.max(1))
    };
    let waits = (0..leaves.len()).filter(|&number| !leaves[number].waiting.is_empty());
    let densest = waits.max_by(|&a, &b| share(a, b).cmp(&share(b, a)))?;
    let (mut stretch, mut merged) = (densest..densest + 1, cost(densest));
    if merged > bytes_max {
        return None;
    }
    loop {
        let before = stretch
            .start
            .checked_sub(1)
            .map(|number| (number, cost(number)));
        let behind = (stretch.end < leaves.len()).then(|| (stretch.end, cost(stretch.end)));
        let fits = |near: &(usize, u64)| merged.saturating_add(near.1) <= bytes_max;
        if let Some((_, bytes)) = behind.filter(fits) {
            (stretch.end, merged) = (stretch.end + 1, merged + bytes);
        } else if let Some((number, bytes)) = before.filter(fits) {
            (stretch.start, merged) = (number, merged + bytes);
        } else {
            return Some((stretch, merged));
        }
    }
}

/// Whether a compaction merges a leaf: records wait for it, or enough of its records has expired.
pub(crate) fn is_due(leaf: &Entry, expired: ExpiredPart) -> bool {
    let is_expired = || leaf.deadlines.is_due(leaf.sums.records, expired);
    !leaf.waiting.is_empty() || is_expired()
}

/// Merges the leaves of a stretch that are due and not blocked.
pub(crate) fn plan_stretch(
    leaves: &[&Entry],
    (from, to): (&[u8], Option<&[u8]>),
    expired: ExpiredPart,
    is_blocked: impl Fn(usize) -> bool,
) -> Vec<Fate> {
    let fate = |number: usize| {
        let (_, hi) = span(leaves, number);
        let is_inside = hi.is_none_or(|hi| hi > from)
            && (number == 0 || to.is_none_or(|to| &leaves[number].bound[..] < to));
        match is_inside && is_due(leaves[number], expired) && !is_blocked(number) {
            true => Fate::Merged,
            false => Fate::Nothing,
        }
    };
    (0..leaves.len()).map(fate).collect()
}
