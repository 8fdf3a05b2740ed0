//! The figures, pages and estimates of a version, and the absence of findings for a sound tree.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;

use terrapin_structure::{Figure, Finding, Ordered, Version};

use super::grown::{Grown, Random};
use crate::node::Root;

pub(super) fn findings(version: &dyn Version) -> Vec<Finding> {
    let mut findings = Vec::new();
    version
        .verify(&mut |finding| findings.push(finding))
        .unwrap();
    findings
}

#[test]
fn a_sound_tree_has_no_findings() {
    for seed in 0..40 {
        let grown = Grown::new(2000 + seed, (seed % 4) as u16, 60 + 10 * seed as usize);
        let findings = findings(&*grown.version());
        assert!(findings.is_empty(), "seed {seed}: {findings:?}");
    }
}

#[test]
fn figures_and_pages_match_what_was_written() {
    for seed in 0..20 {
        let grown = Grown::new(3000 + seed, (seed % 4) as u16, 200);
        let version = grown.version();
        let stats = version.stats().unwrap();
        assert_eq!(stats.figure("height").unwrap(), seed % 4);
        assert_eq!(stats.leaf_records, grown.leaf_records);
        assert_eq!(stats.buffered_records, grown.buffered_records);
        let levels = |(name, _): &&(&str, Figure)| *name == "buffer_level_bytes";
        let Some((_, Figure::List(level_bytes))) = stats.named.iter().find(levels) else {
            panic!("{stats:?}");
        };
        assert_eq!(level_bytes.iter().sum::<u64>(), stats.buffered_bytes);
        assert_eq!(
            stats.figure("nodes").unwrap(),
            if seed % 4 == 0 { 0 } else { grown.nodes }
        );
        let mut pages = HashMap::new();
        version
            .pages(&mut |page| {
                assert!(
                    pages.insert(page.id, page).is_none(),
                    "every page has one reference here"
                );
                Ok(())
            })
            .unwrap();
        assert_eq!(
            pages.len() as u64,
            stats.figure("nodes").unwrap() + stats.figure("groups").unwrap()
        );
        assert!(stats.figure("groups").unwrap() >= grown.leaves);
        assert_eq!(
            pages.values().map(|p| p.bytes).sum::<u64>(),
            stats.page_bytes
        );
        let extents = pages.values().map(|p| p.extent().unwrap().bytes);
        assert_eq!(extents.sum::<u64>(), stats.parts.total());
        assert!(stats.parts.leaf_blocks > stats.leaf_bytes);
        assert!(stats.parts.buffer_blocks >= stats.buffered_bytes);
        assert!(stats.superseded_bytes <= stats.buffered_bytes);
        let offsets: HashSet<u64> = pages.values().map(|p| p.offset).collect();
        assert_eq!(offsets.len(), pages.len());
    }
}

#[test]
fn a_walk_ends_at_the_first_error_of_its_visitor() {
    let grown = Grown::new(3001, 2, 200);
    let mut calls = 0;
    let stopped = grown.version().pages(&mut |_| {
        calls += 1;
        Err(terrapin_base::Error::internal("enough"))
    });
    assert_eq!((stopped.unwrap_err().message(), calls), ("enough", 1));
}

#[test]
fn estimates_are_close() {
    let grown = Grown::new(4000, 2, 4000);
    let version = grown.version();
    let stats = version.stats().unwrap();
    let all = version
        .estimate((Bound::Unbounded, Bound::Unbounded))
        .unwrap();
    assert_eq!(
        all.records,
        stats.leaf_records + stats.buffered_records,
        "few children: all are read"
    );
    assert_eq!(all.bytes, stats.leaf_bytes + stats.buffered_bytes);
    let mut random = Random::new(1);
    for _ in 0..100 {
        let (a, b) = (random.below(4000), random.below(4000));
        let (lo, hi) = (&grown.universe[a.min(b)][..], &grown.universe[a.max(b)][..]);
        let range = |lo, hi| version.estimate((lo, hi)).unwrap().records;
        let parts = range(Bound::Unbounded, Bound::Excluded(lo))
            + range(Bound::Included(lo), Bound::Excluded(hi))
            + range(Bound::Included(hi), Bound::Unbounded);
        assert!(
            parts.abs_diff(all.records) <= all.records / 20,
            "{parts} of {}",
            all.records
        );
        assert_eq!(range(Bound::Included(hi), Bound::Excluded(lo)), 0);
        let live = grown
            .records
            .range(grown.universe[a.min(b)].clone()..grown.universe[a.max(b)].clone())
            .count() as u64;
        let found = range(Bound::Included(lo), Bound::Excluded(hi));
        assert!(found + 200 > live, "{found} of {live} records");
    }
}

#[test]
fn a_tree_without_records_has_no_figures() {
    let grown = Grown::new(1, 0, 20);
    let empty = crate::version::TreeVersion::empty(grown.pages());
    assert_eq!(empty.root(), Root::Empty.encode());
    let stats = empty.stats().unwrap();
    assert_eq!(
        (
            stats.figure("height").unwrap(),
            stats.figure("nodes").unwrap(),
            stats.figure("groups").unwrap(),
            stats.page_bytes
        ),
        (0, 0, 0, 0)
    );
    assert!(findings(&*empty).is_empty());
    empty.pages(&mut |page| panic!("{page:?}")).unwrap();
}
