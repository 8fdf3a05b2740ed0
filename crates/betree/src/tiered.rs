//! The arithmetic of a merge at one node with size-tiered buffers (SplinterDB, §2.4 and §3). Like
//! [`crate::plan`], it decides what is cheap, and correctness never depends on it.
//!
//! The live parts of a pivot in the levels of its node are its *runs*, newest first. What a merge
//! brings for a pivot has one of four fates:
//!
//! - It becomes a run of its own. That is the usual case, and writes it once.
//! - It becomes one run with the newest of the pivot's runs.
//! - It goes down to the child with all runs of the pivot.
//! - It goes behind the leaf below, past older runs. All its keys must be behind theirs.
//!
//! Runs are merged where that removes a run for the least bytes. How much of this a merge does is
//! bounded by an *allowance*: a share of what came in. Only what is far beyond its bounds is merged
//! whatever the allowance says.

use terrapin_base::mutant;

/// K: runs of a pivot, unless the keyspace has another number.
pub(crate) const RUNS_WANTED: usize = 16;

/// What comes in for a pivot goes straight down if it is at least this many times all that is older
/// in the node, and in the leaf below.
const DIRECT: u64 = 4;
/// Pieces of at least this part (1/n) of L are worth a segment in a node further down.
const PIECE_PART: u64 = 4;
/// A run of at least this part (1/n) of L may become leaves of its own.
const APPENDED_PART: u64 = 2;
/// Most bytes that a pivot holds, in groups of L: above leaves, and above nodes. One flush must fit
/// into the room that is kept for it on a full disk (D10).
const PENDING_GROUPS_MAX: [u64; 2] = [16, 1];
/// Many levels: the newest ones become one until fewer are left. A format of 255 levels leaves room
/// for merges that must not do that.
const LEVELS_MANY: usize = 96;
const LEVELS_LEFT: usize = 48;
/// From this share of its bound on, in per cent, waste is merged within the allowance. At the bound
/// it is merged whatever the allowance says.
const WASTE_PERCENT_RIPE: u128 = 80;

/// The rules of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiered {
    /// L: target bytes of a page group.
    pub(crate) group_bytes: u64,
    /// K: runs of a pivot from half of which on merges are worth while, or from three quarters on
    /// if little comes in. From one and a half on, they do not wait for the allowance.
    pub(crate) runs_wanted: usize,
    /// Most bytes of the buffer, if they are bounded. While a node is above, the allowance is used
    /// for its largest pivots.
    pub(crate) buffer_bytes_max: Option<u64>,
    /// Most bytes of waste, if they are bounded.
    pub(crate) waste_bytes_max: Option<u64>,
}

/// One of a pivot's runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PivotRun {
    /// The level where it is.
    pub(crate) level: usize,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// The first and the last pivot that is live in its segments.
    pub(crate) span: (usize, usize),
}

/// What a node has for a pivot.
#[derive(Clone, Debug, Default)]
pub(crate) struct PivotRuns {
    /// Bytes that come in.
    pub(crate) arriving: u64,
    /// The pivot's runs, newest first.
    pub(crate) runs: Vec<PivotRun>,
    /// Bytes of the leaf below; `None` above height 1.
    pub(crate) leaf_bytes: Option<u64>,
    /// Bytes that a flush of the pivot frees.
    pub(crate) waste: u64,
    /// How many of the newest runs may be merged with one another. The next one is damaged.
    pub(crate) mergeable: usize,
    /// Whether the pivot may be flushed: none of its runs and no page below is known to be damaged.
    pub(crate) may_go_down: bool,
}

/// What happens to the messages that come in for a pivot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They stay, merged with this number of the pivot's newest runs.
    Stays(usize),
    /// They go to the child with all runs of the pivot.
    GoesDown,
}

impl PivotRuns {
    fn pending(&self) -> u64 {
        let sum = |sum: u64, run: &PivotRun| sum.saturating_add(run.bytes);
        self.runs.iter().fold(0, sum)
    }

