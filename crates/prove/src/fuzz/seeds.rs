//! The corpus: small inputs of every target, made from real stores.
//! `cargo run --release -p prove --example fuzz_corpus` writes them. They are committed, so they
//! keep their meaning when the engine's output changes.

use std::time::{Duration, UNIX_EPOCH};

use terrapin::{
    Compression, Database, KeyspaceOptions, Options, SpaceAmplification, StructureKind,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Message, PageId};
use terrapin_disk::SimDisk;
use terrapin_filter::{FilterBuilder, MapletBuilder, PARTITION_BYTES_MAX};
use terrapin_pages::PAGES_START;
use terrapin_pages::block::{BlockBuilder, Record, RecordKind};
use terrapin_pages::group::{GroupBuilder, GroupOptions};

use super::archive::{File, pack};
use super::exercise::{World, tiny};
use super::targets::{BLOCK_PAGE, join, map_nodes, nodes, trie_pages};
use super::{template, values};

/// Inputs by name.
pub type Inputs = Vec<(String, Vec<u8>)>;

/// The templates: archives of whole stores, which are also the corpus of the directory target.
///
/// # Errors
///
/// Errors of the engine; there should be none.
pub fn stores() -> terrapin::Result<Inputs> {
    let packed = |disk: &SimDisk, name: &str| (name.to_owned(), pack_all(disk));
    let closed = World::new(SimDisk::new(3));
    fill(&closed, &tiny(), 4)?.close()?;
    let killed = World::new(SimDisk::new(4));
    let database = fill(&killed, &tiny(), 1)?;
    unmerged(&database)?;
    kill(&killed, database);
    let compressed = World::new(SimDisk::new(5));
    let options = tiny().compression(Compression::Lz4);
    fill(&compressed, &options, 1)?.close()?;
    let in_place = World::new(SimDisk::new(7));
    fill_in(&in_place, &tiny(), 6, StructureKind::InPlace)?.close()?;
    let hashed = World::new(SimDisk::new(8));
    fill_in(&hashed, &tiny(), 6, StructureKind::Hashed)?.close()?;
    let separated = World::new(SimDisk::new(9));
    let options = tiny()
        .separate_from_for_tests(0)
        .compression(Compression::Lz4);
    fill(&separated, &options, 2)?.close()?;
    let large = World::new(SimDisk::new(11));
    let database = fill_large(&large)?;
    kill(&large, database);
    let tiered = World::new(SimDisk::new(10));
    fill_tiered(&tiered)?.close()?;
    let new = World::new(SimDisk::new(6));
    let database = tiny().open_on(new.env.clone(), new.disk.handle())?;
    kill(&new, database);
    Ok(vec![
        packed(&closed.disk, "closed"),
        packed(&killed.disk, "killed"),
        packed(&compressed.disk, "compressed"),
        packed(&in_place.disk, "inplace"),
        packed(&hashed.disk, "hashed"),
        packed(&separated.disk, "separated"),
        packed(&tiered.disk, "tiered"),
        packed(&large.disk, "large"),
        packed(&new.disk, "new"),
    ])
}

fn pack_all(disk: &SimDisk) -> Vec<u8> {
    let names = disk.handle().list().unwrap_or_default();
    let files: Vec<File> = names
        .into_iter()
        .filter(|name| !name.starts_with("spare-"))
        .filter_map(|name| File::of(&name, disk.content(&name)?))
        .collect();
    let mut input = vec![0];
    input.extend(pack(&files));
    input
}

fn kill(world: &World, database: Database) {
    world.sim.kill();
    world.disk.crash_process();
    drop(database);
    world.sim.kill();
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{:04}", number * 37 % 300).into_bytes()
}

/// Some keyspaces with trees of several nodes, after this many checkpoints.
fn fill(world: &World, options: &Options, rounds: u32) -> terrapin::Result<Database> {
    fill_in(world, options, rounds, StructureKind::Leveled)
}

