//! Reads and writes of a medium with faults: what each fault does to a call.

use std::ops::Range;

use terrapin_base::Result;

use super::fault::FaultError;
use super::image::{SECTOR_BYTES, sectors};
use super::inode::Change;
use super::media::{Media, Stale};
use super::op::Op;
use super::world::World;

impl World {
    /// Stores a write, with the media fault that strikes it, if any.
    pub(super) fn store_on_medium(
        &mut self,
        number: u64,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let length = bytes.len() as u64;
        let Some((media, part)) = self.media.strikes(Op::Write, name, offset, length) else {
            return self.store(number, name, offset, bytes);
        };
        if media == Media::WriteError {
            self.media.hit(media, name, part.clone());
            let error = FaultError::Io.of(Op::Write, name);
            return Err(error.with("offset", part.start));
        }
        let mut old = vec![0; bytes.len()];
        self.inode(number, name)?.current.read(offset, &mut old);
        if old == bytes {
            return self.store(number, name, offset, bytes);
        }
        let whole = offset..offset + length;
        match media {
            Media::LostWrite => {
                self.media.hit(media, name, whole);
                self.change(
                    number,
                    name,
                    Change::Allocate {
                        offset,
                        bytes: length,
                    },
                )
            }
            Media::TornWrite => {
                self.change(
                    number,
                    name,
                    Change::Allocate {
                        offset,
                        bytes: length,
                    },
                )?;
                let all: Vec<_> = sectors(offset, bytes).collect();
                let lost = self.random.below(all.len() as u64) as usize;
                for (index, (at, sector)) in all.into_iter().enumerate() {
                    if index == lost {
                        self.media.hit(media, name, at..at + sector.len() as u64);
                    } else if self.random.coin() {
                        self.store(number, name, at, sector)?;
                    }
                }
                Ok(())
            }
            Media::MisdirectedWrite => {
                self.change(
                    number,
                    name,
                    Change::Allocate {
                        offset,
                        bytes: length,
                    },
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
                self.store(number, name, offset, &flipped)
            }
            _ => {
                self.media.stale.push(Stale {
                    media,
                    inode: number,
                    offset,
                    old,
                    new: bytes.to_vec(),
                });
                self.store(number, name, offset, bytes)
            }
        }
    }

    /// Stores a write at a wrong target, durably. Returns the target; `None` if no target exists.
    fn go_astray(&mut self, number: u64, offset: u64, bytes: &[u8]) -> Option<(String, u64)> {
        let length = bytes.len() as u64;
        let own = self.random.coin();
        let targets: Vec<(String, u64, u64)> = self
            .names
            .iter()
            .filter_map(|(name, inode)| Some((name, *inode, self.inodes.get(inode)?)))
            .filter(|(_, inode, file)| {
                !file.is_ring && file.current.bytes() >= length && (*inode == number || !own)
            })
            .map(|(name, inode, file)| (name.clone(), inode, file.current.bytes()))
            .collect();
        if targets.is_empty() {
            return None;
        }
        let nth = self.random.below(targets.len() as u64) as usize;
        let (name, inode, size) = targets.into_iter().nth(nth)?;
        let at = self.random.below((size - length) / SECTOR_BYTES + 1) * SECTOR_BYTES;
        if (inode, at) == (number, offset) {
            return None;
        }
        let file = self.inodes.get_mut(&inode)?;
        file.current.store(at, bytes);
        file.durable.store_present(at, bytes);
        Some((name, at))
    }

    /// Applies media faults to bytes that were read correctly.
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
            // An overwritten range has no old content that could come back.
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
                let error = FaultError::Io.of(Op::Read, name);
                Err(error.with("offset", part.start))
            }
        }
    }

    /// Brings old content back after a sync, for each write that is to revert.
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
                // An overwritten sector has no old content that could come back.
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
