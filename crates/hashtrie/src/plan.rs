//! What a merge does with each leaf: nothing, append the input's records as a run, or rewrite it.
//!
//! - A leaf takes the input's records as one more run. The newest runs are joined with it if they
//!   are small, or if the chain would be too long.
//! - Once more bytes are hidden than the accepted space allows, the leaves with most hidden bytes
//!   per byte are rewritten, until no more than that is hidden, or the bytes of `MEMTABLES_MAX`
//!   memtables are rewritten. The rest stays for later checkpoints.
//! - A leaf of more than its limit is rewritten, and split by the next digits into leaves below
//!   theirs. Limits are from S/2 to S and differ between neighbours, so that leaves which grow
//!   alike do not split in one checkpoint.
//! - Sibling leaves of less than S/4 in all become one leaf when one of them changes.
//!
//! A rewrite takes all that its leaf has, so no record of a base is newer than one of a run.

use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::group::{Deadlines, ExpiredPart};
use terrapin_pages::{PageRef, PageStore};
use terrapin_runs::run::{Key, KeyRange, Run};
use terrapin_structure::MergeInput;

use crate::digits::{Fanout, Stretch, prefix_of};
use crate::format::{Child, Leaf, NodeRef, Root, RunRef, Sums};
use crate::node::{load, root_place};
use crate::table::SLOTS;

/// One checkpoint rewrites up to this many times the input's bytes beyond what it must.
const MEMTABLES_MAX: u64 = 6;
/// Runs of less than 1/n of a group are joined with the next.
const SMALL_PART: u64 = 32;
/// When a chain is too long, at least this many runs become one.
const JOINED_MIN: usize = 4;
/// Sibling leaves of less than S/n in all become one.
const COLLAPSED_PART: u64 = 4;
/// Limits of chains and of leaves differ by this many steps.
const PHASES: u64 = 16;
/// Space amplification in per cent if the options accept any.
const SPACE_PERCENT_DEFAULT: u32 = 150;

/// Which leaves a merge changes.
pub(crate) enum Scope {
    /// Those to which the input brings records, and those with most to free.
    Input,
    /// Those of several runs, and those of which much has expired, that have keys at or above one
    /// key and below another.
    Stretch {
        from: Box<[u8]>,
        to: Option<Box<[u8]>>,
    },
}

/// A part of the base's trie, down to the leaves.
pub(crate) enum Mirror {
    Nothing,
    Leaf(Leaf),
    Node(Box<MirrorNode>),
}

/// A node of the base's trie.
pub(crate) struct MirrorNode {
    stretch: Stretch,
    own: NodeRef,
    children: Vec<Mirror>,
}

impl Mirror {
    /// Reads the nodes of a root.
    pub(crate) fn read(store: &PageStore, root: &Root) -> Result<Mirror> {
        let Root::Trie(trie) = root else {
            return Ok(Mirror::Nothing);
        };
        let own = NodeRef {
            page: trie.node,
            sums: trie.sums,
            // The root has none: its node sums them up.
            deadlines: Deadlines::default(),
        };
        let mut node = Self::read_node(store, own, root_place(trie), trie.fanout)?;
        match trie.is_one_leaf {
            true => Ok(node.children.pop().unwrap_or(Mirror::Nothing)),
            false => Ok(Mirror::Node(Box::new(node))),
        }
    }

    fn read_node(
        store: &PageStore,
        own: NodeRef,
        place: (Fanout, Stretch),
        fanout: Fanout,
    ) -> Result<MirrorNode> {
        let loaded = load(store, &own.page, place)?;
        let mut children = Vec::with_capacity(loaded.node.children.len());
        for (number, child) in loaded.node.children.iter().enumerate() {
            children.push(match child {
                None => Mirror::Nothing,
                Some(Child::Leaf(leaf)) => Mirror::Leaf(leaf.clone()),
                Some(Child::Node(node)) => {
                    let place = (fanout, loaded.stretch_of(number));
                    Mirror::Node(Box::new(Self::read_node(
                        store,
                        node.clone(),
                        place,
                        fanout,
                    )?))
                }
            });
        }
        Ok(MirrorNode {
            stretch: place.1,
            own,
            children,
        })
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let leaf = |leaf: &Leaf| {
            let groups = leaf.runs.iter().map(|run| run.groups.len() as u64);
            leaf.runs.len() as u64 * size_of::<RunRef>() as u64 + groups.sum::<u64>() * 128
        };
        let own = size_of::<Mirror>() as u64;
        own + match self {
            Mirror::Nothing => 0,
            Mirror::Leaf(own) => leaf(own),
            Mirror::Node(node) => node.children.iter().map(Mirror::memory_bytes).sum(),
        }
    }

