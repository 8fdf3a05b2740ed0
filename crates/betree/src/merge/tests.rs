//! Merges compared with a map, and a check of every rule after each. The trees have so few pivots
//! and so small leaves that every rare path is common.

mod compaction;
mod erase;
mod hidden;
mod ingest;
mod large;
mod lone;
mod maplets;
mod panics;
mod short;
mod stacks;
mod tree;
mod watched;
mod workers;

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{ErrorKind, Message, Purpose, Result};
use terrapin_disk::sim::{Fault, FaultError};
use terrapin_pages::block::Compression;
use terrapin_pages::group::{DEADLINES_MAX, Deadlines, RECORD_BYTES_MAX, SEPARATED_BYTES_MAX};
use terrapin_structure::{
    Direction, Estimate, Merge, MergeInput, MergeOptions, MergeStep, MessageCursor, Structure,
};

use super::{Credit, Task};
use crate::load::load_node;
use crate::node::{Child, Node, Root, SUM_MAX, Sums};
use crate::version::TreeVersion;
use tree::{Input, Map, Random, Tree};

/// The kind of messages that a memtable brings.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Uniform,
    Local,
    Hot,
    Shrinking,
    DeleteRange,
    DeleteSome,
    DeleteAll,
    Huge,
}

fn key_of(number: u64) -> Vec<u8> {
    format!("k{:07}", number % 10_000_000).into_bytes()
}

fn memtable(random: &mut Random, kind: Kind, bytes: u64, tree: &Tree) -> Map {
    let mut map = Map::new();
    let mut sum = 0;
    let space = 20_000;
    let start = random.below(space);
    let some_key = |random: &mut Random| {
        let probe = key_of(random.below(space));
        tree.oracle
            .range(probe..)
            .next()
            .map_or_else(|| key_of(random.below(space)), |(key, _)| key.clone())
    };
    while sum < bytes {
        let length = random.below(60);
        let (key, length) = match kind {
            Kind::Uniform => (key_of(random.below(space)), Some(length)),
            Kind::Local => (key_of(start + random.below(space / 20)), Some(length)),
            Kind::Hot => (key_of(start + random.below(5)), Some(length)),
            Kind::Shrinking => (some_key(random), Some(length / 30)),
            Kind::DeleteRange => (key_of(start + random.below(space / 5)), None),
            Kind::DeleteSome => (some_key(random), None),
            Kind::DeleteAll => {
                map.extend(tree.oracle.keys().map(|key| (key.clone(), None)));
                break;
            }
            Kind::Huge => (key_of(random.below(space)), Some(random.below(20_000))),
        };
        sum += key.len() as u64 + length.unwrap_or(0);
        let seed = random.next() as u8;
        map.insert(
            key,
            length.map(|length| (0..length).map(|i| seed.wrapping_add(i as u8)).collect()),
        );
        if matches!(kind, Kind::DeleteSome | Kind::Shrinking) && map.len() > tree.oracle.len() / 2 {
            break;
        }
        sum += 8;
    }
    map
}

fn churn(seed: u64, fanout: usize, group_bytes: u64, space: Option<u32>, rounds: usize) -> Tree {
    let tree = Tree::new(group_bytes, fanout, space);
    churn_of(tree, seed, rounds, None)
}

