//! The full check of a version: every byte of every page, and the rules between pages. Pages are
//! read from the device, not from the cache.

use terrapin_base::{Error, Result};
use terrapin_pages::group::{Deadlines, GroupIndex, GroupRef, NodeIndex, check_group};
use terrapin_pages::{PageKind, PageRef, PageStore, PageUse};
use terrapin_structure::Finding;

use crate::format::{ABOVE_LEAVES, Inner, Leaf, Root, Sums};

/// A check in progress.
struct Check<'a> {
    store: &'a PageStore,
    found: &'a mut dyn FnMut(Finding),
    pages: Vec<PageUse>,
}

/// Lower bound, inclusive, and upper bound, exclusive.
type Span<'a> = (&'a [u8], Option<&'a [u8]>);

/// Checks everything below a root. Damage and device errors are findings; other errors end the
/// check.
pub(crate) fn verify(store: &PageStore, root: &Root, found: &mut dyn FnMut(Finding)) -> Result<()> {
    let Root::Map(map) = root else {
        return Ok(());
    };
    let mut check = Check {
        store,
        found,
        pages: Vec::new(),
    };
    check.node(&map.page, map.height, (&[], None), (&map.sums, None))?;
    check.extents();
    Ok(())
}

impl Check<'_> {
    /// Reports damage of a page of the map, and passes other errors on.
    fn survive<T>(&mut self, page: PageUse, checked: Result<T>) -> Result<Option<T>> {
        self.survive_at(("page", page), checked)
    }

    fn survive_at<T>(
        &mut self,
        (kind, page): (&str, PageUse),
        checked: Result<T>,
    ) -> Result<Option<T>> {
        match checked {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_of_data() => {
                let place = format!("{kind} {}", page.id);
                (self.found)(Finding::new(place, error.to_string()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn report(&mut self, page: PageUse, message: &str) {
        (self.found)(Finding::new(format!("page {}", page.id), message));
    }

    /// Checks a node and all below it. The root has no sum of deadlines.
    fn node(
        &mut self,
        page: &PageRef,
        height: u8,
        span: Span<'_>,
        (sums, deadlines): (&Sums, Option<&Deadlines>),
    ) -> Result<()> {
        let used = PageUse::from(page);
        self.pages.push(used);
        let content = self.store.read_page(page, PageKind::MapNode);
        let read = content.and_then(|content| Inner::decode(&content, height));
        let Some(inner) = self.survive(used, read)? else {
            return Ok(());
        };
        let expire = inner.deadlines();
        if inner.sums() != *sums || deadlines.is_some_and(|deadlines| expire != *deadlines) {
            self.report(used, "sums and entries contradict each other");
        }
        for (number, entry) in inner.entries.iter().enumerate() {
            let lo = match number {
                0 => span.0,
                _ => &entry.bound[..],
            };
            let next = inner.entries.get(number + 1);
            let hi = next.map_or(span.1, |next| Some(&next.bound[..]));
            if hi.is_some_and(|hi| lo >= hi) || lo < span.0 {
                self.report(used, "bounds outside of those of the node above");
            }
            if height > ABOVE_LEAVES {
                let sums = (&entry.sums, Some(&entry.deadlines));
                self.node(&entry.page, height - 1, (lo, hi), sums)?;
                continue;
            }
            for group in &entry.waiting {
                let checked = self.waiting(group, (lo, hi));
                self.survive_at(("group", PageUse::from(group)), checked)?;
            }
            self.leaf(&entry.page, (lo, hi), (&entry.sums, &entry.deadlines))?;
        }
        Ok(())
    }

    /// Checks a group that waits.
    fn waiting(&mut self, group: &GroupRef, span: Span<'_>) -> Result<()> {
        self.pages.push(PageUse::from(group));
        let image = self.store.read_whole_group(group)?;
        check_group(&image, group)?;
        // A sound group has its index where the reference says.
        let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
        let index = GroupIndex::decode(index, group.id)?;
        is_inside(&index, span)
    }

    fn leaf(
        &mut self,
        page: &PageRef,
        span: Span<'_>,
        (sums, deadlines): (&Sums, &Deadlines),
    ) -> Result<()> {
        let used = PageUse::from(page);
        self.pages.push(used);
        let content = self.store.read_page(page, PageKind::MapNode);
        let read = content.and_then(|content| Leaf::decode(&content));
        let Some(leaf) = self.survive(used, read)? else {
            return Ok(());
        };
        let (mut records, mut bytes, mut expire) = (0u64, 0u64, Deadlines::default());
        for number in 0..leaf.len() {
            let group = leaf.segment(number)?.group;
            self.pages.push(PageUse::from(&group));
            records = records.saturating_add(group.records);
            bytes = bytes.saturating_add(group.logical_bytes);
            expire.add(&leaf.deadlines(number)?);
            let checked = self.segment(&leaf, number, span);
            self.survive_at(("group", PageUse::from(&group)), checked)?;
        }
        if (records, bytes) != (sums.records, sums.bytes) || expire != *deadlines {
            self.report(used, "sums and segments contradict each other");
        }
        Ok(())
    }

    fn segment(&self, leaf: &Leaf, number: usize, span: Span<'_>) -> Result<()> {
        let segment = leaf.segment(number)?;
        let group = &segment.group;
        let image = self.store.read_whole_group(group)?;
        check_group(&image, group)?;
        let own = &image[group.index_offset as usize..][..group.index_bytes as usize];
        let decoded = segment.index.decode(group, &mut Vec::new())?;
        is_inside(&decoded, span)?;
        // Both have a sound checksum; a copy that is not of this index differs.
        match NodeIndex::of_group(own) == segment.index.bytes() {
            true => Ok(()),
            false => Err(Error::corrupt("map and index contradict each other")),
        }
    }

    /// Reports pages whose extents overlap.
    fn extents(&mut self) {
        let mut pages = std::mem::take(&mut self.pages);
        pages.sort_unstable_by_key(|page| page.offset);
        let mut end = 0;
        for page in pages {
            match page.extent() {
                None => self.report(page, "an impossible place"),
                Some(extent) => {
                    if extent.offset < end {
                        self.report(page, "overlaps the page before");
                    }
                    end = end.max(extent.end());
                }
            }
        }
    }
}

/// Whether all keys of a group are between the bounds.
fn is_inside(index: &GroupIndex, (lo, hi): Span<'_>) -> Result<()> {
    match index.first_key() >= lo && hi.is_none_or(|hi| index.last_key() < hi) {
        true => Ok(()),
        false => Err(Error::corrupt("keys outside of the leaf's bounds")),
    }
}
