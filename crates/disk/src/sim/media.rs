//! Faults of the medium: what a disk does behind the back of those who trust its answers.

use std::ops::Range;

use terrapin_base::{Error, Result};

use super::image::sectors;
use super::inode::Change;
use super::world::{EIO, World, os_error};
use super::{Op, SECTOR_BYTES};

/// What goes wrong. Rot of what is stored is [`super::SimDisk::corrupt`]; a full disk is
/// [`super::SimDisk::set_capacity`]; a call that says that it failed, and a sync that fails once
/// and says afterwards that all is well, is [`super::Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Media {
    /// A write is acknowledged and never stored. The file grows all the same.
    LostWrite,
    /// A write is acknowledged, but not all of its sectors are stored.
    TornWrite,
    /// A write is acknowledged and stored elsewhere: at another place of the file, or in another
    /// file that is long enough.
    MisdirectedWrite,
    /// A write is stored with the bits of this mask flipped in one of its bytes.
    FlippedWrite(u8),
    /// A write is stored, but the first read that meets it gets what was there before it; later
    /// ones are right.
    StaleRead,
    /// A write is stored and read as it should until the file's next sync; after it, what was there
    /// before is back for good.
    RevertedWrite,
    /// A write fails with `EIO`, and nothing of it is stored. Lasting and within a range, this is a
    /// place that takes no writes.
    WriteError,
    /// A read gets one byte with the bits of this mask flipped; the medium holds the right one.
    FlippedRead(u8),
    /// A read fails with `EIO`. Lasting and within a range, this is a bad sector.
    ReadError,
    /// A read ends early. [`crate::File::read_at`] promises to fill its buffer, so this shows as
    /// the error of a file that ends there, with the buffer filled in part; what merely comes in
    /// pieces the real disk puts together.
    ShortRead,
}

impl Media {
    fn op(self) -> Op {
        match self {
            Media::LostWrite
            | Media::TornWrite
            | Media::MisdirectedWrite
            | Media::FlippedWrite(_)
            | Media::StaleRead
            | Media::RevertedWrite
            | Media::WriteError => Op::Write,
            Media::FlippedRead(_) | Media::ReadError | Media::ShortRead => Op::Read,
        }
    }
}

/// A fault of the medium to inject: which reads or writes it looks at, how many of them it lets
/// pass, and whether it goes on. It stays with the medium, across crashes and in forks.
///
/// ```
/// use terrapin_disk::sim::{Media, MediaFault};
/// // Whatever is read of these sectors of the data file fails.
/// let bad = MediaFault::nth(1, Media::ReadError).of("data").within(8192..12288).lasting();
/// ```
#[derive(Clone, Debug)]
pub struct MediaFault {
    media: Media,
    file: Option<String>,
    within: Range<u64>,
    skip: u64,
    lasting: bool,
}

impl MediaFault {
    /// Strikes the `n`-th write or read from now on (1 is the next), once; which of both, its kind
    /// says.
    #[must_use]
    pub fn nth(n: u64, media: Media) -> Self {
        MediaFault {
            media,
            file: None,
            within: 0..u64::MAX,
            skip: n.saturating_sub(1),
            lasting: false,
        }
    }

    /// Looks only at files whose name contains this.
    #[must_use]
    pub fn of(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Looks only at reads and writes that touch this range of the file.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.within = range;
        self
    }

    /// Strikes every later read or write that it looks at too, until
    /// [`super::SimDisk::clear_media`].
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.lasting = true;
        self
    }
}

/// A fault of the medium that has struck, and made a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaHit {
    /// What went wrong.
    pub media: Media,
    /// In which file.
    pub file: String,
    /// Where: the first byte that is not as it should be.
    pub offset: u64,
    /// How many bytes may not be.
    pub bytes: u64,
    /// Where a misdirected write went.
    pub astray: Option<(String, u64)>,
}

/// A write whose past comes back.
#[derive(Clone)]
struct Stale {
    media: Media,
    inode: u64,
    offset: u64,
    old: Vec<u8>,
    new: Vec<u8>,
}

