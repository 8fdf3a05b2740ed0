//! Merges whose result lies beside the version that they are made from.

use terrapin_pages::Standing;

use super::*;

/// How the cached blocks of a tree's leaves stand, after a merge over all of them or none.
fn standings(merged_as_private: Option<bool>) -> Vec<Standing> {
    let mut random = Random(41);
    let mut tree = Tree::new(4096, 64, None);
    let messages = window(&mut random, Kind::Uniform, 60_000, &tree);
    tree.merge(&messages);
    for _ in 0..2 {
        for key in tree.oracle.keys() {
            assert!(tree.version.contains(key, hash64(key)).unwrap());
        }
    }
    let merge = merged_as_private.map(|is_private| {
        tree.options.is_private = is_private;
        // To every leaf, so that none is left as it is.
        let all = tree.oracle.keys().map(|key| (key.clone(), Some(vec![9])));
        let merge = tree.tree_merge(&all.collect(), tree.root(), true);
        while !matches!(merge.step().unwrap(), MergeStep::Done) {}
        merge
    });
    let (node, height) = tree.root_node();
    let mut standings = Vec::new();
    for pivot in &node.pivots {
        let Child::Leaf(leaf) = &pivot.child else {
            panic!("a tree of height {height}");
        };
        let blocks = tree.store.index(leaf).unwrap().blocks();
        standings.extend((0..blocks).map(|block| tree.store.bequeath_block(leaf, block)));
    }
    if let Some(merge) = merge {
        merge.abandon();
    }
    standings
}

#[test]
fn a_private_merge_leaves_cached_blocks_their_lives() {
    let untouched = standings(None);
    assert!(untouched.len() > 50 && !untouched.contains(&Standing::NONE));
    assert!(standings(Some(true)) == untouched);
    assert!(
        standings(Some(false)) != untouched,
        "they go to what replaces them"
    );
}
