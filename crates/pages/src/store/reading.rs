//! Batches and streams of blocks. The device reads the wanted blocks in parallel, where the system
//! can, while the caller asks for more. The store decodes some blocks while the device reads
//! others. A stream may read indexes of groups ahead into the cache.
//!
//! One read fetches blocks that are adjacent, or that share a sector of the device, if they are
//! wanted one after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::sync::{AtomicUsize, Ordering};
use terrapin_base::{Charge, Error, MEMORY_ALIGNMENT, PageId, Purpose, Result};
use terrapin_disk::{AlignedBuf, Flight, Show};

use super::PageStore;
use super::fill::{Fill, OwnMemory};
use super::scratch::{SCRATCH_BYTES_MAX, SCRATCH_KEPT_BYTES_MAX, put_scratch};
use crate::block::Block;
use crate::group::{BlockPlace, GroupIndex, GroupRef};
use crate::metrics::ReadFor;

/// Most bytes of one read, unless a block is longer. The store decodes the first part of a longer
/// stretch while the device reads the rest.
pub(super) const STRETCH_BYTES_MAX: usize = 128 << 10;
/// Streams of at least this many stretches read twice as much at once. Each read costs processor
/// time, whatever its length.
const LONG_STRETCHES_FROM: usize = 16;
/// Bytes of concurrent reads in a new stream.
const STREAM_BYTES_FIRST: usize = 4 * STRETCH_BYTES_MAX;
/// Least memory of a stream: the device reads one part while the scan passes another.
const STREAM_MEMORY_BYTES_MIN: usize = 3 * STRETCH_BYTES_MAX;
/// Reads for what a stream still wants are at least this long, if others are under way.
const WANTED_BYTES_MIN: usize = 16 << 10;
/// A scan that passed more than one part in this many of what the caches may take caches a block
/// only while there is room. The scans' lane holds no more, so the scan would evict its own blocks.
const SCAN_KEPT_PARTS: u64 = 8;
/// A stream takes at most one part in this many of what the caches may take, because a scan has
/// several streams.
const STREAM_PARTS: u64 = 16;
/// All streams together take at most one part in this many of what the caches may take, however
/// many ranges stand still. A range without a stream reads no further ahead than it has passed.
const STREAMS_PART: usize = 2;
/// Memory that a block of a batch is expected to take at least, with the sectors around it.
const BLOCK_BYTES_EXPECTED: usize = 2 * MEMORY_ALIGNMENT;
/// Blocks of a batch that are read at once, however long they are, unless a stream may not take as
/// much.
const BLOCKS_TOGETHER: usize = 16;

/// Blocks that are being read. Each has a number: 0, 1, … in the order in which the caller asked.
/// The numbers start anew once all blocks were taken.
pub struct Reading {
    flight: Flight,
    fill: Fill,
    own: OwnMemory,
    /// Parts that were asked for and not taken, in order.
    wanted: VecDeque<Wanted>,
    /// How many parts were taken.
    taken: u64,
    /// The reads in the flight, in order.
    stretches: VecDeque<Stretch>,
    /// How many reads are over.
    over: u64,
    /// The last read, which the next part may extend. The flight has room for it.
    open: Option<Stretch>,
    /// Most bytes of one read, unless it has but one part.
    stretch_bytes_max: usize,
    held_bytes_max: u64,
    /// How many blocks a batch is for. 0 for a stream.
    blocks: usize,
    /// Bytes of all reads under way, the allowed sum of them, and the bound of that sum. A longer
    /// read goes alone. The allowed sum grows by the bytes that were taken.
    bytes: usize,
    bytes_allowed: usize,
    bytes_max: usize,
    /// Bytes that the caller probably takes yet. `usize::MAX` if that is unknown.
    bytes_wanted: usize,
    /// Bytes that this stream and earlier ones of the same scan have passed.
    bytes_passed: u64,
    /// The charge for memory that is not the thread's own.
    charge: Option<Charge>,
    /// The stream's part of the memory of all streams.
    share: Option<Share>,
}

