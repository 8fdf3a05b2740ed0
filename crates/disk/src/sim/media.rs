//! Faults of the medium: the disk acknowledges a call and does something else.

use std::ops::Range;

use super::op::Op;

/// The kinds of media faults.
///
/// Other faults have calls of their own: [`super::SimDisk::corrupt`] for rot,
/// [`super::SimDisk::set_capacity`] for a full disk, and [`super::Fault`] for calls that report an
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Media {
    /// A write is acknowledged and never stored. The file grows nevertheless.
    LostWrite,
    /// A write is acknowledged, but not all of its sectors are stored.
    TornWrite,
    /// A write is acknowledged and stored elsewhere: at another offset of the file, or in another
    /// file that is long enough.
    MisdirectedWrite,
    /// A write is stored with the bits of this mask flipped in one of its bytes.
    FlippedWrite(u8),
    /// A write is stored, but the first read that overlaps it gets the old content. Later reads are
    /// right.
    StaleRead,
    /// A write is stored and read correctly until the file's next sync. After the sync the old
    /// content is back and stays.
    RevertedWrite,
    /// A write fails with `EIO`, and none of it is stored. A lasting fault of a range is a region
    /// that refuses writes.
    WriteError,
    /// A read gets one byte with the bits of this mask flipped. The medium holds the right byte.
    FlippedRead(u8),
    /// A read fails with `EIO`. A lasting fault of a range is a bad sector.
    ReadError,
    /// A read ends early. The caller sees the error of a file that ends there, and a partly filled
    /// buffer, since [`crate::File::read_at`] promises to fill its buffer.
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

/// A media fault to inject. It says which reads or writes match, how many matching ones pass first,
/// and whether it strikes more than once. It survives crashes, and forks have it too.
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
    /// Strikes the `n`-th matching call from now on (1 is the next), once. The kind of fault
    /// decides whether reads or writes match.
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

    /// Restricts the fault to files whose name contains this text.
    #[must_use]
    pub fn of(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Restricts the fault to reads and writes that overlap this range of the file.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.within = range;
        self
    }

    /// Makes the fault strike every later matching call too, until [`super::SimDisk::clear_media`].
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.lasting = true;
        self
    }
}

/// A media fault that struck and changed the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaHit {
    /// The kind of fault.
    pub media: Media,
    /// The name of the file.
    pub file: String,
    /// Offset in bytes of the first wrong byte.
    pub offset: u64,
    /// Number of bytes that may be wrong.
    pub bytes: u64,
    /// File and offset that a misdirected write reached; `None` for other faults.
    pub astray: Option<(String, u64)>,
}

/// A write whose old content comes back later.
#[derive(Clone)]
pub(super) struct Stale {
    pub(super) media: Media,
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) old: Vec<u8>,
    pub(super) new: Vec<u8>,
}

/// The injected faults of one medium, and those that struck.
#[derive(Clone, Default)]
pub(super) struct Faulty {
    faults: Vec<MediaFault>,
    pub(super) stale: Vec<Stale>,
    pub(super) hits: Vec<MediaHit>,
}

impl Faulty {
    pub(super) fn inject(&mut self, fault: MediaFault) {
        self.faults.push(fault);
    }

    /// Removes all faults that have not struck yet.
    pub(super) fn clear(&mut self) {
        self.faults.clear();
        self.stale.clear();
    }

    /// The fault that strikes this read or write, and the part of the range that matches the fault.
    pub(super) fn strikes(
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

    pub(super) fn hit(&mut self, media: Media, name: &str, range: Range<u64>) {
        self.hits.push(MediaHit {
            media,
            file: name.into(),
            offset: range.start,
            bytes: range.end - range.start,
            astray: None,
        });
    }
}