/// The same, in keyspaces of a structure.
fn fill_in(
    world: &World,
    options: &Options,
    rounds: u32,
    structure: StructureKind,
) -> terrapin::Result<Database> {
    let database = options.open_on(world.env.clone(), world.disk.handle())?;
    let of_structure = || KeyspaceOptions::new().structure(structure);
    let main = database.create_keyspace("main", of_structure())?;
    let nested = database.create_keyspace("nested", of_structure())?;
    for round in 0..rounds {
        for number in 0..180 / rounds + 40 {
            let value = vec![b'a' + (number % 26) as u8; (number % 40) as usize];
            main.put(key(number * rounds + round), &value)?;
        }
        for number in 0..6u32 {
            nested.put(format!("shared/prefix/{:02}", number + round), "value")?;
            main.delete(key(number * 7 + round))?;
        }
        database.checkpoint()?;
    }
    Ok(database)
}

/// A keyspace with tiered buffers: many runs above few leaves, some of them cut, and maplets.
fn fill_tiered(world: &World) -> terrapin::Result<Database> {
    let options = tiny().always_maplets_for_tests(true);
    let database = options.open_on(world.env.clone(), world.disk.handle())?;
    let stored = KeyspaceOptions::new()
        .structure(StructureKind::Tiered)
        .space_amplification(SpaceAmplification::Unbounded)
        .runs(10);
    // Runs above nodes, and runs above leaves.
    for (name, records) in [("main", 150), ("low", 40)] {
        let keyspace = database.create_keyspace(name, stored)?;
        for number in 0..records {
            keyspace.put(key(number), [b'a' + (number % 26) as u8; 20])?;
        }
        database.checkpoint()?;
        for round in 0..14 {
            for number in 0..4 {
                let written = number * records / 2 + round * 11;
                keyspace.put(key(written), format!("of round {round}"))?;
            }
            keyspace.delete(key(round * 13))?;
            database.checkpoint()?;
        }
    }
    Ok(database)
}

/// Large values in a tree and in the log: alone, in a batch, with a deadline.
fn fill_large(world: &World) -> terrapin::Result<Database> {
    let options = tiny().large_above_for_tests(100);
    let database = options.open_on(world.env.clone(), world.disk.handle())?;
    let main = database.create_keyspace("main", KeyspaceOptions::new())?;
    let value = |number: u8| vec![b'a' + number; 101 + usize::from(number) * 40];
    for number in 0..3u8 {
        main.put(key(number.into()), value(number))?;
        main.put(format!("short {number}"), "value")?;
    }
    database.checkpoint()?;
    main.put(key(0), value(3))?;
    main.put("logged", value(4))?;
    let deadline = UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    main.put_expiring("expiring", value(5), deadline)?;
    let mut batch = database.batch();
    batch.put(&main, "batched", value(6));
    batch.put(&main, "short 9", "value");
    database.write(&batch)?;
    Ok(database)
}

/// Content that only the log has: every kind of record.
fn unmerged(database: &Database) -> terrapin::Result<()> {
    let main = database.open_keyspace("main")?;
    for number in 0..30 {
        main.put(key(number * 5), format!("logged {number}"))?;
    }
    main.delete(key(3))?;
    database.flush()?;
    let nested = database.open_keyspace("nested")?;
    let mut batch = database.batch();
    batch.put(&main, "batched", "one");
    batch.delete(&nested, "shared/prefix/00");
    batch.put(&main, "batched", "two");
    let deadline = UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    batch.put_expiring(&main, "expiring", "three", deadline);
    batch.delete_range(&main, "key-0100".."key-0110");
    let counted = KeyspaceOptions::new()
        .merge_operator("append")
        .ttl(Duration::from_secs(2_000_000_000));
    let counted = database.create_keyspace("counted", counted)?;
    batch.merge(&counted, "batched", "one");
    database.write(&batch)?;
    main.put_expiring("expiring alone", "four", deadline)?;
    main.delete_range("key-0200".."key-0220")?;
    main.delete_prefix("key-029")?;
    counted.merge("alone", "two")?;
    let short = database.create_keyspace("short", KeyspaceOptions::default())?;
    short.put("a", vec![b'x'; 600])?;
    nested.set_checkpoint_distance(terrapin::CheckpointDistance::Fixed(2))?;
    database.drop_keyspace("short")?;
    nested.clear()?;
    nested.put("shared/prefix/42", "after the clear")?;
    Ok(())
}

