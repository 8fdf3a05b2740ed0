//! The targets: each takes any bytes, builds its subject from them, and has the production code
//! read it.
//!
//! The lowest bit of the first byte says whether checksums stay as they are; the rest is the
//! target's own form. A target returns whether nothing was wrong. It panics on a breach: a panic in
//! the engine, an error that hostile bytes must not cause, contradicting answers although `verify`
//! finds nothing, or too much memory for the files' size.

use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::codec::Reader;
use terrapin_base::{Budget, Env, Generation, Lsn, PageId};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_disk::largest_buffer;
use terrapin_filter::{
    MapletShape, Outline, PARTITION_BYTES_MAX, check_partition, may_contain, seal_partition,
};
use terrapin_pages::block::{AnyBlock, BlockBuilder, Compression, TARGET_BYTES_MAX};
use terrapin_pages::group::{Footer, GroupRef, check_group};
use terrapin_pages::{Fill, PAGES_START, PageKind, PageRef, PageStore};
use terrapin_structure::Structure;
use terrapin_wal::{LogOptions, Recovery};

use super::archive::{self, File};
use super::exercise::{self, check_error};
use super::repair_log::{self, Known};
use super::{repair, template};

/// The memory a target may take besides twice the bytes of its files, on the heap at once and as
/// one aligned buffer. It is small, so that a size supplied by a file shows.
pub(super) const SMALL: usize = 64 << 10;
/// The same for a log and a ring that start anew.
const LOG: usize = 128 << 10;
/// The same for whole databases with two megabytes of memory: memtables, caches, and all compared
/// records.
const DATABASE: usize = 1 << 20;

/// The page of the block target.
pub const BLOCK_PAGE: PageId = PageId(0x0100_0000_0007);

/// Runs the work, and panics if it takes more memory than files of this many bytes justify.
pub(super) fn measured<T>(file_bytes: usize, allowance: usize, work: impl FnOnce() -> T) -> T {
    largest_buffer();
    let mut done = None;
    let taken = allocation_counter::measure(|| done = Some(work()));
    let buffer = largest_buffer();
    assert!(
        taken.bytes_max <= (2 * file_bytes + allowance) as u64,
        "{} bytes of heap for files of {file_bytes}",
        taken.bytes_max
    );
    assert!(
        buffer <= 2 * file_bytes + allowance,
        "a buffer of {buffer} bytes for files of {file_bytes}"
    );
    match done {
        Some(done) => done,
        None => unreachable!("the work was done"),
    }
}

/// Whether checksums are repaired, and the remaining bytes.
pub(super) fn split(input: &[u8]) -> (bool, &[u8]) {
    match input.split_first() {
        Some((flags, rest)) => (flags & 1 == 0, rest),
        None => (true, input),
    }
}

/// The parts of an input, each behind its length in two bytes.
pub(super) fn parts(input: &[u8]) -> Vec<&[u8]> {
    let mut reader = Reader::new("parts", input);
    let mut parts = Vec::new();
    while let Ok(length) = reader.u16() {
        let length = usize::from(length).min(reader.remaining());
        let Ok(part) = reader.bytes(length) else {
            break;
        };
        parts.push(part);
    }
    parts
}