/// Random merges into a tree. One of `changes` merges comes after a change of the buffers.
fn churn_of(mut tree: Tree, seed: u64, rounds: usize, changes: Option<u64>) -> Tree {
    use Kind::*;
    let mut random = Random((seed + 1).wrapping_mul(0x1234_5678_9abc_def1));
    let group_bytes = tree.options.group_bytes;
    let mut kind = Uniform;
    let mut was_empty = 0;
    for round in 0..rounds {
        if round > rounds / 4 && random.below(4) == 0 {
            let kinds = [
                Uniform,
                Uniform,
                Uniform,
                Local,
                Local,
                Hot,
                Shrinking,
                DeleteRange,
                DeleteRange,
                DeleteSome,
                DeleteSome,
                Huge,
                DeleteAll,
            ];
            kind = kinds[random.below(kinds.len() as u64) as usize];
        }
        let chi = [1, 1, 2, 4, 16][random.below(5) as usize];
        let bytes = group_bytes * chi / (1 + random.below(2));
        let messages = memtable(&mut random, kind, bytes, &tree);
        if changes.is_some_and(|one_of| random.below(one_of) == 0) {
            tree.change_buffers();
        }
        tree.options.space_is_short = random.below(10) == 0;
        tree.merge(&messages);
        tree.options.space_is_short = false;
        if random.below(6) == 0 {
            let from = key_of(random.below(20_000));
            let _ = tree.compact(&from, group_bytes * (1 + random.below(40)));
        }
        was_empty += usize::from(tree.oracle.is_empty());
        if tree.options.maplets && round % 4 == 0 {
            maplets::check_gets(&tree);
        }
        if round % 16 == 0 {
            tree.verify();
        }
    }
    let everything = memtable(&mut random, DeleteAll, 1, &tree);
    tree.merge(&everything);
    assert!(tree.oracle.is_empty() && was_empty < rounds);
    tree.options.space_is_short = true;
    // Deletes keys that were deleted long ago too. So every pivot gets messages, and is flushed.
    tree.merge(&(0..30_000).map(|number| (key_of(number), None)).collect());
    assert_eq!(
        tree.store.live_bytes(),
        0,
        "deletes that were flushed to the leaves leave nothing behind"
    );
    tree
}

#[test]
fn random_merges_match_a_map_and_keep_every_rule() {
    let mut height = 0;
    for seed in 0..12 {
        let fanout = [4, 5, 8][seed as usize % 3];
        let group_bytes = [2048, 3000, 8192][seed as usize / 3 % 3];
        let space = [None, Some(130), Some(110)][seed as usize / 2 % 3];
        let tree = churn(seed, fanout, group_bytes, space, 120);
        height = height.max(tree.height_max);
    }
    assert!(height >= 3, "{height}");
}

#[test]
fn equal_merges_make_equal_trees() {
    let roots = [(); 2]
        .map(|()| churn(77, 4, 2048, Some(130), 40))
        .map(|tree| (tree.disk.trace_hash(), tree.references));
    assert!(roots[0] == roots[1]);
}

/// A tree of some height with full buffers.
fn grown(random: &mut Random, space: Option<u32>) -> Tree {
    let mut tree = Tree::new(2048, 4, space);
    for _ in 0..40 {
        let messages = memtable(random, Kind::Uniform, 4096, &tree);
        tree.merge(&messages);
    }
    tree
}

#[test]
fn overwriting_a_few_keys_many_times_leaves_a_small_tree() {
    let mut random = Random(5);
    let mut tree = grown(&mut random, Some(130));
    let before = tree.store.live_bytes();
    let keys: Vec<_> = tree.oracle.keys().take(20).cloned().collect();
    for round in 0..100u64 {
        let value = |i: u64| Some(vec![round as u8; (i % 50) as usize]);
        tree.merge(&keys.iter().cloned().zip((0..).map(value)).collect());
    }
    assert!(
        tree.store.live_bytes() < before + before / 4,
        "{before} {}",
        tree.store.live_bytes()
    );
}

#[test]
fn large_segments_end_with_a_pivot_so_that_little_of_them_is_dead() {
    const LEAST: u64 = 128 << 10;
    let mut random = Random(6);
    let mut tree = Tree::new(4 * LEAST, 64, None);
    // The dead bytes vary from round to round.
    let (mut dead, mut all) = (0, 0);
    for round in 0..120 {
        let value = Some(vec![7; 4000]);
        let messages = (0..64).map(|_| (key_of(random.next()), value.clone()));
        tree.merge(&messages.collect());
        if round >= 60 {
            let parts = tree.version.stats().unwrap().parts;
            dead += parts.flushed_blocks;
            all += parts.buffer_blocks + parts.flushed_blocks;
        }
    }
    let (node, _) = tree.root_node();
    let mut segments = 0;
    for level in &node.levels {
        for segment in &level[..level.len().saturating_sub(1)] {
            let bytes: Vec<u64> = segment.live.iter().map(|part| part.bytes).collect();
            let before_last: u64 = bytes[..bytes.len() - 1].iter().sum();
            assert!(before_last < LEAST, "{bytes:?} in one segment");
            segments += 1;
        }
    }
    assert!(segments > 2, "a buffer that holds something");
    assert!(dead < all / 8, "{dead} of {all}");
}

