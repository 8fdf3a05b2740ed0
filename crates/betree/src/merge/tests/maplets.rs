//! Maplets over the runs of tiered buffers.

use terrapin_base::PageId;
use terrapin_base::checksum::hash64;
use terrapin_structure::Found;

use super::*;
use crate::load::LoadedNode;
use crate::maplet::Maplet;
use crate::node::LivePart;

/// Looks up all keys, and as many absent ones.
pub(super) fn check_gets(tree: &Tree) {
    let get = |key: &[u8]| tree.version.get(key, hash64(key)).unwrap();
    for (key, value) in &tree.oracle {
        assert!(matches!(get(key), Found::Value(found) if found[..] == value[..]));
        let absent = [&key[..], b"-"].concat();
        if !tree.oracle.contains_key(&absent) {
            assert!(matches!(get(&absent), Found::Nothing));
        }
    }
}

/// The nodes of a tree, from the root down.
fn nodes(tree: &Tree) -> Vec<Arc<LoadedNode>> {
    let (root, _) = tree.root_node();
    let (mut left, mut all) = (vec![root], Vec::new());
    while let Some(node) = left.pop() {
        for pivot in &node.pivots {
            if let Child::Node { page, .. } = &pivot.child {
                left.push(load_node(&tree.store, page, node.height - 1).unwrap());
            }
        }
        all.push(node);
    }
    all
}

type PivotOf = (Option<Box<Maplet>>, Vec<Vec<PageId>>);

/// Each pivot's maplet, and the groups of its runs: one list for each level.
fn pivots(tree: &Tree) -> Vec<PivotOf> {
    let mut all = Vec::new();
    for node in nodes(tree) {
        for (number, pivot) in node.pivots.iter().enumerate() {
            let is_own = |part: &LivePart| usize::from(part.pivot) == number;
            let of_level = |level: &Vec<crate::node::Segment>| -> Vec<PageId> {
                let live = level
                    .iter()
                    .filter(|segment| segment.live.iter().any(is_own));
                live.map(|segment| segment.group.id).collect()
            };
            let runs = node.levels.iter().map(of_level);
            all.push((
                pivot.maplet.clone(),
                runs.filter(|run| !run.is_empty()).collect(),
            ));
        }
    }
    all
}

/// A tree whose nodes have many runs, and maplets over them.
fn mapped(seed: u64) -> Tree {
    let mut random = Random(seed);
    let mut tree = Tree::tiered(16 << 10, 16, None);
    tree.options.maplets = true;
    for _ in 0..60 {
        let messages = memtable(&mut random, Kind::Uniform, 32 << 10, &tree);
        tree.merge(&messages);
    }
    tree
}

#[test]
fn a_pivot_of_more_than_four_runs_has_a_maplet_that_gets_ask_instead() {
    let tree = mapped(5);
    let mut covered = 0;
    for (maplet, runs) in pivots(&tree) {
        let is_named = |run: &&Vec<PageId>| {
            let named = |id: &PageId| {
                let maplet = maplet.as_ref();
                maplet.is_some_and(|maplet| maplet.groups.contains(id))
            };
            run.iter().all(named)
        };
        let named = runs.iter().filter(is_named).count();
        assert!(runs.len() - named <= 4, "{named} of {} runs", runs.len());
        assert!(
            maplet.is_none() || named > 0,
            "a maplet of runs that are gone"
        );
        covered += named;
    }
    assert!(covered > 100, "{covered}");
    check_gets(&tree);
    tree.verify();
    assert!(tree.version.stats().unwrap().figure("maplets") > Some(8));
    // The filter of a run that a maplet covers is never asked, so it need not even be readable.
    let filters: Vec<_> = nodes(&tree)
        .iter()
        .flat_map(|node| {
            node.levels
                .iter()
                .flatten()
                .map(|s| s.group)
                .collect::<Vec<_>>()
        })
        .filter(|group| {
            pivots(&tree).iter().all(|(maplet, runs)| {
                let is_there = runs.iter().flatten().any(|id| *id == group.id);
                let names = maplet
                    .as_ref()
                    .is_some_and(|m| m.groups.contains(&group.id));
                !is_there || names
            })
        })
        .collect();
    assert!(filters.len() > 10, "{}", filters.len());
    for group in &filters {
        let at = group.offset + u64::from(group.filter_offset) + 20;
        assert!(tree.disk.corrupt("data", at, 0x40));
    }
    forget(&tree);
    // `node::find` would fail if it asked one.
    check_gets(&tree);
}

/// Makes the cache forget everything.
fn forget(tree: &Tree) {
    tree.budget.set_limit(0);
    while tree.store.shrink() {}
    tree.budget.set_limit(64 << 20);
}

/// Nobody reads, so nobody pays for maplets.
#[test]
fn maplets_are_made_while_somebody_reads_only_and_stay_right_afterwards() {
    let mut tree = mapped(6);
    let count = |tree: &Tree| pivots(tree).iter().filter(|(m, _)| m.is_some()).count();
    assert!(count(&tree) > 8);
    tree.options.maplets = false;
    let mut random = Random(7);
    for _ in 0..10 {
        let messages = memtable(&mut random, Kind::Local, 32 << 10, &tree);
        tree.merge(&messages);
        check_gets(&tree);
    }
    tree.verify();
    tree.change_buffers();
    for _ in 0..40 {
        let messages = memtable(&mut random, Kind::Uniform, 32 << 10, &tree);
        tree.merge(&messages);
    }
    check_gets(&tree);
    // Leveled buffers make none, and most old runs are gone.
    assert!(count(&tree) < 4, "{}", count(&tree));
}

/// A fault in a maplet is an error of the reads that need it, never an absent record. A merge that
/// needs it names it, and the second try works without it.
#[test]
fn a_damaged_maplet_is_told_and_worked_around() {
    let mut tree = mapped(8);
    let maplet = |(maplet, _): (Option<Box<Maplet>>, _)| maplet;
    let damaged = pivots(&tree).into_iter().find_map(maplet).unwrap().page;
    assert!(tree.disk.corrupt("data", damaged.offset + 100, 0x40));
    forget(&tree);
    let mut findings = 0;
    let mut find = |finding: terrapin_structure::Finding| {
        assert!(finding.place.contains("maplet"), "{}", finding.place);
        findings += 1;
    };
    tree.version.verify(&mut find).unwrap();
    assert_eq!(findings, 1);
    let page = ("page", damaged.id.to_string());
    let (mut failed, mut found) = (0, 0);
    for (key, value) in &tree.oracle {
        match tree.version.get(key, hash64(key)) {
            Ok(Found::Value(got)) => found += u64::from(got[..] == value[..]),
            Ok(_) => panic!("a record is not found"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.context().contains(&page), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 10 && found > 100, "{failed}, {found}");
    let mut random = Random(9);
    for _ in 0..30 {
        let messages = memtable(&mut random, Kind::Uniform, 32 << 10, &tree);
        let merge = tree.begin(&messages);
        let stepped = loop {
            match merge.step() {
                Ok(MergeStep::Done) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = stepped {
            merge.abandon();
            assert!(error.context().contains(&page), "{error}");
            assert!(tree.options.around.pages.is_empty(), "it fails once");
            tree.options.around.pages = [damaged.id].into();
            tree.merge(&messages);
        } else {
            tree.take(&messages, &*merge);
        }
    }
    let is_gone = pivots(&tree)
        .into_iter()
        .filter_map(maplet)
        .all(|m| m.page.id != damaged.id);
    assert!(is_gone);
    check_gets(&tree);
    tree.verify();
}