/// The faults of one medium.
#[derive(Clone, Default)]
pub(super) struct Faulty {
    faults: Vec<MediaFault>,
    stale: Vec<Stale>,
    hits: Vec<MediaHit>,
}

impl Faulty {
    pub(super) fn inject(&mut self, fault: MediaFault) {
        self.faults.push(fault);
    }

    /// Takes back what has not struck yet.
    pub(super) fn clear(&mut self) {
        self.faults.clear();
        self.stale.clear();
    }

    pub(super) fn hits(&self) -> &[MediaHit] {
        &self.hits
    }

    /// The fault that strikes this read or write, and the part of it that the fault looks at.
    fn strikes(
        &mut self,
        op: Op,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Option<(Media, Range<u64>)> {
        let mut struck = None;
        self.faults.retain_mut(|fault| {
            let start = fault.within.start.max(offset);
            let end = fault.within.end.min(offset.saturating_add(bytes));
            let looks = fault.media.op() == op
                && fault.file.as_deref().is_none_or(|part| name.contains(part))
                && start < end;
            if !looks || struck.is_some() {
                return true;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                return true;
            }
            struck = Some((fault.media, start..end));
            fault.lasting
        });
        struck
    }

    fn hit(&mut self, media: Media, name: &str, range: Range<u64>) {
        self.hits.push(MediaHit {
            media,
            file: name.into(),
            offset: range.start,
            bytes: range.end - range.start,
            astray: None,
        });
    }
}

impl World {
    /// Stores a write that may go wrong, whole as far as the process is told.
    pub(super) fn store_on_medium(
        &mut self,
        number: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let length = bytes.len() as u64;
        let Some((media, part)) = self.media.strikes(Op::Write, name, offset, length) else {
            return self.change(number, name, Self::store(offset, bytes));
        };
        if media == Media::WriteError {
            self.media.hit(media, name, part.clone());
            let error: Error = os_error(EIO, Op::Write, name);
            return Err(error.with("offset", part.start));
        }
        let mut old = vec![0; bytes.len()];
        self.inode(number, name)?.current.read(offset, &mut old);
        if old == bytes {
            return self.change(number, name, Self::store(offset, bytes));
        }
        let whole = offset..offset + length;
        match media {
            Media::LostWrite => {
                self.media.hit(media, name, whole);
                self.change(
                    number,
                    name,
                    Some(Change::Allocate {
                        offset,
                        bytes: length,
                    }),
                )
            }
            Media::TornWrite => {
                self.change(
                    number,
                    name,
                    Some(Change::Allocate {
                        offset,
                        bytes: length,
                    }),
                )?;
                let all: Vec<_> = sectors(offset, bytes).collect();
                let lost = self.random.below(all.len() as u64) as usize;
                for (index, (at, sector)) in all.into_iter().enumerate() {
                    if index == lost {
                        self.media.hit(media, name, at..at + sector.len() as u64);
                    } else if self.random.coin() {
                        self.change(number, name, Self::store(at, sector))?;
                    }
                }
                Ok(())
            }
            Media::MisdirectedWrite => {
                self.change(
                    number,
                    name,
                    Some(Change::Allocate {
                        offset,
                        bytes: length,
                    }),
                )?;
                self.media.hit(media, name, whole);
                let astray = self.go_astray(number, offset, bytes);
                if let Some(hit) = self.media.hits.last_mut() {
                    hit.astray = astray;
                }
                Ok(())
            }
            Media::FlippedWrite(mask) => {
                let at = part.start + self.random.below(part.end - part.start);
                let mut flipped = bytes.to_vec();
                flipped[(at - offset) as usize] ^= mask;
                self.media.hit(media, name, at..at + 1);
                self.change(number, name, Self::store(offset, &flipped))
            }
            _ => {
                self.media.stale.push(Stale {
                    media,
                    inode: number,
                    offset,
                    old,
                    new: bytes.to_vec(),
                });
                self.change(number, name, Self::store(offset, bytes))
            }
        }
    }

