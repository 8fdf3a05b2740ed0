//! The full check of a version: every byte of every page, and the rules between pages. Pages are
//! read from the device, not from the cache.

use terrapin_base::Result;
use terrapin_pages::group::{GroupIndex, check_group};
use terrapin_pages::{PageKind, PageStore, PageUse};
use terrapin_structure::Finding;

use crate::format::{List, Listed, Root};

/// Checks everything below a root. Damage and device errors are findings; other errors end the
/// check.
pub(crate) fn verify(store: &PageStore, root: &Root, found: &mut dyn FnMut(Finding)) -> Result<()> {
    let Root::List(root) = root else {
        return Ok(());
    };
    let mut survive = |page: PageUse, checked: Result<()>| match checked {
        Err(error) if error.is_of_data() => {
            found(Finding::new(format!("page {}", page.id), error.to_string()));
            Ok(())
        }
        checked => checked,
    };
    let mut pages = vec![PageUse::from(&root.page)];
    let content = store.read_page(&root.page, PageKind::Node);
    let list = match content.and_then(|content| List::decode(&content, root)) {
        Ok(list) => list,
        Err(error) => return survive(pages[0], Err(error)),
    };
    for listed in &list.groups {
        let page = PageUse::from(&listed.group);
        survive(page, check(store, listed))?;
        pages.push(page);
    }
    pages.sort_unstable_by_key(|page| page.offset);
    let mut end = 0;
    for page in pages {
        let place = format!("page {}", page.id);
        match page.extent() {
            None => found(Finding::new(place, "an impossible place")),
            Some(extent) => {
                if extent.offset < end {
                    found(Finding::new(place, "overlaps the page before"));
                }
                end = end.max(extent.end());
            }
        }
    }
    Ok(())
}

/// Checks a group, and its keys against the list.
fn check(store: &PageStore, listed: &Listed) -> Result<()> {
    let (group, image) = (&listed.group, store.read_whole_group(&listed.group)?);
    check_group(&image, group)?;
    // A sound group has its index where the reference says.
    let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
    let index = GroupIndex::decode(index, group.id)?;
    match (index.first_key(), index.last_key()) == (&listed.first_key, &listed.last_key) {
        true => Ok(()),
        false => Err(terrapin_base::Error::corrupt(
            "list and index contradict each other",
        )),
    }
}
