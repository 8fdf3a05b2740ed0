//! Operations that depend on what they read: transactions, and compare-and-swaps.

use std::time::Instant;

use terrapin_base::{Error, Result};

use super::{Driver, Outcome, Shared, missing, nanoseconds, pick};
use crate::generator::Random;
use crate::record::Records;
use crate::store::{Client, Store};

/// Records that a transaction reads. It writes the first two of them.
const READ_RECORDS: usize = 4;
const WRITTEN_RECORDS: usize = 2;

/// One transaction. Returns when it ended.
pub(super) fn transaction<S: Store>(
    shared: &Shared<'_, S>,
    number: usize,
    store: &mut impl Client,
    random: &mut Random,
    outcome: &mut Outcome,
) -> Result<Instant> {
    let (driver, shape) = (shared.driver, shared.driver.config.shape);
    let mut records: Vec<u64> = Vec::with_capacity(READ_RECORDS);
    let there = driver.config.records.min(READ_RECORDS as u64) as usize;
    while records.len() < there {
        let record = pick(shared, None, random);
        if !records.contains(&record) {
            records.push(record);
        }
    }
    let key = |record: &u64| {
        let mut key = Vec::new();
        shape.key(*record, &mut key);
        key
    };
    let keys: Vec<Vec<u8>> = records.iter().map(key).collect();
    let (mut writes, mut tickets) = (Vec::new(), Vec::new());
    for (record, key) in records.iter().zip(&keys).take(WRITTEN_RECORDS) {
        let (tag, mut value) = (random.bits(), Vec::new());
        shape.value(key, tag, &mut value);
        outcome.user_bytes_written += shape.bytes_with(key);
        writes.push((key.as_slice(), value));
        tickets.extend(driver.watch.begin(*record).map(|ticket| (ticket, tag)));
    }
    let start = Instant::now();
    store.transact(&keys, &writes, |key, value| match value {
        Some(value) => shape.check(key, value),
        None => Err(missing(key)),
    })?;
    let end = Instant::now();
    outcome
        .latency_ns
        .saturating_record(nanoseconds(start, end));
    outcome.operations += 1;
    for (ticket, tag) in tickets {
        driver.watch.end(ticket, number, tag);
    }
    Ok(end)
}

/// Records that all clients of a phase of swaps have together, at most.
const OWNED_RECORDS_MAX: u64 = 1 << 20;

/// The records that one client swaps, and no other: each one whose number leaves the client's
/// number as a remainder, or some of them at even distances.
pub(super) struct Owned {
    first: u64,
    distance: u64,
    /// The tags of the records' values.
    tags: Vec<u64>,
    key: Vec<u8>,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl<S: Store> Driver<'_, S> {
    /// Reads and checks the records that a client is going to swap.
    ///
    /// Errors: `InvalidArgument` if values are too short to have tags.
    pub(super) fn own(&self, client: usize) -> Result<Owned> {
        let (config, threads) = (self.config, self.config.threads as u64);
        if !config.shape.has_tags() || config.records < threads {
            return Err(Error::invalid(
                "swaps need values of at least 8 bytes, and a record for each thread",
            ));
        }
        let (mut store, mut key, mut value) = (self.store.client()?, Vec::new(), Vec::new());
        let first = client as u64;
        let distance = threads * config.records.div_ceil(OWNED_RECORDS_MAX);
        let mut tags = Vec::new();
        for record in (first..config.records).step_by(distance as usize) {
            config.shape.key(record, &mut key);
            if !store.read(&key, &mut value)? {
                return Err(missing(&key));
            }
            config.shape.check(&key, &value)?;
            tags.push(Records::tag(&value));
        }
        Ok(Owned {
            first,
            distance,
            tags,
            key,
            old: value,
            new: Vec::new(),
        })
    }
}

/// Swaps the value of one of the client's own records. Returns when that was done.
pub(super) fn swap<S: Store>(
    shared: &Shared<'_, S>,
    number: usize,
    store: &mut impl Client,
    random: &mut Random,
    outcome: &mut Outcome,
) -> Result<Instant> {
    let (driver, shape) = (shared.driver, shared.driver.config.shape);
    let mut owned = shared.owned[number].lock();
    let owned = &mut *owned;
    let at = random.below(owned.tags.len() as u64) as usize;
    let (record, tag) = (owned.first + at as u64 * owned.distance, random.bits());
    shape.key(record, &mut owned.key);
    shape.value(&owned.key, owned.tags[at], &mut owned.old);
    shape.value(&owned.key, tag, &mut owned.new);
    let ticket = driver.watch.begin(record);
    let start = Instant::now();
    let is_swapped = store.swap(&owned.key, &owned.old, &owned.new)?;
    let end = Instant::now();
    if !is_swapped {
        return Err(Error::corrupt("a swap met another value than the last one")
            .with("key", format!("{:02x?}", owned.key)));
    }
    owned.tags[at] = tag;
    outcome
        .latency_ns
        .saturating_record(nanoseconds(start, end));
    outcome.operations += 1;
    outcome.user_bytes_written += shape.bytes_with(&owned.key);
    if let Some(ticket) = ticket {
        driver.watch.end(ticket, number, tag);
    }
    Ok(end)
}