#[test]
fn while_space_is_short_everything_goes_to_the_leaves() {
    let mut random = Random(6);
    let mut tree = grown(&mut random, None);
    assert!(tree.height_max >= 2);
    assert!(tree.version.stats().unwrap().buffered_records > 0);
    tree.options.space_is_short = true;
    // A message for every leaf, so that every node is visited.
    let messages = tree
        .oracle
        .keys()
        .step_by(9)
        .map(|key| (key.clone(), Some(vec![1])))
        .collect();
    tree.merge(&messages);
    let stats = tree.version.stats().unwrap();
    assert_eq!(
        (stats.buffered_records, stats.leaf_records),
        (0, tree.oracle.len() as u64)
    );
}

#[test]
fn an_empty_memtable_changes_nothing() {
    let mut random = Random(7);
    let mut tree = grown(&mut random, None);
    let (root, writes) = (tree.version.root(), tree.disk.stats_total().writes);
    tree.merge(&Map::new());
    assert_eq!(
        (tree.version.root(), tree.disk.stats_total().writes),
        (root, writes)
    );
}

#[test]
fn a_failed_merge_gives_back_its_pages_and_another_succeeds() {
    let mut random = Random(8);
    let mut tree = grown(&mut random, Some(130));
    let mut failures = 0;
    for n in 1..60 {
        let messages = memtable(&mut random, Kind::Uniform, 6000, &tree);
        let (live, root) = (tree.store.live_bytes(), tree.version.root());
        let error = if n % 3 == 0 {
            FaultError::NoSpace
        } else {
            FaultError::Io
        };
        tree.disk.inject(Fault::nth(n, error));
        let merge = tree.begin(&messages);
        let result = loop {
            match merge.step() {
                Ok(MergeStep::Done) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        tree.disk.clear_faults();
        if let Err(error) = result {
            failures += 1;
            assert!(
                [ErrorKind::Io, ErrorKind::NoSpace].contains(&error.kind()),
                "{error}"
            );
            assert_eq!(
                merge.step().err().map(|e| e.kind()),
                Some(error.kind()),
                "it stays failed"
            );
            assert!(merge.finish().is_err());
        }
        merge.abandon();
        merge.abandon();
        assert!(merge.finish().is_err());
        drop(merge);
        assert_eq!(tree.budget.used(Purpose::Merge), 0);
        assert_eq!(tree.store.live_bytes(), live, "after fault {n}");
        assert_eq!(tree.version.root(), root);
        tree.check();
        tree.merge(&messages);
    }
    assert!(failures > 15, "{failures}");
}

/// The root with the largest possible counts, of which each claims the largest records.
fn boasting(tree: &Tree) -> Root {
    let (root, height) = tree.root_node();
    let mut node = Node::clone(&root);
    for pivot in &mut node.pivots {
        if height > 1 {
            pivot.deadlines = Deadlines::new(1, [DEADLINES_MAX; 16], (1, 1));
        }
        match &mut pivot.child {
            Child::Leaf(leaf) => (leaf.records, leaf.logical_bytes) = (1, 1 << 44),
            Child::Node { sums, .. } => {
                *sums = Sums {
                    records: 1,
                    leaf_bytes: SUM_MAX,
                    buffered_bytes: SUM_MAX,
                    replaced_bytes: SUM_MAX,
                    hidden_bytes: SUM_MAX,
                    record_bytes_max: RECORD_BYTES_MAX,
                    separated_bytes: SEPARATED_BYTES_MAX,
                }
            }
        }
    }
    for part in node.levels.iter_mut().flatten().flat_map(|s| &mut s.live) {
        (part.records, part.bytes) = (u32::MAX, 1 << 44);
        part.hidden_bytes = 1 << 44;
    }
    Root::Node(tree.write_node(&node), height)
}

#[test]
fn a_node_with_impossible_counts_never_makes_a_merge_panic() {
    let mut random = Random(10);
    for (height, space) in [(1, None), (1, Some(130)), (2, None), (2, Some(130))] {
        let mut tree = Tree::new(4096, 8, space);
        loop {
            let messages = memtable(&mut random, Kind::Uniform, 3000, &tree);
            tree.merge(&messages);
            if let Root::Node(page, now) = tree.root()
                && now == height
                && !load_node(&tree.store, &page, now)
                    .unwrap()
                    .is_buffer_empty()
            {
                break;
            }
        }
        tree.version = TreeVersion::open(&tree.store, boasting(&tree)).unwrap();
        let one = tree.oracle.keys().next().unwrap().clone();
        let every = tree.oracle.keys().map(|key| (key.clone(), None)).collect();
        for (messages, space_is_short) in [
            (Map::from([(one, Some(vec![1]))]), false),
            (every, false),
            (memtable(&mut random, Kind::Uniform, 3000, &tree), true),
        ] {
            tree.options.space_is_short = space_is_short;
            let merge = tree.begin(&messages);
            loop {
                match merge.step() {
                    Ok(MergeStep::Done) => break,
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                        break;
                    }
                }
            }
            merge.abandon();
        }
    }
}

#[test]
fn a_merge_in_progress_leaves_the_old_version_readable() {
    let mut random = Random(9);
    let tree = grown(&mut random, None);
    let messages = memtable(&mut random, Kind::DeleteSome, 6000, &tree);
    let merge = tree.begin(&messages);
    loop {
        let mut scan = tree
            .version
            .ordered()
            .unwrap()
            .scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)
            .unwrap();
        for (key, value) in &tree.oracle {
            assert_eq!(scan.next().unwrap(), Some((&key[..], &value[..])));
        }
        if matches!(merge.step().unwrap(), MergeStep::Done) {
            break;
        }
    }
    merge.abandon();
}

