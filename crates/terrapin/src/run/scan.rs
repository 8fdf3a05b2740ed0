//! [`RunScan`]: a scan of a run at the moment of a view, one key after another.

use std::sync::Arc;

use terrapin_base::{Lsn, Message, MessageKind, Result};
use terrapin_structure::Scan;

use super::Run;
use super::chain::{Said, look};

/// A scan that is at a key or at the end. It skips keys of which the view sees no version. Key and
/// value are copies in reused memory.
pub(crate) struct RunScan {
    run: Arc<Run>,
    scan: Box<dyn Scan>,
    before: Lsn,
    key: Vec<u8>,
    value: Vec<u8>,
    at: At,
}

/// The position of a scan.
enum At {
    /// Nothing was read yet.
    Start,
    /// A version of this kind.
    Version(MessageKind),
    End,
}

impl RunScan {
    pub(super) fn new(run: Arc<Run>, scan: Box<dyn Scan>, before: Lsn) -> Self {
        RunScan {
            run,
            scan,
            before,
            key: Vec::new(),
            value: Vec::new(),
            at: At::Start,
        }
    }

    /// Moves to the first key, unless the scan has started. The caller calls this first. After an
    /// error, the scan must not be used again.
    pub fn start(&mut self) -> Result<()> {
        match self.at {
            At::Start => self.advance(),
            _ => Ok(()),
        }
    }

    /// The current key. None at the end.
    pub fn key(&self) -> Option<&[u8]> {
        match self.at {
            At::Version(_) => Some(&self.key),
            At::Start | At::End => None,
        }
    }

    /// The run's message for the current key.
    pub fn message(&self) -> Message<'_> {
        match self.at {
            At::Version(kind) => Message::of(kind, &self.value),
            At::Start | At::End => Message::Delete,
        }
    }

    /// Moves to the next key in the scan's direction.
    pub fn advance(&mut self) -> Result<()> {
        loop {
            let Some((key, record)) = self.scan.next()? else {
                self.at = At::End;
                return Ok(());
            };
            let value = &mut self.value;
            let deleted = self.run.deleted(key, self.before);
            let mut take = |lsn: Lsn, message: Message<'_>| {
                value.clear();
                if deleted < Some(lsn) {
                    value.extend_from_slice(message.payload());
                    return At::Version(message.kind());
                }
                At::Version(MessageKind::Delete)
            };
            let at = match look(record, self.before)? {
                Said::Nothing => None,
                Said::Message(lsn, message) => Some(take(lsn, message)),
                Said::Long(number) => self.run.in_long(number, self.before, take)?,
            };
            if let Some(at) = at {
                self.at = at;
                self.key.clear();
                self.key.extend_from_slice(key);
                return Ok(());
            }
        }
    }
}
