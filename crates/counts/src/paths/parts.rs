//! Paths through one part of the engine: filter, log, blocks.

use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::path::Path;

use terrapin_base::{Budget, Env, Error, Message, PageId, Result};
use terrapin_disk::Disk;
use terrapin_filter::{
    BITS_PER_KEY, FilterBuilder, may_contain, partition_bytes, partition_of, partitions_in,
};
use terrapin_pages::block::{Block, BlockBuilder, Compression};
use terrapin_valuemap::{Location, LocationMap, Page, SizeClass};
use terrapin_wal::{Append, Log, LogOptions, RECORD_KIND_USER_MIN};

use super::operations_under_count;
use crate::disk::SteadyDisk;
use crate::records::{KEY_BYTES, VALUE_BYTES, key, scramble, value};

/// Keys in the filter.
pub const FILTER_KEYS: u64 = 20_000;
const FILTER_UNIT: usize = 512;
/// The bytes before key and value in a log record of the engine.
const LOG_HEAD_BYTES: usize = 2;
const BLOCK_BYTES: usize = 4096;
const PAGE: PageId = PageId(7);
/// Keys in the map of separated values.
const LOCATED_KEYS: u64 = 50_000;

pub fn filter_probe(count: u64) -> Result<()> {
    let mut builder = FilterBuilder::new();
    (0..FILTER_KEYS).for_each(|number| builder.add(scramble(number)));
    let filter = builder.finish(BITS_PER_KEY, FILTER_UNIT);
    let partitions = partitions_in(filter.len() as u32);
    let each = partition_bytes(filter.len() as u32).unwrap_or(0) as usize;
    let mut said_yes = 0;
    operations_under_count(count, |number| {
        let hash = scramble(number % (2 * FILTER_KEYS));
        let start = partition_of(hash, partitions) as usize * each;
        let partition = &filter[start..start + each];
        said_yes += u64::from(black_box(may_contain(partition, hash)?));
        Ok(())
    })?;
    // All keys that are there, and few others.
    if (count / 2..count / 2 + count / 200).contains(&said_yes) {
        Ok(())
    } else {
        Err(
            Error::internal("a filter that says yes too often or not often enough")
                .with("yes", said_yes),
        )
    }
}

pub fn location_map_hit(count: u64) -> Result<()> {
    let map = LocationMap::new(&Budget::new(64 << 20), 16 << 20, 7);
    map.set_bytes_max(8 << 20);
    let page = map.add_page(Page {
        id: 1,
        offset: 1 << 20,
        bytes: 1 << 24,
        collection: 1,
        born: 1,
    });
    let page = page.ok_or_else(|| Error::internal("no index for a page"))?;
    let class = SizeClass::of(1000).ok_or_else(|| Error::internal("no class for a length"))?;
    let of = |number: u64| map.key(1, scramble(number));
    for number in 0..LOCATED_KEYS {
        let place = number as u32;
        let location = Location { page, place, class };
        while !map.fill(of(number), location, map.epoch()) && map.wants_step() {
            while map.grow_step() {}
        }
    }
    let mut hits = 0;
    operations_under_count(count, |number| {
        hits += u64::from(black_box(map.get(of(number % LOCATED_KEYS), 1)).is_some());
        Ok(())
    })?;
    match hits * 100 >= count * 97 {
        true => Ok(()),
        false => Err(Error::internal("a map that forgets").with("hits", hits)),
    }
}

pub fn log_append(count: u64) -> Result<()> {
    let (env, _sim) = Env::simulated(3);
    let disk: std::sync::Arc<dyn Disk> = SteadyDisk::open(&env, Path::new("log-files"))?;
    let options = LogOptions {
        ring_bytes: 4 << 20,
        segment_bytes: 4 << 20,
        ..LogOptions::new(1)
    };
    let log = ManuallyDrop::new(Log::create(&env, &disk, options)?);
    let head = [1; LOG_HEAD_BYTES];
    operations_under_count(count, |number| {
        let key = key(number);
        let payload: [&[u8]; 3] = [&head, &key, &value(&key)];
        match log.try_append(RECORD_KIND_USER_MIN, black_box(&payload))? {
            Append::Done(appended) => {
                log.publish(&appended);
                Ok(())
            }
            Append::Full(_) => Err(Error::internal("the ring is full")),
        }
    })
}

/// Sorted records, a little more than a block holds.
fn records() -> Vec<([u8; KEY_BYTES], [u8; VALUE_BYTES])> {
    // Neighbours in a leaf have their first bytes in common.
    let near = |number| (scramble(number) >> 16).to_be_bytes();
    let mut keys: Vec<_> = (0..40).map(near).collect();
    keys.sort_unstable();
    keys.into_iter().map(|key| (key, value(&key))).collect()
}

fn encode(
    builder: &mut BlockBuilder,
    records: &[([u8; KEY_BYTES], [u8; VALUE_BYTES])],
    out: &mut Vec<u8>,
) -> Result<()> {
    for (key, value) in records {
        if !builder.add(key, Message::Put(value))? {
            break;
        }
    }
    builder.finish(PAGE, 0, out);
    Ok(())
}

pub fn block_encode(count: u64) -> Result<()> {
    let records = records();
    let mut builder = BlockBuilder::new(BLOCK_BYTES, Compression::None);
    let mut out = Vec::new();
    operations_under_count(count, |_| {
        out.clear();
        encode(&mut builder, black_box(&records), &mut out)
    })?;
    full_block(&out)
}

pub fn block_decode(count: u64) -> Result<()> {
    let mut builder = BlockBuilder::new(BLOCK_BYTES, Compression::None);
    let mut bytes = Vec::new();
    encode(&mut builder, &records(), &mut bytes)?;
    full_block(&bytes)?;
    operations_under_count(count, |_| {
        black_box(Block::decode(black_box(&bytes), PAGE, 0)?);
        Ok(())
    })
}

fn full_block(bytes: &[u8]) -> Result<()> {
    if (BLOCK_BYTES - KEY_BYTES - VALUE_BYTES..=BLOCK_BYTES).contains(&bytes.len()) {
        Ok(())
    } else {
        Err(Error::internal("not a full block").with("bytes", bytes.len()))
    }
}
