//! [`Fragments`]: the range deletes of a memtable.
//!
//! A fragment `[lo, hi)` with an LSN hides all older messages of its keys.
//!
//! The set only grows, and no fragment is cut or joined with another: a reader whose bound lies
//! between the LSNs of two fragments sees the older one alone. It is a treap that is never changed
//! in place. A writer copies the path to the new node and publishes the new root. A reader takes a
//! root and needs no lock. Each node knows the greatest end and the newest LSN below it, so a
//! look-up leaves out what ends before its key or is older than what it has found.

use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::sync::{ArcSwap, Mutex};
use terrapin_base::{Lsn, mutant};

/// A range delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The first key that it deletes.
    pub lo: Arc<[u8]>,
    /// The first key above `lo` that it does not delete. `None` at the end of all keys.
    pub hi: Option<Arc<[u8]>>,
    /// It hides messages below this LSN.
    pub lsn: Lsn,
}

impl Fragment {
    /// Whether it deletes a key.
    #[must_use]
    pub fn covers(&self, key: &[u8]) -> bool {
        *self.lo <= *key && self.hi.as_deref().is_none_or(|hi| key < hi)
    }
}

/// The range deletes of a memtable.
pub struct Fragments {
    root: ArcSwap<Tree>,
    /// Held by the writer that copies a path. Readers never take it.
    writing: Mutex<()>,
}

/// All fragments at one moment. Results borrow from it.
#[derive(Clone, Default)]
pub struct Tree {
    root: Link,
    count: usize,
    bytes: u64,
}

type Link = Option<Arc<Node>>;

struct Node {
    fragment: Fragment,
    /// Parents have a greater one than their children.
    priority: u64,
    /// The greatest end of the subtree's fragments; `None` is the end of all keys.
    end: Option<Arc<[u8]>>,
    /// The newest LSN of the subtree.
    newest: Lsn,
    left: Link,
    right: Link,
}

impl Default for Fragments {
    fn default() -> Self {
        Fragments {
            root: ArcSwap::from_pointee(Tree::default()),
            writing: Mutex::new(()),
        }
    }
}

impl Fragments {
    /// Adds a fragment. The caller does this before it publishes the LSN, so no reader that may see
    /// the fragment misses it. O(log n) expected.
    pub fn insert(&self, lo: &[u8], hi: Option<&[u8]>, lsn: Lsn) {
        let fragment = Fragment {
            lo: lo.into(),
            hi: hi.map(Arc::from),
            lsn,
        };
        let writing = self.writing.lock();
        let before = self.root.load_full();
        let after = before.with(fragment);
        let replaced = self.root.swap(Arc::new(after));
        drop(writing);
        drop(replaced);
    }

    /// All fragments now.
    #[must_use]
    pub fn tree(&self) -> Arc<Tree> {
        self.root.load_full()
    }
}

impl Tree {
    /// Number of fragments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no fragments.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of memory that the fragments take, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.bytes
    }

    /// The newest LSN below `before` of the fragments that cover a key. O(log n) expected, if few
    /// fragments cover the key.
    #[must_use]
    pub fn newest_over(&self, key: &[u8], before: Lsn) -> Option<Lsn> {
        let mut newest = None;
        if mutant::active("newer-range-delete-hides-older-ones") {
            newest_over(&self.root, key, Lsn(u64::MAX), &mut newest);
            return newest.filter(|lsn| *lsn < before);
        }
        newest_over(&self.root, key, before, &mut newest);
        newest
    }

    /// The greatest end of the fragments below `before` that cover a key. Other fragments may cover
    /// that end again. The outer `None` means that `key` is not deleted, and the inner one that
    /// everything behind it is. O(log n) expected.
    #[must_use]
    pub fn end_over(&self, key: &[u8], before: Lsn) -> Option<Option<&[u8]>> {
        let mut greatest = None;
        end_over(&self.root, key, before, &mut greatest);
        greatest
    }

    /// The lowest start, at or above `key`, of the fragments below `before`.
    #[must_use]
    pub fn next_start(&self, key: &[u8], before: Lsn) -> Option<&[u8]> {
        next_start(&self.root, key, before)
    }

    /// The greatest end of the fragments below `before` that begin below a key. `None` as the key
    /// stands for the end of all keys. The outer `None` means that there is no such fragment, and
    /// the inner one that a fragment reaches the end of all keys.
    #[must_use]
    pub fn last_end(&self, below: Option<&[u8]>, before: Lsn) -> Option<Option<&[u8]>> {
        let mut greatest = None;
        last_end(&self.root, below, before, &mut greatest);
        greatest
    }

    /// The lowest start of the fragments below `before` that begin below a key and reach or touch
    /// it. `None` as the key stands for the end of all keys. Other fragments may touch that start
    /// again.
    #[must_use]
    pub fn start_touching(&self, key: Option<&[u8]>, before: Lsn) -> Option<&[u8]> {
        match key {
            Some(key) => lowest(&self.root, key, before),
            None => lowest_endless(&self.root, before),
        }
    }

    /// A fragment with an LSN from `since` to below `before` that deletes keys from `lo` to below
    /// `hi`, if there is one. `None` is the end of all keys. O(log n) expected, if few fragments
    /// are as new.
    #[must_use]
    pub fn any_since(
        &self,
        (lo, hi): (&[u8], Option<&[u8]>),
        since: Lsn,
        before: Lsn,
    ) -> Option<&Fragment> {
        any_since(&self.root, (lo, hi), since, before)
    }

    /// Calls `visit` for every fragment, in the order of `lo`, then of the LSN.
    pub fn for_each<'a>(&'a self, visit: &mut dyn FnMut(&'a Fragment)) {
        for_each(&self.root, visit);
    }

    fn with(&self, fragment: Fragment) -> Tree {
        let bytes = fragment.lo.len() + fragment.hi.as_deref().map_or(0, <[u8]>::len);
        // The Arcs of two keys and of a node, with the allocator's share.
        let bytes = (bytes + size_of::<Node>() + 64) as u64;
        Tree {
            root: Some(insert(&self.root, fragment)),
            count: self.count + 1,
            bytes: self.bytes + bytes,
        }
    }
}

