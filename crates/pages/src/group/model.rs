//! A linear model in the place of a group's separators, where keys are regular: counters and times
//! (the learned models of TreeLine, §3.2).
//!
//! The *tail* of a key is the number in its eight bytes from the place where the last eight bytes
//! of the group's first key begin, padded with zeros. The model says the least tail of block i:
//! `start + (fraction + (i - 1) * step) / 2^16`, for i = 1, 2, … The separator of the block is what
//! all keys of the group share, then that number as bytes, without the zeros at its end. So a key
//! is at or above a separator exactly if its tail is at or above the number, and no key needs a
//! second look.
//!
//! All arithmetic is on whole numbers of up to 128 bits, so every machine finds the same block. The
//! builder uses a model only if its separators divide the blocks and it is smaller than they are.

use terrapin_base::Result;
use terrapin_base::codec::{Reader, put_prefixed, put_varint};

use crate::block::{Block, common_prefix};
use crate::heads::head;

/// Bits of a step behind the point.
const FRACTION_BITS: u32 = 16;
/// A group of fewer blocks has no model: three numbers take as much as its separators.
const BLOCKS_MIN: usize = 4;
/// Nor has a group of more: a fit takes time in the square of the blocks.
const BLOCKS_MAX: usize = 64;
/// Separators may be this many mean distances of keys off a line before a fit is not tried.
const DISTANCES_MAX: u128 = 4;

/// What a fit needs to know of a block.
pub(super) struct BlockSizes {
    pub(super) bytes: u32,
    pub(super) records: u32,
    /// Bytes of the separator in front of the block.
    pub(super) separator_bytes: u32,
}

/// The numbers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// The least tail of block 1.
    start: u64,
    /// What is added to it, in parts of 2^16: less than 1.
    fraction: u16,
    /// What the least tail grows by from block to block, in parts of 2^16. Above 0.
    step: u64,
}

/// Where the tails of a group's keys begin.
fn tail_at(first_key: &[u8]) -> usize {
    first_key.len().saturating_sub(8)
}

fn tail(key: &[u8], at: usize) -> u64 {
    head(key.get(at..).unwrap_or_default())
}

impl Model {
    /// The least tail of a block from 1 on; `None` if it is no tail.
    fn bound(self, block: usize) -> Option<u64> {
        let grown = u128::from(self.fraction) + (block as u128 - 1) * u128::from(self.step);
        u64::try_from(u128::from(self.start) + (grown >> FRACTION_BITS)).ok()
    }

    /// The last of the blocks whose separator is at or below a key of this tail.
    fn block_of(self, tail: u64, blocks: usize) -> usize {
        let Some(behind) = tail.checked_sub(self.start) else {
            return 0;
        };
        let room = ((u128::from(behind) + 1) << FRACTION_BITS) - 1 - u128::from(self.fraction);
        let block = room / u128::from(self.step.max(1)) + 1;
        block.min(blocks.saturating_sub(1) as u128) as usize
    }

