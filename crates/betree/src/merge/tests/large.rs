//! The largest input that can come in at once.

use super::*;

/// The engine's largest checkpoint distance, in records that fill a leaf each, is merged into one
/// node.
#[test]
fn the_largest_memtable_of_records_of_more_than_half_a_leaf_is_merged() {
    const UNITS: u64 = 16_384;
    let mut tree = Tree::new(1024, 64, None);
    let record = |i: u64| (key_of(i), Some(vec![i as u8; 560]));
    let messages: Map = (0..UNITS * 1024 / 568).map(record).collect();
    tree.merge(&messages);
    let stats = tree.version.stats().unwrap();
    assert!(
        stats.figure("groups").unwrap() > UNITS,
        "{} leaves",
        stats.figure("groups").unwrap()
    );
    // The same into a tree that is there already.
    let every_other = messages.keys().step_by(2);
    tree.merge(&every_other.map(|key| (key.clone(), None)).collect());
}

/// Regression: nodes were split because of their size until they had two children each. Such a tree
/// soon reaches the greatest height.
#[test]
fn trees_of_the_longest_keys_have_four_children_a_node() {
    const LEAVES: u64 = 64;
    let key = |number: u64| {
        let mut key = vec![b'k'; 65_527];
        key.extend_from_slice(&number.to_be_bytes());
        key
    };
    let mut tree = Tree::new(1024, 64, None);
    let messages: Map = (0..LEAVES).map(|i| (key(i), Some(vec![7]))).collect();
    tree.merge(&messages);
    let stats = tree.version.stats().unwrap();
    assert_eq!(stats.figure("groups").unwrap(), LEAVES);
    assert!(stats.figure("height").unwrap() <= 3, "{stats:?}");
    // The same for nodes that grow, whose buffers have long keys as well.
    for i in LEAVES..3 * LEAVES {
        tree.merge(&Map::from([(key(i * 7919 % 1000 + 1000), Some(vec![8]))]));
    }
    let stats = tree.version.stats().unwrap();
    assert!(stats.figure("height").unwrap() <= 5, "{stats:?}");
}
