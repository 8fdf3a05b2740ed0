//! Damaged and hostile pages: an error or a finding, never a wrong answer, never a panic.

use std::ops::Bound;

use terrapin_base::checksum::hash64;
use terrapin_base::codec::Reader;
use terrapin_base::{Error, ErrorKind, Message, Result};
use terrapin_pages::{PageKind, PageRef, PageUse, SpaceClass};
use terrapin_structure::{Batch, Direction, Filled, Found, Rescued, Structure, Version};

use super::world::{Random, World, findings, pages};

/// Reads everything in every way. Answers are errors of damage, or right unless the pages lie.
/// Returns the number of errors.
fn read_all(world: &World, version: &dyn Version, lies: bool) -> usize {
    let mut errors = 0;
    let mut note = |kind: ErrorKind| {
        assert_eq!(kind, ErrorKind::Corrupt);
        errors += 1;
    };
    for (key, value) in &world.oracle {
        match version.get(key, hash64(key)) {
            Ok(found) => assert!(lies || found == Found::Value(value[..].into())),
            Err(error) => note(error.kind()),
        }
    }
    let keys: Vec<(&[u8], u64)> = world
        .oracle
        .keys()
        .map(|key| (&key[..], hash64(key)))
        .collect();
    let mut found = vec![Found::Nothing; keys.len()];
    match version.multi_get(&keys, &mut found) {
        Ok(()) => assert!(lies || found.iter().all(|found| *found != Found::Nothing)),
        Err(error) => note(error.kind()),
    }
    for direction in [Direction::Forward, Direction::Backward] {
        let mut wanted: Vec<_> = world.oracle.iter().collect();
        if direction == Direction::Backward {
            wanted.reverse();
        }
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let mut scan = match version.ordered().unwrap().scan(everything, direction) {
            Ok(scan) => scan,
            Err(error) => {
                note(error.kind());
                continue;
            }
        };
        let mut batch = Batch::default();
        let filled = scan.fill(Bound::Unbounded, &mut batch);
        for ((key, value), wanted) in batch.records().zip(&wanted) {
            assert!(lies || (key, value) == (&wanted.0[..], &wanted.1[..]));
        }
        match filled {
            Ok(filled) => assert!(lies || (filled, batch.len()) == (Filled::End, wanted.len())),
            Err(error) => {
                note(error.kind());
                assert_eq!(scan.next().unwrap(), None, "nothing comes after an error");
            }
        }
    }
    for checked in [version.stats().err(), version.pages(&mut |_| Ok(())).err()] {
        checked.into_iter().for_each(|error| note(error.kind()));
    }
    errors
}

/// Where the content of an image ends: zeros that fill a page follow.
fn content_end(world: &World, page: &PageUse) -> u64 {
    let file = world.disk.content(terrapin_pages::DATA_FILE).unwrap();
    let image = &file[page.offset as usize..][..page.bytes as usize];
    image
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last as u64 + 1)
}

#[test]
fn verify_finds_damage_of_every_page_and_reads_never_answer_wrongly() {
    let (world, mut random) = (World::grown(31), Random(32));
    let (mut errors, mut pages_damaged) = (0, 0);
    for page in pages(&*world.version) {
        let end = content_end(&world, &page);
        // Every place of a short page, and some of a long one.
        for _ in 0..24 {
            let offset = page.offset + random.below(end as usize) as u64;
            let mask = 1 << random.below(8);
            world.damage(offset, mask);
            world.forget_cache();
            let version = world.structure.open(&world.version.root()).unwrap();
            errors += read_all(&world, &*version, false);
            let found = findings(&*version);
            assert!(!found.is_empty(), "{page:?} at {offset}");
            assert!(found[0].contains(&page.id.to_string()), "{found:?}");
            world.damage(offset, mask);
        }
        pages_damaged += 1;
    }
    world.forget_cache();
    world.check();
    assert!(
        pages_damaged > 4 && errors > 500,
        "{pages_damaged} {errors}"
    );
}

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
        let _ = world.structure.begin_merge(
            &version,
            super::world::input(&random.messages(1)),
            &world.options,
        );
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
