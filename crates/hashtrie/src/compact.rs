//! Compactions: rewrites of leaves of several runs, and of leaves of which enough has expired,
//! without input.

use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::group::ExpiredPart;
use terrapin_structure::{Compaction, Compacts, MergeOptions, NoInput, ToCompact, Version};

use crate::format::Root;
use crate::merge::{TrieMerge, settings};
use crate::plan::{Mirror, Scope, work};
use crate::structure::{HashTrie, own};

impl Compacts for HashTrie {
    fn to_compact(&self, version: &Arc<dyn Version>) -> Result<ToCompact> {
        let Root::Trie(trie) = &own(version)?.root else {
            return Ok(ToCompact::default());
        };
        let mirror = Mirror::read(&self.store, &Root::Trie(*trie))?;
        let mut sum = ToCompact::default();
        for (_, bytes) in work(&mirror, trie.fanout, ExpiredPart::NONE) {
            let (merged, buffered) = bytes.unwrap_or_default();
            sum.merged_bytes = sum.merged_bytes.saturating_add(merged);
            sum.buffered_bytes = sum.buffered_bytes.saturating_add(buffered);
        }
        Ok(sum)
    }

    fn expired_permille(&self, version: &Arc<dyn Version>, now_ms: u64) -> Result<u64> {
        let Some(root) = own(version)?.root_node()? else {
            return Ok(0);
        };
        let records = root.node.sums().records;
        Ok(root.node.deadlines().expired_permille(records, now_ms))
    }

    fn begin_compaction(
        &self,
        base: &Arc<dyn Version>,
        (from, to): (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>> {
        let base = own(base)?;
        let mirror = Mirror::read(&self.store, &base.root)?;
        let fanout = settings(&base.root, options, &self.params).fanout;
        // The first leaf with work, and those behind it up to the bound.
        let mut begin: Option<Box<[u8]>> = None;
        let mut end: Option<Box<[u8]>> = None;
        let mut merged = 0u64;
        for (stretch, bytes) in work(&mirror, fanout, options.expired()) {
            let (lo, hi) = stretch.keys();
            if hi.is_some_and(|hi| &hi[..] <= from) {
                continue;
            }
            let is_behind = lo.zip(to).is_some_and(|(lo, to)| &lo[..] >= to);
            if is_behind || merged >= bytes_max && begin.is_some() {
                end = lo.map(|lo| Box::from(&lo[..]));
                break;
            }
            let Some((bytes, _)) = bytes else {
                continue;
            };
            begin.get_or_insert_with(|| lo.map_or_else(Box::default, |lo| Box::from(&lo[..])));
            merged = merged.saturating_add(bytes);
        }
        let Some(begin) = begin else {
            return Ok(None);
        };
        let scope = Scope::Stretch {
            from: begin.max(from.into()),
            to: end.clone(),
        };
        let next = end.filter(|end| to.is_none_or(|to| **end <= *to));
        let nothing = Arc::new(NoInput);
        let merge = TrieMerge::begin(base, nothing, options, &self.params, &scope)?;
        Ok(Some(Compaction { merge, next }))
    }
}
