//! Estimates of the records and bytes in a range of keys, from the tree and from the memtables or
//! runs above it.

use std::ops::Bound;

use terrapin_base::{Lsn, Result};
use terrapin_structure::KeyBounds;

use crate::engine::state::KeyspaceState;
use crate::planning::tree_size::stored;
use crate::read::{Layer, layers};
use crate::run::Spilled;
use crate::types::key_range::is_empty;

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
    let none = Spilled::default();
    let spilled = keyspace.spilled.as_deref().unwrap_or(&none);
    for layer in layers(keyspace, spilled, before).into_iter().flatten() {
        let inside = match layer {
            Layer::Memtable(memtable) => memtable.estimate(in_memtables, before),
            Layer::Run(run) => run.estimate(bounds, before)?,
        };
        records = u64::saturating_add(records, inside.records);
        bytes = u64::saturating_add(bytes, inside.bytes);
        deleted = u64::saturating_add(deleted, inside.tombstones);
    }
    // Most tombstones delete one record of average length.
    let left = records.saturating_sub(deleted);
    let share = u128::from(bytes) * u128::from(left) / u128::from(records.max(1));
    Ok(Estimate {
        records: left,
        bytes: u64::try_from(share).unwrap_or(bytes),
    })
}
