//! Damaged groups, hostile nodes and salvages: findings, never a wrong answer, never a panic.

use terrapin_base::codec::Reader;
use terrapin_base::{Error, ErrorKind, Message, Result};
use terrapin_pages::{PageKind, PageRef, PageUse, SpaceClass};
use terrapin_structure::Rescued;

use crate::trials::damage::{content_end, read_all};
use crate::trials::world::{Random, World, findings, input, pages};

#[test]
fn verify_goes_on_after_a_damaged_group() {
    let world = World::grown(33);
    let (all, mut damaged) = (pages(&*world.version), 0);
    // Nodes and lists take a unit each.
    for page in all.iter().filter(|page| page.bytes > 1024) {
        world.damage(page.offset + 30, 1);
        damaged += 1;
    }
    assert!(damaged > 4 && all.len() > damaged);
    assert_eq!(findings(&*world.version).len(), damaged);
}

/// Nodes with sound checksums that no merge writes.
#[test]
fn hostile_nodes_are_no_panic_and_verify_finds_them() {
    let world = World::grown(35);
    let root = world.version.root();
    let page = PageRef::decode(&mut Reader::new("root", &root[4..])).unwrap();
    let content = world.store.read_page(&page, PageKind::TrieNode).unwrap();
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
            .write_page(PageKind::TrieNode, &hostile, SpaceClass::Normal);
        let written = written.unwrap();
        let mut place = Vec::new();
        written.encode(&mut place);
        let root = [&root[..4], &place, &root[4 + PageRef::BYTES..]].concat();
        let version = world.structure.open(&root).unwrap();
        if findings(&*version).is_empty() {
            // A tier or a length that says nothing about records.
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
    for at in 4..4 + PageRef::BYTES - 4 {
        let mut hostile = root.clone();
        hostile[at] ^= 0x55;
        world.forget_cache();
        let version = world.structure.open(&hostile).unwrap();
        let error = version.get(b"a hash", 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(!findings(&*version).is_empty());
    }
}

/// What a salvage found.
#[derive(Default)]
struct Salvaged {
    /// The newest message of each key, and whether it is certain.
    newest: std::collections::BTreeMap<Vec<u8>, (Option<Vec<u8>>, bool)>,
    lost: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Rescued for Salvaged {
    fn message(&mut self, key: &[u8], message: Message<'_>, is_certain: bool) -> Result<()> {
        let value = match message {
            Message::Put(value) => Some(value.to_vec()),
            Message::Delete => None,
            _ => panic!("no other messages were written"),
        };
        self.newest.insert(key.to_vec(), (value, is_certain));
        Ok(())
    }

    fn lost(&mut self, from: &[u8], to: Option<&[u8]>, _: &Error) -> Result<()> {
        self.lost.push((from.to_vec(), to.map(<[u8]>::to_vec)));
        Ok(())
    }

    fn lost_value(&mut self, _: &[u8], _: &Error) -> Result<()> {
        panic!("no value is stored elsewhere")
    }
}

#[test]
fn a_salvage_gives_all_sound_records_and_says_what_may_be_lost() {
    let (world, mut random) = (World::grown(39), Random(40));
    let (mut lost, mut uncertain) = (0, 0);
    for page in pages(&*world.version) {
        let end = content_end(&world, &page);
        for _ in 0..6 {
            let offset = page.offset + random.below(end as usize) as u64;
            world.damage(offset, 4);
            world.forget_cache();
            let version = world.structure.open(&world.version.root()).unwrap();
            let mut found = Salvaged::default();
            version.rescue(&mut found).unwrap();
            world.damage(offset, 4);
            let is_lost = |key: &Vec<u8>| {
                let mut lost = found.lost.iter();
                lost.any(|(from, to)| from <= key && to.as_ref().is_none_or(|to| key < to))
            };
            for (key, (value, is_certain)) in &found.newest {
                if *is_certain {
                    assert_eq!(value.as_ref(), world.oracle.get(key));
                } else {
                    assert!(is_lost(key));
                    uncertain += 1;
                }
            }
            for key in world.oracle.keys() {
                let is_there = found.newest.get(key).is_some_and(|found| found.1);
                assert!(is_there || is_lost(key));
                lost += usize::from(!is_there);
            }
        }
    }
    world.forget_cache();
    assert!(lost > 100 && uncertain > 20, "{lost} {uncertain}");
}