/// Inputs of the superblock target.
#[must_use]
pub fn superblocks() -> Inputs {
    let closed = data("closed");
    let new = data("new");
    let sectors = |data: &[u8], slots: [usize; 2]| {
        let mut input = vec![0];
        for slot in slots {
            input.extend(data.iter().skip(slot * 4096).take(512));
        }
        input
    };
    vec![
        ("closed".to_owned(), sectors(&closed, [0, 1])),
        ("new".to_owned(), sectors(&new, [0, 1])),
        ("torn".to_owned(), {
            let mut input = sectors(&closed, [0, 1]);
            input[1..100].fill(0);
            input
        }),
    ]
}

fn data(name: &'static str) -> Vec<u8> {
    let mut files = template::files(name).into_iter();
    files
        .find(|file| file.name() == "data")
        .map(|file| file.content)
        .unwrap_or_default()
}

/// Inputs of the catalog target.
#[must_use]
pub fn catalogs() -> Inputs {
    let data = data("closed");
    let contents = [2, 3]
        .into_iter()
        .flat_map(|kind| template::pages(&data, kind))
        .map(|page| page.content(&data));
    vec![("closed".to_owned(), join(contents))]
}

/// Inputs of the node target.
#[must_use]
pub fn all_nodes() -> Inputs {
    let data = data("closed");
    let pages = nodes(&data);
    let contents = || pages.iter().map(|page| page.content(&data));
    vec![
        ("closed".to_owned(), join(contents())),
        ("root".to_owned(), join(contents().take(1))),
    ]
}

/// Inputs of the target of nodes with tiered buffers.
#[must_use]
pub fn tiered() -> Inputs {
    let data = data("tiered");
    let pages = nodes(&data);
    let contents = || pages.iter().map(|page| page.content(&data));
    vec![
        ("tiered".to_owned(), join(contents())),
        ("root".to_owned(), join(contents().take(1))),
    ]
}

/// Inputs of the map target.
#[must_use]
pub fn maps() -> Inputs {
    let data = data("inplace");
    let pages = map_nodes(&data);
    let contents = || pages.iter().map(|page| page.content(&data));
    vec![
        ("inplace".to_owned(), join(contents())),
        ("root".to_owned(), join(contents().take(1))),
    ]
}

/// Inputs of the trie target.
#[must_use]
pub fn tries() -> Inputs {
    let data = data("hashed");
    let pages = trie_pages(&data);
    let contents = || pages.iter().map(|page| page.content(&data));
    vec![
        ("hashed".to_owned(), join(contents())),
        ("root".to_owned(), join(contents().take(1))),
    ]
}

/// Inputs of the targets for separated values: parts of the store that has them.
fn separated(parts: impl Fn(&[u8]) -> Vec<(usize, usize)>) -> Inputs {
    let data = data("separated");
    let parts = parts(&data);
    let bytes = |&(start, bytes): &(usize, usize)| &data[start..start + bytes];
    vec![("separated".to_owned(), join(parts.iter().map(bytes)))]
}

/// Inputs of the handle target.
#[must_use]
pub fn handles() -> Inputs {
    separated(values::groups)
}

/// Inputs of the value target.
#[must_use]
pub fn value_pages() -> Inputs {
    separated(values::value_pages)
}

/// Inputs of the table target.
#[must_use]
pub fn tables() -> Inputs {
    let data = data("separated");
    let pages = values::table_pages(&data);
    let contents = pages.iter().map(|page| page.content(&data));
    vec![("separated".to_owned(), join(contents))]
}

/// Inputs of the target of large puts.
#[must_use]
pub fn large_puts() -> Inputs {
    let parts = super::large::template_parts();
    vec![("large".to_owned(), join(parts.iter().map(Vec::as_slice)))]
}

