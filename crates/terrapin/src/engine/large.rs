//! Pages of large values that no tree has: those of memtables, and those of memtables that a clear
//! or a drop removed (decision 0074).
//!
//! A memtable lists every large page that entered it. The checkpoint that merges the memtable
//! adopts the pages of the versions that its tree keeps, and releases the others. A memtable that a
//! clear or a drop removes leaves its pages to the next checkpoint, whose catalog has the clear.

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};
use terrapin_base::{PageId, mutant};
use terrapin_pages::{Changes, PageStore};

/// A memtable with this many bytes of large pages is sealed. A key that is overwritten again and
/// again so gives its space back.
const SEALED_FROM_BYTES: u64 = 64 << 20;

/// The large pages of a memtable.
#[derive(Default)]
pub(crate) struct LargePages {
    /// None once the memtable was removed by a clear or a drop.
    pages: Mutex<Listed>,
    bytes: AtomicU64,
}

#[derive(Default)]
struct Listed {
    ids: Vec<PageId>,
    is_closed: bool,
}

impl LargePages {
    /// Lists a page. Returns whether the memtable takes it: one that was removed does not.
    pub fn add(&self, id: PageId, bytes: u64) -> bool {
        let mut listed = self.pages.lock();
        if listed.is_closed {
            return false;
        }
        listed.ids.push(id);
        self.bytes.fetch_add(bytes, Ordering::Release);
        true
    }

    /// Whether any page was listed.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.bytes.load(Ordering::Acquire) > 0
    }

    /// Whether the pages alone are a reason to seal the memtable.
    #[inline]
    pub fn are_many(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= SEALED_FROM_BYTES
    }

    /// The pages. Complete once no thread writes into the memtable any more.
    pub fn ids(&self) -> Vec<PageId> {
        self.pages.lock().ids.clone()
    }

    /// The pages of a memtable that is being removed. It takes no others from now on.
    fn close(&self) -> Vec<PageId> {
        let mut listed = self.pages.lock();
        listed.is_closed = true;
        std::mem::take(&mut listed.ids)
    }
}

/// The large pages that no memtable and no tree has. The next checkpoint releases them.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<Vec<PageId>>);

impl Orphans {
    /// Adds a page of a write whose memtable was removed.
    pub fn add(&self, id: PageId) {
        self.0.lock().push(id);
    }

    /// Adds the pages of a memtable that a clear or a drop removes.
    pub fn take_over(&self, pages: &LargePages) {
        self.0.lock().append(&mut pages.close());
    }

    /// The pages now.
    pub fn now(&self) -> Vec<PageId> {
        self.0.lock().clone()
    }

    /// Forgets pages that a durable checkpoint released.
    pub fn forget(&self, released: &[PageId]) {
        if !released.is_empty() {
            self.0.lock().retain(|id| !released.contains(id));
        }
    }
}

/// Releases large pages that no tree has adopted, by changes that a checkpoint is about to commit.
/// Pages that the changes adopt, or that a tree has by now, stay.
pub(crate) fn release(store: &PageStore, pages: &[PageId], changes: &mut Changes) {
    if pages.is_empty() || mutant::active("overwritten-large-pages-stay") {
        return;
    }
    let unadopted: std::collections::HashSet<_> = store.large_pages().into_iter().collect();
    let mut kept: std::collections::HashSet<_> = changes.adopted.iter().copied().collect();
    for &id in pages {
        if unadopted.contains(&id) && kept.insert(id) {
            changes.adopted.push(id);
            changes.released.push(id);
        }
    }
}
