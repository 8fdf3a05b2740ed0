//! A memtable that reports every step of its cursors.

use std::sync::Arc;

use super::*;

/// Called before a cursor moves.
pub(super) type BeforeStep = Arc<dyn Fn() + Send + Sync>;

/// A memtable whose cursors call a function before they move.
pub(super) struct Watched {
    pub(super) input: Arc<Input>,
    pub(super) before_step: BeforeStep,
}

struct WatchedCursor {
    cursor: Box<dyn MessageCursor>,
    before_step: BeforeStep,
}

impl MergeInput for Watched {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        Ok(Box::new(WatchedCursor {
            cursor: self.input.clone().cursor(lo, hi)?,
            before_step: self.before_step.clone(),
        }))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        self.input.estimate(lo, hi)
    }

    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        self.input.cuts(parts)
    }

    fn erased(&self) -> &[terrapin_structure::Erased] {
        self.input.erased()
    }
}

impl MessageCursor for WatchedCursor {
    fn key(&self) -> Option<&[u8]> {
        self.cursor.key()
    }

    fn message(&self) -> Message<'_> {
        self.cursor.message()
    }

    fn advance(&mut self) -> Result<()> {
        (self.before_step)();
        self.cursor.advance()
    }
}