/// Inputs of the group target.
#[must_use]
pub fn groups() -> Inputs {
    let mut inputs = Vec::new();
    for (name, compression, filter_bits, count) in [
        ("plain", Compression::None, 12, 60),
        ("lz4", Compression::Lz4, 0, 60),
        ("one", Compression::None, 0, 1),
    ] {
        let mut builder = GroupBuilder::new(GroupOptions {
            target_bytes: 64 << 10,
            block_bytes: 512,
            unit: 512,
            compression,
            filter_bits,
            now_ms: 0,
        });
        let mut pending = Vec::new();
        for number in 0..count {
            let value = vec![b'v'; (number % 30) as usize + usize::from(number == 20) * 900];
            let key = format!("shared/prefix/{number:04}");
            let added = builder.add(key.as_bytes(), Message::Put(&value));
            pending.extend(added.ok().flatten());
        }
        pending.extend(builder.finish());
        for group in pending {
            let (_, image) = group.place(PageId(0x0100_0000_0007), PAGES_START);
            let mut input = vec![0];
            input.extend_from_slice(&image);
            inputs.push((name.to_owned(), input));
        }
    }
    inputs
}

/// Inputs of the block target.
#[must_use]
pub fn blocks() -> Inputs {
    let mut inputs = Vec::new();
    for (name, compression, extended) in [
        ("plain", Compression::None, false),
        ("lz4", Compression::Lz4, false),
        ("extended", Compression::None, true),
        ("extended-lz4", Compression::Lz4, true),
    ] {
        let mut builder = BlockBuilder::new(4096, compression);
        for number in 0..24u64 {
            let kind = match extended {
                true => RecordKind::ALL[number as usize % RecordKind::ALL.len()],
                false if number % 5 == 0 => RecordKind::Delete,
                false => RecordKind::Put,
            };
            let has_value = kind != RecordKind::Delete;
            let may_expire = extended && has_value && kind != RecordKind::Merge;
            let value = vec![b'v'; usize::from(has_value) * (number as usize % 30)];
            let record = Record {
                kind,
                deadline_ms: (may_expire && number % 4 < 2).then_some(1_800_000_000_000 + number),
                value: &value,
            };
            let added = builder.add_record(format!("prefix/{number:04}").as_bytes(), record);
            debug_assert!(matches!(added, Ok(true)));
        }
        let mut input = vec![0];
        builder.finish(BLOCK_PAGE, 0, &mut input);
        inputs.push((name.to_owned(), input));
    }
    inputs
}

/// Inputs of the filter target.
#[must_use]
pub fn filters() -> Inputs {
    let mut inputs = Vec::new();
    for keys in [0u32, 40, 320, 2600, 20_000] {
        let mut builder = FilterBuilder::new();
        let hashes: Vec<u64> = (0..keys).map(|n| hash64(&n.to_le_bytes())).collect();
        builder.add_all(&hashes);
        // Few bits per key, so that any number of keys makes one partition.
        let partition = builder.finish(1, PARTITION_BYTES_MAX);
        let in_first_cell = |hash: &u64| hash >> 27 & 31 == 0;
        let mut input = vec![0];
        let mut asked: Vec<u64> = hashes.into_iter().filter(in_first_cell).take(4).collect();
        asked.extend([0, u64::MAX, 1 << 40, 0x1234_5678_9abc_def0]);
        asked.resize(8, 7);
        input.extend(asked.iter().flat_map(|hash| hash.to_le_bytes()));
        input.extend_from_slice(&partition[..128]);
        inputs.push((format!("{keys}-keys"), input));
    }
    inputs
}

