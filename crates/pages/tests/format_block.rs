//! Blocks: records round-trip, damage is noticed, hostile bytes do no harm, and little space is
//! wasted.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use proptest::prelude::*;
use terrapin_base::checksum::hash64;
use terrapin_base::{ErrorKind, KEY_BYTES_MAX, Message, PageId, VALUE_BYTES_MAX};
use terrapin_pages::block::{AnyBlock, Block, BlockBuilder, Compression, part_seed, seal_block};

const ID: PageId = PageId(0x0102_0304);

fn message(value: &Option<Vec<u8>>) -> Message<'_> {
    value.as_deref().map_or(Message::Delete, Message::Put)
}

type Records = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Keys that share prefixes, empty ones among them, with values of all kinds.
fn records(most: usize) -> impl Strategy<Value = Records> {
    let key = prop_oneof![
        8 => (0..4usize, proptest::collection::vec(0u8..4, 0..6)).prop_map(|(shared, tail)| {
            let mut key = b"user/profile/name/"[..[0, 1, 9, 18][shared]].to_vec();
            key.extend(tail);
            key
        }),
        4 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => (30..140usize).prop_map(|n| vec![7; n]),
    ];
    let value = prop_oneof![
        6 => proptest::collection::vec(any::<u8>(), 0..60).prop_map(Some),
        2 => (0..2000usize, any::<u8>()).prop_map(|(n, b)| Some(vec![b; n])),
        2 => Just(None),
    ];
    proptest::collection::btree_map(key, value, 1..most)
}

fn compressions() -> Vec<Compression> {
    [Compression::None, Compression::Lz4, Compression::Zstd]
        .into_iter()
        .filter(|c| c.check().is_ok())
        .collect()
}

/// All blocks of the records, decoded again. The builder decides where each block ends.
fn blocks(records: &Records, target: usize, compression: Compression) -> Vec<(usize, Block)> {
    let mut builder = BlockBuilder::new(target, compression);
    let mut blocks = Vec::new();
    let mut keep = |cut: Option<terrapin_pages::block::CutBlock>, out: &mut Vec<u8>| {
        let Some(cut) = cut else { return };
        let number = blocks.len() as u32;
        seal_block(out, ID, number);
        let block = Block::decode(out, ID, number).unwrap();
        assert_eq!(
            (cut.bytes as usize, cut.records as usize),
            (out.len(), block.len())
        );
        assert!(out.len() <= target || block.len() == 1);
        let deletes = (0..block.len())
            .filter(|&i| block.message(i).is_delete())
            .count();
        assert_eq!(cut.tombstones as usize, deletes);
        blocks.push((out.len(), block));
        out.clear();
    };
    let mut out = Vec::new();
    for (key, value) in records {
        let fits = builder.would_fit(key, message(value));
        let mut added = builder.add(key, message(value)).unwrap();
        assert_eq!(fits, added);
        if !added {
            let cut = builder.cut(&mut out);
            assert!(builder.is_empty());
            keep(cut, &mut out);
            added = builder.add(key, message(value)).unwrap();
        }
        assert!(added);
        assert_eq!(builder.last_key(), Some(&key[..]));
    }
    let cut = builder.cut_last(&mut out);
    keep(cut, &mut out);
    assert!(builder.is_empty() && builder.cut(&mut out).is_none());
    blocks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_come_back_and_are_found(
        records in records(120),
        target in prop_oneof![Just(512usize), Just(1024), Just(4096)],
        probes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5), 20),
    ) {
        for compression in compressions() {
            let mut expected = records.iter();
            let mut key = Vec::new();
            for (_, block) in blocks(&records, target, compression) {
                let mut here = Records::new();
                for i in 0..block.len() {
                    let (k, v) = expected.next().unwrap();
                    block.key_into(i, &mut key);
                    prop_assert_eq!(&key, k);
                    prop_assert_eq!(block.message(i), message(v));
                    prop_assert_eq!(&block.bytes()[block.value_range(i)], v.as_deref().unwrap_or_default());
                    prop_assert_eq!(block.search(k), Ok(i));
                    here.insert(k.clone(), v.clone());
                }
                for probe in probes.iter().chain(records.keys()) {
                    let below = here.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&probe[..]))).count();
                    let found = if here.contains_key(probe) { Ok(below) } else { Err(below) };
                    prop_assert_eq!(block.search(probe), found);
                }
            }
            prop_assert!(expected.next().is_none());
        }
    }

    #[test]
    fn random_bytes_under_a_good_checksum_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 20..600),
        count in 1u16..40, prefix in 0u16..12, compression in 0u8..3, orderly in any::<bool>(),
    ) {
        // A nearly right header lets the fuzz reach the bytes behind it.
        let payload = (bytes.len() - 20) as u32;
        bytes[4..6].copy_from_slice(&[0xb1, compression]);
        bytes[6..8].copy_from_slice(&prefix.to_le_bytes());
        bytes[8..10].copy_from_slice(&count.to_le_bytes());
        bytes[10..12].fill(0);
        bytes[12..16].copy_from_slice(&payload.to_le_bytes());
        bytes[16..20].copy_from_slice(&payload.to_le_bytes());
        let starts = usize::from(count) * 2;
        if orderly && bytes.len() > 20 + usize::from(prefix) + starts {
            let at = bytes.len() - starts;
            let area = at - 20 - usize::from(prefix);
            for i in 0..usize::from(count) {
                let start = (i * area / usize::from(count)) as u16;
                bytes[at + i * 2..][..2].copy_from_slice(&start.to_le_bytes());
            }
            for i in 0..usize::from(count) {
                bytes[20 + usize::from(prefix) + i * area / usize::from(count)] &= 0x0f;
            }
        }
        seal_block(&mut bytes, ID, 5);
        if let Ok(block) = Block::decode(&bytes, ID, 5) {
            let mut key = Vec::new();
            for i in 0..block.len() {
                block.key_into(i, &mut key);
                let _ = (block.search(&key), block.message(i), block.key_suffix(i));
            }
        }
        use_records(&bytes, 5);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        prop_assert!(Block::decode(&bytes, ID, 0).is_err());
    }
}

