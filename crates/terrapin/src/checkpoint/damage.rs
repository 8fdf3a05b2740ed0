//! Damage that merges of some structures stay away from
//! ([`Structure::merges_around_damage`](terrapin_structure::Structure::merges_around_damage)).
//!
//! A merge that meets a damaged page fails. It is tried again at once and then only adds the
//! memtable as a sorted run, so that damage keeps no record from being durable. Later merges know
//! the page and stay away from it. The list is in memory only: after an open, the next merge that
//! meets the page finds it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, PageId};

/// Most pages that are remembered for a keyspace. With more, merges meet some of them again.
const PAGES_MAX: usize = 4096;

/// The damaged pages that merges met, by keyspace.
#[derive(Default)]
pub(super) struct Damage(BTreeMap<KeyspaceId, BTreeSet<PageId>>);

impl Damage {
    /// Remembers the page that an error names. Returns whether it was not known.
    pub fn note(&mut self, id: KeyspaceId, error: &Error) -> bool {
        let named = error.context().iter().filter(|(key, _)| *key == "page");
        let mut is_new = false;
        for page in named.filter_map(|(_, page)| page.parse().ok()) {
            let pages = self.0.entry(id).or_default();
            if pages.len() < PAGES_MAX {
                is_new |= pages.insert(PageId(page));
            }
        }
        is_new
    }

    /// The damaged pages of a keyspace, ascending.
    pub fn of(&self, id: KeyspaceId) -> Arc<[PageId]> {
        let pages = self.0.get(&id).into_iter().flatten();
        pages.copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_pages() {
        let mut damage = Damage::default();
        let id = KeyspaceId(3);
        let error = |page: u64| Error::corrupt("damaged").with("page", PageId(page));
        assert!(damage.note(id, &error(7)) && damage.note(id, &error(1 << 50)));
        assert!(!damage.note(id, &error(7)));
        assert!(!damage.note(id, &Error::corrupt("somewhere").with("block", 9)));
        assert_eq!(damage.of(id)[..], [PageId(7), PageId(1 << 50)]);
        assert!(damage.of(KeyspaceId(4)).is_empty());
    }
}
