//! Reads of pieces of pages that have a layout of their own, as pages of values do.
//!
//! Many pieces are read together: neighbours in one read, and the reads in parallel. A piece is
//! checked against its page and the file before anything is allocated for it (D8). What the bytes
//! say, the caller checks.

use std::any::Any;
use std::ops::Range;

use terrapin_base::sync::Arc;
use terrapin_base::{Error, MEMORY_ALIGNMENT, Result};
use terrapin_disk::{Flight, Show};

use super::PageStore;
use super::read::{DecodePage, object_key};
use super::reading::STRETCH_BYTES_MAX;
use super::scratch::{SCRATCH_BYTES_MAX, put_scratch};
use crate::metrics::ReadFor;
use crate::page::PageUse;

/// Two pieces with at most this many bytes between them are neighbours: reading the gap costs less
/// than another read.
const GAP_BYTES_MAX: u64 = 4 << 10;

/// A piece of a page: its position in the file, and its number for the caller.
struct Place {
    number: usize,
    offset: u64,
    bytes: usize,
}

/// One read of neighbours.
struct Stretch {
    start: u64,
    bytes: usize,
    places: Range<usize>,
}

impl Stretch {
    /// Memory that the read takes in a flight, in bytes.
    fn room_bytes(&self) -> usize {
        self.bytes.next_multiple_of(MEMORY_ALIGNMENT)
    }
}

impl PageStore {
    /// A decoded piece of a page with a layout of its own, through the cache, where it counts as
    /// metadata. A page has at most one such piece. The call passes errors of `decode` on and
    /// caches nothing then.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the piece is not inside the page or the file; those
    /// of the read and of `decode`.
    pub fn piece_object<T: Any + Send + Sync>(
        &self,
        page: &PageUse,
        piece: Range<u64>,
        decode: DecodePage<'_, T>,
    ) -> Result<Arc<T>> {
        let key = object_key(page.id);
        if let Some(object) = self.cache.get_counting::<T>(key, 0) {
            return Ok(object);
        }
        let (object, memory_bytes) = self.read_piece(page, piece, ReadFor::Meta, decode)?;
        Ok(self.cache.insert(key, Arc::new(object), memory_bytes))
    }

    /// Reads a piece of a page in one device read, without the cache, and passes it to `use_bytes`.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the piece is not inside the page or the file; those
    /// of the read and of `use_bytes`.
    pub fn read_piece<T>(
        &self,
        page: &PageUse,
        piece: Range<u64>,
        purpose: ReadFor,
        use_bytes: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let (offset, bytes) = self.piece_place(page, piece)?;
        self.with_bytes(purpose, offset, bytes, use_bytes)
            .map_err(|error| self.place_page(error, page.id))
    }

    /// Reads pieces of pages, without the cache. One read fetches neighbours, and the device serves
    /// the reads in parallel. `take` gets each piece's number in `pieces`, and its bytes or error,
    /// in any order. A read of neighbours that fails is done again piece by piece. Returns the
    /// number of reads, without those that were done again. O(n log n).
    ///
    /// # Errors
    ///
    /// Those that concern no single piece. Some pieces were not taken then. `take` gets
    /// [`terrapin_base::ErrorKind::Corrupt`] for a piece that is not inside its page or the file.
    pub fn read_pieces(
        &self,
        pieces: &[(PageUse, Range<u64>)],
        purpose: ReadFor,
        take: &mut dyn FnMut(usize, Result<&[u8]>),
    ) -> Result<u64> {
        let mut places = Vec::with_capacity(pieces.len());
        for (number, (page, piece)) in pieces.iter().enumerate() {
            match self.piece_place(page, piece.clone()) {
                Ok((offset, bytes)) => places.push(Place {
                    number,
                    offset,
                    bytes,
                }),
                Err(error) => take(number, Err(error)),
            }
        }
        places.sort_unstable_by_key(|place| place.offset);
        let stretches = self.stretches(&places)?;
        let mut failed = Vec::new();
        let mut left = &stretches[..];
        // A single read needs no flight.
        while left.len() > 1 {
            let mut bytes = 0;
            let mut count = 0;
            for room in left.iter().map(Stretch::room_bytes) {
                if count > 0 && bytes + room > SCRATCH_BYTES_MAX {
                    break;
                }
                (bytes, count) = (bytes + room, count + 1);
            }
            let (now, later) = left.split_at(count);
            self.fly(now, bytes, purpose, &mut |stretch, bytes| match bytes {
                Ok(bytes) => share(stretch, &places, bytes, take),
                Err(_) => failed.extend(stretch.places.clone()),
            })?;
            left = later;
        }
        if let Some(last) = left.first() {
            let read = self.with_bytes(purpose, last.start, last.bytes, |bytes| {
                share(last, &places, bytes, take);
                Ok(())
            });
            if read.is_err() {
                failed.extend(last.places.clone());
            }
        }
        for place in failed.into_iter().map(|at| &places[at]) {
            let (page, _) = &pieces[place.number];
            let read = self.with_bytes(purpose, place.offset, place.bytes, |bytes| {
                take(place.number, Ok(bytes));
                Ok(())
            });
            if let Err(error) = read {
                take(place.number, Err(self.place_page(error, page.id)));
            }
        }
        Ok(stretches.len() as u64)
    }