#[test]
fn each_changed_byte_is_noticed() {
    for compression in compressions() {
        let mut builder = BlockBuilder::new(1024, compression);
        for i in 0..20u8 {
            assert!(builder.add(&[b'k', i], Message::Put(&[i; 20])).unwrap());
        }
        let mut bytes = Vec::new();
        builder.finish(ID, 3, &mut bytes).unwrap();
        Block::decode(&bytes, ID, 3).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1 << (at % 8);
            let error = Block::decode(&bytes, ID, 3).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            bytes[at] ^= 1 << (at % 8);
        }
        assert!(Block::decode(&bytes[..bytes.len() - 1], ID, 3).is_err());
    }
}

#[test]
fn each_changed_byte_is_harmless_even_under_a_right_checksum() {
    let mut builder = BlockBuilder::new(1024, Compression::Lz4);
    for i in 0..20u8 {
        let value = [i; 20];
        let message = if i % 3 == 0 {
            Message::Delete
        } else {
            Message::Put(&value)
        };
        assert!(builder.add(&[b'k', b'e', i], message).unwrap());
    }
    let mut bytes = Vec::new();
    builder.finish(ID, 3, &mut bytes).unwrap();
    for at in 4..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x10] {
            let before = std::mem::replace(&mut bytes[at], value);
            seal_block(&mut bytes, ID, 3);
            if let Ok(block) = Block::decode(&bytes, ID, 3) {
                for i in 0..block.len() {
                    let _ = (block.search(&block.key(i)), block.message(i));
                }
            }
            bytes[at] = before;
        }
    }
}

#[test]
fn a_block_of_another_page_or_position_is_refused() {
    let mut builder = BlockBuilder::new(1024, Compression::None);
    assert!(builder.add(b"key", Message::Put(b"value")).unwrap());
    let mut bytes = Vec::new();
    builder.finish(ID, 3, &mut bytes).unwrap();
    for (id, number) in [(PageId(ID.0 + 1), 3), (ID, 2), (PageId(3), ID.0 as u32)] {
        let error = Block::decode(&bytes, id, number).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            error.context().iter().any(|(k, _)| *k == "block")
                && error.context().iter().any(|(k, _)| *k == "page")
        );
    }
}