impl Node {
    fn new(fragment: Fragment, priority: u64, left: Link, right: Link) -> Arc<Node> {
        let (mut end, mut newest) = (fragment.hi.clone(), fragment.lsn);
        for child in [&left, &right].into_iter().flatten() {
            if ends_before(end.as_deref(), child.end.as_deref()) {
                end = child.end.clone();
            }
            newest = newest.max(child.newest);
        }
        Arc::new(Node {
            fragment,
            priority,
            end,
            newest,
            left,
            right,
        })
    }

    /// A copy of the node with other children.
    fn over(&self, left: Link, right: Link) -> Arc<Node> {
        Node::new(self.fragment.clone(), self.priority, left, right)
    }

    fn comes_before(&self, fragment: &Fragment) -> bool {
        (&self.fragment.lo, self.fragment.lsn) < (&fragment.lo, fragment.lsn)
    }
}

/// Whether an end is below another one; `None` is the end of all keys.
fn ends_before(a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
    match (a, b) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(a), Some(b)) => a < b,
    }
}

fn insert(link: &Link, fragment: Fragment) -> Arc<Node> {
    // Spread over all 64 bits, and the same in every run.
    let priority = hash64(&fragment.lsn.0.to_le_bytes());
    match link {
        Some(node) if node.priority >= priority => match node.comes_before(&fragment) {
            true => node.over(node.left.clone(), Some(insert(&node.right, fragment))),
            false => node.over(Some(insert(&node.left, fragment)), node.right.clone()),
        },
        _ => {
            let (left, right) = split(link, &fragment);
            Node::new(fragment, priority, left, right)
        }
    }
}

/// The nodes before a fragment, and those behind it.
fn split(link: &Link, fragment: &Fragment) -> (Link, Link) {
    let Some(node) = link else {
        return (None, None);
    };
    if node.comes_before(fragment) {
        let (left, right) = split(&node.right, fragment);
        (Some(node.over(node.left.clone(), left)), right)
    } else {
        let (left, right) = split(&node.left, fragment);
        (left, Some(node.over(right, node.right.clone())))
    }
}

fn newest_over(link: &Link, key: &[u8], before: Lsn, newest: &mut Option<Lsn>) {
    let Some(node) = link else { return };
    if Some(node.newest) <= *newest || node.end.as_deref().is_some_and(|end| end <= key) {
        return;
    }
    if *node.fragment.lo <= *key {
        let lsn = node.fragment.lsn;
        if lsn < before && node.fragment.covers(key) {
            *newest = (*newest).max(Some(lsn));
        }
        newest_over(&node.right, key, before, newest);
    }
    newest_over(&node.left, key, before, newest);
}

fn end_over<'a>(link: &'a Link, key: &[u8], before: Lsn, greatest: &mut Option<Option<&'a [u8]>>) {
    let Some(node) = link else { return };
    let end = node.end.as_deref();
    if end.is_some_and(|end| end <= key) || greatest.is_some_and(|g| !ends_before(g, end)) {
        return;
    }
    if *node.fragment.lo <= *key {
        let end = node.fragment.hi.as_deref();
        if node.fragment.lsn < before
            && node.fragment.covers(key)
            && greatest.is_none_or(|least| ends_before(least, end))
        {
            *greatest = Some(end);
        }
        end_over(&node.right, key, before, greatest);
    }
    end_over(&node.left, key, before, greatest);
}

