//! Damaged pages and contradictory nodes. A read of them returns an error and `verify` a finding,
//! but never a wrong answer or "not found".

use std::collections::BTreeMap;
use std::ops::Bound;

use terrapin_base::ErrorKind;
use terrapin_base::checksum::hash64;
use terrapin_disk::LongBox;
use terrapin_pages::group::Deadlines;
use terrapin_pages::{PageKind, PageUse, SpaceClass};
use terrapin_structure::{Direction, Ordered, Version};

use super::figures::findings;
use super::grown::{Grown, Random, write};
use super::store::TestStore;
use crate::node::{Child, LivePart, Node, Pivot, Root, Segment, Sums};
use crate::version::TreeVersion;

fn pages(version: &dyn Version) -> Vec<PageUse> {
    let mut pages = Vec::new();
    version
        .pages(&mut |page| {
            pages.push(page);
            Ok(())
        })
        .unwrap();
    pages
}

#[test]
fn a_damaged_byte_is_an_error_or_harmless_but_never_a_wrong_answer() {
    let grown = Grown::new(50, 2, 300);
    let pages = pages(&*grown.version());
    let mut random = Random::new(4);
    let (mut failed, mut found) = (0, 0);
    for round in 0..150 {
        let page = pages[random.below(pages.len())];
        let offset = page.offset + random.below(page.bytes as usize) as u64;
        grown.store.damage(offset);
        grown.store.forget_cache();
        match TreeVersion::open(grown.pages(), grown.root.clone()) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
            Ok(version) => {
                for key in &grown.universe {
                    match version.get(key, hash64(key)) {
                        Ok(found) => assert_eq!(found, grown.expected(key)),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Corrupt);
                            failed += 1;
                        }
                    }
                }
                let direction = [Direction::Forward, Direction::Backward][round % 2];
                let mut wanted: Vec<_> = grown.records.iter().collect();
                if direction == Direction::Backward {
                    wanted.reverse();
                }
                let mut wanted = wanted.into_iter();
                match version.scan((Bound::Unbounded, Bound::Unbounded), direction) {
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
                    Ok(mut scan) => loop {
                        match scan.next() {
                            Ok(record) => {
                                assert_eq!(record, wanted.next().map(|(k, v)| (&k[..], &v[..])));
                                if record.is_none() {
                                    break;
                                }
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Corrupt);
                                assert_eq!(
                                    scan.next().unwrap(),
                                    None,
                                    "nothing comes after an error"
                                );
                                break;
                            }
                        }
                    },
                }
                let findings = findings(&*version);
                found += usize::from(!findings.is_empty());
            }
        }
        grown.store.damage(offset);
    }
    grown.store.forget_cache();
    assert!(
        findings(&*grown.version()).is_empty(),
        "all damage was undone"
    );
    assert!(
        failed > 100 && found > 50,
        "{failed} lookups failed, {found} versions with findings"
    );
}

#[test]
fn verify_goes_on_after_a_finding() {
    let grown = Grown::new(51, 2, 400);
    let groups: Vec<PageUse> = {
        let version = grown.version();
        let mut nodes = 0;
        let pages = pages(&*version);
        pages
            .into_iter()
            .filter(|page| !is_node(&grown, page, &mut nodes))
            .collect()
    };
    let (first, last) = (groups[0], groups[groups.len() - 1]);
    grown.store.damage(first.offset);
    grown.store.damage(last.offset);
    grown.store.forget_cache();
    let findings = findings(&*grown.version());
    for page in [first, last] {
        let named = format!("group {} ", page.id);
        assert!(
            findings.iter().any(|f| f.place.starts_with(&named)),
            "{findings:?}"
        );
    }
}

fn is_node(grown: &Grown, page: &PageUse, nodes: &mut u32) -> bool {
    let page = terrapin_pages::PageRef {
        id: page.id,
        offset: page.offset,
        bytes: page.bytes as u32,
    };
    let is = grown.pages().read_page(&page, PageKind::Node).is_ok();
    *nodes += u32::from(is);
    is
}