#[test]
fn the_largest_record_makes_a_block_of_its_own() {
    for compression in compressions() {
        let mut key = vec![9; KEY_BYTES_MAX];
        key[0] = 5;
        let value: Vec<u8> = (0..VALUE_BYTES_MAX).map(|i| ((i * i) >> 7) as u8).collect();
        let mut records = Records::new();
        records.insert(b"a".to_vec(), Some(b"small".to_vec()));
        records.insert(key.clone(), Some(value.clone()));
        key.truncate(KEY_BYTES_MAX - 1);
        records.insert(key.clone(), None);
        records.insert(b"z".to_vec(), Some(Vec::new()));
        let blocks = blocks(&records, 4096, compression);
        let found = blocks
            .iter()
            .filter(|(_, b)| b.len() == 1 && b.message(0) == Message::Put(&value));
        assert_eq!(found.count(), 1);
        assert_eq!(blocks.iter().map(|(_, b)| b.len()).sum::<usize>(), 4);
    }
}

#[test]
fn compression_is_kept_only_when_it_saves_an_eighth() {
    let noise: Vec<u8> = (0..3000u32)
        .map(|i| hash64(&i.to_le_bytes()) as u8)
        .collect();
    for compression in compressions() {
        for (zeros, saves) in [(3000, true), (600, true), (300, false), (0, false)] {
            let mut value = noise.clone();
            value[3000 - zeros..].fill(0);
            let mut builder = BlockBuilder::new(4096, compression);
            assert!(builder.add(b"key", Message::Put(&value)).unwrap());
            let mut bytes = Vec::new();
            builder.finish(ID, 0, &mut bytes).unwrap();
            let saved = compression != Compression::None && saves;
            assert_eq!(bytes[5] != 0, saved, "{compression:?}, {zeros} zeros");
            let plain = 20 + 3 + 1 + 3000;
            assert!(if saved {
                bytes.len() < plain - plain / 8
            } else {
                bytes.len() == plain
            });
        }
    }
}