    /// Adds all places for leaves, in order: leaves, and slots of nodes without a child.
    fn places<'a>(&'a self, stretch: Stretch, fanout: Fanout, out: &mut Vec<PlaceOf<'a>>) {
        match self {
            Mirror::Nothing => out.push(PlaceOf::new(stretch, None)),
            Mirror::Leaf(leaf) => out.push(PlaceOf::new(stretch, Some(leaf))),
            Mirror::Node(node) => {
                for (number, child) in node.children.iter().enumerate() {
                    child.places(stretch.child(fanout, number), fanout, out);
                }
            }
        }
    }
}

/// A place for a leaf, and what becomes of it.
struct PlaceOf<'a> {
    stretch: Stretch,
    leaf: Option<&'a Leaf>,
    sums: Sums,
    /// Whether the input has a record there.
    has_input: bool,
    /// Key and value bytes of the input there. A record counts as one of the leaf at least, since a
    /// delete of few bytes hides as much.
    arriving: u64,
    arriving_bytes: u64,
    /// Bytes that a rewrite would free once the input is there, about.
    hidden: u64,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    /// The input's records and those of this many newest runs become a run.
    Appends {
        joined: usize,
    },
    Rewritten,
}

impl<'a> PlaceOf<'a> {
    fn new(stretch: Stretch, leaf: Option<&'a Leaf>) -> Self {
        let sums = leaf.map_or_else(Sums::default, Leaf::sums);
        PlaceOf {
            stretch,
            leaf,
            sums,
            has_input: false,
            arriving: 0,
            arriving_bytes: 0,
            hidden: sums.hidden,
            fate: Fate::Stays,
        }
    }

    /// Key and value bytes that a rewrite leaves once the input is there, about.
    fn left(&self) -> u64 {
        let all = self.sums.bytes.saturating_add(self.arriving_bytes);
        all.saturating_sub(self.hidden)
    }
}

/// Settings of a plan.
pub(crate) struct Policy {
    pub(crate) fanout: Fanout,
    /// S.
    pub(crate) leaf_bytes: u64,
    pub(crate) group_bytes: u64,
    pub(crate) space_percent: Option<u32>,
    pub(crate) space_is_short: bool,
    /// The expired part of a leaf from which on a compaction rewrites it.
    pub(crate) expired: ExpiredPart,
}

/// A number below [`PHASES`] that differs between siblings.
fn phase(stretch: Stretch) -> u64 {
    (stretch.lo() >> (crate::digits::PREFIX_BITS - u32::from(stretch.bits()))) % PHASES
}

impl Policy {
    /// A leaf of more bytes than this is split.
    fn limit(&self, stretch: Stretch) -> u64 {
        self.leaf_bytes / 2 + self.leaf_bytes / 2 * phase(stretch) / PHASES
    }

    /// Whether a leaf that takes records is rewritten and split. No leaf gets more than 5/4 S of
    /// live bytes: on a full disk, a rewrite of it fits the reserve.
    fn is_large(&self, place: &PlaceOf<'_>) -> bool {
        let limit = self.limit(place.stretch);
        place.sums.live_bytes() > limit || place.left() > limit + self.leaf_bytes / 4
    }
}

