//! Faults of the medium: what a disk does behind the back of those who trust its answers.

use std::ops::Range;

use super::op::Op;

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
pub(super) struct Stale {
    pub(super) media: Media,
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) old: Vec<u8>,
    pub(super) new: Vec<u8>,
}

/// The faults of one medium.
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

    /// Takes back what has not struck yet.
    pub(super) fn clear(&mut self) {
        self.faults.clear();
        self.stale.clear();
    }

    /// The fault that strikes this read or write, and the part of it that the fault looks at.
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
