//! Point lookups. The groups that wait for the key's leaf are asked first, newest first. Their
//! filters deny most keys. Then the leaf names the one page of the line that may hold the key. So a
//! lookup reads the device once at most, with the map cached.

use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::PageStore;
use terrapin_pages::group::{BlockPlace, GroupRef};
use terrapin_runs::lookup::Lookup;

use crate::format::ABOVE_LEAVES;
use crate::node::Node;
use crate::version::InPlaceVersion;

/// A lookup in progress. It yields the blocks that may hold its key, newest first.
pub(crate) struct Walk<'k> {
    key: &'k [u8],
    hash: u64,
    /// The node above the key's leaf, and the leaf's entry there; `None` in an empty tree.
    at: Option<(Arc<Node>, usize)>,
    /// How many waiting groups were asked.
    asked: usize,
}

impl<'k> Walk<'k> {
    pub(crate) fn new(version: &InPlaceVersion, key: &'k [u8], hash: u64) -> Result<Self> {
        let mut at = None;
        if let Some(mut node) = version.root_node()? {
            while node.inner.height > ABOVE_LEAVES {
                node = node.child(&version.store, node.inner.find(key))?;
            }
            let entry = node.inner.find(key);
            at = Some((node, entry));
        }
        Ok(Walk {
            key,
            hash,
            at,
            asked: 0,
        })
    }
}

impl Lookup for Walk<'_> {
    #[inline]
    fn key(&self) -> &[u8] {
        self.key
    }

    fn next(&mut self, store: &PageStore) -> Result<Option<(GroupRef, BlockPlace)>> {
        let Some((node, entry)) = &self.at else {
            return Ok(None);
        };
        let (key, hash) = (self.key, self.hash);
        let count = node.inner.entries[*entry].waiting.len();
        while self.asked < count {
            let number = match mutant::active("newest-waiting-group-asked-last") {
                true => count - 1 - self.asked,
                false => self.asked,
            };
            let Some((group, handle)) = node.waiting(*entry).nth(number) else {
                break;
            };
            self.asked += 1;
            if store.may_contain_by(group, handle, hash)? {
                let index = store.index_by(group, handle)?;
                let number = index.find(key);
                let (offset, bytes) = index.block_place(number);
                let place = BlockPlace {
                    number,
                    offset,
                    bytes,
                };
                return Ok(Some((*group, place)));
            }
        }
        let leaf = node.leaf(store, *entry)?;
        self.at = None;
        let Some(number) = leaf.up_to(key).checked_sub(1) else {
            return Ok(None);
        };
        let segment = leaf.segment(number)?;
        let place = segment.index.find(key)?;
        Ok(place.map(|place| (segment.group, place)))
    }
}
