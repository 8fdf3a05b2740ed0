//! The arithmetic of a merge at one node: which pivots are flushed, and which level takes the rest
//! (TurtleKV, §3.2). It works on estimates. It decides what is cheap; correctness never depends on
//! it.
//!
//! It departs from the paper in three ways:
//!
//! - A merge brings many batch units at once. So it flushes about as much as came in.
//! - The rest skips to the level that holds it. This has the effect of χ (§3.3) without writing
//!   levels in between.
//! - The buffers above leaves are bounded by a share of these leaves, so that overwritten records
//!   do not double the space. A message counts with what it hides. A delete is short, but its
//!   record takes space until a flush brings the delete to the leaf.

/// Upper bound of each byte count for a pivot. It is more than any tree holds, and small enough for
/// sums over a node's pivots, fewer than 2^16. A damaged node may claim any number, and means of
/// such numbers are multiplied (D8).
const COUNTED_MAX: u64 = 1 << 47;

/// The waste bound of a node above nodes is this many times smaller than that of a node above
/// leaves.
const SHARE_ABOVE: u64 = 4;

/// Adds to a byte count of a pivot, up to [`COUNTED_MAX`].
pub(crate) fn count(counted: &mut u64, bytes: u64) {
    *counted = counted.saturating_add(bytes).min(COUNTED_MAX);
}

/// A tree of one leaf gets a buffer only if the leaf has at least this many blocks.
const LONE_LEAF_BLOCKS: u64 = 8;

/// A merge is small if it brings less than this part (1/n) of L.
const SMALL_MERGE_PART: u64 = 8;

/// The rules that bound buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// L: target bytes of a page group.
    pub(crate) group_bytes: u64,
    /// ρ: most pivots of a node.
    pub(crate) fanout: usize,
    /// β in thousandths: most buffered bytes of a node above leaves, as a share of those leaves'
    /// bytes, if every message replaces a record. `None` applies the paper's bound only.
    pub(crate) share_permille: Option<u64>,
    /// Disk space is short (D10). A record of the memtable goes straight to its leaf, together with
    /// all buffered messages for the pivots on its way. Other messages of these buffers move one
    /// node down, into a level of their own. So a record rewrites one leaf, and one level of each
    /// node between the leaf and the root.
    pub(crate) flush_what_comes: bool,
    /// K of [`crate::tiered`], if buffers are tiered.
    pub(crate) runs_wanted: Option<usize>,
}

/// The messages for one pivot: buffered and incoming.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pending {
    /// Key and value bytes of the messages.
    pub(crate) bytes: u64,
    /// Bytes that the messages hide, as [`crate::node::LivePart::hidden_bytes`] counts them.
    pub(crate) hidden: u64,
    /// Dead bytes of segments that the pivot's flush would free.
    pub(crate) dead: u64,
}

/// The bounds of a node's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Most bytes, including hidden bytes.
    pub(crate) buffer_bytes: u64,
    /// The bound of the buffer's waste, if there is one.
    pub(crate) waste: Option<Waste>,
}

/// The bound of a buffer's waste, and how waste is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waste {
    /// Most bytes of waste.
    pub(crate) bytes_max: u64,
    /// This many of a thousand messages replace a record of their own length.
    pub(crate) replaced_permille: u16,
}

impl Bounds {
    /// Most bytes of messages that the buffer may keep, if they hide only records of their own
    /// length.
    pub(crate) fn bytes_max(&self) -> u64 {
        let by_waste = self.waste.and_then(|waste| {
            let bytes_max = u128::from(waste.bytes_max) * 1000;
            let most = bytes_max.checked_div(waste.replaced_permille.into())?;
            u64::try_from(most).ok()
        });
        self.buffer_bytes.min(by_waste.unwrap_or(u64::MAX))
    }
}

impl Pending {
    /// The messages' bytes with all that they hide.
    fn counted(&self) -> u64 {
        self.bytes.saturating_add(self.hidden)
    }

