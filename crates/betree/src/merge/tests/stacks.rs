//! Trees with tiered buffers.

use super::*;

#[test]
fn random_merges_with_tiered_buffers_match_a_map_and_keep_every_rule() {
    let mut height = 0;
    for seed in 0..12 {
        let fanout = [4, 5, 8][seed as usize % 3];
        let group_bytes = [2048, 3000, 8192][seed as usize / 3 % 3];
        let space = [None, Some(130), Some(110)][seed as usize / 2 % 3];
        let mut tree = Tree::tiered(group_bytes, fanout, space);
        tree.options.maplets = seed % 4 != 3;
        height = height.max(churn_of(tree, seed, 120, None).height_max);
    }
    assert!(height >= 3, "{height}");
}

#[test]
fn buffers_change_their_kind_between_merges() {
    for seed in 20..32 {
        let fanout = [4, 5, 8][seed as usize % 3];
        let space = [None, Some(130), Some(110)][seed as usize / 2 % 3];
        let mut tree = Tree::new(2048, fanout, space);
        tree.options.maplets = seed % 2 == 0;
        churn_of(tree, seed, 120, Some([3, 20, 60][seed as usize % 3]));
    }
}

/// A tree with tiered buffers that hold several runs.
fn stacked(seed: u64) -> Tree {
    let mut random = Random(seed);
    let mut tree = Tree::tiered(4096, 8, None);
    for _ in 0..60 {
        let messages = memtable(&mut random, Kind::Uniform, 8192, &tree);
        tree.merge(&messages);
    }
    assert!(tree.height_max >= 2);
    tree
}

fn segments_above_leaves(tree: &Tree) -> Vec<crate::node::Segment> {
    let (root, _) = tree.root_node();
    let mut found = Vec::new();
    for pivot in &root.pivots {
        let Child::Node { page, .. } = &pivot.child else {
            continue;
        };
        let node = load_node(&tree.store, page, root.height - 1).unwrap();
        found.extend(node.levels.iter().flatten().cloned());
    }
    found
}

/// SplinterDB never finishes the compactions behind one that failed.
#[test]
fn a_damaged_run_keeps_no_memtable_from_being_merged() {
    let mut random = Random(91);
    let mut tree = stacked(90);
    // The oldest run of a node: its last level.
    let damaged = segments_above_leaves(&tree).pop().unwrap().group;
    let flip = |tree: &Tree| {
        assert!(tree.disk.corrupt("data", damaged.offset + 20, 0x40));
        tree.budget.set_limit(0);
        while tree.store.shrink() {}
        tree.budget.set_limit(64 << 20);
    };
    flip(&tree);
    tree.options.runs = Some(2);
    let (mut failed, mut added, mut levels) = (0, 0, 0);
    for round in 0..60 {
        // Uniform, so that the damaged pivot gets messages, and more runs, each time.
        let messages = memtable(&mut random, Kind::Uniform, 8192, &tree);
        let error = match merged(&mut tree, &messages) {
            Ok(()) => {
                added += 1;
                continue;
            }
            Err(error) => error,
        };
        failed += 1;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{round}");
        let page = damaged.id.to_string();
        assert!(error.context().contains(&("page", page)), "{error}");
        tree.options.around.adds_only = true;
        merged(&mut tree, &messages).unwrap();
        tree.options.around.adds_only = false;
        tree.options.around.pages = [damaged.id].into();
        let (root, _) = tree.root_node();
        levels = levels.max(root.levels.len());
    }
    assert!(failed == 1 && added > 30, "{failed} failed, {added} merged");
    flip(&tree);
    tree.options.around = terrapin_structure::Around::default();
    tree.check_content();
    tree.verify();
    // Everything is merged once nothing is known to be damaged.
    let messages = memtable(&mut random, Kind::Uniform, 8192, &tree);
    tree.merge(&messages);
    tree.verify();
}

/// Merges messages, or gives the merge up.
fn merged(tree: &mut Tree, messages: &Map) -> Result<()> {
    let merge = tree.begin(messages);
    loop {
        match merge.step() {
            Ok(MergeStep::Done) => break,
            Ok(_) => {}
            Err(error) => {
                merge.abandon();
                return Err(error);
            }
        }
    }
    tree.take(messages, &*merge);
    Ok(())
}

fn written(tree: &Tree) -> u64 {
    let written = tree.store.metrics().written;
    written.leaves + written.segments
}

fn puts(keys: impl Iterator<Item = u64>) -> Map {
    keys.map(|key| (key_of(key), Some(vec![key as u8; 60])))
        .collect()
}

/// What is ascending is written once, as leaves behind the last leaf, whatever the tree's height.
#[test]
fn ascending_puts_are_written_once() {
    let mut tree = Tree::tiered(4096, 8, Some(130));
    for number in 0..60 {
        let from = number * 900;
        tree.merge(&puts((0..900).map(|i| from + i)));
    }
    assert!(tree.height_max >= 3);
    let stats = tree.version.stats().unwrap();
    assert_eq!(stats.buffered_records, 0);
    let (written, on_disk) = (written(&tree), stats.page_bytes);
    assert!(written * 100 < on_disk * 108, "{written} of {on_disk}");
    tree.verify();
}

