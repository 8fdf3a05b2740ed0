//! Streams of values: [`ValueWriter`] and [`ValueReader`], for values that memory should not hold.

use std::io;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use terrapin_base::{Error, Result, Slice};
use terrapin_valuelog::large::{LargeReader, LargeWriter, PIECE_BYTES};

use crate::api::keyspace::Keyspace;
use crate::api::snapshot::Snapshot;
use crate::engine::clock::Moment;
use crate::engine::state::KeyspaceState;
use crate::read::large::{Opened, open};
use crate::types::options::Durability;
use crate::write::lasting::{LastingPut, deadline_after, deadline_of, default_deadline};

/// Streams of values.
impl Keyspace {
    /// Begins to put a value of `length` bytes, at most 1 GiB
    /// ([`LARGE_VALUE_BYTES_MAX`](crate::LARGE_VALUE_BYTES_MAX)). The caller writes it in pieces.
    /// The key has it once [`ValueWriter::finish`] returns. Memory holds 1 MiB of it.
    ///
    /// A value of more than 256 KiB, or one that a quarter of the log's ring does not hold, is
    /// *large*: it is written once, into a page of its own, and the log gets its handle. All other
    /// writes do the same with such a value.
    ///
    /// Merge operands ([`Keyspace::merge`]) apply to values of up to 256 KiB, also to large ones.
    /// Over a longer one, reads of the key fail with `Unsupported` until a put or a delete.
    ///
    /// Durability and errors as for [`Keyspace::put`]. Also `NoSpace` if the disk has no room for
    /// the value outside of the reserve.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-writer-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let films = database.keyspace("films")?;
    /// let mut writer = films.writer("The General", 3 << 20)?;
    /// for _ in 0..3 {
    ///     writer.append(&[7; 1 << 20])?;
    /// }
    /// writer.finish()?;
    /// let part = films.get_range("The General", 1_000_000..1_000_010)?.unwrap();
    /// assert_eq!(part, [7; 10]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("stream", "blob", "put_large", "upload"))]
    pub fn writer(&self, key: impl AsRef<[u8]>, length: u64) -> Result<ValueWriter> {
        self.writer_with(key, length, self.core().settings.durability)
    }

    /// [`Keyspace::writer`] with the given durability.
    pub fn writer_with(
        &self,
        key: impl AsRef<[u8]>,
        length: u64,
        durability: Durability,
    ) -> Result<ValueWriter> {
        let key = key.as_ref();
        let value_bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let is_large = self.core().is_large(key.len(), value_bytes);
        let into = match is_large {
            false => Into::Memory(Vec::with_capacity(value_bytes)),
            true => {
                let mut buffer = None;
                let stored = self.shared.form.written(key, &mut buffer)?;
                Into::Page(Box::new(self.core().begin_large(
                    &self.shared,
                    stored,
                    length,
                )?))
            }
        };
        Ok(ValueWriter {
            keyspace: self.clone(),
            key: key.into(),
            length,
            durability,
            into,
        })
    }

    /// A reader of a key's value, as of the newest published write. It keeps reading that value,
    /// whatever happens to the key. Memory holds 1 MiB of a large value.
    ///
    /// Costs and errors as for [`Keyspace::get`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-reader-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let films = database.keyspace("films")?;
    /// films.put("The General", vec![7; 2 << 20])?;
    /// let mut reader = films.reader("The General")?.unwrap();
    /// assert_eq!(reader.len(), 2 << 20);
    /// let bytes = std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    /// assert_eq!(bytes, 2 << 20);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("stream", "blob", "download"))]
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let core = self.core();
        core.env.breathe();
        core.counters.gets.add(1);
        self.shared.counters.looked_up(1);
        let mut buffer = None;
        let key = self.shared.form.stored(key.as_ref(), &mut buffer);
        self.observed(|keyspace, at| reader_of(keyspace, at, key))
    }

    /// The bytes of a key's value in a range, which ends at the value's end at the latest. Reads
    /// the MiB that have them. The range is at most a quarter of the memory long.
    ///
    /// Errors: those of [`Keyspace::get`]; `TooLarge` for a longer range.
    pub fn get_range(&self, key: impl AsRef<[u8]>, bytes: Range<u64>) -> Result<Option<Slice>> {
        let reader = self.reader(key)?;
        let read = reader.map(|reader| reader.read_range(bytes));
        read.transpose()
    }
}

