//! Merges while disk space is short. A reserve of eight groups and a few nodes must suffice for one
//! record (D10).

use super::*;

/// A tree of height 2. Its root has about as many children as a node can have, and buffered
/// messages for each of them.
pub(super) fn broad(random: &mut Random) -> Tree {
    let mut tree = Tree::new(8192, 16, None);
    for _ in 0..100 {
        tree.merge(&two_groups(random));
    }
    tree
}

/// Puts of about twice L.
pub(super) fn two_groups(random: &mut Random) -> Map {
    let put = |_| (key_of(random.below(6000)), Some(vec![5; 200]));
    (0..80).map(put).collect()
}

/// For each child of the root: a key in its range, the bytes that the root buffers for it, and the
/// bytes of its leaves.
pub(super) fn children(tree: &Tree) -> Vec<(Vec<u8>, u64, u64)> {
    let (root, height) = tree.root_node();
    assert_eq!(height, 2);
    let pivots = root.pivots.iter();
    let child = |pivot: &crate::node::Pivot| {
        let key = tree.oracle.range(pivot.lower.to_vec()..).nth(20);
        let key = key.expect("a key of that child").0.clone();
        (key, pivot.pending_bytes, pivot.child.leaf_bytes())
    };
    pivots.map(child).collect()
}

#[test]
fn a_delete_writes_less_than_the_reserve_holds_and_reaches_its_leaf() {
    let mut random = Random(31);
    let mut tree = broad(&mut random);
    let group_bytes = tree.options.group_bytes;
    tree.options.space_is_short = true;
    let children = children(&tree);
    assert!(children.len() > 7, "{}", children.len());
    for (key, pending, leaf_bytes) in children {
        assert!(
            pending > 0 && leaf_bytes > 4 * group_bytes,
            "{pending}, {leaf_bytes}"
        );
        let buffered = tree.version.stats().unwrap().buffered_records;
        let before = tree.disk.stats_total().written_bytes;
        tree.merge(&Map::from([(key, None)]));
        let written = tree.disk.stats_total().written_bytes - before;
        assert!(
            written < 6 * group_bytes && written < leaf_bytes,
            "{written} bytes written, {pending} buffered above leaves of {leaf_bytes}"
        );
        let after = tree.version.stats().unwrap().buffered_records;
        assert!(after <= buffered, "the delete lies in a buffer");
    }
    tree.verify();
    // Messages in levels that are too small or too large do no harm.
    tree.options.space_is_short = false;
    for _ in 0..10 {
        tree.merge(&two_groups(&mut random));
    }
    tree.verify();
}

#[test]
fn messages_in_buffers_stay_where_the_memtable_has_no_record() {
    let mut tree = broad(&mut Random(32));
    let before = tree.references.clone();
    tree.options.space_is_short = true;
    let heaviest = children(&tree).into_iter().max_by_key(|child| child.1);
    let (key, ..) = heaviest.unwrap();
    tree.merge(&Map::from([(key, Some(vec![3]))]));
    let gone = before
        .keys()
        .filter(|&id| !tree.references.contains_key(id));
    // Two nodes and a leaf, and segments that lost their last live part.
    let gone = gone.count();
    assert!((3..8).contains(&gone), "{gone} pages of {}", before.len());
    let stays = tree.version.stats().unwrap().buffered_records;
    assert!(stays > 100, "{stays}");
}
