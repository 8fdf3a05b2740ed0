//! How many bytes a message in a buffer hides (decision 0035). A delete hides its own bytes and the
//! next older record of its key. A put hides as many bytes as that record is longer than itself.
//!
//! Buffers are bounded by these counts, and figures of space use them. A count is found once, when
//! the message enters a buffer. Then it stays with the message in the sums of its block and its
//! segment. A merge that drops an older message of the same key finds the count anew. Only the next
//! older record counts, because that record carries what it hides itself.
//!
//! - Records of about equal length: the mean record of the leaves below is near enough. No reads.
//! - Records longer than a block's target: each has a block of its own. So the group's index has
//!   its length, and the group's filter decides whether it is there.
//! - Shorter records of unequal length: the merge reads some of the records that the memtable
//!   deletes or replaces, and scales the mean by what it finds.

use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Message, Result};
use terrapin_pages::PageStore;
use terrapin_pages::group::{GroupIndex, GroupSums, RECORD_BYTES_MAX};

use super::runs::Context;
use crate::get::{Top, find};
use crate::load::{LoadedNode, load_child_of};
use crate::node::Child;
use terrapin_runs::run::{KeyRange, Run};

/// The records below a pivot are uneven if the longest is longer than this many times the mean.
const UNEVEN: u64 = 3;

/// A planning merge looks at each of the memtable's messages if the mean record below exceeds this
/// part (1/n) of a block's target.
const WALKED_PART: u64 = 8;

/// Deleted records that a merge reads at a node, about, and as many replaced ones.
const SAMPLES: usize = 64;
/// The mean counts as this many sampled deletes: a sample may miss the few long records.
const SAMPLES_OF_MEAN: u64 = 32;
/// For each sampled record, a merge looks at no more than this many messages.
const SAMPLED_AMONG: u64 = 8;

/// The records and messages below a pivot's messages.
#[derive(Clone, Copy, Debug)]
struct Below {
    /// Mean bytes of a record in the leaves.
    mean: u64,
    /// Bytes of the longest record in the leaves or in buffers.
    longest: u64,
}

/// What is below some levels of a node, and how much of it messages hide.
#[derive(Clone, Debug)]
pub(super) struct Hiding {
    node: Arc<LoadedNode>,
    /// The newest level of the node that counts as below, for all pivots or for each.
    level: usize,
    levels: Option<Arc<[usize]>>,
    /// One entry for each pivot.
    below: Arc<[Below]>,
    /// Longer records have blocks of their own.
    block_bytes: u64,
    /// Mean bytes of deleted records, in thousandths of the mean of all records.
    deleted_permille: u64,
    /// By how much replaced records are longer than the puts that replace them, on average over all
    /// puts, in thousandths of the mean. Only of uneven records within a block's target.
    replaced_permille: u64,
}

/// A record that a key's message may hide.
struct Hidden {
    bytes: u64,
    /// The record's presence and length are certain, because it has a block of its own.
    is_known: bool,
}

impl Hiding {
    /// What is below messages that come in: the whole buffer and all children.
    pub(super) fn by_all_of(context: &Context, node: &Arc<LoadedNode>) -> Self {
        let mut below: Vec<Below> = node
            .pivots
            .iter()
            .map(|pivot| Below::a(&pivot.child))
            .collect();
        for segment in node.levels.iter().flatten() {
            for part in &segment.live {
                let longest = &mut below[usize::from(part.pivot)].longest;
                *longest = (*longest).max(u64::from(segment.group.record_bytes_max));
            }
        }
        Hiding {
            node: node.clone(),
            level: 0,
            levels: None,
            below: below.into(),
            block_bytes: u64::from(context.options.block_bytes),
            deleted_permille: 1000,
            replaced_permille: 0,
        }
    }

    /// What is below messages that are merged with the levels above `level`.
    pub(super) fn by_levels_from(&self, level: usize) -> Self {
        Hiding {
            level,
            ..self.clone()
        }
    }

    /// The same, where each pivot's levels are below from another one on.
    pub(super) fn by_pivots(&self, levels: &[usize]) -> Self {
        Hiding {
            levels: Some(levels.into()),
            ..self.clone()
        }
    }

    /// The bytes by which messages are shorter than as many deleted records of a pivot.
    pub(super) fn shorter_than_records(&self, pivot: usize, messages: GroupSums) -> u64 {
        let records = messages.records.saturating_mul(self.mean_deleted(pivot));
        records.saturating_sub(messages.bytes)
    }

    /// Mean bytes of a pivot's records.
    fn mean(&self, pivot: usize) -> u64 {
        self.below[pivot].mean
    }

    /// Mean bytes of a pivot's deleted records.
    fn mean_deleted(&self, pivot: usize) -> u64 {
        self.mean(pivot).saturating_mul(self.deleted_permille) / 1000
    }