/// Rewrites the root node of a tree and returns the findings of `verify`.
fn contradiction(change: impl FnOnce(&mut Node)) -> Vec<String> {
    let grown = Grown::new(52, 2, 400);
    let Root::Node(page, height) = grown.root else {
        panic!("the tree has nodes")
    };
    let mut node = Node::decode(&grown.pages().read_page(&page, PageKind::Node).unwrap()).unwrap();
    assert!(
        node.pivots.len() > 2 && node.levels.iter().any(|l| l.len() > 1),
        "choose another seed"
    );
    change(&mut node);
    let page = grown
        .pages()
        .write_page(PageKind::Node, &node.encode().unwrap(), SpaceClass::Normal)
        .unwrap();
    let version = TreeVersion::open(grown.pages(), Root::Node(page, height)).unwrap();
    findings(&*version)
        .into_iter()
        .map(|f| format!("{}: {}", f.place, f.message))
        .collect()
}

#[test]
fn nodes_that_contradict_their_pages_are_found() {
    assert_eq!(contradiction(|_| {}), Vec::<String>::new());
    let says = |findings: Vec<String>, what: &str| {
        assert!(
            findings.iter().any(|f| f.contains(what)),
            "{what}: {findings:?}"
        );
    };
    let live = |node: &mut Node, change: &dyn Fn(&mut crate::node::LivePart)| {
        let level = node.levels.iter().position(|l| !l.is_empty()).unwrap();
        change(&mut node.levels[level][0].live[0]);
    };
    says(
        contradiction(|node| live(node, &|part| part.records += 1)),
        "messages of",
    );
    says(
        contradiction(|node| live(node, &|part| part.bytes -= 1)),
        "messages of",
    );
    says(
        contradiction(|node| {
            let Child::Node { sums, .. } = &mut node.pivots[1].child else {
                panic!("height 2")
            };
            sums.records += 1;
        }),
        "the child's sums are",
    );
    says(
        contradiction(|node| {
            let Child::Node { sums, .. } = &mut node.pivots[1].child else {
                panic!("height 2")
            };
            sums.hidden_bytes += 1;
        }),
        "the child's sums are",
    );
    says(
        contradiction(|node| live(node, &|part| part.hidden_bytes += 1)),
        "hides 0 to 0 bytes",
    );
    says(
        contradiction(|node| {
            let Child::Node { sums, .. } = &mut node.pivots[1].child else {
                panic!("height 2")
            };
            sums.separated_bytes = 7;
        }),
        "the child's sums are",
    );
    let counts = std::array::from_fn(|counter| u64::from(counter == 3));
    let one = || Deadlines::new(1, counts, (1, 1));
    says(
        contradiction(|node| node.pivots[1].deadlines = one()),
        "the child's sums are",
    );
    let first = |node: &mut Node, change: &dyn Fn(&mut Segment)| {
        let level = node.levels.iter().position(|l| !l.is_empty()).unwrap();
        change(&mut node.levels[level][0]);
    };
    says(
        contradiction(|node| first(node, &|segment| segment.deadlines = one())),
        "the group's deadlines are",
    );
    // A live part has separated bytes only if its group claims some.
    says(
        contradiction(|node| {
            first(node, &|segment| {
                segment.group.separated_bytes = 7;
                segment.live[0].separated_bytes = 7;
            });
        }),
        "footer and reference contradict each other",
    );
    says(
        contradiction(|node| node.pivots[1].child = node.pivots[0].child),
        "referred to twice",
    );
    // Moves the boundary between two children up. Then the left child has keys that belong to the
    // right one.
    says(
        contradiction(|node| {
            node.pivots[1].lower = [&node.pivots[1].lower[..], b"\xff"].concat().into()
        }),
        "range",
    );
    says(
        contradiction(|node| {
            let Child::Node { page, .. } = &mut node.pivots[1].child else {
                panic!("height 2")
            };
            page.offset += 512;
        }),
        "not a page",
    );
}

/// A root above nodes of one leaf each. It claims any records and bytes for them, and each leaf
/// makes the same claim for itself.
fn boasting(store: &TestStore, said: &[(u64, u64)]) -> Root {
    let pages = store.pages();
    let node = |height, children: Vec<Child>| {
        let pivots = children
            .into_iter()
            .enumerate()
            .map(|(number, child)| Pivot {
                lower: match number {
                    0 => LongBox::default(),
                    _ => vec![number as u8].into(),
                },
                child,
                deadlines: Deadlines::default(),
                pending_bytes: 0,
                maplet: None,
            });
        let node = Node {
            height,
            replaced_permille: 0,
            counts_replaced: false,
            pivots: pivots.collect(),
            levels: Vec::new(),
        };
        let content = node.encode().unwrap();
        let page = pages.write_page(PageKind::Node, &content, SpaceClass::Normal);
        page.unwrap()
    };
    let mut leaf = write(pages, &BTreeMap::from([(vec![1], Some(vec![2]))]));
    leaf.records = u64::from(u32::MAX);
    leaf.logical_bytes = 1 << 44;
    let child = |&(records, leaf_bytes): &(u64, u64)| Child::Node {
        page: node(1, vec![Child::Leaf(leaf)]),
        sums: Sums {
            records,
            leaf_bytes,
            buffered_bytes: leaf_bytes,
            replaced_bytes: records,
            hidden_bytes: leaf_bytes,
            record_bytes_max: 1,
            separated_bytes: 0,
        },
    };
    Root::Node(node(2, said.iter().map(child).collect()), 2)
}