    /// Stores a write somewhere else, at once and for good. Says where; there may be no such place.
    fn go_astray(&mut self, number: u64, offset: u64, bytes: &[u8]) -> Option<(String, u64)> {
        let length = bytes.len() as u64;
        let own = self.random.coin();
        let places: Vec<(String, u64, u64)> = self
            .names
            .iter()
            .filter_map(|(name, inode)| Some((name, *inode, self.inodes.get(inode)?)))
            .filter(|(_, inode, file)| {
                !file.is_ring && file.current.bytes() >= length && (*inode == number || !own)
            })
            .map(|(name, inode, file)| (name.clone(), inode, file.current.bytes()))
            .collect();
        if places.is_empty() {
            return None;
        }
        let nth = self.random.below(places.len() as u64) as usize;
        let (name, inode, size) = places.into_iter().nth(nth)?;
        let at = self.random.below((size - length) / SECTOR_BYTES + 1) * SECTOR_BYTES;
        if (inode, at) == (number, offset) {
            return None;
        }
        let file = self.inodes.get_mut(&inode)?;
        file.current.store(at, bytes);
        file.durable.store_present(at, bytes);
        Some((name, at))
    }

    /// What a read gets wrong, of bytes that were read right.
    pub(super) fn read_from_medium(
        &mut self,
        number: u64,
        name: &str,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let length = out.len() as u64;
        let (media, random) = (&mut self.media, &mut self.random);
        for stale in std::mem::take(&mut media.stale) {
            let start = stale.offset.max(offset);
            let end = (stale.offset + stale.old.len() as u64).min(offset + length);
            if stale.media != Media::StaleRead || stale.inode != number || start >= end {
                media.stale.push(stale);
                continue;
            }
            let seen = &mut out[(start - offset) as usize..(end - offset) as usize];
            let past = (start - stale.offset) as usize..(end - stale.offset) as usize;
            // What was written over meanwhile has no such past any more.
            if seen == &stale.new[past.clone()] && seen != &stale.old[past.clone()] {
                seen.copy_from_slice(&stale.old[past]);
                media.hit(Media::StaleRead, name, start..end);
            }
        }
        let Some((kind, part)) = media.strikes(Op::Read, name, offset, length) else {
            return Ok(());
        };
        match kind {
            Media::FlippedRead(mask) => {
                let at = part.start + random.below(part.end - part.start);
                out[(at - offset) as usize] ^= mask;
                media.hit(kind, name, at..at + 1);
                Ok(())
            }
            Media::ShortRead => {
                let filled = random.below(length) as usize;
                out[filled..].fill(0);
                media.hit(kind, name, offset + filled as u64..offset + length);
                Err(crate::past_end(name, offset, out.len()))
            }
            _ => {
                out.fill(0);
                media.hit(kind, name, part.clone());
                let error: Error = os_error(EIO, Op::Read, name);
                Err(error.with("offset", part.start))
            }
        }
    }

    /// After a sync of a file: writes whose past comes back.
    pub(super) fn revert_on_medium(&mut self, number: u64, name: &str) -> Result<()> {
        for stale in std::mem::take(&mut self.media.stale) {
            if stale.media != Media::RevertedWrite || stale.inode != number {
                self.media.stale.push(stale);
                continue;
            }
            let inode = self.inode(number, name)?;
            let mut range: Option<Range<u64>> = None;
            let pasts = sectors(stale.offset, &stale.old);
            for ((at, old), (_, new)) in pasts.zip(sectors(stale.offset, &stale.new)) {
                let mut now = vec![0; new.len()];
                inode.current.read(at, &mut now);
                // What was written over meanwhile has no such past any more.
                if now == new && now != old {
                    inode.current.store(at, old);
                    inode.durable.store_present(at, old);
                    let start = range.map_or(at, |range| range.start);
                    range = Some(start..at + old.len() as u64);
                }
            }
            if let Some(range) = range {
                self.media.hit(stale.media, name, range);
            }
        }
        Ok(())
    }
}
