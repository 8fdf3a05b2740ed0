//! Damaged and hostile pages: an error or a finding, never a wrong answer, never a panic.

use std::ops::Bound;

use terrapin_base::ErrorKind;
use terrapin_base::checksum::hash64;
use terrapin_pages::PageUse;
use terrapin_structure::{Batch, Direction, Filled, Found, Version};

use super::world::{Random, World, findings, pages};

/// Reads everything in every way. Answers are errors of damage, or right unless the pages lie.
/// Returns the number of errors.
pub fn read_all(world: &World, version: &dyn Version, lies: bool) -> usize {
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
pub fn content_end(world: &World, page: &PageUse) -> u64 {
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