#[test]
fn counts_that_no_tree_has_are_estimated_without_a_panic() {
    let store = TestStore::new();
    // The nodes that are read claim much more than their parent knows, and the parent knows much of
    // the nodes that are not read.
    let said: Vec<(u64, u64)> = (0..9)
        .map(|n| [(1 << 47, 1 << 47), (1, 1)][n % 2])
        .collect();
    let version = TreeVersion::open(store.pages(), boasting(&store, &said)).unwrap();
    let all = version
        .estimate((Bound::Unbounded, Bound::Unbounded))
        .unwrap();
    assert_eq!((all.records, all.bytes), (u64::MAX, u64::MAX));
    assert_eq!(version.live_bytes().unwrap(), 0, "all of it is hidden");
    // The range's ends are inside nodes, so indexes are read.
    let some = version.estimate((Bound::Excluded(&[0, 1]), Bound::Included(&[8, 1])));
    assert_eq!(some.unwrap().records, u64::MAX);
}

#[test]
fn a_node_of_the_wrong_height_is_refused() {
    let grown = Grown::new(52, 2, 400);
    let Root::Node(page, _) = grown.root else {
        panic!("the tree has nodes")
    };
    let error = TreeVersion::open(grown.pages(), Root::Node(page, 3))
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

/// Regression: a range that begins at a gap in a block asked for the next block at once, however
/// far behind that is. If that block was damaged, its error came before all sound records. If it
/// was sound, it was read too early.
#[test]
fn a_damaged_block_behind_a_gap_is_reported_after_the_records_before_it() {
    // One record for each block.
    let value = vec![b'v'; 600];
    let key = |i: u32| format!("k{i:04}").into_bytes();
    let group_of = |store: &TestStore, numbers: &mut dyn Iterator<Item = u32>| {
        let messages: BTreeMap<_, _> = numbers.map(|i| (key(i), Some(value.clone()))).collect();
        write(store.pages(), &messages)
    };
    for gap_in_leaf in [false, true] {
        let store = TestStore::new();
        let around = group_of(&store, &mut (0..100).chain(900..1000));
        let within = group_of(&store, &mut (100..900));
        let (leaf, buffered, ends, records) = match gap_in_leaf {
            false => (within, around, (0, 999), 200),
            true => (around, within, (100, 899), 800),
        };
        let mut node = Node {
            height: 1,
            replaced_permille: 0,
            counts_replaced: false,
            pivots: vec![Pivot {
                lower: LongBox::default(),
                child: Child::Leaf(leaf),
                deadlines: Deadlines::default(),
                pending_bytes: 0,
                maplet: None,
            }],
            levels: vec![vec![Segment {
                group: buffered,
                deadlines: Deadlines::default(),
                min: key(ends.0).into(),
                max: key(ends.1).into(),
                live: vec![LivePart {
                    pivot: 0,
                    records,
                    bytes: u64::from(records) * 605,
                    hidden_bytes: 0,
                    separated_bytes: 0,
                }],
            }]],
        };
        node.tidy();
        let content = node.encode().unwrap();
        let page = store
            .pages()
            .write_page(PageKind::Node, &content, SpaceClass::Normal)
            .unwrap();
        let version = TreeVersion::open(store.pages(), Root::Node(page, 1)).unwrap();
        let index = store.pages().index(&around).unwrap();
        // A backward scan has no such case: the end of a block that cannot be read is unknown.
        let block = u64::from(index.block_place(100).0);
        store.damage(PageUse::from(&around).offset + block + 40);
        store.forget_cache();
        let lower = key(500);
        let bounds = (Bound::Included(&lower[..]), Bound::Unbounded);
        let mut scan = version.scan(bounds, Direction::Forward).unwrap();
        for i in 500..900 {
            assert_eq!(scan.next().unwrap(), Some((&key(i)[..], &value[..])));
        }
        assert_eq!(scan.next().unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
