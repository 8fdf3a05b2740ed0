//! Reads that a scan combines. If the scan must wait for one block, it also reads the missing
//! blocks of all its sources that the requested records probably need. So a scan of known length
//! waits once, or twice if it turns out longer.
//!
//! The counts of live parts and children tell how many records a level has for each record of the
//! leaf.

use terrapin_base::Result;

use super::TreeScan;
use super::path::LEAF;
use super::source::{Item, Source};
use terrapin_runs::walk::ReadAhead;

/// Most bytes of a source that are read on expectation.
const EXPECTED_BYTES_MAX: usize = 128 << 10;
/// A request for this many records is a long scan, however small the records are.
const LONG_RECORDS: usize = 1024;
/// Expected records beyond this number are ignored.
const EXPECTED_RECORDS_MAX: usize = 1 << 16;

impl TreeScan {
    /// Called before a source's next block is opened. Reads that block, and the blocks that
    /// `records` further records probably need. Does nothing if the scan's length is unknown, or if
    /// the scan is so long that sources read ahead themselves.
    pub(super) fn read_for(&mut self, source_index: u16, records: usize) -> Result<()> {
        let source = &mut self.sources[usize::from(source_index)];
        let Some(walk) = source.walk.as_mut().filter(|_| source.ahead.is_none()) else {
            return Ok(());
        };
        if self.expected == 0 || walk.is_over() || walk.take_cached(&self.store) {
            return Ok(());
        }
        let most = walk.blocks_of_bytes(EXPECTED_BYTES_MAX);
        // A scan is long if it reads ahead, or asks for as many records as such scans do. It is
        // also long if both what it asks for and what it passed exceed `most`.
        let asks = records / walk.records_of_block() >= most || records >= LONG_RECORDS;
        let is_long = walk.wants_stream() || (walk.next_run_blocks() > most && asks);
        match is_long {
            true => Ok(()),
            false => self.read_together(records, Some(source_index)),
        }
    }

    /// Reads the blocks that the sources lack for `records` records. It reads at least one block of
    /// source `first`. Without `first`, it reads at least one block of each source that has none.
    pub(super) fn read_together(&mut self, records: usize, first: Option<u16>) -> Result<()> {
        let densities: Vec<f64> = (0..self.sources.len() as u16)
            .map(|source_index| self.density(source_index))
            .collect();
        let density: f64 = densities.iter().sum();
        let each = records.min(EXPECTED_RECORDS_MAX) as f64 / density.max(1.0);
        let (mut wants, mut counts) = (Vec::new(), Vec::new());
        for (source_index, density) in (0..).zip(densities) {
            let source = &self.sources[usize::from(source_index)];
            let Some(walk) = source.walk.as_ref().filter(|_| source.ahead.is_none()) else {
                continue;
            };
            let likely = lacking(source, (density * each) as usize);
            let least = match first {
                None => usize::from(!walk.is_ready()),
                // As much as the source has passed, but no more than it needs if all records are
                // its own.
                Some(first) if first == source_index => {
                    let all = records.div_ceil(walk.records_of_block()).max(1);
                    walk.next_run_blocks().min(all)
                }
                Some(_) => 0,
            };
            let before = wants.len();
            let most = walk.blocks_of_bytes(EXPECTED_BYTES_MAX);
            let (index, numbers) = walk.want(likely.min(most).max(least));
            wants.extend(numbers.map(|number| (*walk.group(), index.clone(), number)));
            counts.push((source_index, wants.len() - before));
        }
        // If a block cannot be read, each source reads its own blocks. Then the damage is reported
        // when the scan reaches it.
        let Ok(blocks) = self.store.blocks(&wants, ReadAhead::SCAN.fill) else {
            return Ok(());
        };
        let mut blocks = blocks.into_iter();
        for (source_index, count) in counts {
            if let Some(walk) = &mut self.sources[usize::from(source_index)].walk {
                walk.give(blocks.by_ref().take(count));
            }
        }
        Ok(())
    }

    /// The caller takes at most `records` further records. Each source that has begun expects its
    /// share of them, and reads hardly more.
    pub(super) fn ends_after(&mut self, records: usize) {
        let densities: f64 = (0..self.sources.len() as u16)
            .map(|source_index| self.density(source_index))
            .sum();
        for source_index in 0..self.sources.len() as u16 {
            let share = self.density(source_index) / densities.max(1.0);
            let source = &mut self.sources[usize::from(source_index)];
            let following = source.following;
            if let Some(walk) = &mut source.walk {
                let at_hand = following + walk.ready_records();
                let records = (records as f64 * share) as usize;
                walk.ends_after(records.saturating_sub(at_hand));
            }
        }
    }

    /// Records of a source for each record of the leaf, at the scan's position.
    fn density(&self, source_index: u16) -> f64 {
        let range = self.sources[usize::from(source_index)].range;
        if source_index == LEAF {
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

/// How many more blocks a source needs to return `records` records.
fn lacking(source: &Source, records: usize) -> usize {
    let Some(walk) = &source.walk else {
        return 0;
    };
    let each = walk.records_of_block();
    match source.item {
        // The scan may begin anywhere in the first block. This counts the blocks that are more
        // likely needed than not.
        Item::Start | Item::Pending => {
            (1 + (records + each / 2) / each).saturating_sub(walk.ready_blocks())
        }
        Item::Record => {
            let at_hand = 1 + source.following + walk.ready_records();
            records.saturating_sub(at_hand).div_ceil(each)
        }
        Item::Between => {
            let at_hand = walk.ready_records();
            records.saturating_sub(at_hand).div_ceil(each)
        }
        Item::Boundary | Item::End => 0,
    }
}