    /// Reads some of the records that the memtable deletes or replaces, where these may differ from
    /// the mean.
    pub(super) fn sample(
        &mut self,
        context: &Context,
        incoming: &[Run],
        ranges: &[KeyRange],
    ) -> Result<()> {
        let Some(memtable) = incoming.iter().find(|run| run.is_input()) else {
            return Ok(());
        };
        let is_uneven = |&pivot: &usize| !self.is_counted(pivot) && self.below[pivot].is_uneven();
        let uneven: Vec<usize> = (0..ranges.len()).filter(is_uneven).collect();
        let mut deleted = Ratio::default();
        let mut replaced = Ratio::default();
        let step = uneven.len().div_ceil(SAMPLES).max(1);
        let each = SAMPLES.div_ceil(uneven.len().max(1));
        for &pivot in uneven.iter().step_by(step) {
            for sampled in sampled(context, memtable, &ranges[pivot], each)? {
                let top = (Top::Node(&self.node), &*context.leaf_filters);
                let (key, mean) = (&*sampled.key, self.mean(pivot));
                let bytes = find(&context.store, top, key, hash64(key), |block, at| {
                    (key.len() + block.message(at).value_bytes()) as u64
                });
                let Some(bytes) = readable(bytes)? else {
                    continue;
                };
                let bytes = bytes.unwrap_or(0);
                match sampled.put_bytes {
                    None => deleted.add(bytes, mean),
                    Some(own) => replaced.add(bytes.saturating_sub(own), mean),
                }
            }
        }
        self.deleted_permille = deleted
            .permille(SAMPLES_OF_MEAN)
            .unwrap_or(self.deleted_permille);
        self.replaced_permille = replaced.permille(0).unwrap_or(self.replaced_permille);
        Ok(())
    }

    /// Whether any record below a pivot is longer than a block's target. If so, the merge counts
    /// what each message there hides.
    pub(super) fn is_counted(&self, pivot: usize) -> bool {
        self.below[pivot].longest > self.block_bytes
    }

    /// Whether the records below a pivot are so long that a look at each of the memtable's messages
    /// is relatively cheap.
    pub(super) fn is_walked(&self, pivot: usize) -> bool {
        self.is_counted(pivot) || self.mean(pivot) > self.block_bytes / WALKED_PART
    }

    /// Bytes that a message for a pivot hides. `known` is the count that the message had before
    /// this merge, if it came from a buffer and replaces nothing now.
    #[inline]
    pub(super) fn of(
        &self,
        store: &PageStore,
        (pivot, key): (usize, &[u8]),
        message: Message<'_>,
        known: impl FnOnce() -> Option<u64>,
    ) -> Result<u64> {
        let hidden = if self.below[pivot].is_uneven()
            && let Some(known) = known()
        {
            known
        } else if self.is_counted(pivot) {
            self.look(store, pivot, key, message)?
        } else if message.is_delete() {
            self.mean_deleted(pivot).saturating_add(key.len() as u64)
        } else if message.has_operands() {
            own_bytes(key, message)
        } else {
            self.mean(pivot).saturating_mul(self.replaced_permille) / 1000
        };
        // A damaged node may claim any mean (D8).
        Ok(hidden.min(2 * RECORD_BYTES_MAX))
    }

    /// The same, with the whole record that a put replaces. A message from a buffer keeps the
    /// `counted` bytes. Of the memtable's puts, a share replaces a record of its own length.
    pub(super) fn with_replaced(
        &self,
        store: &PageStore,
        (pivot, key): (usize, &[u8]),
        message: Message<'_>,
        counted: Option<u64>,
        permille: u16,
    ) -> Result<u64> {
        if message.is_delete() || message.has_operands() {
            return self.of(store, (pivot, key), message, || counted);
        }
        if let Some(counted) = counted {
            return Ok(counted);
        }
        let longer = self.of(store, (pivot, key), message, || None)?;
        let replaced = own_bytes(key, message).saturating_mul(u64::from(permille)) / 1000;
        Ok(longer.saturating_add(replaced).min(2 * RECORD_BYTES_MAX))
    }

    #[cold]
    fn look(
        &self,
        store: &PageStore,
        pivot: usize,
        key: &[u8],
        message: Message<'_>,
    ) -> Result<u64> {
        let Below { mean, longest } = self.below[pivot];
        let own = own_bytes(key, message);
        Ok(if message.has_operands() {
            own
        } else if message.is_delete() {
            let found = match self.below[pivot].is_uneven() {
                true => readable(self.find(store, pivot, key))?,
                false => None,
            };
            found.map_or(mean, |found| found.bytes).saturating_add(own)
        } else if longest > own.saturating_mul(UNEVEN) {
            let found = readable(self.find(store, pivot, key))?.filter(|found| found.is_known);
            found.map_or(0, |found| found.bytes.saturating_sub(own))
        } else {
            0
        })
    }

