//! A node with one child and a buffer, beside other nodes. No merge writes such a node, but a page
//! may claim it, with correct sums (D8).

use super::short::{broad, children, two_groups};
use super::*;
use terrapin_disk::LongBox;

use crate::node::{Pivot, Segment};

/// A root above two parts of a tree, cut before child number `at`. Each part has the messages for
/// it of the old root's buffer.
fn cut(tree: &Tree, at: usize) -> (Root, Vec<u8>) {
    let (root, height) = tree.root_node();
    let lower = root.pivots[at].lower.clone();
    let keys = tree.oracle.range(..lower.to_vec());
    let last_before = keys.last().unwrap().0.clone().into_boxed_slice();
    let part = |pivots: std::ops::Range<usize>, cut: &dyn Fn(&mut Segment)| {
        let cut_level = |level: &Vec<Segment>| -> Vec<Segment> {
            let within = |segment: &Segment| {
                let mut segment = segment.clone();
                segment
                    .live
                    .retain(|part| pivots.contains(&usize::from(part.pivot)));
                for part in &mut segment.live {
                    part.pivot -= pivots.start as u16;
                }
                cut(&mut segment);
                (!segment.live.is_empty()).then_some(segment)
            };
            level.iter().filter_map(within).collect()
        };
        let mut node = Node {
            height,
            replaced_permille: 0,
            counts_replaced: false,
            pivots: root.pivots[pivots.clone()].to_vec(),
            levels: root.levels.iter().map(cut_level).collect(),
        };
        node.pivots[0].lower = LongBox::default();
        node.tidy();
        assert!(!node.is_buffer_empty());
        Child::Node {
            page: tree.write_node(&node),
            sums: node.sums(),
        }
    };
    let left = part(0..at, &|segment| {
        segment.max = segment.max.clone().min(last_before[..].into());
    });
    let right = part(at..root.pivots.len(), &|segment| {
        segment.min = segment.min.clone().max(lower.clone());
    });
    let pivot = |lower: LongBox, child| Pivot {
        lower,
        child,
        deadlines: Deadlines::default(),
        pending_bytes: 0,
        maplet: None,
    };
    let above = Node {
        height: height + 1,
        replaced_permille: 0,
        counts_replaced: false,
        pivots: vec![pivot(LongBox::default(), left), pivot(lower.clone(), right)],
        levels: Vec::new(),
    };
    let above = Root::Node(tree.write_node(&above), height + 1);
    (above, lower.to_vec())
}

#[test]
fn messages_for_an_only_child_survive_its_union_with_others() {
    for is_left in [true, false] {
        let mut random = Random(41);
        let mut tree = broad(&mut random);
        let ends = |tree: &Tree| {
            let children = children(tree);
            [children[0].1, children[children.len() - 1].1]
        };
        while ends(&tree).contains(&0) {
            tree.merge(&two_groups(&mut random));
        }
        let last = children(&tree).len() - 1;
        let (root, lower) = cut(&tree, if is_left { 1 } else { last });
        // Deletes all of the other part but some keys of one child. That part becomes small, and is
        // united with its neighbour.
        let others = match is_left {
            true => tree.oracle.range(lower..),
            false => tree.oracle.range(..lower),
        };
        let gone = others.skip(40);
        let messages: Map = gone.map(|(key, _)| (key.clone(), None)).collect();
        assert!(messages.len() > 1000, "{}", messages.len());
        let merge = tree.tree_merge(&messages, root, true);
        while !matches!(merge.step().unwrap(), MergeStep::Done) {}
        let merged = merge.finish().unwrap();
        let mut scan = merged
            .version
            .ordered()
            .unwrap()
            .scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)
            .unwrap();
        let stays = tree.oracle.iter();
        let stays = stays.filter(|(key, _)| !messages.contains_key(*key));
        let mut records = 0;
        for (key, value) in stays {
            assert_eq!(scan.next().unwrap(), Some((&key[..], &value[..])));
            records += 1;
        }
        assert_eq!(scan.next().unwrap(), None);
        assert!(records > 100, "{records}");
    }
}