    fn weight(&self) -> u128 {
        u128::from(self.counted()) + u128::from(self.dead)
    }

    /// A thousand times the bytes that a flush of the pivot frees.
    fn waste(&self, replaced_permille: u16) -> u128 {
        let replaced = u128::from(self.bytes) + u128::from(self.dead);
        u128::from(self.hidden) * 1000 + replaced * u128::from(replaced_permille)
    }
}

impl Policy {
    /// β for an accepted space amplification in per cent. Buffers may hold a second copy of the
    /// share β of the leaves' bytes. Half-empty blocks, filters, and dead ranges of segments take
    /// about five per cent more. So 130 gives ¼, and 120 gives 0.15.
    pub(crate) fn share_permille_of(space_amplification_percent: u32) -> u64 {
        u64::from(space_amplification_percent.saturating_sub(105)).clamp(5, 1000) * 10
    }

    /// Levels of a node's buffer: ⌈log₂ ρ⌉.
    pub(crate) fn levels_max(&self) -> usize {
        (self.fanout.next_power_of_two().trailing_zeros() as usize).max(1)
    }

    /// Least pivots of a node that is not the root.
    pub(crate) fn pivots_min(&self) -> usize {
        self.fanout / 2
    }

    /// The paper's bound of a node's buffer in bytes: a node of n pivots keeps at most n − 1
    /// groups.
    pub(crate) fn buffer_bytes_max(&self, pivots: usize) -> u64 {
        let pivots = pivots.saturating_sub(1).max(1) as u64;
        self.group_bytes.saturating_mul(pivots)
    }

    /// The waste bound of a node's buffer, for `live` bytes below it. `replaced_permille` is the
    /// average of a node above leaves. Higher nodes have none: their bound counts hidden bytes
    /// only. It takes effect when deletes make the tree below the node small.
    pub(crate) fn waste_max(&self, live: u64, replaced_permille: Option<u16>) -> Option<Waste> {
        let share = match replaced_permille {
            Some(_) => self.share_permille?,
            None => self.share_permille? / SHARE_ABOVE,
        };
        let bytes_max = u128::from(live) * u128::from(share) / 1000;
        Some(Waste {
            bytes_max: u64::try_from(bytes_max).unwrap_or(u64::MAX),
            replaced_permille: replaced_permille.map_or(0, |replaced| replaced.max(1)),
        })
    }

    /// The waste bound of a node with tiered buffers, for `live` bytes in it and below.
    pub(crate) fn stacked_waste_max(&self, live: u64, is_above_leaves: bool) -> Option<u64> {
        let share = match is_above_leaves {
            true => self.share_permille?,
            false => self.share_permille? / SHARE_ABOVE,
        };
        let bytes_max = u128::from(live) * u128::from(share) / 1000;
        Some(u64::try_from(bytes_max).unwrap_or(u64::MAX))
    }

    /// Most bytes that a node above one leaf keeps in its buffer: β of the leaf, as if every
    /// message replaced a record. Such a node disappears with each flush, so it has no average of
    /// what flushes found.
    pub(crate) fn lone_buffer_bytes_max(&self, leaf_bytes: u64) -> u64 {
        let share = self.share_permille.unwrap_or(1000);
        let waste = u128::from(leaf_bytes) * u128::from(share) / 1000;
        self.group_bytes
            .min(u64::try_from(waste).unwrap_or(u64::MAX))
    }

    /// The same for a leaf that is the whole tree, when `arriving` bytes come in. A buffer pays off
    /// under two conditions. It must take twice the arriving bytes. And the leaf must be longer
    /// than the pages that a buffer adds: a node, and a segment's last blocks, index and filter.
    /// Otherwise the bound is 0.
    pub(crate) fn first_buffer_bytes_max(
        &self,
        leaf_bytes: u64,
        arriving: u64,
        block_bytes: u64,
    ) -> u64 {
        let bound = self.lone_buffer_bytes_max(leaf_bytes);
        match arriving <= bound / 2 && leaf_bytes >= LONE_LEAF_BLOCKS * block_bytes {
            true => bound,
            false => 0,
        }
    }