    /// The block that may hold a key, of a group with this first key.
    pub(super) fn find(self, key: &[u8], first_key: &[u8], blocks: usize) -> usize {
        let at = tail_at(first_key);
        let shared = at.min(key.len());
        match key[..shared].cmp(&first_key[..shared]) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Greater => blocks.saturating_sub(1),
            std::cmp::Ordering::Equal if shared < at => 0,
            std::cmp::Ordering::Equal => self.block_of(tail(key, at), blocks),
        }
    }

    /// A model whose number for each block from 1 on is above the block's low and not above its
    /// high, if there is one. A line of a slope meets all spans if it meets any two of them.
    fn fit(spans: &[(u64, u64)]) -> Option<Model> {
        let whole = |number: u64| i128::from(number) << FRACTION_BITS;
        // The least and the most that a line may have at each block.
        let ends: Vec<_> = spans
            .iter()
            .map(|&(low, high)| (whole(low) + (1 << FRACTION_BITS), whole(high) + 0xffff))
            .collect();
        let (mut least, mut most) = (1i128, i128::from(u64::MAX));
        for (at, own) in ends.iter().enumerate() {
            for (before, blocks) in ends[..at].iter().rev().zip(1i128..) {
                least = least.max((own.0 - before.1 + blocks - 1).div_euclid(blocks));
                most = most.min((own.1 - before.0).div_euclid(blocks));
            }
        }
        let step = u64::try_from(least).ok().filter(|_| least <= most)?;
        let at_first = |end: i128, block: usize| end - least * block as i128;
        let from = ends
            .iter()
            .zip(0..)
            .map(|(end, block)| at_first(end.0, block));
        let to = ends
            .iter()
            .zip(0..)
            .map(|(end, block)| at_first(end.1, block));
        let (from, to) = (from.max()?, to.min()?);
        // A whole number takes a byte less.
        let rounded = (from + 0xffff) & !0xffff;
        let start = if rounded <= to { rounded } else { from };
        let first = u64::try_from(start >> FRACTION_BITS).ok()?;
        (from <= to).then_some(Model {
            start: first,
            fraction: (start & 0xffff) as u16,
            step,
        })
    }

    /// A model of the blocks in a group's image, if there is one that is smaller than the
    /// separators. `separators` are concatenated; the first block's is ignored.
    pub(super) fn of(
        image: &[u8],
        blocks: &[BlockSizes],
        separators: &[u8],
        (first_key, last_key): (&[u8], &[u8]),
    ) -> Option<Model> {
        let at = tail_at(first_key);
        if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&blocks.len())
            || common_prefix(first_key, last_key) < at
        {
            return None;
        }
        if !is_about_a_line(blocks, separators, (first_key, last_key)) {
            return None;
        }
        let mut spans = Vec::with_capacity(blocks.len() - 1);
        let (mut from, mut before) = (0, None);
        for block in blocks {
            let to = from + block.bytes as usize;
            let parsed = Block::parse(image.get(from..to)?).ok()?;
            let key = |number| tail(&parsed.key(number), at);
            let (first, last) = (key(0), key(parsed.len() - 1));
            if let Some(low) = before.replace(last) {
                spans.push((low, first));
            }
            from = to;
        }
        if spans.iter().any(|(low, high)| low >= high) {
            return None;
        }
        let model = Self::fit(&spans)?;
        let mut own = Vec::new();
        model.encode(first_key, &mut own);
        let first = blocks[0].separator_bytes as usize;
        let shared = common_prefix(first_key, last_key) * (blocks.len() - 2);
        let others = (separators.len() - first + blocks.len() - 1).saturating_sub(shared);
        (own.len() < others).then_some(model)
    }

    pub(super) fn encode(self, first_key: &[u8], out: &mut Vec<u8>) {
        let first = tail(first_key, tail_at(first_key));
        put_varint(out, self.start.saturating_sub(first));
        put_varint(out, u64::from(self.fraction));
        put_varint(out, self.step);
    }

    pub(super) fn decode(reader: &mut Reader<'_>, first_key: &[u8]) -> Result<Model> {
        let first = tail(first_key, tail_at(first_key));
        let behind = reader.varint()?;
        let fraction = u16::try_from(reader.varint()?).ok();
        let step = reader.varint()?;
        match first.checked_add(behind).zip(fraction) {
            Some((start, fraction)) if step > 0 => Ok(Model {
                start,
                fraction,
                step,
            }),
            _ => Err(reader.corrupt("an impossible model")),
        }
    }

    /// Appends the model's separators without the bytes that they share, each prefixed with its
    /// length. Returns how many bytes of the group's first key they share. `None` if a number is no
    /// tail.
    pub(super) fn expand(
        self,
        first_key: &[u8],
        blocks: usize,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        for block in 1..blocks {
            let bound = self.bound(block)?.to_be_bytes();
            let zeros = bound.iter().rev().take_while(|byte| **byte == 0).count();
            put_prefixed(out, &bound[..8 - zeros]);
        }
        Some(tail_at(first_key))
    }
}

