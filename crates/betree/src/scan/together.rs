//! What a scan reads at once. Where it must wait for one block, those come along, of all its
//! sources, that the records which are asked for are expected to need and that are not cached: so a
//! scan of a known length waits once, or twice where it turns out longer.
//!
//! How many records of a level lie among those of the leaf is told by the counts of the node's live
//! parts and children.

use terrapin_base::Result;

use super::TreeScan;
use super::source::{Head, LEAF, Source};
use crate::walk::ReadAhead;

/// Most bytes of a source that are read because they are expected to be needed.
const EXPECTED_BYTES_MAX: usize = 128 << 10;
/// Who asks for so many has a long scan, however small they are.
const LONG_RECORDS: usize = 1024;
/// Records that are expected beyond are not counted.
const EXPECTED_RECORDS_MAX: usize = 1 << 16;

impl TreeScan {
    /// Before a source's next block is opened: has it at hand, with what is expected to be needed
    /// besides for so many records. Does nothing where nobody said how long the scan is, or it has
    /// become so long that sources read ahead by themselves.
    pub(super) fn read_for(&mut self, slot: u16, records: usize) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        let Some(walk) = source.walk.as_mut().filter(|_| source.ahead.is_none()) else {
            return Ok(());
        };
        if self.expected == 0 || walk.is_over() || walk.take_cached(&self.store) {
            return Ok(());
        }
        let most = walk.blocks_of_bytes(EXPECTED_BYTES_MAX);
        // A long scan: what it asks for, and has passed, is more than all that; or it is so long
        // that it reads ahead, or asks for as many as one does.
        let asks = records / walk.records_of_block() >= most || records >= LONG_RECORDS;
        let is_long = walk.wants_stream() || (walk.next_run_blocks() > most && asks);
        match is_long {
            true => Ok(()),
            false => self.read_together(records, Some(slot)),
        }
    }

    /// Reads the blocks that the sources lack for so many records: one at least of `first`, or of
    /// all that have none if no source is named.
    pub(super) fn read_together(&mut self, records: usize, first: Option<u16>) -> Result<()> {
        let densities: Vec<f64> = (0..self.sources.len() as u16)
            .map(|slot| self.density(slot))
            .collect();
        let density: f64 = densities.iter().sum();
        let each = records.min(EXPECTED_RECORDS_MAX) as f64 / density.max(1.0);
        let (mut wants, mut counts) = (Vec::new(), Vec::new());
        for (slot, density) in (0..).zip(densities) {
            let source = &self.sources[usize::from(slot)];
            let Some(walk) = source.walk.as_ref().filter(|_| source.ahead.is_none()) else {
                continue;
            };
            let likely = lacking(source, (density * each) as usize);
            let least = match first {
                None => usize::from(!walk.is_ready()),
                // As much as it has passed, but no more than all records would need if they were
                // all its own.
                Some(first) if first == slot => {
                    let all = records.div_ceil(walk.records_of_block()).max(1);
                    walk.next_run_blocks().min(all)
                }
                Some(_) => 0,
            };
            let before = wants.len();
            let most = walk.blocks_of_bytes(EXPECTED_BYTES_MAX);
            let (index, numbers) = walk.want(likely.min(most).max(least));
            wants.extend(numbers.map(|number| (*walk.group(), index.clone(), number)));
            counts.push((slot, wants.len() - before));
        }
        // Where one cannot be read, each source reads its own: what is wrong is told to who comes
        // to it.
        let Ok(blocks) = self.store.blocks(&wants, ReadAhead::SCAN.fill) else {
            return Ok(());
        };
        let mut blocks = blocks.into_iter();
        for (slot, count) in counts {
            if let Some(walk) = &mut self.sources[usize::from(slot)].walk {
                walk.give(blocks.by_ref().take(count));
            }
        }
        Ok(())
    }

    /// How many records a source has where the scan is for each one that the leaf there has.
    fn density(&self, slot: u16) -> f64 {
        let range = self.sources[usize::from(slot)].range;
        if slot == LEAF {
            return 1.0;
        }
        let Some((node, _, segment)) = self.path.segment_of(range) else {
            return 0.0;
        };
        let pivot = self.path.frames[range.frame].pivot;
        let part = segment
            .live
            .binary_search_by_key(&pivot, |part| usize::from(part.pivot));
        let records = part.map_or(0, |part| segment.live[part].records);
        f64::from(records) / node.pivots[pivot].child.records().max(1) as f64
    }
}

/// How many blocks a source needs besides those that it has, to give so many records.
fn lacking(source: &Source, records: usize) -> usize {
    let Some(walk) = &source.walk else {
        return 0;
    };
    let each = walk.records_of_block();
    match source.head {
        // Wherever in its first block the scan begins: those that are more likely needed than not.
        Head::Start | Head::Pending => {
            (1 + (records + each / 2) / each).saturating_sub(walk.ready_blocks())
        }
        Head::Record => {
            let at_hand = 1 + source.following + walk.ready_records();
            records.saturating_sub(at_hand).div_ceil(each)
        }
        Head::Between => {
            let at_hand = walk.ready_records();
            records.saturating_sub(at_hand).div_ceil(each)
        }
        Head::Boundary | Head::End => 0,
    }
}