    /// All bytes in the node and of what comes in.
    fn all(&self) -> u64 {
        self.pending().saturating_add(self.arriving)
    }

    /// Runs of the pivot, if what comes in becomes one more.
    fn count(&self) -> usize {
        self.runs.len() + usize::from(self.arriving > 0)
    }

    /// Runs in the levels above one.
    fn runs_above(&self, level: usize) -> usize {
        self.runs.partition_point(|run| run.level < level)
    }

    /// How many of the newest runs to merge with what comes in, and the bytes written for each run
    /// that this removes.
    fn cheapest(&self) -> Option<(usize, u64)> {
        let (mut bytes, mut best) = (self.arriving, None);
        for (number, run) in (1..).zip(&self.runs[..self.mergeable]) {
            bytes = bytes.saturating_add(run.bytes);
            let removed = (number + usize::from(self.arriving > 0)).saturating_sub(1);
            let Some(cost) = bytes.checked_div(removed as u64) else {
                continue;
            };
            if best.is_none_or(|(_, least)| cost < least) {
                best = Some((number, cost));
            }
        }
        best
    }
}

impl Tiered {
    /// Whether what comes in for a pivot may become leaves behind the pivot's leaf, if its keys
    /// allow it.
    pub(crate) fn may_append(&self, pivot: &PivotRuns) -> bool {
        pivot.leaf_bytes.is_some()
            && pivot.may_go_down
            && pivot.arriving >= self.group_bytes / APPENDED_PART
    }

    /// Whether what comes in goes straight down: it is large against all that is older, and not too
    /// small for the node below.
    fn is_direct(&self, pivot: &PivotRuns) -> bool {
        let older = pivot
            .pending()
            .saturating_add(pivot.leaf_bytes.unwrap_or(0));
        let least = match pivot.leaf_bytes {
            Some(_) => 1,
            None => self.group_bytes / PIECE_PART,
        };
        pivot.arriving >= least.max(1) && pivot.arriving >= older.saturating_mul(DIRECT)
    }

    /// From more than this many runs of a pivot on, merges are worth while. If no more than L comes
    /// in at a node, runs are short, and to wait for some more of them saves a tenth of the bytes
    /// that loads write.
    fn runs_ripe(&self, arrives: u64) -> usize {
        match arrives <= self.group_bytes {
            true => self.runs_wanted * 3 / 4,
            false => self.runs_wanted / 2,
        }
    }

    fn is_full(&self, pivot: &PivotRuns) -> bool {
        let groups = PENDING_GROUPS_MAX[usize::from(pivot.leaf_bytes.is_none())];
        pivot.all() > self.group_bytes.saturating_mul(groups)
            && !mutant::active("stacks-hold-any-bytes")
    }

    /// Whether a flush of a pivot above a leaf writes little more than the pivot's messages.
    fn is_half_full(&self, pivot: &PivotRuns) -> bool {
        let [groups, _] = PENDING_GROUPS_MAX;
        pivot.leaf_bytes.is_some()
            && pivot.all() > self.group_bytes.saturating_mul(groups) / 2
            && !mutant::active("stacks-hold-any-bytes")
    }

