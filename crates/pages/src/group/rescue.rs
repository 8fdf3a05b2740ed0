//! What a damaged group still holds: its sound blocks, and where the others were.

use terrapin_base::Error;

use super::{GroupIndex, GroupRef};
use crate::block::{Block, stored_block_bytes};

/// A part of a group, in key order.
pub enum RescuedPart {
    /// A sound block.
    Block(Block),
    /// One or more blocks are damaged. Their keys are at or above `from` and below `to`. `None` is
    /// the group's own bound.
    Lost {
        /// The least key that the blocks may have had.
        from: Option<Vec<u8>>,
        /// All keys of the blocks are below this one.
        to: Option<Vec<u8>>,
        /// What is wrong.
        cause: Error,
    },
}

/// The key behind all others that begin with no more than this one.
fn behind(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

/// The parts of a group, from its image, in which unreadable bytes are zeros. Without a sound
/// index, blocks are found by their checksums. `unit` is the store's.
#[must_use]
pub fn rescue_group(image: &[u8], group: &GroupRef, unit: u32) -> Vec<RescuedPart> {
    let index_end = u64::from(group.index_offset) + u64::from(group.index_bytes);
    let index = usize::try_from(index_end)
        .ok()
        .and_then(|end| image.get(group.index_offset as usize..end));
    match index.map(|bytes| GroupIndex::decode(bytes, group.id)) {
        Some(Ok(index)) => by_index(image, group, &index),
        Some(Err(cause)) => by_search(image, group, unit, &cause),
        None => by_search(
            image,
            group,
            unit,
            &Error::corrupt("the group has no index"),
        ),
    }
}

fn by_index(image: &[u8], group: &GroupRef, index: &GroupIndex) -> Vec<RescuedPart> {
    let separator = |number: usize| {
        let (front, rest) = index.separator(number);
        [front, rest].concat()
    };
    let part = |number: usize| {
        let (start, bytes) = index.block_place(number);
        let (start, bytes) = (start as usize, bytes as usize);
        let bytes = image.get(start..start + bytes).unwrap_or_default();
        match Block::decode(bytes, group.id, number as u32) {
            Ok(block) => RescuedPart::Block(block),
            Err(cause) => RescuedPart::Lost {
                from: Some(separator(number)),
                to: Some(match number + 1 < index.blocks() {
                    true => separator(number + 1),
                    false => behind(index.last_key()),
                }),
                cause,
            },
        }
    };
    (0..index.blocks()).map(part).collect()
}

/// Finds blocks without an index. A block starts where the one before ends, so mostly the first
/// try succeeds. Behind a damaged block, each place is tried.
fn by_search(image: &[u8], group: &GroupRef, unit: u32, cause: &Error) -> Vec<RescuedPart> {
    let end = (group.index_offset as usize).min(image.len());
    let mut blocks = Vec::new();
    let (mut at, mut number, mut records) = (0, 0_u32, 0);
    while at < end {
        match block_at(&image[..end], at, group, number, unit) {
            Some((block, bytes, found)) => {
                records += block.len() as u64;
                number = found + 1;
                at += bytes;
                blocks.push(block);
            }
            None => at += 1,
        }
    }
    if records == group.records {
        return blocks.into_iter().map(RescuedPart::Block).collect();
    }
    // Which blocks are missing is unknown, so each gap may have had one.
    let mut parts = Vec::new();
    let mut from = None;
    for block in blocks {
        parts.push(RescuedPart::Lost {
            from: from.take(),
            to: Some(block.key(0)),
            cause: cause.clone(),
        });
        from = Some(behind(&block.key(block.len() - 1)));
        parts.push(RescuedPart::Block(block));
    }
    parts.push(RescuedPart::Lost {
        from,
        to: None,
        cause: cause.clone(),
    });
    parts
}

/// Most numbers of blocks that are tried at one place.
const NUMBERS_TRIED: u32 = 64;

/// A sound block that starts at a place, its bytes, and its number, at or above `number`.
fn block_at(
    blocks: &[u8],
    at: usize,
    group: &GroupRef,
    number: u32,
    unit: u32,
) -> Option<(Block, usize, u32)> {
    let shortest = stored_block_bytes(&blocks[at..])?;
    let padded = (at + shortest).next_multiple_of(unit as usize) - at;
    for bytes in [shortest, padded] {
        let Some(bytes) = blocks.get(at..at + bytes) else {
            continue;
        };
        for number in number..number.saturating_add(NUMBERS_TRIED) {
            if let Ok(block) = Block::decode(bytes, group.id, number) {
                return Some((block, bytes.len(), number));
            }
        }
    }
    None
}
