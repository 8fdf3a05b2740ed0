//! The blocks of a group, and the records of a block, that are inside a key range.

use std::ops::{Bound, Range};

use terrapin_pages::block::Block;
use terrapin_pages::group::GroupIndex;

use crate::bounds::{is_empty, lets_in_above, lets_in_below};

/// The first record of a block inside the lower bound.
pub(super) fn lower_position(block: &Block, lower: Bound<&[u8]>) -> usize {
    match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) => block.search(key).unwrap_or_else(|insert| insert),
        Bound::Excluded(key) => block
            .search(key)
            .map_or_else(|insert| insert, |found| found + 1),
    }
}

/// The first record of a block behind the upper bound.
pub(super) fn upper_position(block: &Block, upper: Bound<&[u8]>) -> usize {
    match upper {
        Bound::Unbounded => block.len(),
        Bound::Included(key) => block
            .search(key)
            .map_or_else(|insert| insert, |found| found + 1),
        Bound::Excluded(key) => block.search(key).unwrap_or_else(|insert| insert),
    }
}

/// Cuts bounds to a group. Returns for each bound whether it excludes records of the group; if not,
/// no search is needed. Also returns the range of blocks that can hold keys between the bounds.
pub(super) fn cut_to_group(
    index: &GroupIndex,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
) -> ((bool, bool), Range<usize>) {
    let blocks = index.blocks();
    // The group's first and last key are compared only if its separators do not decide.
    let first = match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) | Bound::Excluded(key) => index.find(key),
    };
    let cuts_lower = first > 0 || !lets_in_above(lower, index.first_key());
    let cuts_upper = !lets_in_below(upper, index.last_key());
    let end = match upper {
        Bound::Included(key) if cuts_upper => index.find(key) + 1,
        Bound::Excluded(key) if cuts_upper => {
            let block = index.find(key);
            // No key of the block is below its separator.
            if index.compare_separator(block, key).is_ge() {
                block
            } else {
                block + 1
            }
        }
        _ => blocks,
    };
    let nothing = cuts_lower && first + 1 == blocks && !lets_in_above(lower, index.last_key())
        || cuts_upper && end <= 1 && !lets_in_below(upper, index.first_key())
        || cuts_lower && cuts_upper && is_empty(lower, upper);
    let blocks = if nothing { 0..0 } else { first..end.max(first) };
    ((cuts_lower, cuts_upper), blocks)
}

#[cfg(test)]
mod tests {
    use terrapin_base::Message;
    use terrapin_base::PageId;
    use terrapin_pages::block::Compression;
    use terrapin_pages::group::{GroupBuilder, GroupOptions};

    use super::*;

    #[test]
    fn a_bound_at_the_edge_of_a_block_does_not_read_the_next_block() {
        let options = GroupOptions {
            target_bytes: 1 << 20,
            block_bytes: 512,
            unit: 512,
            compression: Compression::None,
            filter_bits: 12,
            now_ms: 0,
        };
        let mut builder = GroupBuilder::new(options);
        for i in 0..500u32 {
            assert!(
                builder
                    .add(format!("key{i:05}").as_bytes(), Message::Put(b"some value"))
                    .unwrap()
                    .is_none()
            );
        }
        let (group, image) = builder.finish().remove(0).place(PageId(1), 0);
        let index = image[group.index_offset as usize..][..group.index_bytes as usize].to_vec();
        let index = GroupIndex::decode(&index, group.id).unwrap();
        assert!(index.blocks() > 10);
        let blocks =
            |lower: Bound<&[u8]>, upper: Bound<&[u8]>| cut_to_group(&index, lower, upper).1;
        for block in 1..index.blocks() {
            let (front, rest) = index.separator(block);
            let edge = &[front, rest].concat()[..];
            let behind = [edge, b"\0"].concat();
            assert_eq!(blocks(Bound::Unbounded, Bound::Excluded(edge)), 0..block);
            assert_eq!(
                blocks(Bound::Unbounded, Bound::Included(edge)),
                0..block + 1
            );
            assert_eq!(
                blocks(Bound::Unbounded, Bound::Excluded(&behind)),
                0..block + 1
            );
            assert_eq!(
                blocks(Bound::Included(edge), Bound::Unbounded),
                block..index.blocks()
            );
            assert_eq!(blocks(Bound::Included(edge), Bound::Excluded(edge)), 0..0);
        }
        assert_eq!(
            blocks(Bound::Excluded(index.last_key()), Bound::Unbounded),
            0..0
        );
        assert_eq!(
            blocks(Bound::Unbounded, Bound::Excluded(index.first_key())),
            0..0
        );
        let all = (
            Bound::Included(index.first_key()),
            Bound::Included(index.last_key()),
        );
        assert_eq!(
            cut_to_group(&index, all.0, all.1),
            ((false, false), 0..index.blocks())
        );
    }
}
