//! As much as comes in at once at most.

use super::*;

/// The engine's largest checkpoint distance, in records that fill a leaf each, is merged into one node.
#[test]
fn the_largest_window_of_records_of_more_than_half_a_leaf_is_merged() {
    const UNITS: u64 = 16_384;
    let mut tree = Tree::new(1024, 64, None);
    let record = |i: u64| (key_of(i), Some(vec![i as u8; 560]));
    let messages: Map = (0..UNITS * 1024 / 568).map(record).collect();
    tree.merge(&messages);
    let stats = tree.version.stats().unwrap();
    assert!(stats.groups > UNITS, "{} leaves", stats.groups);
    // And into a tree that is there.
    let every_other = messages.keys().step_by(2);
    tree.merge(&every_other.map(|key| (key.clone(), None)).collect());
}