    /// Capacity of the first level in bytes; the capacities of the other levels follow from it. The
    /// node keeps at most `bound` bytes, and gets `rest` of a merge that brings `brings` bytes to
    /// the tree.
    ///
    /// It is L, unless a whole merge brings far less. Then a first level of L bytes would be
    /// rewritten by many merges that each add little. So the first level is as long as what comes.
    /// But it is long enough for all levels together to hold what the node keeps.
    pub(crate) fn level_unit(&self, brings: u64, rest: u64, bound: u64) -> u64 {
        match brings < self.group_bytes / SMALL_MERGE_PART {
            true => rest
                .max(bound >> self.levels_max())
                .clamp(1, self.group_bytes),
            false => self.group_bytes,
        }
    }

    /// A pivot with this many bytes is flushed even if the buffer has room: one and a half L. A
    /// leaf is about L long, so a flush of less would rewrite more of the leaf than it brings.
    fn heavy_bytes(&self) -> u64 {
        self.group_bytes + self.group_bytes / 2
    }

    /// Chooses the pivots to flush, heaviest first. Heavy pivots are flushed until as much is
    /// flushed as came in, at least L. Then further pivots are flushed until the rest is within the
    /// bounds. `incoming` is all that came in, in bytes. O(p log p).
    pub(crate) fn flush_set(
        &self,
        pivots: &[Pending],
        incoming: u64,
        bounds: &Bounds,
    ) -> Vec<bool> {
        let mut flush = vec![false; pivots.len()];
        let mut order: Vec<usize> = (0..pivots.len())
            .filter(|&pivot| pivots[pivot].bytes > 0)
            .collect();
        order.sort_by_key(|&pivot| std::cmp::Reverse(pivots[pivot].weight()));
        let mut kept: u128 = order.iter().map(|&pivot| pivots[pivot].weight()).sum();
        let mut sent = 0u64;
        for &pivot in &order {
            let counted = pivots[pivot].counted();
            let heavy = counted >= self.heavy_bytes() && sent < incoming.max(self.group_bytes);
            if heavy || kept > u128::from(bounds.buffer_bytes) {
                flush[pivot] = true;
                kept -= pivots[pivot].weight();
                sent = sent.saturating_add(counted);
            }
        }
        let Some(waste) = bounds.waste else {
            return flush;
        };
        let waste_of = |pivot: usize| pivots[pivot].waste(waste.replaced_permille);
        order.retain(|&pivot| !flush[pivot]);
        // A stable sort: pivots of equal waste stay in the order of weights.
        order.sort_by_key(|&pivot| std::cmp::Reverse(waste_of(pivot)));
        let mut kept: u128 = order.iter().map(|&pivot| waste_of(pivot)).sum();
        for pivot in order {
            if kept <= u128::from(waste.bytes_max) * 1000 {
                break;
            }
            flush[pivot] = true;
            kept -= waste_of(pivot);
        }
        flush
    }

    /// The smallest level that can hold `rest` and all that the levels up to it hold. `levels` are
    /// the levels' bytes. The first level holds `unit` bytes ([`Policy::level_unit`]), each further
    /// level twice as many, and the last one holds anything.
    ///
    /// Capacities are a sixteenth larger, because memtables are sealed a little late. A level may
    /// also hold as much as the next level has. Then levels are still at most half as large as the
    /// next. And a last level that took much is not rewritten soon for little.
    pub(crate) fn level_for(&self, rest: u64, levels: &[u64], unit: u64) -> usize {
        let mut sum = rest;
        let last = self.levels_max() - 1;
        for level in 0..last {
            sum += levels.get(level).copied().unwrap_or(0);
            let capacity = unit << level;
            let next = levels.get(level + 1).copied().unwrap_or(0);
            if sum <= next.max(capacity + capacity / 16) {
                return level;
            }
        }
        last
    }
}