/// Bytes that a stream adds to [`PageStore::streams`].
struct Share {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Share {
    fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        let all = all.clone();
        Share { all, bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A part of a group to read.
struct Wanted {
    group: PageId,
    part: Part,
    /// The part's first byte in the file.
    offset: u64,
    bytes: usize,
}

enum Part {
    /// The block of this number.
    Block(usize),
    /// The index, for the cache, with its offset in the group.
    Index(u32),
}

/// One read: the cover of some parts that were asked for one after the other.
struct Stretch {
    start: u64,
    bytes: usize,
    /// The number of its first part among all that were ever asked for.
    first: u64,
    parts: usize,
    /// Bytes of the parts, stored or decoded, whichever is more.
    held: u64,
}

impl Stretch {
    fn end(&self) -> u64 {
        self.start + self.bytes as u64
    }

    /// Both reads in one, if no gap is between them and the sum keeps within both bounds.
    fn joined(&self, other: &Stretch, bytes_max: usize, held_max: u64) -> Option<Stretch> {
        let touch = other.start <= self.end() && self.start <= other.end();
        let (start, end) = (self.start.min(other.start), self.end().max(other.end()));
        let held = self.held.saturating_add(other.held);
        let fits = end - start <= bytes_max as u64 && held <= held_max;
        (touch && fits).then_some(Stretch {
            start,
            bytes: (end - start) as usize,
            first: self.first,
            parts: self.parts + other.parts,
            held,
        })
    }
}

/// A flight of reads with this effect on the cache.
fn flight(memory: AlignedBuf, fill: Fill) -> Flight {
    Flight::new(memory).cached(fill.reader().may_come_again())
}

impl Reading {
    fn new(memory: AlignedBuf, bytes_max: usize, charge: Option<Charge>, fill: Fill) -> Self {
        Reading {
            flight: flight(memory, fill),
            fill,
            own: OwnMemory::default(),
            wanted: VecDeque::new(),
            taken: 0,
            stretches: VecDeque::new(),
            over: 0,
            open: None,
            stretch_bytes_max: STRETCH_BYTES_MAX,
            held_bytes_max: u64::MAX,
            blocks: 0,
            bytes: 0,
            bytes_allowed: bytes_max,
            bytes_max,
            bytes_wanted: usize::MAX,
            bytes_passed: 0,
            charge,
            share: None,
        }
    }

    /// Whether all blocks that were asked for were taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether another read can be added to those under way.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.has_room_for(self.stretch_bytes_max)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= self.bytes_allowed
    }

    /// The bytes of reads that may be under way now.
    #[must_use]
    pub fn bytes_allowed(&self) -> usize {
        self.bytes_allowed.min(self.bytes_wanted)
    }

    /// Bytes of all reads under way.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The caller probably takes `bytes` further bytes of reads. No more are under way, except for
    /// one part that was asked for.
    pub fn wants(&mut self, bytes: u64) {
        self.bytes_wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
    }

    /// Whether the caller probably takes more than what is under way, by enough for a read.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.bytes.saturating_add(WANTED_BYTES_MIN) <= self.bytes_wanted
    }

    /// Adds the last read to the flight.
    fn close(&mut self) {
        if let Some(stretch) = self.open.take()
            && self.flight.push(stretch.start, stretch.bytes).is_some()
        {
            self.stretches.push_back(stretch);
        }
    }

    /// Adds a read of one part. Later parts may make the read up to `bytes_max` long. `false` if
    /// there is no room until earlier reads are over.
    fn add(
        &mut self,
        stretch: Stretch,
        part_bytes: usize,
        bytes_max: usize,
        store: &PageStore,
    ) -> bool {
        let (stretch_max, held_max) = (self.stretch_bytes_max, self.held_bytes_max);
        let open = self.open.as_ref();
        let joined = open.and_then(|open| open.joined(&stretch, stretch_max, held_max));
        if let Some(joined) = joined {
            let bytes = self.bytes - self.open.as_ref().map_or(0, |open| open.bytes);
            let bytes = bytes + joined.bytes;
            let fits = self.flight.has_room(joined.bytes) && bytes <= self.bytes_wanted;
            if fits {
                self.bytes = bytes;
                self.open = Some(joined);
            }
            return fits;
        }
        let is_wanted = self.bytes == 0 || self.bytes + stretch.bytes <= self.bytes_wanted;
        if !is_wanted || !self.has_room_for(bytes_max) {
            return false;
        }
        self.close();
        if self.flight.is_empty() {
            // The flight's memory is unused. The blocks still to come are expected to be as long as
            // this one.
            let asked = self.taken as usize + self.wanted.len();
            let left = self.blocks.saturating_sub(asked);
            let bytes = store.batch_bytes(left, part_bytes).max(stretch.bytes);
            if !self.flight.has_room(bytes) {
                self.give_memory_back();
                let (memory, charge) = store.flight_memory(bytes);
                self.charge = charge;
                self.flight = flight(memory, self.fill);
                self.over = 0;
            }
        } else if !self.flight.has_room(stretch.bytes) {
            return false;
        }
        self.bytes += stretch.bytes;
        self.open = Some(stretch);
        true
    }

