//! The arithmetic of a merge at one node: what goes down, and which level takes the rest (DESIGN §6; TurtleKV §3.2). It
//! works on estimates and only decides what is cheap, never what is right.
//!
//! From the paper it differs in that a merge brings many batch units at once, so that as many are flushed as came in; that
//! the rest skips to the level that holds it (§3.3's effect of χ, without building what would not be written); and that
//! the buffers above leaves are held to a share of these leaves, so that overwritten records do not double the space.

/// Most bytes that are counted for a pivot, in each way of counting: more than any tree holds, and little enough for sums over a node's pivots, of which
/// there are less than 2^16, to fit. Nodes may say what they like, and means of what they say are multiplied (D8).
const COUNTED_MAX: u64 = 1 << 47;

/// Adds to what is counted for a pivot.
pub(crate) fn count(counted: &mut u64, bytes: u64) {
    *counted = counted.saturating_add(bytes).min(COUNTED_MAX);
}

/// A leaf alone gets no buffer if it is shorter than so many blocks.
const LONE_LEAF_BLOCKS: u64 = 8;

/// A merge is small that brings less than this part of L.
const SMALL_MERGE_PART: u64 = 8;

/// What bounds the buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// L, in bytes.
    pub(crate) group_bytes: u64,
    /// ρ: most pivots of a node.
    pub(crate) fanout: usize,
    /// β, in thousandths: most buffered bytes of a node above leaves as a share of those leaves' bytes, while flushes
    /// replace what is there; none for the paper's bound only.
    pub(crate) share_permille: Option<u64>,
    /// Disk space is short (D10): where the window brings a record, that goes straight to the leaf, with all that buffers hold for
    /// the pivots on its way; what they hold for others goes one node down, into a level of its own. So a record makes a leaf anew, and a
    /// level of each node between that and the root.
    pub(crate) flush_what_comes: bool,
}

/// What a node above leaves knows of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Below {
    /// Key and value bytes in the leaves.
    pub(crate) leaf_bytes: u64,
    /// Share of recent messages that replaced something there, in thousandths.
    pub(crate) replaced_permille: u16,
}

impl Policy {
    /// β for an accepted space amplification in per cent: the buffers may hold a second copy of β of the leaves' bytes,
    /// and half-empty blocks, filters and dead ranges of segments take about five per cent more (DESIGN §6: 130 → ¼,
    /// 120 → 0.15).
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

    /// Most bytes that a node with so many pivots may keep in its buffer.
    ///
    /// Of the buffered messages the share that replaces something is waste, the rest is not; so β bounds that share.
    pub(crate) fn buffer_bytes_max(&self, pivots: usize, below: Option<Below>) -> u64 {
        let paper = self
            .group_bytes
            .saturating_mul(pivots.saturating_sub(1).max(1) as u64);
        let (Some(share), Some(below)) = (self.share_permille, below) else {
            return paper;
        };
        let waste = u128::from(below.leaf_bytes) * u128::from(share);
        let replaced = u128::from(below.replaced_permille).max(1);
        paper.min(u64::try_from(waste / replaced).unwrap_or(u64::MAX))
    }

    /// Most bytes that a node above one leaf may keep in its buffer: β of the leaf's, as if every message replaced a record. What
    /// recent flushes found is not known there, as such a node goes with each flush.
    pub(crate) fn lone_buffer_bytes_max(&self, leaf_bytes: u64) -> u64 {
        let share = self.share_permille.unwrap_or(1000);
        let waste = u128::from(leaf_bytes) * u128::from(share) / 1000;
        self.group_bytes
            .min(u64::try_from(waste).unwrap_or(u64::MAX))
    }

    /// The same for a leaf that is the whole tree, to which `arriving` bytes come in. A buffer pays where it takes as much twice, and
    /// the leaf is longer than the pages that it costs: a node, and the last blocks, index and filter of a segment. Elsewhere none.
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

    /// The bytes of the first level, from which those of the others follow, in a node that keeps `bound` bytes at most and gets `rest`
    /// of a merge that brings `brings` to the tree: L. Where a whole merge brings far less, the first level would be written anew by merge
    /// after merge that adds little to it; so it is as long as what comes, but long enough for the others to hold what the node keeps.
    pub(crate) fn level_unit(&self, brings: u64, rest: u64, bound: u64) -> u64 {
        match brings < self.group_bytes / SMALL_MERGE_PART {
            true => rest
                .max(bound >> self.levels_max())
                .clamp(1, self.group_bytes),
            false => self.group_bytes,
        }
    }

    /// What a pivot has to have to be flushed though the rest fits: one and a half L. A leaf is about as long as L, so with less
    /// a flush writes more of what was there.
    fn heavy_bytes(&self) -> u64 {
        self.group_bytes + self.group_bytes / 2
    }

