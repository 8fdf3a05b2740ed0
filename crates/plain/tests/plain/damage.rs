//! Damaged groups, and hostile lists: findings, never a wrong answer, never a panic.

use terrapin_base::ErrorKind;
use terrapin_base::codec::Reader;
use terrapin_pages::{PageKind, PageRef, PageUse, SpaceClass};

use crate::trials::damage::read_all;
use crate::trials::world::{Random, World, findings, input, pages};

#[test]
fn verify_goes_on_after_a_damaged_group() {
    let world = World::grown(33);
    let groups = &pages(&*world.version)[1..];
    for group in groups {
        world.damage(group.offset + 30, 1);
    }
    assert_eq!(findings(&*world.version).len(), groups.len());
}

/// Lists with sound checksums that no merge writes.
#[test]
fn hostile_lists_are_no_panic_and_verify_finds_them() {
    let world = World::grown(35);
    let root = world.version.root();
    let page = PageRef::decode(&mut Reader::new("root", &root[2..])).unwrap();
    let content = world.store.read_page(&page, PageKind::Node).unwrap();
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
            .write_page(PageKind::Node, &hostile, SpaceClass::Normal);
        let written = written.unwrap();
        let mut place = Vec::new();
        written.encode(&mut place);
        let root = [&root[..2], &place, &root[2 + PageRef::BYTES..]].concat();
        let version = world.structure.open(&root).unwrap();
        assert!(!findings(&*version).is_empty(), "round {round}");
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