/// The lowest start of the fragments below `before` that begin before a key and reach or touch it.
fn lowest<'a>(link: &'a Link, key: &[u8], before: Lsn) -> Option<&'a [u8]> {
    let node = link.as_ref()?;
    let falls_short = |end: Option<&[u8]>| end.is_some_and(|end| end < key);
    if falls_short(node.end.as_deref()) {
        return None;
    }
    // Starts ascend from left to right, so the first one that fits is the lowest.
    if let Some(found) = lowest(&node.left, key, before) {
        return Some(found);
    }
    let fragment = &node.fragment;
    if *fragment.lo >= *key {
        return None;
    }
    match fragment.lsn < before && !falls_short(fragment.hi.as_deref()) {
        true => Some(&fragment.lo),
        false => lowest(&node.right, key, before),
    }
}

/// The lowest start of the fragments below `before` that have no end.
fn lowest_endless(link: &Link, before: Lsn) -> Option<&[u8]> {
    let node = link.as_ref().filter(|node| node.end.is_none())?;
    let fragment = &node.fragment;
    lowest_endless(&node.left, before)
        .or((fragment.lsn < before && fragment.hi.is_none()).then_some(&*fragment.lo))
        .or_else(|| lowest_endless(&node.right, before))
}

fn next_start<'a>(link: &'a Link, key: &[u8], before: Lsn) -> Option<&'a [u8]> {
    let node = link.as_ref()?;
    if *node.fragment.lo < *key {
        return next_start(&node.right, key, before);
    }
    next_start(&node.left, key, before)
        .or((node.fragment.lsn < before).then_some(&*node.fragment.lo))
        .or_else(|| next_start(&node.right, key, before))
}

fn last_end<'a>(
    link: &'a Link,
    below: Option<&[u8]>,
    before: Lsn,
    greatest: &mut Option<Option<&'a [u8]>>,
) {
    let Some(node) = link else { return };
    if greatest.is_some_and(|end| !ends_before(end, node.end.as_deref())) {
        return;
    }
    if below.is_none_or(|below| *node.fragment.lo < *below) {
        let end = node.fragment.hi.as_deref();
        if node.fragment.lsn < before && greatest.is_none_or(|least| ends_before(least, end)) {
            *greatest = Some(end);
        }
        last_end(&node.right, below, before, greatest);
    }
    last_end(&node.left, below, before, greatest);
}

fn any_since<'a>(
    link: &'a Link,
    (lo, hi): (&[u8], Option<&[u8]>),
    since: Lsn,
    before: Lsn,
) -> Option<&'a Fragment> {
    let node = link.as_ref()?;
    if node.newest < since || node.end.as_deref().is_some_and(|end| end <= lo) {
        return None;
    }
    let fragment = &node.fragment;
    let ends_behind = fragment.hi.as_deref().is_none_or(|end| end > lo);
    // Fragments to the right begin at or behind this one.
    let begins_before = hi.is_none_or(|hi| *fragment.lo < *hi);
    let is_new = fragment.lsn >= since && fragment.lsn < before;
    any_since(&node.left, (lo, hi), since, before)
        .or((is_new && ends_behind && begins_before).then_some(fragment))
        .or_else(|| match begins_before {
            true => any_since(&node.right, (lo, hi), since, before),
            false => None,
        })
}

