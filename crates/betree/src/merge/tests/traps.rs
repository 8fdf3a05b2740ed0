//! Faults that other size-tiered stores had, and holes that the design's review found. Each test
//! names the fault. docs/TIERED.md lists them with the mutants that they notice.

use super::*;

fn puts(keys: impl Iterator<Item = u64>) -> Map {
    keys.map(|key| (key_of(key), Some(vec![key as u8; 60])))
        .collect()
}

fn written(tree: &Tree) -> u64 {
    let written = tree.store.metrics().written;
    written.leaves + written.segments
}

/// SplinterDB's compactions left out what was beyond their size (#454).
#[test]
fn a_merge_of_any_length_drops_no_record() {
    for runs in [2, 64] {
        let mut tree = Tree::tiered(2048, 64, None);
        tree.options.runs = Some(runs);
        for part in 0..6 {
            // A thousand page groups at once, between those that are there.
            tree.merge(&puts((0..25_000).map(|i| i * 6 + part)));
        }
        assert_eq!(tree.oracle.len(), 150_000);
        tree.check_content();
        tree.verify();
    }
}

/// Passes of SplinterDB's that found nothing to build a filter of failed (#201, #343): memtables of
/// one record, and keys in order.
#[test]
fn memtables_of_one_record_in_key_order_fill_runs_and_maplets() {
    for ascends in [true, false] {
        let mut tree = Tree::tiered(2048, 4, None);
        tree.options.maplets = true;
        for number in 0..400 {
            let number = if ascends { number } else { 400 - number };
            tree.merge(&puts(std::iter::once(number)));
        }
        maplets::check_gets(&tree);
        tree.verify();
        let most = tree.version.stats().unwrap().figure("buffer_runs_max");
        assert!(most <= Some(24), "{most:?}");
    }
}

/// A range of the node's keys has runs in some of its pivots only. A segment that spans them may
/// not sink past what lies between its ends.
#[test]
fn a_run_with_a_hole_stays_above_what_lies_in_the_hole() {
    let mut random = Random(41);
    let mut tree = Tree::tiered(8192, 16, None);
    tree.options.runs = Some(64);
    for round in 0..80 {
        // Few keys over everything, then many in the middle, which go down.
        let wide = puts((0..40).map(|_| random.below(20_000)));
        tree.merge(&wide);
        if round % 3 == 0 {
            let from = 4000 + random.below(12_000);
            tree.merge(&puts((0..1200).map(|i| from + i)));
        }
    }
    tree.check_content();
    maplets::check_gets(&tree);
    tree.verify();
}

/// Nodes that are small by their pivots, and large by their segments, could be united and split for
/// ever.
#[test]
fn a_tree_of_runs_does_not_split_and_unite_again_and_again() {
    let mut random = Random(43);
    let mut tree = Tree::tiered(4096, 8, None);
    tree.options.runs = Some(64);
    for _ in 0..80 {
        tree.merge(&puts((0..120).map(|_| random.below(1 << 40))));
    }
    let nodes = |tree: &Tree| tree.version.stats().unwrap().figure("nodes").unwrap();
    let (mut before, mut changes, mut pages) = (nodes(&tree), 0, 0);
    for number in 0..60 {
        let page_bytes = tree.store.metrics().written.nodes;
        tree.merge(&puts(std::iter::once(number % 3)));
        pages = pages.max(tree.store.metrics().written.nodes - page_bytes);
        changes += usize::from(nodes(&tree) != before);
        before = nodes(&tree);
    }
    assert!(changes <= 2, "{changes} of 60 small merges changed nodes");
    let height = tree.version.stats().unwrap().figure("height").unwrap();
    let most = (height + 2) * (64 << 10);
    assert!(pages < most, "one record wrote {pages} bytes of nodes");
}

/// Leaves of compressible records are short on disk. They count by what they are there, so an
/// appended leaf is not taken for a small one, and ascending input is written once.
#[test]
fn compressed_ascending_puts_are_written_once() {
    let mut tree = Tree::tiered(4096, 8, Some(130));
    tree.options.compression = Compression::Lz4;
    for number in 0..40 {
        let from = number * 900;
        tree.merge(&puts((0..900).map(|i| from + i)));
    }
    let (written, on_disk) = (written(&tree), tree.version.stats().unwrap().page_bytes);
    assert!(written * 100 < on_disk * 115, "{written} of {on_disk}");
    tree.verify();
}

/// Deletes that lie in runs of the upper nodes count what they hide far below.
#[test]
fn deletes_give_space_back_from_every_height() {
    let mut random = Random(47);
    let mut tree = Tree::tiered(2048, 4, Some(130));
    for _ in 0..60 {
        tree.merge(&puts((0..400).map(|_| random.below(30_000))));
    }
    assert!(tree.height_max >= 4, "{}", tree.height_max);
    let full = tree.store.live_bytes();
    // Scattered, so that no memtable brings much for any one leaf.
    let mut keys: Vec<_> = tree.oracle.keys().cloned().collect();
    for at in 0..keys.len() {
        keys.swap(at, random.below(at as u64 + 1) as usize);
    }
    for chunk in keys.chunks(400) {
        tree.merge(&chunk.iter().map(|key| (key.clone(), None)).collect());
    }
    let left = tree.store.live_bytes();
    assert!(left < full / 3, "{left} of {full} bytes are left");
}

/// A damaged leaf keeps its neighbours from taking its range; everything else is merged and united.
#[test]
fn what_is_damaged_is_united_with_nothing() {
    let mut random = Random(53);
    let mut tree = Tree::tiered(4096, 8, None);
    for _ in 0..40 {
        tree.merge(&memtable(&mut random, Kind::Uniform, 8192, &tree));
    }
    let (root, height) = tree.root_node();
    let below = match &root.pivots[0].child {
        Child::Node { page, .. } => load_node(&tree.store, page, height - 1).unwrap(),
        Child::Leaf(_) => root,
    };
    let mut leaves = below.pivots.iter().filter_map(|pivot| match &pivot.child {
        Child::Leaf(leaf) => Some(*leaf),
        Child::Node { .. } => None,
    });
    let damaged = leaves.next_back().expect("nodes above leaves");
    tree.options.around.pages = [damaged.id].into();
    // Nearly everything goes, so that leaves are small and nodes are few.
    for _ in 0..40 {
        tree.merge(&memtable(&mut random, Kind::DeleteSome, 4096, &tree));
    }
    let is_there = tree.references.contains_key(&damaged.id);
    assert!(is_there, "the damaged leaf was read and rewritten");
    tree.check_content();
    tree.verify();
}