#[test]
fn zstd_without_the_feature_is_an_error() {
    if cfg!(feature = "zstd") {
        return;
    }
    assert_eq!(
        Compression::Zstd.check().unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    let mut builder = BlockBuilder::new(512, Compression::None);
    assert!(builder.add(b"key", Message::Put(b"value")).unwrap());
    let mut bytes = Vec::new();
    builder.finish(ID, 0, &mut bytes).unwrap();
    bytes[5] = 2;
    seal_block(&mut bytes, ID, 0);
    assert_eq!(
        Block::decode(&bytes, ID, 0).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn little_space_is_wasted_for_each_size_of_records() {
    // (key bytes, value bytes, most bytes on disk for each record besides key and value)
    for (key_bytes, value_bytes, most) in [
        (8, 120, 5.0),
        (24, 104, 5.0),
        (8, 40, 4.0),
        (16, 1008, 10.0),
        (8, 500, 7.0),
        (8, 3500, 30.0),
    ] {
        let mut records = Records::new();
        for i in 0..4000u64 {
            let mut key = vec![b'k'; key_bytes];
            // Keys spread over the whole space, so that prefixes do not pay for the overhead.
            key[..8].copy_from_slice(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            records.insert(key, Some(vec![3; value_bytes]));
        }
        let disk: usize = blocks(&records, 4096, Compression::None)
            .iter()
            .map(|(bytes, _)| bytes)
            .sum();
        let overhead = disk as f64 / 4000.0 - (key_bytes + value_bytes) as f64;
        println!("{key_bytes} + {value_bytes} bytes: {overhead:.2} bytes of overhead a record");
        assert!(
            overhead <= most,
            "{key_bytes} + {value_bytes} bytes: {overhead}"
        );
    }
}

#[test]
fn large_values_share_the_block_and_small_ones_do_not() {
    let mut builder = BlockBuilder::new(4096, Compression::None);
    assert!(builder.add(b"a", Message::Put(b"small")).unwrap());
    assert!(builder.add(b"b", Message::Put(&[7; 3000])).unwrap());
    let mut bytes = Vec::new();
    builder.finish(ID, 0, &mut bytes).unwrap();
    let block = Arc::new(Block::decode(&bytes, ID, 0).unwrap());
    let small = block.value_slice(0);
    assert_eq!((&small[..], Arc::strong_count(&block)), (&b"small"[..], 1));
    let large = block.value_slice(1);
    assert_eq!((&large[..], Arc::strong_count(&block)), (&[7; 3000][..], 2));
    drop(large);
    assert_eq!(Arc::strong_count(&block), 1);
}

/// Guards against memory for a header's claims before the bytes behind it prove them. 512 bytes
/// once took 128 KiB, or 320 KiB.
#[test]
fn an_impossible_header_is_refused_before_memory_is_taken() {
    let mut builder = BlockBuilder::new(4096, Compression::Lz4);
    for i in 0..100u8 {
        assert!(builder.add(&[b'k', i], Message::Put(&[7; 20])).unwrap());
    }
    let mut sound = Vec::new();
    builder.cut_last(&mut sound).unwrap();
    seal_block(&mut sound, ID, 0);
    assert_eq!(
        (sound[5], Block::decode(&sound, ID, 0).unwrap().len()),
        (1, 100)
    );
    let claims: [(usize, &[u8]); 3] = [
        // Records, a payload of several records, and a payload of one.
        (8, &[0xff, 0xff]),
        (12, &[0, 0, 5, 0]),
        (8, &[1, 0, 0, 0, 0, 0, 5, 0, 0x20, 0, 0, 0]),
    ];
    for (at, claim) in claims {
        let mut block = sound.clone();
        block[at..at + claim.len()].copy_from_slice(claim);
        seal_block(&mut block, ID, 0);
        let mut decoded = None;
        let taken = allocation_counter::measure(|| decoded = Some(Block::decode(&block, ID, 0)));
        let error = decoded.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            taken.bytes_max < 8 << 10,
            "{} bytes: {error}",
            taken.bytes_max
        );
    }
}

/// A merge copies records of pages. If a page is not sorted, the merge must fail and the process
/// live on.
#[test]
fn keys_out_of_order_are_corrupt_and_none_is_copied() {
    let mut builder = BlockBuilder::new(4096, Compression::None);
    assert!(builder.add(b"b", Message::Delete).unwrap());
    for key in [&b"b"[..], b"a", b""] {
        let error = builder.add(key, Message::Delete).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    assert_eq!(builder.len(), 1);
}

#[test]
fn parts_of_a_page_have_seeds_of_their_own() {
    assert_ne!(part_seed(PageId(1), 0), part_seed(PageId(0), 1));
    assert_ne!(part_seed(PageId(1), 0), part_seed(PageId(1), 1));
}

/// Reads every record of a block, if it is one.
fn use_records(bytes: &[u8], number: u32) {
    let Ok(block) = AnyBlock::decode(bytes, ID, number) else {
        assert!(Block::decode(bytes, ID, number).is_err());
        return;
    };
    let records = (0..block.len()).map(|i| block.record(i));
    let all_executable = records.fold(true, |all, record| {
        assert!(record.is_possible());
        all & record.check().is_ok()
    });
    assert_eq!(block.executable().is_ok(), all_executable);
}

#[test]
fn kinds_that_are_not_known_and_deletes_with_a_value_are_refused() {
    let mut builder = BlockBuilder::new(512, Compression::None);
    assert!(builder.add(b"k", Message::Put(b"value")).unwrap());
    assert!(builder.add(b"l", Message::Put(b"")).unwrap());
    let mut bytes = Vec::new();
    builder.finish(ID, 0, &mut bytes).unwrap();
    for (record_at, kind, fine) in [
        (20, 0, true),
        (20, 1, false),
        (20, 2, false),
        (20, 3, false),
        (27, 1, true),
        (27, 2, false),
        (27, 3, false),
    ] {
        let mut changed = bytes.clone();
        changed[record_at] = 1 << 2 | kind;
        seal_block(&mut changed, ID, 0);
        let decoded = AnyBlock::decode(&changed, ID, 0);
        assert_eq!(decoded.is_ok(), fine, "kind {kind} at {record_at}");
        assert_eq!(Block::decode(&changed, ID, 0).is_ok(), fine);
    }
}
