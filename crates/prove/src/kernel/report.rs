//! A child's messages on its pipe: records of one size, each written at once and only after its
//! event.

use std::io::{self, Read};

use crate::kernel::plan::THREADS;

/// Bytes of a record; far fewer than a pipe takes at once.
pub const RECORD_BYTES: usize = 24;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The database is open; the threads begin.
    Opened,
    /// A thread's step was acknowledged. Stamps come from one counter of the process, taken before
    /// and after the call.
    Done {
        thread: u8,
        index: u32,
        began: u64,
        ended: u64,
    },
    /// A call failed; the text is on standard error.
    Failed,
}

impl Record {
    /// The bytes.
    #[must_use]
    pub fn encode(self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        match self {
            Record::Opened => out[0] = 1,
            Record::Failed => out[0] = 3,
            Record::Done {
                thread,
                index,
                began,
                ended,
            } => {
                out[0] = 2;
                out[1] = thread;
                out[4..8].copy_from_slice(&index.to_le_bytes());
                out[8..16].copy_from_slice(&began.to_le_bytes());
                out[16..].copy_from_slice(&ended.to_le_bytes());
            }
        }
        out
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let [kind, thread, _, _, rest @ ..] = *bytes;
        let [i0, i1, i2, i3, stamps @ ..] = rest;
        let (began, ended) = stamps.split_at(8);
        let stamp = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        match kind {
            1 => Some(Record::Opened),
            2 => Some(Record::Done {
                thread,
                index: u32::from_le_bytes([i0, i1, i2, i3]),
                began: stamp(began)?,
                ended: stamp(ended)?,
            }),
            3 => Some(Record::Failed),
            _ => None,
        }
    }

    /// The next record; none at the end, which may be within a record.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Record>> {
        let mut bytes = [0; RECORD_BYTES];
        match from.read_exact(&mut bytes) {
            Ok(()) => Record::decode(&bytes)
                .map(Some)
                .ok_or_else(|| io::Error::other("a child's report is malformed")),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The acknowledgements of a dead child.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    /// Whether it began to write.
    pub opened: bool,
    /// Stamps of each thread's steps, in order.
    pub steps: [Vec<(u64, u64)>; THREADS],
    /// How many steps of each thread must be durable, if not all: those reported before its end
    /// began.
    pub settled: Option<[usize; THREADS]>,
}

impl Acknowledged {
    /// Takes a record; false if it cannot be the next one.
    pub fn take(&mut self, record: Record) -> bool {
        match record {
            Record::Opened => self.opened = true,
            Record::Failed => {}
            Record::Done {
                thread,
                index,
                began,
                ended,
            } => match self.steps.get_mut(usize::from(thread)) {
                Some(steps) if steps.len() == index as usize => steps.push((began, ended)),
                _ => return false,
            },
        }
        true
    }

    /// From here on, acknowledgements need not be durable.
    pub fn settle(&mut self) {
        self.settled = Some(self.steps.each_ref().map(Vec::len));
    }

    /// The number of steps in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.steps.iter().map(Vec::len).sum()
    }
}
