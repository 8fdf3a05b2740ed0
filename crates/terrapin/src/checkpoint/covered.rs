//! [`Messages`]: the messages that a merge applies to a tree: a memtable's newest versions, and a
//! delete for each key of the tree that a range delete of the memtable hides.
//!
//! A structure thereby gets ordinary deletes only. The keys come from a scan of the tree, which the
//! merge does not change. Reading them takes no memory beyond the scan's.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Lsn, Message, Result, mutant};
use terrapin_memtable::{Memtable, OwnedCursor};
use terrapin_structure::{Direction, MessageCursor, Scan, Version};

use crate::read::cover::{Cover, Gap};

/// The tree below a memtable, and the range deletes that hide its keys.
#[derive(Clone)]
pub(crate) struct Below {
    version: Arc<dyn Version>,
    cover: Arc<Cover>,
}

impl Below {
    /// For a memtable with range deletes below `before`, into which no thread writes any more.
    pub fn of(memtable: &Memtable, version: &Arc<dyn Version>, before: Lsn) -> Option<Below> {
        let cover = Cover::over([memtable.fragments(), None], before)?;
        if mutant::active("checkpoint-forgets-range-deletes") {
            return None;
        }
        Some(Below {
            version: version.clone(),
            cover: Arc::new(cover),
        })
    }
}

/// The keys of a tree that range deletes hide, from one key on. It is at a key or at the end.
struct Hidden {
    cover: Arc<Cover>,
    scan: Box<dyn Scan>,
    gap: Option<Gap>,
    /// The current key, in reused memory. Empty and unused at the end.
    key: Vec<u8>,
    is_at_end: bool,
}

impl Hidden {
    fn new(below: &Below, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Result<Option<Hidden>> {
        let gap = below.cover.gap_from(lo.unwrap_or_default());
        let begins_inside = |gap: &Gap| hi.is_none_or(|hi| gap.lo[..] < *hi);
        let Some(gap) = gap.filter(begins_inside) else {
            return Ok(None);
        };
        let ordered = below.version.ordered();
        let ordered = ordered.ok_or_else(|| {
            Error::internal("a memtable has range deletes, and its keyspace keeps no order")
        })?;
        let upper = hi.map_or(Bound::Unbounded, Bound::Excluded);
        let scan = ordered.scan((Bound::Included(&gap.lo), upper), Direction::Forward)?;
        let mut hidden = Hidden {
            cover: below.cover.clone(),
            scan,
            gap: Some(gap),
            key: Vec::new(),
            is_at_end: false,
        };
        hidden.advance()?;
        Ok(Some(hidden))
    }

    fn key(&self) -> Option<&[u8]> {
        (!self.is_at_end).then_some(&self.key[..])
    }

    fn advance(&mut self) -> Result<()> {
        while let Some(gap) = &self.gap {
            let Some((key, _)) = self.scan.next()? else {
                break;
            };
            self.key.clear();
            self.key.extend_from_slice(key);
            if gap.hi.as_ref().is_none_or(|hi| self.key < *hi) {
                return Ok(());
            }
            let Some(next) = self.cover.gap_from(&self.key) else {
                break;
            };
            let is_inside = next.lo == self.key;
            if !is_inside {
                self.scan.seek(&next.lo)?;
            }
            self.gap = Some(next);
            if is_inside {
                return Ok(());
            }
        }
        self.is_at_end = true;
        Ok(())
    }
}

/// The messages of a range of keys, in order.
pub(crate) struct Messages {
    points: OwnedCursor,
    hidden: Option<Hidden>,
    hi: Option<Box<[u8]>>,
    at: At,
}

/// Where the current message is from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    End,
    /// The memtable alone.
    Point,
    /// The tree alone: a range delete hides the key.
    Hidden,
    /// The memtable. The tree has the key as well.
    Both,
}

impl Messages {
    /// The messages from `lo` to below `hi`.
    pub fn new(
        mut points: OwnedCursor,
        below: Option<&Below>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Messages> {
        match lo {
            Some(lo) => points.seek(lo),
            None => points.seek_first(),
        }
        let hidden = match below {
            Some(below) => Hidden::new(below, lo, hi)?,
            None => None,
        };
        let mut messages = Messages {
            points,
            hidden,
            hi: hi.map(Into::into),
            at: At::End,
        };
        messages.look();
        Ok(messages)
    }

    /// Whether a range delete hides a record of the tree with the current key.
    pub fn is_of_tree(&self) -> bool {
        matches!(self.at, At::Hidden | At::Both)
    }

    /// Whether the current message is a version of the memtable that was read.
    pub fn was_read(&self) -> bool {
        matches!(self.at, At::Point | At::Both) && self.points.was_read()
    }

    #[inline]
    fn look(&mut self) {
        let hi = self.hi.as_deref();
        let point = self
            .points
            .key()
            .filter(|key| hi.is_none_or(|hi| *key < hi));
        let Some(hidden) = self.hidden.as_ref().and_then(Hidden::key) else {
            self.at = match point {
                Some(_) => At::Point,
                None => At::End,
            };
            return;
        };
        self.at = match point {
            Some(point) if point < hidden => At::Point,
            Some(point) if point == hidden => At::Both,
            _ => At::Hidden,
        };
    }
}

impl MessageCursor for Messages {
    fn key(&self) -> Option<&[u8]> {
        match self.at {
            At::End => None,
            At::Point | At::Both => self.points.key(),
            At::Hidden => self.hidden.as_ref().and_then(Hidden::key),
        }
    }

    fn message(&self) -> Message<'_> {
        match self.at {
            At::Hidden => Message::Delete,
            _ => self.points.message(),
        }
    }

    fn advance(&mut self) -> Result<()> {
        if matches!(self.at, At::Point | At::Both) {
            self.points.next();
        }
        if matches!(self.at, At::Hidden | At::Both)
            && let Some(hidden) = &mut self.hidden
        {
            hidden.advance()?;
        }
        self.look();
        Ok(())
    }
}