/// Messages that come behind the end of a leaf, from the memtable and from a run of the node above.
/// The run has a key in front of the end, too.
#[test]
fn an_append_asks_the_runs_from_above() {
    for seed in 0..30 {
        let mut random = Random(1000 + seed);
        let mut tree = Tree::tiered(4096, 4, None);
        let mut from = 0;
        for _ in 0..60 {
            let stragglers = (0..6).map(|_| random.below(from + 1));
            let stragglers: Vec<_> = stragglers.collect();
            let ascending = (0..300).map(|i| from + i);
            let messages = puts(ascending.chain(stragglers));
            from += 250 + random.below(100);
            tree.merge(&messages);
        }
        tree.verify();
    }
}

/// Leveled buffers after tiered ones: no merge has to do all that the tiered ones left.
#[test]
fn a_change_to_leveled_buffers_rewrites_little_at_once() {
    let mut random = Random(7);
    let mut tree = Tree::tiered(4096, 16, None);
    let memtable = |random: &mut Random| puts((0..400).map(|_| random.below(1 << 40)));
    let mut most = 0;
    for round in 0..150 {
        let before = written(&tree);
        let messages = memtable(&mut random);
        tree.merge(&messages);
        if round > 75 {
            most = most.max(written(&tree) - before);
        }
    }
    let waiting = tree.version.stats().unwrap().buffered_bytes;
    tree.change_buffers();
    let mut most_then = 0;
    for _ in 0..60 {
        let before = written(&tree);
        let messages = memtable(&mut random);
        tree.merge(&messages);
        most_then = most_then.max(written(&tree) - before);
    }
    assert!(
        most_then < waiting / 2,
        "{most_then} at once of {waiting}; {most} before"
    );
    let (root, _) = tree.root_node();
    assert!(root.levels.len() <= 4, "{}", root.levels.len());
}

/// A delete of a record on a full disk merges a pivot with all its runs. The reserve holds that.
#[test]
fn a_delete_on_a_full_disk_writes_less_than_the_reserve() {
    let mut random = Random(31);
    let mut tree = Tree::tiered(8192, 16, None);
    for _ in 0..100 {
        let messages = super::short::two_groups(&mut random);
        tree.merge(&messages);
    }
    let group_bytes = tree.options.group_bytes;
    tree.options.space_is_short = true;
    for number in (0..6000).step_by(100) {
        let before = tree.disk.stats_total().written_bytes;
        tree.merge(&Map::from([(key_of(number), None)]));
        let written = tree.disk.stats_total().written_bytes - before;
        assert!(written < 20 * group_bytes, "{written} bytes for one delete");
    }
    tree.verify();
}

/// Runs of tombstones give the space back although no put comes (the oldest runs of size-tiered
/// stores keep theirs for ever).
#[test]
fn deletes_give_space_back() {
    let mut random = Random(3);
    let mut tree = Tree::tiered(4096, 8, Some(130));
    for _ in 0..80 {
        let messages = puts((0..300).map(|_| random.below(20_000)));
        tree.merge(&messages);
    }
    let full = tree.store.live_bytes();
    let keys: Vec<_> = tree.oracle.keys().cloned().collect();
    for chunk in keys.chunks(300) {
        tree.merge(&chunk.iter().map(|key| (key.clone(), None)).collect());
    }
    assert!(tree.oracle.is_empty());
    let left = tree.store.live_bytes();
    assert!(left < full / 4, "{left} of {full} bytes are left");
}

/// Very small memtables over a wide node: runs whose segments span many pivots.
#[test]
fn tiny_memtables_make_no_endless_stacks() {
    let mut random = Random(17);
    let mut tree = Tree::tiered(16384, 64, Some(150));
    let mut most = 0;
    for _ in 0..400 {
        let messages = puts((0..40).map(|_| random.below(1 << 40)));
        tree.merge(&messages);
        if let Root::Node(..) = tree.root() {
            most = most.max(tree.root_node().0.levels.len());
        }
    }
    assert!((8..97).contains(&most), "{most}");
    let live = tree.store.live_bytes();
    let bytes: u64 = tree
        .oracle
        .iter()
        .map(|(k, v)| (k.len() + v.len()) as u64)
        .sum();
    assert!(live < bytes * 2, "{live} for {bytes}");
    tree.verify();
}

/// Overwriting keeps the bound of space.
#[test]
fn overwriting_is_bounded() {
    let mut random = Random(23);
    let mut tree = Tree::tiered(8192, 16, Some(150));
    let mut round = |tree: &mut Tree| {
        let messages = puts((0..600).map(|_| random.below(6000)));
        tree.merge(&messages);
    };
    for _ in 0..40 {
        round(&mut tree);
    }
    let bytes: u64 = tree
        .oracle
        .iter()
        .map(|(k, v)| (k.len() + v.len()) as u64)
        .sum();
    for _ in 0..60 {
        round(&mut tree);
        let live = tree.store.live_bytes();
        // Blocks of 512 bytes, indexes, filters and nodes double it. Without the bound it was 4.7.
        assert!(live < bytes * 3, "{live} for {bytes}");
    }
}

/// What runs hide is counted, so that the bound of waste knows it.
#[test]
fn stats_know_what_runs_supersede() {
    let mut random = Random(23);
    let mut tree = Tree::tiered(8192, 16, Some(10_000));
    for round in 0..80 {
        let messages = puts((0..600).map(|_| random.below(6000)));
        tree.merge(&messages);
        let stats = tree.version.stats().unwrap();
        let all = stats.buffered_bytes + stats.leaf_bytes;
        let bytes = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.len() + value.len()) as u64;
        let superseded = all - tree.oracle.iter().map(bytes).sum::<u64>();
        let said = stats.superseded_bytes;
        assert!(
            said.abs_diff(superseded) < all / 6,
            "round {round}: {said} instead of {superseded} of {all}"
        );
    }
}
