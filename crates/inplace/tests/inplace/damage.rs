//! Damaged groups, and hostile nodes: findings, never a wrong answer, never a panic. Merges go
//! around damage.

use terrapin_base::codec::Reader;
use terrapin_base::{ErrorKind, Result};
use terrapin_pages::{PageKind, PageRef, PageUse, SpaceClass};
use terrapin_structure::MergeStep;

use crate::trials::damage::read_all;
use crate::trials::world::{Messages, Random, World, apply, check_content, findings, input, pages};

#[test]
fn verify_goes_on_after_a_damaged_group() {
    let world = World::grown(33);
    let nodes = 1 + world.figure("map_leaves") + world.figure("nodes") - 1;
    let (all, mut damaged) = (pages(&*world.version), 0);
    for page in all.iter().filter(|page| page.bytes > 2048) {
        world.damage(page.offset + 30, 1);
        damaged += 1;
    }
    assert!(damaged > 4 && all.len() as u64 > nodes);
    assert_eq!(findings(&*world.version).len(), damaged);
}

/// Nodes with sound checksums that no merge writes.
#[test]
fn hostile_nodes_are_no_panic_and_verify_finds_them() {
    let world = World::grown(35);
    let root = world.version.root();
    let page = PageRef::decode(&mut Reader::new("root", &root[2..])).unwrap();
    let content = world.store.read_page(&page, PageKind::MapNode).unwrap();
    let mut random = Random(36);
    let (mut refused, mut contradicted) = (0, 0);
    for round in 0..400 {
        let mut hostile = content.clone();
        match round % 4 {
            0 => hostile.truncate(random.below(content.len())),
            1 => hostile.push(0),
            _ => hostile[random.below(content.len())] ^= 1 << random.below(8),
        }
        let written = world
            .store
            .write_page(PageKind::MapNode, &hostile, SpaceClass::Normal);
        let written = written.unwrap();
        let mut place = Vec::new();
        written.encode(&mut place);
        let root = [&root[..2], &place, &root[2 + PageRef::BYTES..]].concat();
        let version = world.structure.open(&root).unwrap();
        if findings(&*version).is_empty() {
            // A bound that moved, and still separates the keys of two leaves.
            assert_eq!(read_all(&world, &*version, false), 0, "round {round}");
        }
        match version.stats() {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                refused += 1;
            }
            Ok(_) => contradicted += 1,
        }
        read_all(&world, &*version, true);
        let _ = world
            .structure
            .begin_merge(&version, input(&random.messages(1)), &world.options);
        let changes = terrapin_pages::Changes {
            added: vec![PageUse::from(&written)],
            ..Default::default()
        };
        world.store.abandon(changes);
    }
    assert!(
        refused > 100 && contradicted > 20,
        "{refused} {contradicted}"
    );
}

#[test]
fn a_root_that_points_nowhere_is_damage_of_its_reads_only() {
    let world = World::grown(37);
    let root = world.version.root();
    // The last four bytes are a length. More bytes than the page has are read in vain.
    for at in 2..2 + PageRef::BYTES - 4 {
        let mut hostile = root.clone();
        hostile[at] ^= 0x55;
        world.forget_cache();
        let version = world.structure.open(&hostile).unwrap();
        let error = version.get(b"a", 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(!findings(&*version).is_empty());
    }
}

/// Every page is damaged once, below the nodes above the leaves. Merges lose no message, and the
/// groups of the leaf stay few. All is there once the damage is undone.
#[test]
fn merges_go_around_damage() {
    let mut random = Random(44);
    let (mut met, mut nodes) = (0, 0);
    for at in 0..60 {
        let mut world = World::grown(43);
        let all = pages(&*world.version);
        let Some(page) = all.get(at) else {
            break;
        };
        world.damage(page.offset + 30, 1);
        world.forget_cache();
        let mut is_node = false;
        // Until a merge meets it.
        for round in 0..6 {
            world.options.space_is_short = round > 2;
            let messages = random.messages(60);
            let Err(error) = try_merge(&mut world, &messages) else {
                continue;
            };
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            world.options.around.adds_only = true;
            let second = try_merge(&mut world, &messages);
            world.options.around.adds_only = false;
            met += usize::from(second.is_ok());
            is_node = second.is_err();
            break;
        }
        if is_node {
            nodes += 1;
            continue;
        }
        world.options.around.pages = [page.id].into();
        for round in 0..30 {
            world.options.space_is_short = round % 7 == 0;
            let messages = random.messages(20);
            try_merge(&mut world, &messages).expect("a merge around damage");
        }
        let most = world
            .version
            .stats()
            .ok()
            .and_then(|stats| stats.figure("most_waiting_groups_of_a_leaf"));
        assert!(most.is_none_or(|most| most <= 10), "{most:?} groups wait");
        let mut is_kept = false;
        let _ = world.version.pages(&mut |kept| {
            is_kept |= kept.id == page.id;
            Ok(())
        });
        if is_kept {
            world.damage(page.offset + 30, 1);
        }
        world.forget_cache();
        check_content(&*world.version, &world.oracle);
        assert_eq!(findings(&*world.version), [""; 0]);
        world.options.around = Default::default();
        let messages = random.messages(100);
        try_merge(&mut world, &messages).unwrap();
        check_content(&*world.version, &world.oracle);
    }
    assert!(met > 20 && nodes > 0, "{met} pages met, {nodes} nodes");
}

/// Merges messages; a merge that fails is abandoned.
fn try_merge(world: &mut World, messages: &Messages) -> Result<()> {
    let begun = (world.structure).begin_merge(&world.version, input(messages), &world.options);
    let merge = begun?;
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
    merge.abandon();
    world.merge_unchecked(messages);
    apply(&mut world.oracle, messages);
    Ok(())
}