    fn give_memory_back(&mut self) {
        let memory = std::mem::take(&mut self.flight).into_memory();
        if self.charge.take().is_none() {
            put_scratch(memory);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.give_memory_back();
    }
}

impl PageStore {
    /// A reading for about `blocks` blocks of any groups. A small batch uses the thread's memory; a
    /// larger one takes memory that is charged while the reading lives.
    #[must_use]
    pub fn reading(&self, blocks: usize, fill: Fill) -> Reading {
        let bytes = blocks.saturating_mul(BLOCK_BYTES_EXPECTED);
        let (memory, charge) = self.flight_memory(bytes.min(SCRATCH_BYTES_MAX));
        let mut reading = Reading::new(memory, usize::MAX, charge, fill);
        reading.blocks = blocks;
        reading
    }

    /// Memory for reads of `bytes` bytes, charged if it is not the thread's own.
    pub(super) fn flight_memory(&self, bytes: usize) -> (AlignedBuf, Option<Charge>) {
        let memory = self.take_scratch(bytes);
        let is_long = memory.len() > SCRATCH_KEPT_BYTES_MAX;
        let charge = is_long.then(|| {
            let bytes = memory.len() as u64;
            self.cache.budget().charge(Purpose::Merge, bytes)
        });
        (memory, charge)
    }

    /// Bytes of memory for `blocks` blocks of a batch, each of `block_bytes`. Fewer if all would
    /// take too much.
    fn batch_bytes(&self, blocks: usize, block_bytes: usize) -> usize {
        let alignment = self.file.alignment() as usize;
        // The longest cover of a block, whatever its offset.
        let cover = (block_bytes + 2 * alignment - 2) / alignment * alignment;
        let each = cover
            .next_multiple_of(MEMORY_ALIGNMENT)
            .max(BLOCK_BYTES_EXPECTED);
        let some = self.stream_bytes(each.saturating_mul(BLOCKS_TOGETHER));
        // Hostile bytes may claim a long block. The file cannot hold many of that length (D8).
        let file_bytes = usize::try_from(self.file_bytes()).unwrap_or(usize::MAX);
        let most = some.max(SCRATCH_BYTES_MAX).min(file_bytes);
        blocks.saturating_mul(each).min(most)
    }

    /// Bytes of reads that a stream may have under way if it asks for `bytes`, as memory is now.
    #[must_use]
    pub fn stream_bytes(&self, bytes: usize) -> usize {
        let room = self.cache.budget().room_for_caches() / STREAM_PARTS;
        bytes.min(usize::try_from(room).unwrap_or(usize::MAX))
    }

    /// A reading for many blocks in order. It reads some blocks ahead of those that are taken: at
    /// most `bytes`, and at most as many bytes as were taken. `passed` is the bytes that the scan
    /// passed before. The stream's memory is its own and is charged. `None` if memory is short.
    #[must_use]
    pub fn stream(&self, fill: Fill, bytes: usize, passed: u64) -> Option<Reading> {
        let is_long = self.stream_bytes(bytes) >= LONG_STRETCHES_FROM * STRETCH_BYTES_MAX;
        let stretch_bytes_max = STRETCH_BYTES_MAX * if is_long { 2 } else { 1 };
        // Where the memory wraps around, up to one read's length stays unused at its end.
        let memory_bytes = bytes + stretch_bytes_max;
        let held = self.streams.load(Ordering::Relaxed);
        let all = usize::try_from(self.cache.budget().room_for_caches()).unwrap_or(usize::MAX);
        let left = (all.saturating_add(held) / STREAMS_PART).saturating_sub(held);
        let room = self.stream_bytes(usize::MAX).min(left);
        let memory_bytes = memory_bytes.min(room - room % STRETCH_BYTES_MAX);
        if memory_bytes < STREAM_MEMORY_BYTES_MIN.max(2 * stretch_bytes_max) {
            return None;
        }
        // The charge includes blocks that the cache does not keep.
        let charge_bytes = (memory_bytes + stretch_bytes_max) as u64;
        let charge = self.cache.budget().charge(Purpose::Merge, charge_bytes);
        let memory = AlignedBuf::with_capacity(memory_bytes);
        let bytes = memory_bytes - stretch_bytes_max;
        let mut reading = Reading::new(memory, bytes, Some(charge), fill);
        reading.stretch_bytes_max = stretch_bytes_max;
        reading.held_bytes_max = stretch_bytes_max as u64;
        reading.bytes_allowed = bytes.min(STREAM_BYTES_FIRST);
        reading.bytes_passed = passed;
        reading.own = OwnMemory::of_run(stretch_bytes_max);
        reading.share = Some(Share::new(&self.streams, charge_bytes as usize));
        Some(reading)
    }