/// Streams of values.
impl Snapshot {
    /// A reader of the value that a key had; see [`Keyspace::reader`]. It outlives the snapshot.
    pub fn reader(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<ValueReader>> {
        keyspace.shared.counters.looked_up(1);
        let mut buffer = None;
        let key = keyspace.shared.form.stored(key.as_ref(), &mut buffer);
        self.with(keyspace, |keyspace, at| reader_of(keyspace, at, key))
    }

    /// The bytes in a range of the value that a key had; see [`Keyspace::get_range`].
    pub fn get_range(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        bytes: Range<u64>,
    ) -> Result<Option<Slice>> {
        let reader = self.reader(keyspace, key)?;
        let read = reader.map(|reader| reader.read_range(bytes));
        read.transpose()
    }
}

fn reader_of(keyspace: &KeyspaceState, at: Moment<'_>, key: &[u8]) -> Result<Option<ValueReader>> {
    let opened = open(keyspace, at, key)?;
    let limit = keyspace.shared.large.get_bytes_max();
    Ok(opened.map(|opened| {
        let from = match opened {
            Opened::Value(value) => From::Memory(value),
            Opened::Large(reader) => From::Page(Box::new(reader)),
        };
        ValueReader::new(from, limit)
    }))
}

/// Puts a value in pieces: [`Keyspace::writer`]. Dropping it before [`ValueWriter::finish`] puts
/// nothing.
#[must_use = "the key has the value once `finish` returns"]
#[derive(Debug)]
pub struct ValueWriter {
    keyspace: Keyspace,
    key: Box<[u8]>,
    length: u64,
    durability: Durability,
    into: Into,
}

#[derive(Debug)]
enum Into {
    /// A value that a record holds.
    Memory(Vec<u8>),
    Page(Box<LargeWriter>),
}

impl ValueWriter {
    /// Bytes of the value that are still missing.
    #[must_use]
    pub fn missing(&self) -> u64 {
        match &self.into {
            Into::Memory(value) => self.length - value.len() as u64,
            Into::Page(writer) => writer.missing(),
        }
    }

    /// Appends bytes of the value.
    ///
    /// Errors: `InvalidArgument` for more bytes than [`ValueWriter::missing`], of which none is
    /// taken; `Io`, after which the writer is of no more use.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.into {
            Into::Page(writer) => writer.write(bytes),
            Into::Memory(value) if value.len() as u64 + bytes.len() as u64 <= self.length => {
                value.extend_from_slice(bytes);
                Ok(())
            }
            Into::Memory(_) => Err(Error::invalid(
                "more bytes were written than the value was said to have",
            )
            .with("length", self.length)),
        }
    }

    /// Puts the value, all bytes of which were written.
    ///
    /// Errors: `InvalidArgument` if bytes are missing; those of [`Keyspace::put`].
    pub fn finish(self) -> Result<()> {
        let deadline_ms = default_deadline(self.keyspace.core(), &self.keyspace.shared);
        self.finish_until(deadline_ms)
    }

    /// Puts the value for a time from now on: see [`Keyspace::put_with_ttl`]. Otherwise as
    /// [`ValueWriter::finish`].
    pub fn finish_with_ttl(self, ttl: Duration) -> Result<()> {
        let deadline_ms = deadline_after(self.keyspace.core(), ttl);
        self.finish_until(Some(deadline_ms))
    }

    /// Puts the value until a deadline: see [`Keyspace::put_expiring`]. Otherwise as
    /// [`ValueWriter::finish`].
    pub fn finish_expiring(self, deadline: SystemTime) -> Result<()> {
        self.finish_until(Some(deadline_of(deadline)))
    }

    /// Puts the value until a deadline, or for ever, whatever the keyspace says.
    pub(crate) fn finish_until(self, deadline_ms: Option<u64>) -> Result<()> {
        let (keyspace, missing) = (&self.keyspace, self.missing());
        if missing > 0 {
            return Err(
                Error::invalid("fewer bytes were written than the value was said to have")
                    .with("length", self.length)
                    .with("missing", missing),
            );
        }
        let (core, shared, durability) = (keyspace.core(), &keyspace.shared, self.durability);
        let mut buffer = None;
        let key = shared.form.written(&self.key, &mut buffer)?;
        let has_come = |&deadline_ms: &u64| deadline_ms <= core.clock.begin(&core.env);
        if deadline_ms.as_ref().is_some_and(has_come) {
            return LastingPut::Ended.write(core, shared, key, durability);
        }
        match self.into {
            Into::Memory(value) => {
                let put = match deadline_ms {
                    None => LastingPut::Forever(&value),
                    Some(deadline_ms) => LastingPut::Until(deadline_ms, &value),
                };
                put.write(core, shared, key, durability)
            }
            Into::Page(writer) => {
                core.put_written(shared, key, writer.finish(deadline_ms)?, durability)
            }
        }
    }
}