/// What a task writes.
pub(crate) struct TaskPlan {
    pub(crate) stretch: Stretch,
    /// The keys that it moves: those of the stretch.
    pub(crate) range: KeyRange,
    /// What it merges, newest first.
    pub(crate) runs: Vec<Run>,
    /// The runs of the leaf behind those, which stay.
    pub(crate) kept: Vec<RunRef>,
    /// The runs that it joins.
    pub(crate) joined: Vec<RunRef>,
    /// Whether nothing older than its runs exists.
    pub(crate) is_base: bool,
    /// Key and value bytes that it moves, about.
    pub(crate) bytes: u64,
}

/// The next version's trie.
pub(crate) enum Shape {
    Nothing,
    /// As the base has it.
    Kept(Child),
    /// The leaf that the task of this number makes, or nothing.
    Task(usize),
    Node(Box<ShapeNode>),
    /// The leaf that a task makes in the place of a node of the base.
    Collapsed(PageRef, usize),
}

pub(crate) struct ShapeNode {
    pub(crate) stretch: Stretch,
    /// The node of the base that it replaces.
    pub(crate) old: Option<PageRef>,
    pub(crate) children: Vec<Shape>,
}

/// A plan: the tasks in hash order, the trie that comes of them, and pages that end with the base.
pub(crate) struct Plan {
    pub(crate) tasks: Vec<TaskPlan>,
    pub(crate) shape: Shape,
    /// The lists and groups of runs that are rewritten or joined.
    pub(crate) ended: Vec<RunRef>,
}

/// What the steps of a plan share.
struct Planner<'a> {
    store: &'a PageStore,
    input: &'a Arc<dyn MergeInput>,
    policy: &'a Policy,
    plan: Plan,
}

pub(crate) fn range_of(stretch: Stretch) -> KeyRange {
    let (lo, hi) = stretch.keys();
    KeyRange {
        lo: lo.map(|key| Key::from(&key[..])),
        hi: hi.map(|key| Key::from(&key[..])),
    }
}

/// The run of a leaf's run.
fn run_of(run: &RunRef) -> Run {
    let mut out = Run::default();
    for part in &run.groups {
        out.push(part.group, KeyRange::default());
    }
    out
}

/// Plans a merge.
pub(crate) fn plan(
    store: &PageStore,
    mirror: &Mirror,
    input: &Arc<dyn MergeInput>,
    policy: &Policy,
    scope: &Scope,
) -> Result<Plan> {
    let mut places = Vec::new();
    mirror.places(Stretch::ALL, policy.fanout, &mut places);
    match scope {
        Scope::Input => {
            let arriving = gather(&mut places, input)?;
            decide(&mut places, arriving, policy);
        }
        Scope::Stretch { from, to } => {
            choose_stretch(&mut places, (from, to.as_deref()), policy.expired)
        }
    }
    let mut planner = Planner {
        store,
        input,
        policy,
        plan: Plan {
            tasks: Vec::new(),
            shape: Shape::Nothing,
            ended: Vec::new(),
        },
    };
    let shape = planner.shape(mirror, Stretch::ALL, &mut &places[..])?;
    planner.plan.shape = shape;
    Ok(planner.plan)
}