/// Whether separators are so near a line that a fit is worth reading the blocks' keys.
fn is_about_a_line(
    blocks: &[BlockSizes],
    separators: &[u8],
    (first_key, last_key): (&[u8], &[u8]),
) -> bool {
    let at = tail_at(first_key);
    let mut tails = Vec::with_capacity(blocks.len());
    let mut rest = separators;
    for block in blocks {
        let (own, behind) = rest.split_at(block.separator_bytes as usize);
        tails.push(u128::from(tail(own, at)));
        rest = behind;
    }
    let tails = &tails[1..];
    let (from, to) = (tails[0], tails[tails.len() - 1]);
    let records: u128 = blocks.iter().map(|block| u128::from(block.records)).sum();
    let all = u128::from(tail(last_key, at).saturating_sub(tail(first_key, at)));
    let off_max = (all / records.max(1) + 1) * DISTANCES_MAX;
    let steps = tails.len() as u128 - 1;
    to >= from
        && tails.iter().zip(0..).all(|(&own, step)| {
            let line = from + (to - from) * step / steps;
            own.abs_diff(line) <= off_max
        })
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use terrapin_base::{ErrorKind, Message, PageId};

    use super::*;
    use crate::block::Compression;
    use crate::group::{GroupBuilder, GroupIndex, GroupOptions, GroupRef, NodeIndex};

    fn built(keys: &[Vec<u8>], models: bool) -> (GroupRef, Vec<u8>) {
        let mut builder = GroupBuilder::new(GroupOptions {
            target_bytes: 1 << 20,
            block_bytes: 4096,
            unit: 512,
            compression: Compression::None,
            filter_bits: 0,
            now_ms: 0,
        });
        if models {
            builder.fit_models();
        }
        for key in keys {
            assert!(builder.add(key, Message::Put(&[7; 120])).unwrap().is_none());
        }
        let (group, image) = builder.finish().remove(0).place(PageId(7), 0);
        let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
        (group, NodeIndex::of_group(index).to_vec())
    }

    fn index(group: &GroupRef, bytes: &[u8]) -> GroupIndex {
        NodeIndex::new(bytes)
            .decode(group, &mut Vec::new())
            .unwrap()
    }

    /// Keys for which a model is expected, and the bytes in front of their numbers.
    fn regular() -> Vec<Vec<Vec<u8>>> {
        let behind = |prefix: &'static [u8], number: &dyn Fn(u64) -> u64| {
            let key = |i| [prefix, &number(i).to_be_bytes()].concat();
            (0..500).map(key).collect::<Vec<_>>()
        };
        vec![
            behind(b"", &|i| i),
            behind(b"", &|i| (1 << 40) + 17 * i),
            behind(b"tenant/17/", &|i| u64::MAX - 10_000 + i),
            // Microseconds, about a second apart.
            behind(b"t", &|i| {
                1_700_000_000_000_000 + 1_000_000 * i + i * i * 7919 % 400_000
            }),
            (0..500u32)
                .map(|i| (i * 1000).to_be_bytes().to_vec())
                .collect(),
        ]
    }

    #[test]
    fn a_model_takes_the_place_of_the_separators_of_regular_keys() {
        for keys in regular() {
            let (group, bytes) = built(&keys, true);
            let copy = NodeIndex::new(&bytes);
            assert!(copy.has_model(), "{:?}", keys[1]);
            let (other, separators) = built(&keys, false);
            assert!(!NodeIndex::new(&separators).has_model());
            assert!(bytes.len() < separators.len());
            let (own, others) = (index(&group, &bytes), index(&other, &separators));
            assert_eq!(own.blocks(), others.blocks());
            for key in &keys {
                let mut less = key.clone();
                less.pop();
                let more = [key, &b"\0"[..]].concat();
                assert_eq!(own.find(key), others.find(key));
                for key in [key, &less, &more] {
                    let number = own.find(key);
                    if number > 0 {
                        assert_ne!(own.compare_separator(number, key), Ordering::Greater);
                    }
                    if number + 1 < own.blocks() {
                        assert_eq!(own.compare_separator(number + 1, key), Ordering::Greater);
                    }
                    if *key >= keys[0] && *key <= keys[keys.len() - 1] {
                        let place = copy.find(key).unwrap().unwrap();
                        assert_eq!(place.number, number);
                        assert_eq!((place.offset, place.bytes), own.block_place(number));
                    }
                }
            }
        }
    }

    /// Equal heads, keys of many lengths, and numbers without an order have no model.
    #[test]
    fn other_keys_keep_separators() {
        let mut random = 1u64;
        let mut scattered: Vec<Vec<u8>> = (0..500)
            .map(|_| {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                random.to_be_bytes().to_vec()
            })
            .collect();
        scattered.sort();
        let sets: Vec<Vec<Vec<u8>>> = vec![
            scattered,
            (0..500u32)
                .map(|i| format!("{i:04}/x{}", "y".repeat(i as usize % 9)).into_bytes())
                .collect(),
            (0..500u32)
                .map(|i| [&[0; 8][..], &i.to_be_bytes(), &[0; 9]].concat())
                .collect(),
        ];
        for keys in sets {
            let (group, bytes) = built(&keys, true);
            assert!(!NodeIndex::new(&bytes).has_model(), "{:?}", keys[1]);
            let index = index(&group, &bytes);
            assert!(keys.iter().all(|key| index.find(key) < index.blocks()));
        }
    }

    #[test]
    fn the_number_of_a_block_and_the_block_of_a_number_agree() {
        let lines = [
            (0, 1),
            (5, 1 << 16),
            (7, 100_000),
            (1 << 50, u64::MAX),
            (3, 65_535),
        ];
        for ((start, step), fraction) in lines.into_iter().zip([0, 0, 40_000, 65_535, 9]) {
            let model = Model {
                start,
                fraction,
                step,
            };
            for tail in (0..500).chain((1 << 50)..(1 << 50) + 5).chain([u64::MAX]) {
                let below = |&block: &usize| model.bound(block).is_some_and(|b| b <= tail);
                let last = (1..100).rfind(below).unwrap_or(0);
                assert_eq!(model.block_of(tail, 100), last, "{model:?} {tail}");
            }
        }
    }

    #[test]
    fn a_line_that_meets_all_spans_is_found() {
        let mut random = 1u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % bound
        };
        for _ in 0..2000 {
            let model = Model {
                start: 1000 + below(1000),
                fraction: below(1 << 16) as u16,
                step: 1 + below(1 << 24),
            };
            let spans: Vec<_> = (1..2 + below(20) as usize)
                .map(|block| {
                    let bound = model.bound(block).unwrap();
                    (bound - 1 - below(3), bound + below(3))
                })
                .collect();
            let found = Model::fit(&spans).unwrap();
            for (&(low, high), block) in spans.iter().zip(1..) {
                let bound = found.bound(block).unwrap();
                assert!(low < bound && bound <= high, "{found:?} {block} {spans:?}");
            }
        }
        assert_eq!(Model::fit(&[(0, 1), (9, 10), (10, 11)]), None);
    }

    #[test]
    fn a_changed_model_is_refused_and_searching_any_bytes_does_not_panic() {
        let (group, bytes) = built(&regular()[2], true);
        let key = &regular()[2][300];
        for bit in 0..8 * bytes.len() {
            let mut hostile = bytes.clone();
            hostile[bit / 8] ^= 1 << (bit % 8);
            let copy = NodeIndex::new(&hostile);
            let refused = copy.decode(&group, &mut Vec::new()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt);
            let _ = copy.find(key);
        }
        // With a checksum that fits, a model that leaves the tails or stands still is refused. The
        // model is the last bytes.
        let decoded = index(&group, &bytes);
        let separator = |block| [decoded.separator(block).0, decoded.separator(block).1].concat();
        let is_model = |&own: &usize| {
            let mut reader = Reader::new("test", &bytes[bytes.len() - own..]);
            let model = Model::decode(&mut reader, &regular()[2][0]);
            let mut expanded = Vec::new();
            model.is_ok_and(|model| {
                let shared = model.expand(&regular()[2][0], 3, &mut expanded).unwrap();
                let mut parts = Reader::new("test", &expanded);
                let full = |part: &[u8]| [&regular()[2][0][..shared], part].concat();
                reader.remaining() == 0
                    && full(parts.prefixed().unwrap()) == separator(1)
                    && full(parts.prefixed().unwrap()) == separator(2)
            })
        };
        let own = (3..20).find(is_model).unwrap();
        let numbers: [[u64; 3]; 5] = [
            [1, 0, 0],
            [u64::MAX, 0, 1],
            [1, 0, u64::MAX],
            [0, 0, 1 << 20],
            [31, 1 << 16, 31 << 16],
        ];
        for numbers in numbers {
            let mut hostile = bytes[..bytes.len() - own].to_vec();
            for number in numbers {
                put_varint(&mut hostile, number);
            }
            let used = hostile.len() as u32;
            hostile[4..8].copy_from_slice(&used.to_le_bytes());
            let mut padded = hostile.clone();
            padded.resize(group.index_bytes as usize, 0);
            super::super::index::seal(&mut padded, group.id);
            let refused = GroupIndex::decode(&padded, group.id).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{numbers:?}");
        }
    }
}