    /// Decides the fate of each pivot. `levels` is the number of levels of the node. O(p log p + r)
    /// for p pivots of r runs.
    pub(crate) fn plan(&self, pivots: &[PivotRuns], levels: usize) -> Vec<Fate> {
        let mut plan = Plan {
            fates: vec![Fate::Stays(0); pivots.len()],
            pivots,
            spent: 0,
        };
        let arrives = pivots
            .iter()
            .fold(0u64, |sum, pivot| sum.saturating_add(pivot.arriving));
        let allowance = arrives
            .max(self.group_bytes)
            .saturating_mul(3)
            .saturating_div(2);
        for (number, pivot) in pivots.iter().enumerate() {
            if pivot.may_go_down && (self.is_direct(pivot) || self.is_full(pivot)) {
                plan.fates[number] = Fate::GoesDown;
            }
        }
        let ripe = self.runs_ripe(arrives);
        self.bound_waste(&mut plan, allowance);
        self.bound_bytes(&mut plan, allowance);
        // Neighbours of equal counts go together: segments span several pivots, and their space
        // comes back with the last.
        let by_runs = |number: &usize| std::cmp::Reverse(pivots[*number].count());
        for number in plan.order(by_runs) {
            let pivot = &pivots[number];
            let count = pivot.count();
            if plan.fates[number] != Fate::Stays(0) {
                continue;
            }
            let is_ripe = count > ripe || self.is_half_full(pivot);
            let is_due = count > self.runs_wanted + self.runs_wanted / 2
                || is_ripe && plan.spent < allowance;
            if !is_due {
                continue;
            }
            let down = pivot.all().saturating_add(pivot.leaf_bytes.unwrap_or(0)) / count as u64;
            let stays = pivot.leaf_bytes.is_some() || count < self.runs_wanted;
            let stays = stays || !pivot.may_go_down;
            let cheapest = pivot.cheapest().filter(|_| stays);
            match cheapest.filter(|(_, cost)| *cost < down || !pivot.may_go_down) {
                Some((runs, _)) => plan.stay_with_neighbours(number, runs),
                None if pivot.may_go_down => plan.goes_down(number),
                None => {}
            }
        }
        if levels >= LEVELS_MANY {
            for (number, pivot) in pivots.iter().enumerate() {
                let many = pivot.runs_above(levels - LEVELS_LEFT).min(pivot.mergeable);
                if let Fate::Stays(runs) = &mut plan.fates[number] {
                    *runs = many.max(*runs);
                }
            }
        }
        plan.fates
    }

    /// Sends down the pivots with most waste, until the rest is within the bound.
    fn bound_waste(&self, plan: &mut Plan<'_>, allowance: u64) {
        let Some(most) = self.waste_bytes_max else {
            return;
        };
        if mutant::active("stacks-waste-without-bound") {
            return;
        }
        let pivots = plan.pivots;
        let mut order = plan.order(|&number| std::cmp::Reverse(pivots[number].waste));
        let mut left: u128 = order.iter().map(|&p| u128::from(pivots[p].waste)).sum();
        order.retain(|&number| pivots[number].may_go_down);
        for number in order {
            let most = u128::from(most);
            let is_ripe = left * 100 > most * WASTE_PERCENT_RIPE;
            let is_due = left > most || is_ripe && plan.spent < allowance;
            if !is_due || pivots[number].waste == 0 {
                break;
            }
            left -= u128::from(pivots[number].waste);
            plan.goes_down(number);
        }
    }

    /// Sends down the largest pivots while the buffer is above its bound.
    fn bound_bytes(&self, plan: &mut Plan<'_>, allowance: u64) {
        let Some(most) = self.buffer_bytes_max else {
            return;
        };
        let pivots = plan.pivots;
        let mut order = plan.order(|&number| std::cmp::Reverse(pivots[number].all()));
        let mut left: u128 = order.iter().map(|&p| u128::from(pivots[p].all())).sum();
        order.retain(|&number| pivots[number].may_go_down);
        for number in order {
            if left <= u128::from(most) || plan.spent >= allowance || pivots[number].all() == 0 {
                break;
            }
            left -= u128::from(pivots[number].all());
            plan.goes_down(number);
        }
    }
}

struct Plan<'p> {
    pivots: &'p [PivotRuns],
    fates: Vec<Fate>,
    /// Bytes that are merged within the allowance.
    spent: u64,
}