/// Builds an input from parts, with repaired checksums.
#[must_use]
pub fn join<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = vec![0];
    for part in parts {
        out.extend((part.len() as u16).to_le_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// Superblocks. Input: the sectors of both slots, one after the other.
pub fn superblock(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let mut data = vec![0; PAGES_START as usize];
    for (slot, sector) in input.chunks(512).take(2).enumerate() {
        let place = &mut data[slot * 4096..][..512];
        place[..sector.len()].copy_from_slice(sector);
        if repaired {
            repair::slot(place);
        }
    }
    if input.len() < 512 {
        // A file that ends within its slots.
        data.truncate(input.len());
    }
    let disk = exercise::data_disk(&data);
    measured(data.len(), SMALL, || {
        let mut good = false;
        if let Some(store) = exercise::store(&disk) {
            let superblock = store.superblock();
            good = true;
            if let Some(catalog) = superblock.catalog {
                for kind in [PageKind::CatalogRoot, PageKind::Node] {
                    let read = store.read_page(&catalog, kind);
                    assert!(read.is_err(), "a page beyond the end of the file");
                }
            }
            if let Err(error) = store.rebuild(&mut std::iter::empty(), superblock.generation) {
                check_error(&error);
            }
        }
        let options = terrapin_pages::StoreOptions {
            budget: Budget::new(1 << 20),
            reserve_bytes: 0,
            system_cache: false,
        };
        match PageStore::open(&disk.fork().handle(), options, false) {
            Ok((store, _)) => assert!(store.settle_slots().is_ok(), "a slot cannot be mended"),
            Err(error) => check_error(&error),
        }
        good
    })
}

/// The catalog. Input: contents of the template's catalog root and leaves. The whole database is
/// opened over them.
pub fn catalog(input: &[u8]) -> bool {
    let (_, input) = split(input);
    let mut files = template::files("closed");
    let mut parts = parts(input).into_iter();
    if let Some(data) = files.iter_mut().find(|file| file.name() == "data") {
        for kind in [2, 3] {
            let pages = template::pages(&data.content, kind);
            for (page, part) in pages.iter().zip(parts.by_ref()) {
                page.replace(&mut data.content, part);
            }
        }
    }
    whole(&files, 0)
}

/// Nodes. Input: contents of the template's nodes, starting with that of the tallest tree.
pub fn node(input: &[u8]) -> bool {
    let (_, input) = split(input);
    let Some(mut data) = data_of("closed") else {
        return false;
    };
    let pages = nodes(&data);
    let Some(root) = pages.first().copied() else {
        return false;
    };
    let height: [u8; 2] = match root.content(&data).first_chunk() {
        Some(height) => *height,
        None => return false,
    };
    for (page, part) in pages.iter().zip(parts(input)) {
        page.replace(&mut data, part);
    }
    let mut bytes = vec![2];
    bytes.extend(height);
    PageRef {
        id: PageId(root.id),
        offset: root.offset as u64,
        bytes: (root.room_bytes + 24) as u32,
    }
    .encode(&mut bytes);
    let disk = exercise::data_disk(&data);
    measured(data.len(), SMALL, || tree(&disk, &bytes))
}

/// Nodes with tiered buffers: runs, live parts with cut bounds, maplets. Input: contents of the
/// template's nodes, the tallest and newest first. The whole database is opened over them, read,
/// and written to, so that merges plan with them.
pub fn tiered(input: &[u8]) -> bool {
    let (_, input) = split(input);
    let mut files = template::files("tiered");
    if let Some(data) = files.iter_mut().find(|file| file.name() == "data") {
        let pages = nodes(&data.content);
        for (page, part) in pages.iter().zip(parts(input)) {
            page.replace(&mut data.content, part);
        }
    }
    whole(&files, 0)
}

/// Nodes of the map of a page-grouped tree. Input: contents of the template's nodes and leaves, the
/// tallest and newest first. The whole database is opened over them.
pub fn map(input: &[u8]) -> bool {
    let (_, input) = split(input);
    let mut files = template::files("inplace");
    if let Some(data) = files.iter_mut().find(|file| file.name() == "data") {
        let pages = map_nodes(&data.content);
        for (page, part) in pages.iter().zip(parts(input)) {
            page.replace(&mut data.content, part);
        }
    }
    whole(&files, 0)
}

/// The nodes and leaves of maps in a data file, the tallest and newest first.
#[must_use]
pub fn map_nodes(data: &[u8]) -> Vec<template::Page> {
    let mut pages = template::pages(data, 6);
    let height = |page: &template::Page| page.content(data).first().copied();
    pages.sort_by_key(|page| std::cmp::Reverse(height(page)));
    pages
}

/// Nodes and lists of hashes of a lazy-trie. Input: contents of the template's nodes, the newest
/// first, and of its lists. The whole database is opened over them.
pub fn trie(input: &[u8]) -> bool {
    let (_, input) = split(input);
    let mut files = template::files("hashed");
    if let Some(data) = files.iter_mut().find(|file| file.name() == "data") {
        let pages = trie_pages(&data.content);
        for (page, part) in pages.iter().zip(parts(input)) {
            page.replace(&mut data.content, part);
        }
    }
    whole(&files, 0)
}

/// The nodes of lazy-tries in a data file, the newest first, and the lists of hashes.
#[must_use]
pub fn trie_pages(data: &[u8]) -> Vec<template::Page> {
    let mut pages = template::pages(data, 8);
    pages.extend(template::pages(data, 10));
    pages
}

/// The template's data file.
fn data_of(name: &'static str) -> Option<Vec<u8>> {
    let mut files = template::files(name).into_iter();
    files
        .find(|file| file.name() == "data")
        .map(|file| file.content)
}

/// The nodes of a data file, the tallest and newest first.
#[must_use]
pub fn nodes(data: &[u8]) -> Vec<template::Page> {
    let mut pages = template::pages(data, 1);
    let height = |page: &template::Page| page.content(data).first().copied();
    pages.sort_by_key(|page| std::cmp::Reverse(height(page)));
    pages
}

/// Opens the tree of a root reference and uses it.
fn tree(disk: &terrapin_disk::SimDisk, root: &[u8]) -> bool {
    let Some(store) = exercise::store(disk) else {
        return false;
    };
    let params = BeTreeParams::new(Budget::new(1 << 20));
    let structure = BeTree::new(store.clone(), params);
    match structure.open(root) {
        Ok(version) => {
            let mut pages = Vec::new();
            let walked = version.pages(&mut |page| {
                pages.push(Ok(page));
                Ok(())
            });
            let rebuilt =
                walked.and_then(|()| store.rebuild(&mut pages.into_iter(), Generation(1)));
            let rebuilt = rebuilt.map_err(|error| check_error(&error)).is_ok();
            exercise::version(&*version) && rebuilt
        }
        Err(error) => {
            check_error(&error);
            false
        }
    }
}

/// A page group that is a whole tree. Input: the group; its footer supplies its reference.
pub fn group(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let mut data = data_of("closed").unwrap_or_default();
    data.truncate(PAGES_START as usize);
    data.resize(PAGES_START as usize, 0);
    data.extend_from_slice(&input[..input.len().min(64 << 10)]);
    let inflated = if repaired {
        repair::group(&mut data[PAGES_START as usize..]).unwrap_or(0)
    } else {
        0
    };
    let disk = exercise::data_disk(&data);
    measured(data.len() + inflated, SMALL, || {
        let bytes = &data[PAGES_START as usize..];
        let footer = match Footer::decode(bytes) {
            Ok(footer) => footer,
            Err(error) => {
                check_error(&error);
                return false;
            }
        };
        let group = footer.group;
        let checked = check_group(bytes, &group);
        if let Err(error) = &checked {
            check_error(error);
        }
        if let Some(store) = exercise::store(&disk) {
            blocks(&store, &group);
        }
        let mut root = vec![1];
        let deadlines = exercise::store(&disk)
            .and_then(|store| store.index(&group).ok())
            .map(|index| index.deadlines());
        group.encode(&deadlines.unwrap_or_default(), &mut root);
        tree(&disk, &root) && checked.is_ok()
    })
}

/// Reads a group's blocks one by one and all together, and asks its filter.
fn blocks(store: &PageStore, group: &GroupRef) {
    let index = match store.index(group) {
        Ok(index) => index,
        Err(error) => return check_error(&error),
    };
    let count = index.blocks().min(1000);
    for number in 0..count {
        if let Err(error) = store.block(group, &index, number, Fill::No) {
            check_error(&error);
        }
        let (front, rest) = index.separator(number);
        let place = index.find(&[front, rest].concat());
        assert!(place < index.blocks());
    }
    let wants: Vec<_> = (0..count).map(|n| (*group, index.clone(), n)).collect();
    if let Err(error) = store.blocks(&wants, Fill::Low) {
        check_error(&error);
    }
    let mut run = Vec::new();
    if let Err(error) = store.block_run(group, &index, 0..count, Fill::No, &mut run) {
        check_error(&error);
    }
    for key in [index.first_key(), index.last_key(), b"key-0042"] {
        if let Err(error) = store.may_contain(group, hash64(key)) {
            check_error(&error);
        }
    }
}

/// A block with records of every kind. Input: its bytes.
pub fn block(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let mut bytes = input[..input.len().min(64 << 10)].to_vec();
    let inflated = match repaired {
        true => repair::block_of(&mut bytes, BLOCK_PAGE.0, 0),
        false => 0,
    };
    let decoded = measured(bytes.len() + inflated, SMALL, || {
        AnyBlock::decode(&bytes, BLOCK_PAGE, 0)
    });
    match decoded {
        Ok(block) => {
            records(block);
            true
        }
        Err(error) => {
            check_error(&error);
            false
        }
    }
}

/// Reads the records of a block, builds them anew, and executes the block if all its records are
/// messages.
fn records(block: AnyBlock) {
    let mut builder = BlockBuilder::new(TARGET_BYTES_MAX, Compression::None);
    let mut keys = Vec::new();
    for number in 0..block.len() {
        let record = block.record(number);
        assert!(record.is_possible(), "an impossible record: {record:?}");
        let mut key = Vec::new();
        block.key_into(number, &mut key);
        // Nothing but a merge notices keys that do not ascend.
        match builder.add_record(&key, record) {
            Ok(true) => keys.push(key),
            Ok(false) => break,
            Err(error) => {
                check_error(&error);
                break;
            }
        }
    }
    let mut bytes = Vec::new();
    if builder.finish(BLOCK_PAGE, 0, &mut bytes).is_some() {
        let again = AnyBlock::decode(&bytes, BLOCK_PAGE, 0);
        let again = again.unwrap_or_else(|error| panic!("a block that was built: {error}"));
        assert_eq!(again.len(), keys.len());
        for (number, wanted) in keys.iter().enumerate() {
            let mut key = Vec::new();
            again.key_into(number, &mut key);
            assert!(key == *wanted && again.record(number) == block.record(number));
        }
    }
    let mut checked = (0..block.len()).map(|number| block.record(number).check());
    let refused = checked.find_map(Result::err);
    match (refused, block.executable()) {
        (None, Ok(block)) => {
            for number in 0..block.len() {
                let _ = (block.message(number), block.entry(number));
            }
        }
        (Some(one), Err(whole)) => assert_eq!(one.message(), whole.message()),
        (one, whole) => panic!("a record: {one:?}, its block: {whole:?}"),
    }
}

/// Filters. Input: hashes to look up (eight of eight bytes), then the repeated cells of a
/// partition.
pub fn filter(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let (hashes, cells) = input.split_at(input.len().min(64));
    let mut partition: Vec<u8> = cells
        .iter()
        .copied()
        .cycle()
        .take(PARTITION_BYTES_MAX)
        .collect();
    measured(PARTITION_BYTES_MAX, SMALL, || {
        if repaired && partition.len() == PARTITION_BYTES_MAX {
            seal_partition(&mut partition, 7);
        }
        let mut good = match check_partition(&partition, 7) {
            Ok(()) => true,
            Err(error) => {
                check_error(&error);
                assert!(
                    !repaired || cells.is_empty(),
                    "a sealed partition is refused: {error}"
                );
                false
            }
        };
        let outline = Outline::of(&partition).ok();
        let given = hashes
            .chunks_exact(8)
            .filter_map(|eight| eight.first_chunk().copied().map(u64::from_le_bytes));
        for hash in given {
            // Asks each of the 32 cells, chosen by five bits of the hash.
            for cell in 0..32u64 {
                let hash = hash & !(31 << 27) | cell << 27;
                let answer = may_contain(&partition, hash);
                assert!(
                    matches!(answer, Ok(false))
                        || outline.as_ref().is_none_or(|o| o.may_contain(hash)),
                    "an outline denies what the partition does not"
                );
                match answer {
                    Ok(_) => {}
                    Err(error) => {
                        check_error(&error);
                        good = false;
                    }
                }
            }
        }
        good
    })
}

/// Maplets. Input: bits of a fingerprint, values, partitions, hashes to look up (eight of eight
/// bytes), then a partition without the zeros at its end.
pub fn maplet(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let (shape, input) = input.split_at(input.len().min(3));
    let &[bits, values, partitions] = shape else {
        return false;
    };
    let shape = MapletShape::new(bits.into(), values.into(), partitions.into());
    let Some(shape) = shape else {
        return false;
    };
    let (hashes, bytes) = input.split_at(input.len().min(64));
    let mut partition = bytes.to_vec();
    partition.resize(PARTITION_BYTES_MAX, 0);
    measured(PARTITION_BYTES_MAX, SMALL, || {
        if repaired {
            seal_partition(&mut partition, 7);
        }
        let sealed = check_partition(&partition, 7);
        sealed.as_ref().err().into_iter().for_each(check_error);
        let mut entries = Vec::new();
        let sound = shape.entries(&partition, 0, |fingerprint, value| {
            assert!(value < usize::from(values), "a value that there is not");
            entries.push((fingerprint, value));
        });
        sound.as_ref().err().into_iter().for_each(check_error);
        let given = hashes
            .chunks_exact(8)
            .filter_map(|eight| eight.first_chunk().copied().map(u64::from_le_bytes));
        for hash in given {
            match shape.find(&partition, hash) {
                Ok(_) => {}
                Err(error) => {
                    check_error(&error);
                    assert!(sound.is_err(), "a sound partition does not answer");
                }
            }
        }
        if sound.is_ok() {
            for (fingerprint, value) in entries {
                let hash = (fingerprint << (64 - u32::from(bits))).rotate_right(32);
                let found = shape.find(&partition, hash);
                let is_found = found.is_ok_and(|found| found >> value & 1 == 1);
                assert!(
                    is_found && shape.partition_of(hash) == 0,
                    "an entry is not found"
                );
            }
        }
        sound.is_ok() && sealed.is_ok()
    })
}

/// A log: segments and ring. Input: an archive of them. First the log alone is scanned, replayed
/// and started anew. Then the template of a killed store is opened with it.
pub fn log(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let mut files: Vec<File> = archive::unpack(input)
        .into_iter()
        .filter(|file| file.name() != "data")
        .collect();
    let known = if repaired {
        repair_log::log(&mut files)
    } else {
        files
            .iter()
            .find(|file| file.is_segment())
            .and_then(|file| Known::of(&file.content))
    };
    let bytes = files.iter().map(|file| file.content.len()).sum();
    let disk = exercise::disk(&files);
    let known = known.unwrap_or(Known {
        database: 1,
        branch: 1,
        oldest: 4096,
    });
    let mut good = measured(bytes, LOG, || replay(&disk, known));
    if let Some(data) = template::files("killed")
        .into_iter()
        .find(|file| file.name() == "data")
    {
        files.push(data);
        good &= whole(&files, 0);
    }
    good
}

/// Scans a log and replays it twice: as a reader, and as the writer of its next life.
fn replay(disk: &terrapin_disk::SimDisk, known: Known) -> bool {
    let (env, sim) = Env::simulated(1);
    let options = LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 16 << 10,
        known_branches: [known.branch; 2],
        ..LogOptions::new(known.database)
    };
    let scan = |disk: Arc<dyn terrapin_disk::Disk>| {
        Recovery::scan(&env, &disk, options, Lsn(known.oldest))
            .map_err(|error| check_error(&error))
            .ok()
    };
    let drain = |mut replay: terrapin_wal::Replay| {
        let mut records = Vec::new();
        loop {
            match replay.next() {
                Ok(Some(record)) => {
                    assert!(record.end > record.lsn);
                    records.push((record.lsn, record.kind, hash64(record.payload)));
                }
                Ok(None) => return Some(records),
                Err(error) => {
                    check_error(&error);
                    return None;
                }
            }
        }
    };
    let Some(found) = scan(disk.handle()) else {
        return false;
    };
    let promised = found.records_to_replay();
    let read = drain(found.read_only());
    if let Some(records) = &read {
        assert_eq!(
            records.len() as u64,
            promised,
            "a replay brings what a scan counted"
        );
    }
    let again = disk.fork();
    let begun = scan(again.handle()).map(Recovery::begin);
    let written = match begun {
        Some(Ok((log, replay))) => {
            let records = drain(replay);
            drop(log);
            records
        }
        Some(Err(error)) => {
            check_error(&error);
            None
        }
        None => None,
    };
    assert!(
        read.is_none() || written.is_none() || read == written,
        "a reader's replay differs from that of the log's next life"
    );
    sim.kill();
    read.is_some() && written.is_some()
}

/// A whole directory. Input: an archive of its files.
pub fn directory(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let mut files = archive::unpack(input);
    let mut inflated = 0;
    if repaired {
        for file in files.iter_mut().filter(|file| file.name() == "data") {
            inflated += repair::data_file(&mut file.content);
        }
        repair_log::log(&mut files);
    }
    whole(&files, inflated)
}

/// Opens a directory in every way.
pub(super) fn whole(files: &[File], inflated: usize) -> bool {
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    let disk = exercise::disk(files);
    measured(bytes + inflated, DATABASE, || exercise::directory(&disk))
}