impl io::Write for ValueWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    /// Does nothing: [`ValueWriter::finish`] puts the value.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a value in pieces: [`Keyspace::reader`]. It keeps the space of a large value.
#[derive(Debug)]
pub struct ValueReader {
    from: From,
    /// Where the next read begins.
    at: u64,
    /// The longest range in bytes.
    limit: u64,
    /// A part of a large value in memory.
    piece: (Range<u64>, Vec<u8>),
}

#[derive(Debug)]
enum From {
    Memory(Slice),
    Page(Box<LargeReader>),
}

impl ValueReader {
    /// A reader of a large value.
    pub(super) fn of_page(reader: Box<LargeReader>, limit: u64) -> Self {
        ValueReader::new(From::Page(reader), limit)
    }

    fn new(from: From, limit: u64) -> Self {
        ValueReader {
            from,
            at: 0,
            limit,
            piece: (0..0, Vec::new()),
        }
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.from {
            From::Memory(value) => value.len() as u64,
            From::Page(reader) => reader.length(),
        }
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in a range, which ends at the value's end at the latest.
    ///
    /// Errors: `TooLarge` for a range of a large value that is longer than a quarter of the memory;
    /// `Corrupt`; `Io`.
    pub fn read_range(&self, bytes: Range<u64>) -> Result<Slice> {
        let end = bytes.end.min(self.len());
        let start = bytes.start.min(end);
        match &self.from {
            From::Memory(value) => Ok(value.sub(start as usize..end as usize)),
            From::Page(reader) => {
                if end - start > self.limit {
                    let message = "the range takes too much of the memory at once: read it in \
                                   parts, or open with more memory";
                    return Err(Error::new(terrapin_base::ErrorKind::TooLarge, message)
                        .with("bytes", end - start)
                        .with("limit", self.limit));
                }
                let mut value = Vec::with_capacity((end - start) as usize);
                reader.read(start..end, &mut |piece| value.extend_from_slice(piece))?;
                Ok(Slice::from_vec(value))
            }
        }
    }
}

impl io::Read for ValueReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = self.len().min(self.at.saturating_add(buffer.len() as u64));
        if self.at >= end {
            return Ok(0);
        }
        let copied = match &self.from {
            From::Memory(value) => {
                let part = &value[self.at as usize..end as usize];
                buffer[..part.len()].copy_from_slice(part);
                part.len()
            }
            From::Page(reader) => {
                let (place, piece) = &mut self.piece;
                if !place.contains(&self.at) {
                    let start = self.at - self.at % PIECE_BYTES;
                    piece.clear();
                    *place = 0..0;
                    let next = start..reader.length().min(start + PIECE_BYTES);
                    reader
                        .read(next.clone(), &mut |bytes| piece.extend_from_slice(bytes))
                        .map_err(io::Error::other)?;
                    *place = next;
                }
                let part = &piece[(self.at - place.start) as usize..];
                let count = part.len().min((end - self.at) as usize);
                buffer[..count].copy_from_slice(&part[..count]);
                count
            }
        };
        self.at += copied as u64;
        Ok(copied)
    }
}

impl io::Seek for ValueReader {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let at = match to {
            io::SeekFrom::Start(at) => Some(at),
            io::SeekFrom::End(by) => self.len().checked_add_signed(by),
            io::SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a seek before the value");
        self.at = at.ok_or_else(before)?;
        Ok(self.at)
    }
}