#[test]
fn options_out_of_bounds_are_refused() {
    let tree = Tree::new(2048, 4, None);
    let begin = |change: fn(&mut MergeOptions)| {
        let mut options = tree.options.clone();
        change(&mut options);
        tree.structure
            .begin_merge(&tree.version, Input::new(&Map::new()), &options)
            .map(|_| ())
            .map_err(|e| e.kind())
    };
    assert_eq!(begin(|_| {}), Ok(()));
    for change in [
        |o: &mut MergeOptions| o.group_bytes = 0,
        |o: &mut MergeOptions| o.group_bytes = 1 << 40,
        |o: &mut MergeOptions| o.block_bytes = 0,
        |o: &mut MergeOptions| o.block_bytes = 1 << 30,
    ] {
        assert_eq!(begin(change), Err(ErrorKind::InvalidArgument));
    }
}

#[test]
fn group_bytes_may_change_between_merges() {
    let mut random = Random(11);
    let mut tree = Tree::new(2048, 4, Some(130));
    // Leaves of another L keep their size until they are next written, so only the content is
    // checked.
    for round in 0..30 {
        tree.options.group_bytes = [2048, 16384, 4096][round % 3];
        let messages = memtable(&mut random, Kind::Uniform, 8192, &tree);
        let merge = tree.begin(&messages);
        while !matches!(merge.step().unwrap(), MergeStep::Done) {}
        tree.take(&messages, &*merge);
        tree.check_content();
        tree.verify();
    }
}

#[test]
fn compressed_trees_have_the_same_content() {
    let mut random = Random(12);
    let mut tree = Tree::new(4096, 4, Some(130));
    tree.options.compression = Compression::Lz4;
    for _ in 0..30 {
        let messages = memtable(&mut random, Kind::Uniform, 8192, &tree);
        tree.merge(&messages);
    }
    tree.verify();
}
