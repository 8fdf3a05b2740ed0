//! [`Messages`]: the messages that a merge applies to a tree: a memtable's newest versions, and a
//! delete for each key of the tree that a range delete of the memtable hides.
//!
//! What the structure gives up unread ([`Below::erased`]) gets no deletes. The other hidden keys
//! come from a scan of the tree, which the merge does not change. Reading them takes no memory
//! beyond the scan's.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Fold, Lsn, Message, MessageKind, Operator, Result, mutant};
use terrapin_memtable::{Memtable, OwnedCursor};
use terrapin_structure::{Direction, Erased, MessageCursor, Ordered, Scan, Version};

use crate::read::cover::{Cover, Gap};

/// Gaps that one step of [`Search`] asks the tree for: about a millisecond of work.
const STEP_GAPS: usize = 16;

/// The tree below a memtable, and the range deletes that hide its keys.
#[derive(Clone)]
pub(crate) struct Below {
    version: Arc<dyn Version>,
    cover: Arc<Cover>,
    /// What the merge gives up unread of the gaps, ascending.
    erased: Arc<[Erased]>,
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
            erased: Arc::default(),
        })
    }

    /// What the merge gives up unread.
    pub fn erased(&self) -> &[Erased] {
        &self.erased
    }

    /// Whether the merge gives up a key unread.
    pub fn is_erased(&self, key: &[u8]) -> bool {
        let erased = self.erased_from(key);
        erased.is_some_and(|erased| *erased.lo <= *key)
    }

    /// The first erased range that ends behind a key.
    fn erased_from(&self, key: &[u8]) -> Option<&Erased> {
        let ends_before = |e: &Erased| e.hi.as_deref().is_some_and(|hi| hi <= key);
        self.erased.get(self.erased.partition_point(ends_before))
    }

    fn ordered(&self) -> Result<&dyn Ordered> {
        let ordered = self.version.ordered();
        ordered.ok_or_else(|| {
            Error::internal("a memtable has range deletes, and its keyspace keeps no order")
        })
    }

    /// The first stretch from a key on whose records get deletes: a gap or a part of one.
    fn stretch_from<'a>(&'a self, mut from: &'a [u8]) -> Option<Gap> {
        loop {
            let mut gap = self.cover.gap_from(from)?;
            let Some(erased) = self.erased_from(&gap.lo) else {
                return Some(gap);
            };
            if *erased.lo > gap.lo[..] {
                if gap.hi.as_deref().is_none_or(|hi| *erased.lo < *hi) {
                    gap.hi = Some(erased.lo.to_vec());
                }
                return Some(gap);
            }
            from = erased.hi.as_deref()?;
        }
    }
}

/// Finds in steps what a merge gives up unread of the gaps above its tree.
pub(crate) struct Search {
    found: Vec<Erased>,
    /// Keys below are done. `None`: all keys.
    from: Option<Vec<u8>>,
    /// Less is not worth the nodes that the merge rewrites for it.
    bytes_min: u64,
}

impl Search {
    pub fn new(bytes_min: u64) -> Search {
        Search {
            found: Vec::new(),
            from: Some(Vec::new()),
            bytes_min,
        }
    }

    /// Does one step. Once it is done, returns true, and `below` has the result.
    pub fn step(&mut self, below: &mut Below) -> Result<bool> {
        for _ in 0..STEP_GAPS {
            let Some(from) = &self.from else { break };
            let gap = below.cover.gap_from(from);
            if let Some(gap) = &gap {
                let part = below.ordered()?;
                let part = part.erasable(&gap.lo, gap.hi.as_deref(), self.bytes_min)?;
                self.found.extend(part);
            }
            self.from = gap.and_then(|gap| gap.hi);
        }
        if self.from.is_some() {
            return Ok(false);
        }
        below.erased = std::mem::take(&mut self.found).into();
        Ok(true)
    }
}

/// The keys of a tree that range deletes hide, from one key on. It is at a key or at the end.
struct Hidden {
    below: Below,
    scan: Box<dyn Scan>,
    gap: Option<Gap>,
    /// The current key, in reused memory. Empty and unused at the end.
    key: Vec<u8>,
    is_at_end: bool,
}

impl Hidden {
    fn new(below: &Below, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Result<Option<Hidden>> {
        let gap = below.stretch_from(lo.unwrap_or_default());
        let begins_inside = |gap: &Gap| hi.is_none_or(|hi| gap.lo[..] < *hi);
        let Some(gap) = gap.filter(begins_inside) else {
            return Ok(None);
        };
        let ordered = below.ordered()?;
        let upper = hi.map_or(Bound::Unbounded, Bound::Excluded);
        let scan = ordered.scan((Bound::Included(&gap.lo), upper), Direction::Forward)?;
        let mut hidden = Hidden {
            below: below.clone(),
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
            let Some(next) = self.below.stretch_from(&self.key) else {
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
    operator: Operator,
    fold: Fold,
    /// The memtable's current message, folded, if its newest version has operands.
    folded: Option<(MessageKind, Vec<u8>)>,
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
        (mut points, operator): (OwnedCursor, &Operator),
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
            operator: operator.clone(),
            fold: Fold::default(),
            folded: None,
        };
        messages.look()?;
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
    fn look(&mut self) -> Result<()> {
        self.find();
        if self.folded.is_some() {
            self.folded = None;
        }
        if matches!(self.at, At::Point | At::Both) && self.points.message().has_operands() {
            return self.fold();
        }
        Ok(())
    }

    /// Folds the operands of the memtable's current key.
    #[cold]
    fn fold(&mut self) -> Result<()> {
        self.fold.clear();
        self.points.fold(&mut self.fold)?;
        let key = self.points.key().unwrap_or_default();
        let message = self.fold.finish(&self.operator, key, None);
        self.folded = Some((message.kind(), message.payload().to_vec()));
        Ok(())
    }

    #[inline]
    fn find(&mut self) {
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
            _ => match &self.folded {
                Some((kind, payload)) => Message::of(*kind, payload),
                None => self.points.message(),
            },
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
        self.look()
    }
}