fn for_each<'a>(link: &'a Link, visit: &mut dyn FnMut(&'a Fragment)) {
    if let Some(node) = link {
        for_each(&node.left, visit);
        visit(&node.fragment);
        for_each(&node.right, visit);
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;

    use super::*;

    #[test]
    fn answers_agree_with_a_list_of_fragments() {
        let (_env, random) = Env::simulated(42);
        for round in 0..300 {
            let keys = 1 + random.below(60);
            let fragments = Fragments::default();
            let mut list: Vec<(Vec<u8>, Option<Vec<u8>>, Lsn)> = Vec::new();
            let count = random.below(40) as usize;
            let mut lsns: Vec<u64> = (0..count as u64).map(|i| 10 + i * 3).collect();
            // LSNs come out of order: writers enter them side by side.
            for i in (1..count).rev() {
                lsns.swap(i, random.below(i as u64 + 1) as usize);
            }
            for lsn in lsns {
                let lo = random.below(keys);
                let hi = lo + 1 + random.below(1 + keys / 4);
                let hi = (random.below(20) > 0).then(|| vec![hi as u8]);
                fragments.insert(&[lo as u8], hi.as_deref(), Lsn(lsn));
                list.push((vec![lo as u8], hi, Lsn(lsn)));
            }
            let tree = fragments.tree();
            assert_eq!(tree.len(), list.len());
            let mut seen = Vec::new();
            tree.for_each(&mut |f| {
                seen.push((f.lo.to_vec(), f.hi.as_deref().map(<[u8]>::to_vec), f.lsn))
            });
            let mut sorted = list.clone();
            sorted.sort_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
            assert_eq!(seen, sorted);
            for _ in 0..80 {
                let key = [random.below(keys + 20) as u8];
                let before = Lsn(random.below(10 + 3 * count as u64 + 9));
                let covers = |key: u8, f: &&(Vec<u8>, Option<Vec<u8>>, Lsn)| {
                    f.2 < before && f.0[0] <= key && f.1.as_ref().is_none_or(|hi| key < hi[0])
                };
                let newest = list.iter().filter(|f| covers(key[0], f)).map(|f| f.2).max();
                assert_eq!(tree.newest_over(&key, before), newest, "round {round}");
                let rank =
                    |end: &Option<Vec<u8>>| end.as_ref().map_or(256, |end| usize::from(end[0]));
                let covering = list.iter().filter(|f| covers(key[0], f));
                let until = covering.map(|f| f.1.clone()).max_by_key(rank);
                let got = tree.end_over(&key, before);
                let got = got.map(|end| end.map(<[u8]>::to_vec));
                assert_eq!(got, until, "round {round}");
                let since = Lsn(random.below(before.0 + 1));
                let span = (random.below(5) > 0).then(|| [key[0].saturating_add(4)]);
                let (lo, hi) = (&key[..], span.as_ref().map(|hi| &hi[..]));
                let touches = |f: &&(Vec<u8>, Option<Vec<u8>>, Lsn)| {
                    let ends_behind = f.1.as_ref().is_none_or(|end| end[..] > *lo);
                    f.2 >= since && f.2 < before && ends_behind && hi.is_none_or(|hi| f.0[..] < *hi)
                };
                let any = tree.any_since((lo, hi), since, before);
                assert_eq!(
                    any.is_some(),
                    list.iter().any(|f| touches(&f)),
                    "round {round}"
                );
                if let Some(any) = any {
                    let any = (
                        any.lo.to_vec(),
                        any.hi.as_deref().map(<[u8]>::to_vec),
                        any.lsn,
                    );
                    assert!(touches(&&any) && list.contains(&any));
                }
                let starts = list.iter().filter(|f| f.2 < before);
                let next = starts
                    .clone()
                    .map(|f| f.0.clone())
                    .filter(|lo| lo[0] >= key[0]);
                let got = tree.next_start(&key, before).map(<[u8]>::to_vec);
                assert_eq!(got, next.min(), "round {round}");
                // The end of all keys is above each key.
                for below in [Some(&key[..]), None] {
                    let place = below.map_or(256, |key| usize::from(key[0]));
                    let begun = starts.clone().filter(|f| usize::from(f.0[0]) < place);
                    let last = begun.clone().map(|f| f.1.clone()).max_by_key(rank);
                    let got = tree.last_end(below, before);
                    let got = got.map(|end| end.map(<[u8]>::to_vec));
                    assert_eq!(got, last, "round {round}");
                    let touching = begun.filter(|f| rank(&f.1) >= place).map(|f| f.0.clone());
                    let got = tree.start_touching(below, before).map(<[u8]>::to_vec);
                    assert_eq!(got, touching.min(), "round {round}");
                }
            }
        }
    }

    #[test]
    fn a_reader_keeps_the_fragments_that_it_began_with() {
        let fragments = Fragments::default();
        fragments.insert(b"a", Some(b"c"), Lsn(10));
        let before = fragments.tree();
        fragments.insert(b"b", Some(b"d"), Lsn(20));
        let all = Lsn(u64::MAX);
        assert_eq!(before.newest_over(b"b", all), Some(Lsn(10)));
        let after = fragments.tree();
        assert_eq!(after.newest_over(b"b", all), Some(Lsn(20)));
        // A bound between the two sees the older one alone.
        assert_eq!(after.newest_over(b"b", Lsn(20)), Some(Lsn(10)));
        assert_eq!(after.newest_over(b"c", Lsn(20)), None);
        assert!(before.memory_bytes() < after.memory_bytes());
    }

    #[test]
    fn many_fragments_in_key_order_do_not_make_a_list() {
        fn depth(link: &Link) -> usize {
            link.as_ref()
                .map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
        }
        let fragments = Fragments::default();
        for i in 0..20_000u64 {
            let (lo, hi) = (i.to_be_bytes(), (i + 1).to_be_bytes());
            fragments.insert(&lo, Some(&hi), Lsn(4096 + 40 * i));
        }
        let tree = fragments.tree();
        assert!(depth(&tree.root) < 60, "{}", depth(&tree.root));
        let (last, end) = (19_999u64.to_be_bytes(), 20_000u64.to_be_bytes());
        assert_eq!(tree.end_over(&last, Lsn(u64::MAX)), Some(Some(&end[..])));
    }
}