    /// The reads of pieces, which are sorted by their offset.
    fn stretches(&self, places: &[Place]) -> Result<Vec<Stretch>> {
        let mut stretches: Vec<Stretch> = Vec::new();
        for (at, place) in places.iter().enumerate() {
            let (start, bytes) = self.cover(place.offset, place.bytes)?;
            if let Some(last) = stretches.last_mut() {
                let end = (last.start + last.bytes as u64).max(start + bytes as u64);
                let joined = (end - last.start) as usize;
                let is_near = start <= last.start + last.bytes as u64 + GAP_BYTES_MAX;
                if is_near && joined <= STRETCH_BYTES_MAX {
                    last.bytes = joined;
                    last.places.end = at + 1;
                    continue;
                }
            }
            stretches.push(Stretch {
                start,
                bytes,
                places: at..at + 1,
            });
        }
        Ok(stretches)
    }

    /// Does some reads in parallel. `bytes`: the memory that they take together.
    fn fly(
        &self,
        stretches: &[Stretch],
        bytes: usize,
        purpose: ReadFor,
        shown: &mut dyn FnMut(&Stretch, Result<&[u8]>),
    ) -> Result<()> {
        let (memory, charge) = self.flight_memory(bytes);
        let mut flight = Flight::new(memory).cached(purpose.may_come_again());
        let mut fly = || {
            for stretch in stretches {
                if flight.push(stretch.start, stretch.bytes).is_none() {
                    return Err(Error::internal("a flight without memory for its reads"));
                }
            }
            while !flight.is_empty() {
                self.file
                    .show(&mut flight, Show::Some, &mut |number, bytes| {
                        let Some(stretch) = stretches.get(number as usize) else {
                            return;
                        };
                        self.counters.read(purpose, 1, stretch.bytes as u64);
                        shown(stretch, bytes);
                    })?;
            }
            Ok(())
        };
        let done = fly().map_err(|error| self.place(error));
        let memory = flight.into_memory();
        if charge.is_none() {
            put_scratch(memory);
        }
        done
    }

    /// Offset and length of a piece in the file.
    fn piece_place(&self, page: &PageUse, piece: Range<u64>) -> Result<(u64, usize)> {
        let is_inside = piece.start <= piece.end && piece.end <= page.bytes;
        let offset = page.offset.checked_add(piece.start).filter(|_| is_inside);
        let placed = match offset {
            Some(offset) => self
                .check_bounds(offset, piece.end - piece.start)
                .map(|bytes| (offset, bytes)),
            None => Err(Error::corrupt("a piece lies outside of its page")),
        };
        placed.map_err(|error| self.place_page(error, page.id))
    }
}

/// Hands the pieces of a read on.
fn share(
    stretch: &Stretch,
    places: &[Place],
    bytes: &[u8],
    take: &mut dyn FnMut(usize, Result<&[u8]>),
) {
    for place in &places[stretch.places.clone()] {
        let from = (place.offset - stretch.start) as usize;
        take(place.number, Ok(&bytes[from..][..place.bytes]));
    }
}