    /// Asks for a block that was not in the cache. Returns the block's number, or `None` if there
    /// is no room until earlier blocks are taken. Panics if `number` is not below
    /// [`GroupIndex::blocks`].
    pub fn want(
        &self,
        reading: &mut Reading,
        group: &GroupRef,
        index: &GroupIndex,
        number: usize,
    ) -> Result<Option<usize>> {
        let (offset, bytes) = self.block_place(group, index, number)?;
        let held = index.held_bytes(number..number + 1);
        self.want_part(reading, group, Part::Block(number), (offset, bytes), held)
    }

    /// Like [`PageStore::want`], for a place that the caller has of the group's index.
    pub fn want_at(
        &self,
        reading: &mut Reading,
        group: &GroupRef,
        place: BlockPlace,
    ) -> Result<Option<usize>> {
        let offset = self.place_in_group(group, place.offset, place.bytes)?;
        let (part, bytes) = (Part::Block(place.number), place.bytes as usize);
        self.want_part(reading, group, part, (offset, bytes), bytes as u64)
    }

    /// Asks for the index of a later group, unless the index is cached or long. The index enters
    /// the cache when its read is taken. `false` if there is no room. This call returns no error of
    /// the index: the caller gets that error when it reads the group.
    pub fn want_index(&self, reading: &mut Reading, group: &GroupRef) -> Result<bool> {
        if group.index_bytes as usize > STRETCH_BYTES_MAX || self.has_index(group) {
            return Ok(true);
        }
        let (offset, bytes) = self.index_place(group)?;
        let part = Part::Index(group.index_offset);
        let held = bytes as u64;
        let wanted = self.want_part(reading, group, part, (offset, bytes), held)?;
        Ok(wanted.is_some())
    }

    fn want_part(
        &self,
        reading: &mut Reading,
        group: &GroupRef,
        part: Part,
        (offset, bytes): (u64, usize),
        held: u64,
    ) -> Result<Option<usize>> {
        let (start, cover_bytes) = self.cover(offset, bytes).map_err(|e| self.place(e))?;
        let at = reading.wanted.len();
        let stretch = Stretch {
            start,
            bytes: cover_bytes,
            first: reading.taken + at as u64,
            parts: 1,
            held,
        };
        let bytes_max = match part {
            Part::Block(_) => reading.stretch_bytes_max,
            Part::Index(_) => cover_bytes,
        };
        if !reading.add(stretch, bytes, bytes_max, self) {
            return Ok(None);
        }
        reading.wanted.push_back(Wanted {
            group: group.id,
            part,
            offset,
            bytes,
        });
        Ok(Some(at))
    }

    /// Starts the reads of all that was asked for, if the device can work meanwhile.
    pub fn start(&self, reading: &mut Reading) -> Result<()> {
        reading.close();
        self.file
            .start(&mut reading.flight)
            .map_err(|e| self.place(e))
    }

    /// Takes all blocks that were asked for, in any order. `take` gets each block with its number.
    /// The call tries all blocks, then returns the error of the lowest number.
    pub fn finish(
        &self,
        reading: &mut Reading,
        take: &mut dyn FnMut(usize, Arc<Block>),
    ) -> Result<()> {
        reading.close();
        let mut failed: Option<(u64, Error)> = None;
        while !reading.flight.is_empty() {
            self.take_some(reading, Show::Some, &mut |number, block| match block {
                Ok(block) => take(number, block),
                Err(error) => {
                    let number = number as u64;
                    if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                        failed = Some((number, error));
                    }
                }
            })?;
        }
        reading.taken += reading.wanted.len() as u64;
        reading.wanted.clear();
        reading.over += reading.stretches.len() as u64;
        reading.stretches.clear();
        reading.bytes = 0;
        failed.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Takes the blocks of the oldest read, if there is one, and appends them to `out` in order. A
    /// damaged block is an error in its position. A failed read is one error in place of its
    /// blocks, and no later block can be taken.
    pub fn take_oldest(
        &self,
        reading: &mut Reading,
        out: &mut VecDeque<Result<Arc<Block>>>,
    ) -> Result<()> {
        reading.close();
        self.take_some(reading, Show::Oldest, &mut |_, block| out.push_back(block))?;
        if let Some(stretch) = reading.stretches.pop_front() {
            reading.wanted.drain(..stretch.parts);
            reading.taken += stretch.parts as u64;
            reading.over += 1;
            reading.bytes -= stretch.bytes;
            reading.bytes_passed += stretch.bytes as u64;
            let allowed = reading.bytes_allowed.saturating_add(stretch.bytes);
            reading.bytes_allowed = allowed.min(reading.bytes_max);
        }
        Ok(())
    }

