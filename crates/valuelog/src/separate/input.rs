//! A merge's input with handles in place of long values.

use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Charge, Message, Result, mutant};
use terrapin_structure::{Erased, Estimate, MergeInput, MessageCursor};

use super::births::Handles;
use crate::handle::Handle;

/// An input whose separated values are handles.
pub(super) struct SeparatedInput {
    input: Arc<dyn MergeInput>,
    handles: Arc<Handles>,
    separate_from: usize,
    /// The inner structure sees this share of the input's bytes, in permille.
    kept_permille: u64,
    _charge: Charge,
}

impl SeparatedInput {
    pub(super) fn new(
        input: Arc<dyn MergeInput>,
        handles: Handles,
        separate_from: usize,
        charge: Charge,
    ) -> Self {
        let bytes = input.estimate(None, None).bytes.max(1);
        let moved = handles
            .values()
            .flatten()
            .map(|handle| u64::from(handle.value_bytes));
        let kept = bytes.saturating_sub(moved.sum::<u64>());
        let handle_bytes = handles.len() as u64 * 9;
        SeparatedInput {
            input,
            handles: Arc::new(handles),
            separate_from,
            kept_permille: (kept + handle_bytes).saturating_mul(1000) / bytes,
            _charge: charge,
        }
    }
}

impl MergeInput for SeparatedInput {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let mut cursor = SeparatedCursor {
            cursor: self.input.clone().cursor(lo, hi)?,
            handles: self.handles.clone(),
            separate_from: self.separate_from,
            handle: Vec::with_capacity(Handle::BYTES_MAX),
        };
        cursor.look();
        Ok(Box::new(cursor))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let estimate = self.input.estimate(lo, hi);
        let bytes = u128::from(estimate.bytes) * u128::from(self.kept_permille) / 1000;
        Estimate {
            bytes: bytes.min(u128::from(u64::MAX)) as u64,
            ..estimate
        }
    }

    /// A version with separated values gives up nothing unread, so no handle is lost here.
    fn erased(&self) -> &[Erased] {
        if mutant::active("separated-input-erases-nothing") {
            return &[];
        }
        self.input.erased()
    }

    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        self.input.cuts(parts)
    }

    fn has_handles(&self) -> bool {
        self.input.has_handles()
    }

    fn replacing_permille(&self) -> u16 {
        self.input.replacing_permille()
    }
}

struct SeparatedCursor {
    cursor: Box<dyn MessageCursor>,
    handles: Arc<Handles>,
    separate_from: usize,
    /// The handle of the current record; empty if its value stays.
    handle: Vec<u8>,
}

impl SeparatedCursor {
    fn look(&mut self) {
        self.handle.clear();
        let Some(key) = self.cursor.key() else {
            return;
        };
        if let Message::Put(value) = self.cursor.message()
            && value.len() >= self.separate_from
            && let Some(Some(handle)) = self.handles.get(&hash64(key))
        {
            debug_assert_eq!(handle.value_bytes as usize, value.len());
            handle.encode(&mut self.handle);
        }
    }
}

impl MessageCursor for SeparatedCursor {
    fn key(&self) -> Option<&[u8]> {
        self.cursor.key()
    }

    fn message(&self) -> Message<'_> {
        match self.handle.is_empty() {
            true => self.cursor.message(),
            false => Message::Separated(&self.handle),
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.cursor.advance()?;
        self.look();
        Ok(())
    }
}
