//! Estimates of the records and bytes in a range of keys, from the tree and from the memtables or
//! runs above it.

use std::ops::Bound;

use terrapin_base::{Lsn, Result};
use terrapin_structure::KeyBounds;

use crate::engine::state::KeyspaceState;
use crate::planning::tree_size::stored;
use crate::read::cover::{Cover, Gap};
use crate::read::{Layer, layers};
use crate::run::Spilled;
use crate::types::key_range::{half_open, is_empty};

/// An estimate of the records and bytes in a range of keys, from
/// [`Keyspace::approximate`](crate::Keyspace::approximate).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// Number of records.
    pub records: u64,
    /// Bytes of keys and values, as they were put. On disk, compression makes them fewer, and
    /// buffers and metadata add to them.
    pub bytes: u64,
}

/// Estimates the number of records of a keyspace.
pub(crate) fn count(keyspace: &KeyspaceState, before: Lsn) -> Result<u64> {
    Ok(estimate(keyspace, before, (Bound::Unbounded, Bound::Unbounded))?.records)
}

/// Estimates a range as of the newest state.
pub(crate) fn estimate(
    keyspace: &KeyspaceState,
    before: Lsn,
    bounds: KeyBounds<'_>,
) -> Result<Estimate> {
    add_up(keyspace, before, bounds, bounds)
}

/// Estimates a range as an older view sees it.
pub(crate) fn estimate_in_view(
    keyspace: &KeyspaceState,
    before: Lsn,
    bounds: KeyBounds<'_>,
) -> Result<Estimate> {
    // A memtable's count of all its keys is of now. With a bound, the memtable counts the keys that
    // the view sees.
    let lower = match bounds.0 {
        Bound::Unbounded => Bound::Included(&[][..]),
        lower => lower,
    };
    add_up(keyspace, before, bounds, (lower, bounds.1))
}

fn add_up(
    keyspace: &KeyspaceState,
    before: Lsn,
    bounds: KeyBounds<'_>,
    in_memtables: KeyBounds<'_>,
) -> Result<Estimate> {
    if is_empty(bounds) {
        return Ok(Estimate::default());
    }
    let tree = match bounds {
        (Bound::Unbounded, Bound::Unbounded) => stored(&*keyspace.version)?,
        bounds => keyspace.ordered()?.estimate(bounds)?,
    };
    let (mut records, mut bytes, mut deleted) = (tree.records, tree.bytes, 0);
    let cover = Cover::of(keyspace, before);
    if let Some(cover) = &cover {
        for gap in gaps(cover, bounds) {
            let hidden = keyspace.ordered()?.estimate(gap.bounds())?;
            records = records.saturating_sub(hidden.records);
            bytes = bytes.saturating_sub(hidden.bytes);
        }
    }
    let none = Spilled::default();
    let spilled = keyspace.spilled.as_deref().unwrap_or(&none);
    let newer = cover.as_ref().and_then(Cover::of_newer);
    for (place, layer) in layers(keyspace, spilled, before).into_iter().enumerate() {
        let Some(layer) = layer else { continue };
        let inside = |bounds: KeyBounds<'_>| match &layer {
            Layer::Memtable(memtable) => Ok(memtable.estimate(bounds, before)),
            Layer::Run(run) => run.estimate(bounds, before),
        };
        let all = match &layer {
            Layer::Memtable(_) => inside(in_memtables)?,
            Layer::Run(_) => inside(bounds)?,
        };
        records = u64::saturating_add(records, all.records);
        bytes = u64::saturating_add(bytes, all.bytes);
        deleted = u64::saturating_add(deleted, all.tombstones);
        let hidden = newer.as_ref().filter(|_| place > 0);
        for gap in hidden.map_or(Vec::new(), |newer| gaps(newer, bounds)) {
            let hidden = inside(gap.bounds())?;
            records = records.saturating_sub(hidden.records);
            bytes = bytes.saturating_sub(hidden.bytes);
            deleted = deleted.saturating_sub(hidden.tombstones);
        }
    }
    // Most tombstones delete one record of average length.
    let left = records.saturating_sub(deleted);
    let share = u128::from(bytes) * u128::from(left) / u128::from(records.max(1));
    Ok(Estimate {
        records: left,
        bytes: u64::try_from(share).unwrap_or(bytes),
    })
}

/// An estimate subtracts the content of this many gaps at most, the first ones of its range.
const GAPS_MAX: usize = 256;

/// The gaps of a cover inside bounds.
fn gaps(cover: &Cover, (lower, upper): KeyBounds<'_>) -> Vec<Gap> {
    let (from, end) = half_open((lower, upper));
    let mut gaps: Vec<Gap> = Vec::new();
    let mut next = cover.gap_from(&from);
    while let Some(mut gap) = next.take() {
        if gaps.len() == GAPS_MAX || end.as_ref().is_some_and(|end| *end <= gap.lo) {
            break;
        }
        next = gap.hi.as_ref().and_then(|hi| cover.gap_from(hi));
        if let Some(end) = &end
            && gap.hi.as_ref().is_none_or(|hi| hi > end)
        {
            gap.hi = Some(end.clone());
        }
        gaps.push(gap);
    }
    gaps
}