    /// Takes the blocks of some reads.
    fn take_some(
        &self,
        reading: &mut Reading,
        which: Show,
        take: &mut dyn FnMut(usize, Result<Arc<Block>>),
    ) -> Result<()> {
        let kept = self.cache.budget().room_for_caches() / SCAN_KEPT_PARTS;
        let left = match reading.bytes_passed > kept && self.cache.is_full() {
            true => Fill::No,
            false => reading.fill,
        };
        let Reading {
            flight,
            fill,
            own,
            wanted,
            taken,
            stretches,
            over,
            ..
        } = reading;
        let shown = self.file.show(flight, which, &mut |number, bytes| {
            let Some(stretch) = stretches.get((number - *over) as usize) else {
                return;
            };
            let first = (stretch.first - *taken) as usize;
            let mut parts = wanted.range(first..).take(stretch.parts).enumerate();
            let is_block = |(_, wanted): &(_, &Wanted)| matches!(wanted.part, Part::Block(_));
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => {
                    // The index is not cached then. The caller reads it again when it reads the
                    // group, and gets the error.
                    if let Some((number, _)) = parts.find(is_block) {
                        take(first + number, Err(self.place(error)));
                    }
                    return;
                }
            };
            let reader = match parts.clone().any(|part| is_block(&part)) {
                true => fill.reader(),
                false => ReadFor::Meta,
            };
            self.counters.read(reader, 1, stretch.bytes as u64);
            for (number, wanted) in parts {
                let from = (wanted.offset - stretch.start) as usize;
                let bytes = &bytes[from..][..wanted.bytes];
                match wanted.part {
                    Part::Block(block) => {
                        let decoded = self.take_in(bytes, wanted.group, block, left, own);
                        take(first + number, decoded);
                    }
                    Part::Index(at) => {
                        let _ = self.take_in_index(bytes, wanted.group, at);
                    }
                }
            }
        });
        shown.map_err(|e| self.place(e))
    }

    /// Many blocks of any groups. One batch reads those that are not cached. The result has the
    /// order of `wants`.
    pub fn blocks(
        &self,
        wants: &[(GroupRef, Arc<GroupIndex>, usize)],
        fill: Fill,
    ) -> Result<Vec<Arc<Block>>> {
        let wants = wants
            .iter()
            .map(|(group, index, number)| (group, &**index, *number));
        let look_up = |(group, _, number): (&GroupRef, _, usize)| self.look_up(group, number, fill);
        let mut found: Vec<_> = wants.clone().map(look_up).collect();
        self.read_missing(wants, fill, &mut found)?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads the blocks that were not found.
    pub(super) fn read_missing<'w>(
        &self,
        wants: impl Iterator<Item = (&'w GroupRef, &'w GroupIndex, usize)>,
        fill: Fill,
        found: &mut [Option<Arc<Block>>],
    ) -> Result<()> {
        let missing = found.iter().filter(|block| block.is_none()).count();
        let mut reading = None;
        let mut asked = Vec::with_capacity(missing);
        for (at, (group, index, number)) in wants.enumerate() {
            if found[at].is_some() {
                continue;
            }
            // A single block needs no batch.
            if missing == 1 {
                found[at] = Some(self.read_one(group, index, number, fill)?);
                return Ok(());
            }
            let reading = reading.get_or_insert_with(|| self.reading(missing, fill));
            if self.want(reading, group, index, number)?.is_none() {
                self.finish(reading, &mut |n, block| found[asked[n]] = Some(block))?;
                asked.clear();
                self.want(reading, group, index, number)?;
            }
            asked.push(at);
        }
        let Some(mut reading) = reading else {
            return Ok(());
        };
        self.finish(&mut reading, &mut |n, block| found[asked[n]] = Some(block))
    }
}
