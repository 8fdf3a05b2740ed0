//! A scan of a run: what it says of one key after the other, at the moment of a view.

use std::sync::Arc;

use terrapin_base::{Lsn, Message, Result};
use terrapin_structure::Scan;

use super::Run;
use super::chain::{Said, look};

/// Stands on a key, or at the end. Keys of which the view sees no version do not come up. Key and
/// value are copies, in memory that is used again.
pub(crate) struct RunScan {
    run: Arc<Run>,
    scan: Box<dyn Scan>,
    before: Lsn,
    key: Vec<u8>,
    value: Vec<u8>,
    at: At,
}

/// What a scan stands on.
enum At {
    /// Nothing was read yet.
    Start,
    Put,
    Delete,
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

    /// Goes to the first key, unless it was there already. First of all; after an error the scan is
    /// not used again.
    pub fn start(&mut self) -> Result<()> {
        match self.at {
            At::Start => self.advance(),
            _ => Ok(()),
        }
    }

    /// The key that it stands on.
    pub fn key(&self) -> Option<&[u8]> {
        match self.at {
            At::Put | At::Delete => Some(&self.key),
            At::Start | At::End => None,
        }
    }

    /// What the run says of that key.
    pub fn message(&self) -> Message<'_> {
        match self.at {
            At::Put => Message::Put(&self.value),
            _ => Message::Delete,
        }
    }

    /// Goes to the next key in its direction.
    pub fn advance(&mut self) -> Result<()> {
        loop {
            let Some((key, record)) = self.scan.next()? else {
                self.at = At::End;
                return Ok(());
            };
            let value = &mut self.value;
            let mut take = |message: Message<'_>| {
                value.clear();
                match message {
                    Message::Put(bytes) => {
                        value.extend_from_slice(bytes);
                        At::Put
                    }
                    Message::Delete => At::Delete,
                }
            };
            let at = match look(record, self.before)? {
                Said::Nothing => None,
                Said::Message(message) => Some(take(message)),
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