/// A moving average of how many messages in a thousand replace a record. It forgets by the number
/// of new messages. A sixteenth of the `records` in the leaves weighs as much as all messages
/// before.
pub(crate) fn replaced_permille(before: u16, messages: u64, replaced: u64, records: u64) -> u16 {
    let old = u128::from(records / 16) + 1;
    let new = u128::from(messages);
    let sum = old * u128::from(before) + 1000 * u128::from(replaced.min(messages));
    // Rounded up, so that the average reaches its limit.
    u16::try_from(sum.div_ceil(old + new))
        .unwrap_or(1000)
        .min(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::PIVOTS_MAX;

    const POLICY: Policy = Policy {
        group_bytes: 100,
        fanout: 64,
        share_permille: Some(250),
        flush_what_comes: false,
        runs_wanted: None,
    };

    fn flush_set(counted: &[u64], dead: &[u64], incoming: u64, bound: u64) -> Vec<bool> {
        let pending = |(&bytes, &dead)| Pending {
            bytes,
            hidden: 0,
            dead,
        };
        let pivots: Vec<_> = counted.iter().zip(dead).map(pending).collect();
        let bounds = |buffer_bytes, waste| Bounds {
            buffer_bytes,
            waste,
        };
        let waste = Waste {
            bytes_max: bound,
            replaced_permille: 1000,
        };
        let flush = POLICY.flush_set(&pivots, incoming, &bounds(bound, None));
        let by_waste = POLICY.flush_set(&pivots, incoming, &bounds(u64::MAX, Some(waste)));
        assert_eq!(flush, by_waste, "all of it is waste");
        flush
    }

    #[test]
    fn heaviest_pivots_go_first_and_no_more_than_came_in() {
        assert_eq!(
            flush_set(&[120, 300, 150, 90], &[0; 4], 100, 1000),
            [false, true, false, false]
        );
        assert_eq!(
            flush_set(&[120, 300, 150, 90], &[0; 4], 400, 1000),
            [false, true, true, false]
        );
        assert_eq!(
            flush_set(&[160, 300, 150, 140], &[0; 4], 4000, 1000),
            [true, true, true, false]
        );
        assert_eq!(
            flush_set(&[20, 30, 50, 90], &[0; 4], 4000, 1000),
            [false; 4]
        );
    }

    #[test]
    fn bounds_are_restored_even_by_light_flushes() {
        assert_eq!(
            flush_set(&[20, 30, 50, 90], &[0; 4], 10, 100),
            [false, false, false, true]
        );
        assert_eq!(
            flush_set(&[20, 30, 50, 0], &[0; 4], 10, 0),
            [true, true, true, false]
        );
    }

    #[test]
    fn dead_bytes_that_a_flush_frees_count_for_its_pivot() {
        assert_eq!(
            flush_set(&[20, 30, 50, 90], &[80, 0, 0, 0], 10, 200),
            [true, false, false, false]
        );
        assert_eq!(
            flush_set(&[0, 30, 50, 90], &[80, 0, 0, 0], 10, 170),
            [false; 4]
        );
    }

    #[test]
    fn rest_goes_to_the_smallest_level_that_holds_it() {
        assert_eq!(POLICY.levels_max(), 6);
        assert_eq!(POLICY.level_for(100, &[], 100), 0);
        assert_eq!(POLICY.level_for(105, &[], 100), 0);
        assert_eq!(POLICY.level_for(100, &[100], 100), 1);
        assert_eq!(POLICY.level_for(100, &[100, 150], 100), 2);
        assert_eq!(
            POLICY.level_for(100, &[100, 200], 100),
            0,
            "as much as the next"
        );
        assert_eq!(POLICY.level_for(900, &[0, 0, 0, 0, 0, 2000], 100), 4);
        assert_eq!(POLICY.level_for(1900, &[0, 0, 0, 0, 0, 2000], 100), 4);
        assert_eq!(POLICY.level_for(1900, &[0, 0, 0, 0, 200, 2000], 100), 5);
        assert_eq!(POLICY.level_for(100, &[0, 200], 100), 0);
        assert_eq!(POLICY.level_for(1600, &[], 100), 4);
        assert_eq!(POLICY.level_for(1_000_000, &[], 100), 5);
        assert_eq!(
            Policy {
                fanout: 4,
                ..POLICY
            }
            .levels_max(),
            2
        );
        assert_eq!(
            Policy {
                fanout: 5,
                ..POLICY
            }
            .levels_max(),
            3
        );
    }

    #[test]
    fn short_messages_that_hide_much_are_flushed() {
        let pivots = [(90, 0), (10, 400), (10, 30), (0, 0)].map(|(bytes, hidden)| Pending {
            bytes,
            hidden,
            dead: 0,
        });
        let flush = |buffer_bytes, bytes_max| {
            let waste = Waste {
                bytes_max,
                replaced_permille: 1,
            };
            let bounds = Bounds {
                buffer_bytes,
                waste: Some(waste),
            };
            POLICY.flush_set(&pivots, 10, &bounds)
        };
        assert_eq!(flush(1000, 100), [false, true, false, false]);
        assert_eq!(flush(1000, 20), [false, true, true, false]);
        assert_eq!(
            flush(100, 500),
            [true, true, false, false],
            "counts for the buffer's bound, too"
        );
        assert_eq!(flush(1000, 0), [true, true, true, false]);
        let most = [Pending {
            bytes: COUNTED_MAX,
            hidden: COUNTED_MAX,
            dead: COUNTED_MAX,
        }; PIVOTS_MAX];
        let all = Bounds {
            buffer_bytes: 0,
            waste: POLICY.waste_max(0, Some(1000)),
        };
        assert!(
            POLICY
                .flush_set(&most, 0, &all)
                .iter()
                .all(|&flushed| flushed)
        );
    }

    #[test]
    fn the_share_bounds_only_messages_that_replace_or_hide() {
        assert_eq!(POLICY.buffer_bytes_max(64), 6300);
        assert_eq!(POLICY.buffer_bytes_max(1), 100);
        let bytes_max = |live, replaced| {
            let waste = POLICY.waste_max(live, replaced)?;
            Some((waste.bytes_max, waste.replaced_permille))
        };
        assert_eq!(bytes_max(4000, Some(500)), Some((1000, 500)));
        assert_eq!(bytes_max(4000, Some(0)), Some((1000, 1)));
        assert_eq!(bytes_max(4000, None), Some((248, 0)));
        let unbounded = Policy {
            share_permille: None,
            ..POLICY
        };
        assert_eq!(unbounded.waste_max(4000, Some(1000)), None);
        assert_eq!(Policy::share_permille_of(130), 250);
        assert_eq!(Policy::share_permille_of(120), 150);
        assert_eq!(Policy::share_permille_of(100), 50);
    }

    #[test]
    fn the_average_follows_what_flushes_find() {
        let mut share = 0;
        for _ in 0..40 {
            share = replaced_permille(share, 100, 100, 10_000);
        }
        assert!(share > 990, "{share}");
        for _ in 0..100 {
            share = replaced_permille(share, 100, 0, 10_000);
        }
        assert!(share < 10, "{share}");
        assert_eq!(replaced_permille(700, 0, 0, 10_000), 700);
        assert_eq!(replaced_permille(0, 10_000, 20_000, 16_000), 910);
        assert_eq!(replaced_permille(0, 1, 1, 0), 500);
    }
}
