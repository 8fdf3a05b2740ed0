//! The memory of a finished scan, kept for the next scan of its thread. Allocating it would take a
//! tenth of a short scan's instructions.

use std::cell::Cell;
use std::ops::Bound;

use terrapin_base::sync::thread_local;

use super::path::PathFrame;
use super::source::Source;
use super::{Queued, TreeScan};

/// Memory of longer keys is not kept.
const SPARE_KEY_BYTES_MAX: usize = 1 << 10;

/// The memory of a finished scan: some kilobytes, empty.
pub(super) struct Spare {
    pub(super) frames: Vec<PathFrame>,
    pub(super) sources: Vec<Source>,
    pub(super) order: Vec<Queued>,
    pub(super) key: Vec<u8>,
    pub(super) lower: Vec<u8>,
    pub(super) upper: Vec<u8>,
}

thread_local! {
    static SPARE: Cell<Spare> = const { Cell::new(Spare::new()) };
}

impl Default for Spare {
    fn default() -> Self {
        Self::new()
    }
}

impl Spare {
    /// Takes the memory of the thread's last scan. It is empty while another scan of the thread
    /// uses that memory.
    pub(super) fn take() -> Self {
        SPARE.try_with(Cell::take).unwrap_or_default()
    }

    const fn new() -> Self {
        Spare {
            frames: Vec::new(),
            sources: Vec::new(),
            order: Vec::new(),
            key: Vec::new(),
            lower: Vec::new(),
            upper: Vec::new(),
        }
    }
}

/// Copies a key into memory that is there already.
pub(super) fn copied(mut memory: Vec<u8>, key: &[u8]) -> Vec<u8> {
    memory.extend_from_slice(key);
    memory
}

impl Drop for TreeScan {
    fn drop(&mut self) {
        let key_of = |bound: &mut Bound<Vec<u8>>| match std::mem::replace(bound, Bound::Unbounded) {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => Vec::new(),
        };
        let emptied = |mut key: Vec<u8>| {
            key.clear();
            key.shrink_to(SPARE_KEY_BYTES_MAX);
            key
        };
        let mut spare = Spare {
            frames: std::mem::take(&mut self.path.frames),
            sources: std::mem::take(&mut self.sources),
            order: std::mem::take(&mut self.order),
            key: emptied(std::mem::take(&mut self.key)),
            lower: emptied(key_of(&mut self.path.lower)),
            upper: emptied(key_of(&mut self.path.upper)),
        };
        spare.frames.clear();
        spare.sources.clear();
        spare.order.clear();
        // Fails only while the thread ends; then the memory is freed.
        let _ = SPARE.try_with(|kept| kept.set(spare));
    }
}
