//! The merge of windows into a tree.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Budget, Env, Generation, Incarnation, Result};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_pages::block::Compression;
use terrapin_pages::message::Message;
use terrapin_pages::{PageStore, StoreOptions};
use terrapin_structure::{Estimate, MergeInput, MergeOptions, MergeStep, MessageCursor, Structure};

use super::operations_under_count;
use crate::disk::SteadyDisk;
use crate::records::{KEY_BYTES, RECORD_BYTES, VALUE_BYTES, key, value};

/// Records of a window: χ = 8.
pub const WINDOW_RECORDS: u64 = 8 * GROUP_BYTES / RECORD_BYTES;
const GROUP_BYTES: u64 = 64 << 10;
/// Windows in the tree before anything counts.
const WINDOWS_BEFORE: u64 = 12;
/// Windows that are made ready; as many are merged as operations say.
const WINDOWS: u64 = WINDOWS_BEFORE + 8;

/// A window's keys, sorted.
struct Window(Vec<[u8; KEY_BYTES]>);

struct Cursor {
    window: Arc<Window>,
    at: usize,
    end: usize,
    value: [u8; VALUE_BYTES],
}

impl Window {
    fn of(number: u64) -> Arc<Self> {
        let first = number * WINDOW_RECORDS;
        let mut keys: Vec<_> = (first..first + WINDOW_RECORDS).map(key).collect();
        keys.sort_unstable();
        Arc::new(Window(keys))
    }

    fn place(&self, key: Option<&[u8]>, otherwise: usize) -> usize {
        key.map_or(otherwise, |key| self.0.partition_point(|k| k[..] < *key))
    }
}

impl MessageCursor for Cursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then(|| &self.window.0[self.at][..])
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&self.value)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}

impl MergeInput for Window {
    fn cursor(self: Arc<Self>, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Box<dyn MessageCursor> {
        Box::new(Cursor {
            at: self.place(lo, 0),
            end: self.place(hi, self.0.len()),
            value: value(&[7; KEY_BYTES]),
            window: self,
        })
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let end = self.place(hi, self.0.len());
        let records = end.saturating_sub(self.place(lo, 0)) as u64;
        Estimate {
            records,
            bytes: records * RECORD_BYTES,
        }
    }
}

pub fn merge(count: u64) -> Result<()> {
    let (env, _sim) = Env::simulated(4);
    let budget = Budget::new(64 << 20);
    let options = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 1 << 20,
        system_cache: false,
    };
    let disk = SteadyDisk::open(&env, Path::new("pages"))?;
    let store = ManuallyDrop::new(PageStore::create(&disk, options, 1)?);
    store.begin_life(Incarnation(1));
    let params = BeTreeParams { fanout: 16, budget };
    let tree = ManuallyDrop::new(BeTree::new(Arc::clone(&store), params));
    let options = MergeOptions {
        group_bytes: GROUP_BYTES,
        block_bytes: 4096,
        compression: Compression::None,
        space_amplification_percent: Some(130),
        space_is_short: false,
    };
    let mut version = tree.empty();
    let mut merge = |number: u64, window: Arc<Window>| -> Result<()> {
        let merge = tree.begin_merge(&version, window, &options)?;
        while !matches!(merge.step()?, MergeStep::Done) {}
        let merged = merge.finish()?;
        version = merged.version;
        store.commit(Generation(number + 2), merged.changes);
        while store.reclaim_step()? {}
        Ok(())
    };
    let mut windows = (0..WINDOWS)
        .map(Window::of)
        .collect::<Vec<_>>()
        .into_iter()
        .zip(0..);
    for (window, number) in windows.by_ref().take(WINDOWS_BEFORE as usize) {
        merge(number, window)?;
    }
    operations_under_count(count / WINDOW_RECORDS, |_| match windows.next() {
        Some((window, number)) => merge(number, window),
        None => Err(terrapin_base::Error::internal(
            "fewer windows than operations",
        )),
    })
}