/// Inputs of the target of range deletes: one for each structure, with operations of every kind.
#[must_use]
pub fn ranges() -> Inputs {
    let input = |structure: u8| {
        let mut input = vec![0, structure];
        for round in 0..60u8 {
            let place = round.wrapping_mul(37);
            input.extend([0, place, 0, 40 + round]);
            input.extend([1, place.wrapping_add(90), 0, 3]);
            match round % 6 {
                1 => input.extend([3, place, place.wrapping_add(40), 0]),
                2 => input.extend([6, 0, 0, 60]),
                3 => input.extend([4, place & 0xf0, 0, 0]),
                4 => input.extend([5, 0, 0, 0]),
                5 => input.extend([2, place, 0, 0]),
                _ => input.extend([7, 0, 0, 0]),
            }
        }
        input
    };
    let names = ["leveled", "tiered", "inplace"];
    (0..)
        .zip(names)
        .map(|(n, name)| (name.to_owned(), input(n)))
        .collect()
}

/// Inputs of the maplet target.
#[must_use]
pub fn maplets() -> Inputs {
    let mut inputs = Vec::new();
    for (keys, values, bits) in [
        (0u32, 1usize, 12u32),
        (40, 5, 20),
        (500, 16, 24),
        (1900, 64, 40),
    ] {
        let mut builder = MapletBuilder::new(bits);
        let hashes: Vec<u64> = (0..keys).map(|n| hash64(&n.to_le_bytes())).collect();
        for (number, hash) in hashes.iter().enumerate() {
            builder.add(*hash, number % values);
        }
        let Some((shape, mut partition)) = builder.finish(values) else {
            continue;
        };
        partition.truncate(PARTITION_BYTES_MAX);
        let last = partition.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        let mut input = vec![0, bits as u8, values as u8, shape.partitions() as u8];
        let mut asked: Vec<u64> = hashes.into_iter().take(4).collect();
        asked.extend([0, u64::MAX, 1 << 40, 0x1234_5678_9abc_def0]);
        asked.resize(8, 7);
        input.extend(asked.iter().flat_map(|hash| hash.to_le_bytes()));
        input.extend_from_slice(&partition[..=last]);
        inputs.push((format!("{keys}-keys"), input));
    }
    inputs
}

/// Inputs of the log target.
#[must_use]
pub fn logs() -> Inputs {
    let mut files = template::files("killed");
    files.retain(|file| file.name() != "data");
    let mut input = vec![0];
    input.extend(pack(&files));
    vec![("killed".to_owned(), input)]
}

#[cfg(test)]
mod tests {
    use super::super::replay::{inputs, one};
    use super::super::{TARGETS, target};
    use super::*;

    #[test]
    fn every_input_of_the_corpus_is_sound_through_and_through() {
        for target in &TARGETS {
            let corpus = inputs("corpus", target.name);
            assert!(!corpus.is_empty(), "{}", target.name);
            for (path, input) in corpus {
                let outcome = one(target, &input);
                assert!(
                    matches!(outcome, Ok(true)),
                    "{}: {outcome:?}",
                    path.display()
                );
            }
        }
    }

    #[test]
    fn the_templates_have_what_targets_change() {
        assert!(target("node").is_some());
        let data = data("closed");
        let heights: Vec<u8> = nodes(&data)
            .iter()
            .map(|page| page.content(&data)[0])
            .collect();
        assert!(heights.first() > Some(&1), "heights {heights:?}");
        for kind in [2, 3] {
            assert!(!template::pages(&data, kind).is_empty());
        }
        // Levels are byte 6 of a node, and flags byte 7: 2 says that there are maplets.
        let data = super::data("tiered");
        let tiered = nodes(&data);
        let contents = || tiered.iter().map(|page| page.content(&data));
        let levels: Vec<u8> = contents().map(|content| content[6]).collect();
        for height in [1, 2] {
            let mut of_height = contents().filter(|content| content[0] == height);
            let is_full = |content: &[u8]| content[6] > 4 && content[7] & 2 != 0;
            assert!(of_height.any(is_full), "levels {levels:?}");
        }
        let bytes: usize = TARGETS
            .iter()
            .flat_map(|target| inputs("corpus", target.name))
            .map(|(_, input)| input.len())
            .sum();
        assert!(bytes <= 448 << 10, "the corpus has {bytes} bytes");
    }
}