impl Plan<'_> {
    /// The pivots that stay so far, by a key. Pivots of equal keys are in key order.
    fn order<K: Ord>(&self, key: impl FnMut(&usize) -> K) -> Vec<usize> {
        let stays = |&number: &usize| self.fates[number] == Fate::Stays(0);
        let mut order: Vec<usize> = (0..self.pivots.len()).filter(stays).collect();
        order.sort_by_key(key);
        order
    }

    fn goes_down(&mut self, number: usize) {
        self.fates[number] = Fate::GoesDown;
        self.spend(self.pivots[number].all());
    }

    /// Merges the newest runs of a pivot. The space of a segment comes back with its last part. So
    /// neighbours whose segments are merged take part with their runs of the same levels.
    fn stay_with_neighbours(&mut self, number: usize, runs: usize) {
        let merged = &self.pivots[number].runs[..runs];
        let first = merged.iter().map(|run| run.span.0).min();
        let last = merged.iter().map(|run| run.span.1).max();
        let levels = merged.last().map_or(0, |run| run.level + 1);
        let (first, last) = (first.unwrap_or(number), last.unwrap_or(number));
        for pivot in first.min(number)..=last.max(number) {
            let runs = match self.pivots.get(pivot) {
                Some(neighbour) => neighbour.runs_above(levels).min(neighbour.mergeable),
                None => continue,
            };
            if runs > 0 && self.fates[pivot] == Fate::Stays(0) {
                self.stays(pivot, runs);
            }
        }
    }

    fn stays(&mut self, number: usize, runs: usize) {
        self.fates[number] = Fate::Stays(runs);
        let pivot = &self.pivots[number];
        let merged = pivot.runs[..runs].iter();
        let merged = merged.fold(pivot.arriving, |sum, run| sum.saturating_add(run.bytes));
        self.spend(merged);
    }

    fn spend(&mut self, bytes: u64) {
        self.spent = self.spent.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Tiered = Tiered {
        group_bytes: 1000,
        runs_wanted: 8,
        buffer_bytes_max: None,
        waste_bytes_max: None,
    };

    /// A pivot above a leaf of 1,000 bytes, with runs of these bytes.
    fn pivot(arriving: u64, runs: &[u64]) -> PivotRuns {
        let run = |(level, &bytes)| PivotRun {
            level,
            bytes,
            span: (0, 0),
        };
        PivotRuns {
            arriving,
            runs: (0..).zip(runs).map(run).collect(),
            leaf_bytes: Some(1000),
            waste: 0,
            mergeable: runs.len(),
            may_go_down: true,
        }
    }

    fn fate(pivot: PivotRuns) -> Fate {
        let levels = pivot.runs.len();
        RULES.plan(&[pivot], levels)[0]
    }

    #[test]
    fn what_comes_in_stays_until_runs_are_many() {
        assert_eq!(fate(pivot(10, &[])), Fate::Stays(0));
        assert_eq!(fate(pivot(10, &[10; 5])), Fate::Stays(0));
        assert_eq!(fate(pivot(10, &[10; 6])), Fate::Stays(6), "the small ones");
        let last_is_large = [100, 100, 100, 100, 100, 5000];
        assert_eq!(fate(pivot(100, &last_is_large)), Fate::Stays(5));
        assert_eq!(fate(pivot(10, &[900; 6])), Fate::Stays(6));
        assert_eq!(fate(pivot(10, &[1200; 6])), Fate::GoesDown);
        assert_eq!(fate(pivot(0, &[10; 7])), Fate::Stays(7), "without news");
        assert_eq!(fate(pivot(1001, &[100; 3])), Fate::Stays(0));
        assert_eq!(fate(pivot(1001, &[100; 4])), Fate::Stays(4), "more than L");
    }

    #[test]
    fn what_is_large_goes_straight_down() {
        assert_eq!(fate(pivot(4000, &[])), Fate::GoesDown);
        assert_eq!(fate(pivot(3999, &[])), Fate::Stays(0));
        assert_eq!(fate(pivot(4400, &[100])), Fate::GoesDown);
        let above = |arriving, runs: &[u64]| PivotRuns {
            leaf_bytes: None,
            ..pivot(arriving, runs)
        };
        assert_eq!(fate(above(250, &[])), Fate::GoesDown);
        assert_eq!(fate(above(249, &[])), Fate::Stays(0));
        assert_eq!(fate(above(250, &[62])), Fate::GoesDown);
        assert_eq!(fate(above(250, &[63])), Fate::Stays(0));
        assert_eq!(fate(above(10, &[100; 10])), Fate::GoesDown, "more than L");
        assert_eq!(fate(pivot(100, &[8000, 8000])), Fate::GoesDown, "16 L");
    }

    #[test]
    fn an_allowance_bounds_what_is_merged_unless_runs_are_far_too_many() {
        let of_runs = |runs: &[u64]| -> Vec<PivotRuns> {
            let at = |number| {
                let mut pivot = pivot(20, runs);
                for run in &mut pivot.runs {
                    run.span = (number, number);
                }
                pivot
            };
            (0..40).map(at).collect()
        };
        let pivots = of_runs(&[300; 6]);
        let fates = RULES.plan(&pivots, 6);
        let merged = fates.iter().filter(|fate| **fate != Fate::Stays(0)).count();
        // One and a half L, in merges of up to 1,820 bytes.
        assert!((1..4).contains(&merged), "{merged}");
        let pivots = of_runs(&[300; 12]);
        let fates = RULES.plan(&pivots, 12);
        assert!(fates.iter().all(|fate| *fate != Fate::Stays(0)));
    }

    #[test]
    fn waste_goes_down_first_and_far_above_its_bound_in_any_case() {
        let wasteful = |waste| PivotRuns {
            waste,
            ..pivot(0, &[600])
        };
        let pivots: Vec<_> = [100, 900, 0, 800].into_iter().map(wasteful).collect();
        let plan = |waste_bytes_max| {
            let rules = Tiered {
                waste_bytes_max: Some(waste_bytes_max),
                ..RULES
            };
            let fates = rules.plan(&pivots, 1);
            fates.into_iter().map(|fate| fate == Fate::GoesDown)
        };
        assert!(plan(2300).eq([false; 4]));
        assert!(plan(2200).eq([false, true, false, false]), "from 80 % on");
        assert!(plan(1700).eq([false, true, false, false]));
        assert!(
            plan(0).eq([true, true, false, true]),
            "no allowance stops it"
        );
    }

    #[test]
    fn damaged_runs_stay_and_newer_ones_are_merged() {
        let damaged = |runs: &[u64], mergeable| PivotRuns {
            mergeable,
            may_go_down: false,
            ..pivot(9000, runs)
        };
        assert_eq!(fate(damaged(&[10, 10, 10, 10, 900, 10], 4)), Fate::Stays(4));
        assert_eq!(fate(damaged(&[900; 20], 0)), Fate::Stays(0));
    }

    #[test]
    fn neighbours_whose_segments_are_merged_take_part() {
        let run = |level, span| PivotRun {
            level,
            bytes: 1000,
            span,
        };
        let with = |runs: Vec<PivotRun>| PivotRuns {
            mergeable: runs.len(),
            runs,
            leaf_bytes: Some(5000),
            ..pivot(900, &[])
        };
        let due = with((0..9).map(|level| run(level, (0, 1))).collect());
        let beside = with(vec![run(2, (0, 1)), run(8, (1, 2)), run(12, (1, 2))]);
        let apart = with(vec![run(3, (2, 2))]);
        let fates = RULES.plan(&[due, beside, apart], 13);
        assert_eq!(fates, [Fate::Stays(9), Fate::Stays(2), Fate::Stays(0)]);
    }

    #[test]
    fn many_levels_become_few() {
        let runs: Vec<u64> = vec![1; 3];
        let mut deep = pivot(1, &runs);
        for (run, level) in deep.runs.iter_mut().zip([1, 60, 99]) {
            run.level = level;
        }
        assert_eq!(RULES.plan(&[deep.clone()], 100), [Fate::Stays(1)]);
        deep.runs[1].level = 51;
        assert_eq!(RULES.plan(&[deep], 100), [Fate::Stays(2)]);
    }
}
