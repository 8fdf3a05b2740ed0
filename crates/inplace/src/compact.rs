//! Compactions: merges of leaves for which records wait, or of which enough has expired, without
//! input.

use std::sync::Arc;

use terrapin_base::Result;
use terrapin_structure::{
    Compaction, Compacts, MergeOptions, NoInput, Reclaimable, ToCompact, Version,
};

use crate::merge::InPlaceMerge;
use crate::plan::{Mirror, Scope, blocked, densest_stretch, is_due, span};
use crate::structure::{InPlace, own};

impl Compacts for InPlace {
    fn to_compact(&self, version: &Arc<dyn Version>) -> Result<ToCompact> {
        let Some(mirror) = Mirror::read(&self.store, &own(version)?.root)? else {
            return Ok(ToCompact::default());
        };
        let mut work = ToCompact::default();
        for leaf in mirror
            .leaves()
            .into_iter()
            .filter(|leaf| !leaf.waiting.is_empty())
        {
            let waiting = leaf.sums.waiting_bytes;
            work.buffered_bytes = work.buffered_bytes.saturating_add(waiting);
            work.merged_bytes = work.merged_bytes.saturating_add(leaf.sums.merged_bytes());
        }
        Ok(work)
    }

    /// The stretch with most waiting bytes per byte. Records that wait cost gets of a cold tree a
    /// read each, for their filters and indexes.
    fn to_reclaim(
        &self,
        version: &Arc<dyn Version>,
        bytes_max: u64,
    ) -> Result<Option<Reclaimable>> {
        let Some(mirror) = Mirror::read(&self.store, &own(version)?.root)? else {
            return Ok(None);
        };
        let leaves = mirror.leaves();
        let Some((stretch, merged_bytes)) = densest_stretch(&leaves, bytes_max) else {
            return Ok(None);
        };
        let (from, _) = span(&leaves, stretch.start);
        let (_, to) = span(&leaves, stretch.end - 1);
        let waits = leaves.iter().map(|leaf| leaf.sums.waiting_bytes);
        Ok(Some(Reclaimable {
            waste_bytes: waits.fold(0, u64::saturating_add),
            merged_bytes,
            from: from.unwrap_or_default().into(),
            to: to.map(Box::from),
        }))
    }

    fn expired_permille(&self, version: &Arc<dyn Version>, now_ms: u64) -> Result<u64> {
        let Some(root) = own(version)?.root_node()? else {
            return Ok(0);
        };
        let (deadlines, sums) = (root.inner.deadlines(), root.inner.sums());
        Ok(deadlines.expired_permille(sums.records, now_ms))
    }

    fn begin_compaction(
        &self,
        base: &Arc<dyn Version>,
        (from, to): (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>> {
        let base = own(base)?;
        let Some(mirror) = Mirror::read(&self.store, &base.root)? else {
            return Ok(None);
        };
        let leaves = mirror.leaves();
        let is_blocked = blocked(&self.store, &leaves, &options.around)?;
        // The first leaf with work, and those behind it up to the bound.
        let (mut begin, mut end, mut merged) = (None, None, 0u64);
        for (number, leaf) in leaves.iter().enumerate() {
            let (lo, hi) = span(&leaves, number);
            if hi.is_some_and(|hi| hi <= from) {
                continue;
            }
            let is_behind = lo.zip(to).is_some_and(|(lo, to)| lo >= to);
            if is_behind || merged >= bytes_max && begin.is_some() {
                end = lo;
                break;
            }
            if !is_due(leaf, options.expired()) || is_blocked(number) {
                continue;
            }
            begin.get_or_insert(lo.unwrap_or_default());
            merged = merged.saturating_add(leaf.sums.merged_bytes());
        }
        let Some(begin) = begin else {
            return Ok(None);
        };
        let scope = Scope::Stretch {
            from: begin.max(from).into(),
            to: end.map(Box::from),
        };
        let next = end
            .filter(|end| to.is_none_or(|to| *end <= to))
            .map(Box::from);
        let nothing = Arc::new(NoInput);
        let merge = InPlaceMerge::begin(base, nothing, options, &self.params, &scope)?;
        Ok(Some(Compaction { merge, next }))
    }
}