    /// The next older record of a key, in the newest block that may hold it.
    fn find(&self, store: &PageStore, pivot: usize, key: &[u8]) -> Result<Hidden> {
        let of_pivot = self.levels.as_ref().and_then(|levels| levels.get(pivot));
        let level = of_pivot.copied().unwrap_or(self.level);
        let hash = hash64(key);
        let mut node = self.node.clone();
        let mut first = node.first_segment_of(level);
        loop {
            let mut way = node.way(key);
            while let Some(candidate) = node.next_candidate(&mut way, key, hash) {
                let (segment, number) = candidate;
                if number >= first && node.segment_may_contain(store, candidate, hash)? {
                    let index = store.index_by(&segment.group, node.handle_of(number))?;
                    return Ok(Hidden::in_block(&index, key, true));
                }
            }
            node = match &node.pivots[way.pivot].child {
                Child::Leaf(group) => {
                    let handle = node.leaf_handle(way.pivot);
                    let index = store.index_by(group, handle)?;
                    let found = Hidden::in_block(&index, key, false);
                    // For short records the mean is accurate enough, whether the record is there or
                    // not.
                    if found.bytes <= self.block_bytes {
                        return Ok(found);
                    }
                    return Ok(match store.may_contain_by(group, handle, hash)? {
                        true => Hidden {
                            is_known: true,
                            ..found
                        },
                        false => Hidden {
                            bytes: 0,
                            is_known: true,
                        },
                    });
                }
                Child::Node { page, .. } => load_child_of(store, &node, way.pivot, page)?,
            };
            first = 0;
        }
    }
}

/// Key and payload bytes of a message. Operands vanish with them when they are applied: the record
/// below keeps its length, as far as anybody can tell.
fn own_bytes(key: &[u8], message: Message<'_>) -> u64 {
    (key.len() + message.value_bytes()) as u64
}

/// `None` if damage or the device prevents the read. The merge may not need the data; a read that
/// needs it reports the error. Other errors are returned.
fn readable<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_of_data() => Ok(None),
        result => result.map(Some),
    }
}

/// A message of a memtable, of which the merge reads what it hides.
struct Sampled {
    key: Vec<u8>,
    /// Bytes of the key and the value of a put. None for a delete.
    put_bytes: Option<u64>,
}

/// A sum beside the sum that the means would give.
#[derive(Default)]
struct Ratio {
    count: u64,
    found: u64,
    expected: u64,
}

impl Ratio {
    fn add(&mut self, found: u64, expected: u64) {
        self.count += 1;
        self.found += found;
        self.expected += expected;
    }

    /// The ratio in thousandths. A sample that finds less than expected may have missed the few
    /// long records, so `after` more that are as expected count with it.
    fn permille(&self, after: u64) -> Option<u64> {
        let mean = self.expected.checked_div(self.count)?;
        let as_expected = match self.found < self.expected {
            true => mean.saturating_mul(after),
            false => 0,
        };
        let found = self.found.saturating_add(as_expected).saturating_mul(1000);
        found.checked_div(self.expected.saturating_add(as_expected))
    }
}

/// At most `most` deletes and `most` puts of a memtable near the start of a range. The hashes of
/// their keys choose them, because neighbouring keys may follow a pattern.
fn sampled(
    context: &Context,
    memtable: &Run,
    range: &KeyRange,
    most: usize,
) -> Result<Vec<Sampled>> {
    let mut sampled = Vec::new();
    let (mut deletes, mut puts) = (0, 0);
    for messages in memtable.messages_of_input(&context.input, range) {
        let mut messages = messages?;
        for _ in 0..most as u64 * SAMPLED_AMONG {
            let Some(key) = messages.key() else { break };
            if hash64(key).is_multiple_of(SAMPLED_AMONG) {
                let message = messages.message();
                let (of_kind, put_bytes) = match message.is_delete() {
                    true => (&mut deletes, None),
                    false => (&mut puts, Some(own_bytes(key, message))),
                };
                if *of_kind < most && !message.has_operands() {
                    *of_kind += 1;
                    let key = key.to_vec();
                    sampled.push(Sampled { key, put_bytes });
                }
            }
            messages.advance()?;
        }
    }
    Ok(sampled)
}

impl Below {
    /// Whether the mean says little about the length of one record.
    fn is_uneven(&self) -> bool {
        self.longest > self.mean.saturating_mul(UNEVEN)
    }

    fn a(child: &Child) -> Self {
        let sums = child.sums();
        Below {
            mean: sums.leaf_bytes.checked_div(sums.records).unwrap_or(0),
            longest: sums.record_bytes_max,
        }
    }
}

impl Hidden {
    fn in_block(index: &GroupIndex, key: &[u8], is_there: bool) -> Self {
        let block = index.block_sums(index.find(key));
        Hidden {
            bytes: block.bytes / block.records.max(1),
            is_known: is_there && block.records == 1,
        }
    }
}