    /// Which pivots to flush: heaviest first, at most as much as came in (and at least L) while a pivot is heavy, and
    /// on until the rest fits `bound`. `counted` are the bytes of each pivot with what came in for it, `dead` what space its
    /// flush would free besides, `incoming` all that came in. O(p log p).
    pub(crate) fn flush_set(
        &self,
        counted: &[u64],
        dead: &[u64],
        incoming: u64,
        bound: u64,
    ) -> Vec<bool> {
        let weight = |pivot: usize| counted[pivot] + dead[pivot];
        let mut flush = vec![false; counted.len()];
        let mut heaviest: Vec<usize> = (0..counted.len())
            .filter(|&pivot| counted[pivot] > 0)
            .collect();
        heaviest.sort_by_key(|&pivot| std::cmp::Reverse(weight(pivot)));
        let mut kept: u64 = heaviest.iter().map(|&pivot| weight(pivot)).sum();
        let mut sent = 0;
        for pivot in heaviest {
            let heavy =
                counted[pivot] >= self.heavy_bytes() && sent < incoming.max(self.group_bytes);
            if heavy || kept > bound {
                flush[pivot] = true;
                kept -= weight(pivot);
                sent += counted[pivot];
            }
        }
        flush
    }

    /// The smallest level that holds `rest` together with what levels up to it hold: `levels` are their bytes, and the first holds
    /// `unit` of them ([`Policy::level_unit`]), each further one twice as many. The last
    /// level takes anything. A window is cut a little late, hence the sixteenth. A level also holds as much as the next one has:
    /// levels then are still half as large as the next, or less, and a last level that took much is not written again for little.
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

/// A moving average of how many messages in a thousand replace something. It forgets by the messages that come: as many as
/// a sixteenth of the `records` in the leaves weigh as much as all before them.
pub(crate) fn replaced_permille(before: u16, messages: u64, replaced: u64, records: u64) -> u16 {
    let old = u128::from(records / 16) + 1;
    let new = u128::from(messages);
    let sum = old * u128::from(before) + 1000 * u128::from(replaced.min(messages));
    // Rounded up, so that it does not stick below what it tends to.
    u16::try_from(sum.div_ceil(old + new))
        .unwrap_or(1000)
        .min(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        group_bytes: 100,
        fanout: 64,
        share_permille: Some(250),
        flush_what_comes: false,
    };

    #[test]
    fn heaviest_pivots_go_first_and_no_more_than_came_in() {
        assert_eq!(
            POLICY.flush_set(&[120, 300, 150, 90], &[0; 4], 100, 1000),
            [false, true, false, false]
        );
        assert_eq!(
            POLICY.flush_set(&[120, 300, 150, 90], &[0; 4], 400, 1000),
            [false, true, true, false]
        );
        assert_eq!(
            POLICY.flush_set(&[160, 300, 150, 140], &[0; 4], 4000, 1000),
            [true, true, true, false]
        );
        assert_eq!(
            POLICY.flush_set(&[20, 30, 50, 90], &[0; 4], 4000, 1000),
            [false; 4]
        );
    }

    #[test]
    fn bounds_are_restored_even_by_light_flushes() {
        assert_eq!(
            POLICY.flush_set(&[20, 30, 50, 90], &[0; 4], 10, 100),
            [false, false, false, true]
        );
        assert_eq!(
            POLICY.flush_set(&[20, 30, 50, 0], &[0; 4], 10, 0),
            [true, true, true, false]
        );
    }

    #[test]
    fn what_a_flush_frees_counts_for_its_pivot() {
        assert_eq!(
            POLICY.flush_set(&[20, 30, 50, 90], &[80, 0, 0, 0], 10, 200),
            [true, false, false, false]
        );
        assert_eq!(
            POLICY.flush_set(&[0, 30, 50, 90], &[80, 0, 0, 0], 10, 170),
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
    fn share_bounds_only_what_replaces() {
        let below = |replaced_permille| {
            Some(Below {
                leaf_bytes: 4000,
                replaced_permille,
            })
        };
        assert_eq!(POLICY.buffer_bytes_max(64, None), 6300);
        assert_eq!(POLICY.buffer_bytes_max(1, None), 100);
        assert_eq!(POLICY.buffer_bytes_max(64, below(1000)), 1000);
        assert_eq!(POLICY.buffer_bytes_max(64, below(500)), 2000);
        assert_eq!(POLICY.buffer_bytes_max(64, below(0)), 6300);
        assert_eq!(
            Policy {
                share_permille: None,
                ..POLICY
            }
            .buffer_bytes_max(64, below(1000)),
            6300
        );
        assert_eq!(Policy::share_permille_of(130), 250);
        assert_eq!(Policy::share_permille_of(120), 150);
        assert_eq!(Policy::share_permille_of(100), 50);
    }

    #[test]
    fn average_follows_what_flushes_find() {
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