/// Notes where the input has records, and returns their bytes.
fn gather(places: &mut [PlaceOf<'_>], input: &Arc<dyn MergeInput>) -> Result<u64> {
    let (mut number, mut all) = (0, 0u64);
    while number < places.len() {
        let (lo, _) = places[number].stretch.keys();
        let cursor = input
            .clone()
            .cursor(lo.as_ref().map(|key| &key[..]), None)?;
        let Some(key) = cursor.key() else {
            break;
        };
        let prefix = prefix_of(key)?;
        number += places[number..].partition_point(|place| place.stretch.hi() <= prefix);
        let Some(place) = places.get_mut(number) else {
            break;
        };
        let (lo, hi) = place.stretch.keys();
        let estimate = input.estimate(
            lo.as_ref().map(|key| &key[..]),
            hi.as_ref().map(|key| &key[..]),
        );
        place.has_input = !mutant::active("leaf-left-out-by-estimate") || estimate.records > 8;
        let like_leaf = place.sums.bytes / place.sums.records.max(1);
        let like_leaf = estimate.records.saturating_mul(like_leaf);
        place.arriving = estimate.bytes.max(like_leaf).max(1);
        place.arriving_bytes = estimate.bytes;
        let permille = u64::from(input.replacing_permille());
        let replaced = estimate.bytes.saturating_mul(permille) / 1000;
        let deleted = place.arriving - estimate.bytes.min(place.arriving);
        place.hidden = place
            .hidden
            .saturating_add(replaced.saturating_add(deleted));
        all = all.saturating_add(place.arriving);
        number += 1;
    }
    Ok(all)
}

/// Decides what becomes of the leaves.
fn decide(places: &mut [PlaceOf<'_>], arriving: u64, policy: &Policy) {
    for place in places.iter_mut() {
        let is_large = policy.is_large(place);
        place.fate = match place.leaf {
            _ if !place.has_input => Fate::Stays,
            None => Fate::Rewritten,
            Some(_) if policy.space_is_short => Fate::Rewritten,
            Some(_) if is_large && !place.stretch.is_single() => Fate::Rewritten,
            Some(leaf) => appends(leaf, place, policy),
        };
    }
    rewrite_stalest(places, arriving, policy);
}

/// How a leaf takes the input's records as a run.
fn appends(leaf: &Leaf, place: &PlaceOf<'_>, policy: &Policy) -> Fate {
    let runs = leaf.runs.iter().take_while(|run| !run.is_base).count();
    let small = policy.group_bytes / SMALL_PART;
    let (mut joined, mut bytes) = (0, place.arriving);
    while joined < runs && bytes < small {
        let next = leaf.runs[joined].sums().bytes;
        if next > bytes.saturating_mul(2) {
            break;
        }
        bytes = bytes.saturating_add(next);
        joined += 1;
    }
    let most = SLOTS - phase(place.stretch) as usize % JOINED_MIN;
    if leaf.runs.len() - joined < most {
        return Fate::Appends { joined };
    }
    let mut tier = 0;
    loop {
        let count = leaf.runs[..runs].iter().take_while(|run| run.tier <= tier);
        let count = count.count();
        if count >= JOINED_MIN {
            return Fate::Appends { joined: count };
        }
        if count == runs {
            return Fate::Rewritten;
        }
        tier += 1;
    }
}

/// Rewrites the leaves with most hidden bytes per byte, until no more than the accepted bytes are
/// hidden, or enough is rewritten.
fn rewrite_stalest(places: &mut [PlaceOf<'_>], arriving: u64, policy: &Policy) {
    if policy.space_is_short {
        return;
    }
    let percent = policy.space_percent.unwrap_or(SPACE_PERCENT_DEFAULT);
    let live = sum(places.iter().map(PlaceOf::left));
    let accepted = live / 100 * u64::from(percent.saturating_sub(100));
    let mut order: Vec<usize> = (0..places.len())
        .filter(|&at| places[at].fate != Fate::Rewritten && places[at].hidden > 0)
        .collect();
    let mut hidden = sum(order.iter().map(|&at| places[at].hidden));
    // a/b > c/d, without division.
    order.sort_by(|&a, &b| {
        let share = |x: usize, y: usize| {
            u128::from(places[x].hidden) * u128::from(places[y].sums.bytes.max(1))
        };
        share(b, a).cmp(&share(a, b))
    });
    let most = arriving.saturating_mul(MEMTABLES_MAX);
    let mut rewritten = 0u64;
    for at in order {
        if hidden <= accepted || rewritten >= most {
            break;
        }
        let place = &mut places[at];
        place.fate = Fate::Rewritten;
        hidden = hidden.saturating_sub(place.hidden);
        rewritten = rewritten.saturating_add(place.sums.bytes);
    }
}

/// The sum, saturating: damaged nodes may claim any number.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Whether a compaction rewrites a leaf: it has several runs, or enough of it has expired.
fn is_due(leaf: &Leaf, expired: ExpiredPart) -> bool {
    let is_split_up = leaf.runs.len() > 1 || leaf.runs.iter().any(|run| !run.is_base);
    is_split_up || leaf.deadlines().is_due(leaf.sums().records, expired)
}

fn choose_stretch(
    places: &mut [PlaceOf<'_>],
    (from, to): (&[u8], Option<&[u8]>),
    expired: ExpiredPart,
) {
    for place in places {
        let (lo, hi) = place.stretch.keys();
        let is_inside =
            hi.is_none_or(|hi| &hi[..] > from) && lo.zip(to).is_none_or(|(lo, to)| &lo[..] < to);
        if is_inside && place.leaf.is_some_and(|leaf| is_due(leaf, expired)) {
            place.fate = Fate::Rewritten;
        }
    }
}

/// The leaves of a compaction: their stretches, and the bytes of each, if it has work
/// to do.
pub(crate) fn work(
    mirror: &Mirror,
    fanout: Fanout,
    expired: ExpiredPart,
) -> Vec<(Stretch, Option<(u64, u64)>)> {
    let mut places = Vec::new();
    mirror.places(Stretch::ALL, fanout, &mut places);
    let bytes = |leaf: &Leaf| {
        let runs = leaf.runs.iter().filter(|run| !run.is_base);
        let buffered = sum(runs.map(|run| run.sums().bytes));
        is_due(leaf, expired).then(|| (leaf.sums().bytes, buffered))
    };
    let places = places.into_iter();
    places
        .map(|place| (place.stretch, place.leaf.and_then(bytes)))
        .collect()
}

impl Planner<'_> {
    /// The shape of a part of the trie, whose places are the next ones.
    fn shape(
        &mut self,
        mirror: &Mirror,
        stretch: Stretch,
        places: &mut &[PlaceOf<'_>],
    ) -> Result<Shape> {
        let Mirror::Node(node) = mirror else {
            let Some((place, rest)) = places.split_first() else {
                return Ok(Shape::Nothing);
            };
            *places = rest;
            return self.shape_of_place(place);
        };
        let before = *places;
        if let Some(count) = self.collapses(node, before) {
            let (own, rest) = before.split_at(count);
            *places = rest;
            self.plan.ended.extend(
                own.iter()
                    .filter_map(|place| place.leaf)
                    .flat_map(|leaf| leaf.runs.clone()),
            );
            let runs = collapsed(own);
            let bytes = self.policy.leaf_bytes / COLLAPSED_PART;
            let task = self.task(stretch, range_of(stretch), runs, bytes);
            return Ok(Shape::Collapsed(node.own.page, task));
        }
        let (mut children, mut has_changed) = (Vec::new(), false);
        for (number, child) in node.children.iter().enumerate() {
            let own = stretch.child(self.policy.fanout, number);
            let shape = self.shape(child, own, places)?;
            has_changed |= !matches!(shape, Shape::Nothing | Shape::Kept(_));
            children.push(shape);
        }
        Ok(match has_changed {
            false => Shape::Kept(Child::Node(node.own.clone())),
            true => Shape::Node(Box::new(ShapeNode {
                stretch: node.stretch,
                old: Some(node.own.page),
                children,
            })),
        })
    }

    /// The number of places below a node whose leaves are to become one; `None` if they stay.
    fn collapses(&self, node: &MirrorNode, places: &[PlaceOf<'_>]) -> Option<usize> {
        let is_leaf = |child: &Mirror| !matches!(child, Mirror::Node(_));
        if self.policy.space_is_short || !node.children.iter().all(is_leaf) {
            return None;
        }
        let own = places.get(..node.children.len())?;
        let left = own.iter().map(PlaceOf::left);
        let is_small = sum(left) < self.policy.leaf_bytes / COLLAPSED_PART;
        let changes = own.iter().any(|place| place.fate != Fate::Stays);
        (is_small && changes).then_some(own.len())
    }

    fn shape_of_place(&mut self, place: &PlaceOf<'_>) -> Result<Shape> {
        let input = || Run::input(range_of(place.stretch));
        match (place.fate, place.leaf) {
            (Fate::Stays, None) => Ok(Shape::Nothing),
            (Fate::Stays, Some(leaf)) => Ok(Shape::Kept(Child::Leaf(leaf.clone()))),
            (Fate::Appends { joined }, Some(leaf)) if joined < leaf.runs.len() => {
                let (joined, kept) = leaf.runs.split_at(joined);
                self.plan.ended.extend_from_slice(joined);
                let mut runs = vec![input()];
                runs.extend(joined.iter().map(run_of));
                let joined_bytes = joined.iter().map(|run| run.sums().bytes);
                self.plan.tasks.push(TaskPlan {
                    stretch: place.stretch,
                    range: range_of(place.stretch),
                    runs,
                    kept: kept.to_vec(),
                    joined: joined.to_vec(),
                    is_base: false,
                    bytes: joined_bytes.fold(place.arriving, u64::saturating_add),
                });
                Ok(Shape::Task(self.plan.tasks.len() - 1))
            }
            (Fate::Appends { .. } | Fate::Rewritten, leaf) => {
                let mut runs = vec![input()];
                for run in leaf.iter().flat_map(|leaf| &leaf.runs) {
                    runs.push(run_of(run));
                    self.plan.ended.push(run.clone());
                }
                self.split(place.stretch, range_of(place.stretch), runs, place.hidden)
            }
        }
    }

    /// Rewrites a stretch, whose keys are a range, into one leaf, or into several.
    fn split(
        &mut self,
        stretch: Stretch,
        range: KeyRange,
        runs: Vec<Run>,
        hidden: u64,
    ) -> Result<Shape> {
        let mut bytes = 0u64;
        for run in &runs {
            let sums = run.estimate(self.store, self.input, &range)?;
            bytes = bytes.saturating_add(sums.bytes);
        }
        let left = bytes.saturating_sub(hidden);
        let stays_whole =
            stretch.is_single() || self.policy.space_is_short || left <= self.policy.limit(stretch);
        if stays_whole {
            return Ok(Shape::Task(self.task(stretch, range, runs, bytes)));
        }
        let mut children = Vec::new();
        let count = stretch.children(self.policy.fanout);
        for number in 0..count {
            let own = stretch.child(self.policy.fanout, number);
            let mut range = range_of(own);
            if mutant::active("split-sends-middle-digit-left") {
                let middle = range_of(stretch.child(self.policy.fanout, count / 2));
                match number {
                    _ if number + 1 == count / 2 => range.hi = middle.hi,
                    _ if number == count / 2 => range.lo = middle.hi,
                    _ => {}
                }
            }
            let narrowed = runs.iter().map(|run| run.narrowed(&range)).collect();
            children.push(self.split(own, range, narrowed, hidden / count as u64)?);
        }
        Ok(Shape::Node(Box::new(ShapeNode {
            stretch,
            old: None,
            children,
        })))
    }

    /// A task that writes the base of a leaf; returns its number.
    fn task(&mut self, stretch: Stretch, range: KeyRange, runs: Vec<Run>, bytes: u64) -> usize {
        let mut runs = runs;
        if mutant::active("rewrite-leaves-oldest-run-out") && runs.len() > 2 {
            runs.pop();
        }
        self.plan.tasks.push(TaskPlan {
            stretch,
            range,
            runs,
            kept: Vec::new(),
            joined: Vec::new(),
            is_base: true,
            bytes,
        });
        self.plan.tasks.len() - 1
    }
}

/// The runs of sibling leaves as those of one: the n-th newest ones of all leaves become one run.
fn collapsed(places: &[PlaceOf<'_>]) -> Vec<Run> {
    let leaves = || places.iter().filter_map(|place| place.leaf);
    let (first, last) = (places.first(), places.last());
    let ends = first.zip(last).map(|(first, last)| {
        let (lo, hi) = (range_of(first.stretch).lo, range_of(last.stretch).hi);
        KeyRange { lo, hi }
    });
    let mut runs = vec![Run::input(ends.unwrap_or_default())];
    let most = leaves().map(|leaf| leaf.runs.len()).max().unwrap_or(0);
    for number in 0..most {
        let mut out = Run::default();
        let own = leaves().filter_map(|leaf| leaf.runs.get(number));
        for part in own.flat_map(|run| &run.groups) {
            out.push(part.group, KeyRange::default());
        }
        runs.push(out);
    }
    runs
}
