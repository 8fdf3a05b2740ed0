//! Groups: sizes, the contents of the index, the faults that `check_group` finds, and hostile
//! bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{ErrorKind, KEY_BYTES_MAX, Message, PageId, VALUE_BYTES_MAX};
use terrapin_disk::AlignedBuf;
use terrapin_filter::{
    BITS_PER_KEY, CELL_BYTES, FilterBuilder, may_contain, partition_of, seal_partition,
};
use terrapin_pages::block::{Block, Compression, PART_FILTER, PART_INDEX, part_seed};
use terrapin_pages::group::{
    Deadlines, Footer, GroupBuilder, GroupIndex, GroupOptions, GroupRef, GroupSums,
    LOGICAL_BYTES_MAX, PendingGroup, check_filter_partition, check_group,
};

type Records = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn options(target_bytes: u64, compression: Compression) -> GroupOptions {
    GroupOptions {
        target_bytes,
        block_bytes: 512,
        unit: 128,
        compression,
        filter_bits: 12,
        now_ms: 0,
    }
}

fn build(options: GroupOptions, records: &Records) -> Vec<PendingGroup> {
    let mut builder = GroupBuilder::new(options);
    assert!(builder.is_empty() && builder.finish().is_empty());
    let mut groups = Vec::new();
    for (key, value) in records {
        let message = value.as_deref().map_or(Message::Delete, Message::Put);
        groups.extend(builder.add(key, message).unwrap());
    }
    let rest = builder.finish();
    assert!(rest.len() <= 2 && builder.is_empty());
    groups.extend(rest);
    groups
}

fn index_of(image: &[u8], group: &GroupRef) -> GroupIndex {
    GroupIndex::decode(
        &image[group.index_offset as usize..][..group.index_bytes as usize],
        group.id,
    )
    .unwrap()
}

/// Looks a key up as a reader does: index, filter, block. `None` if the filter or the block lacks
/// the key.
fn get(image: &[u8], group: &GroupRef, index: &GroupIndex, key: &[u8]) -> Option<Option<Vec<u8>>> {
    let number = index.find(key);
    let (start, bytes) = index.block_place(number);
    let block = Block::decode(
        &image[start as usize..][..bytes as usize],
        group.id,
        number as u32,
    )
    .unwrap();
    let found = block
        .search(key)
        .ok()
        .map(|i| block.message(i).put_value().map(<[u8]>::to_vec));
    if group.filter_bytes > 0 {
        let hash = terrapin_base::checksum::hash64(key);
        let partition = partition_of(hash, group.filter_partitions());
        let at = group.filter_partition_offset(partition) - group.offset;
        let bytes = &image[at as usize..][..group.filter_partition_bytes()];
        check_filter_partition(bytes, group.id, partition).unwrap();
        assert!(found.is_none() || may_contain(bytes, hash).unwrap());
    }
    found
}

fn numbered(count: u32, value_bytes: usize) -> Records {
    (0..count)
        .map(|i| {
            (
                format!("key/{i:08}").into_bytes(),
                Some(vec![i as u8; value_bytes]),
            )
        })
        .collect()
}

fn records() -> impl Strategy<Value = Records> {
    let key = prop_oneof![
        6 => (0..3usize, proptest::collection::vec(0u8..3, 0..9)).prop_map(|(shared, tail)| {
            let mut key = b"tenant/0000000/"[..[0, 7, 15][shared]].to_vec();
            key.extend(tail);
            key
        }),
        3 => proptest::collection::vec(any::<u8>(), 0..24),
        1 => (200..900usize, any::<u8>()).prop_map(|(n, b)| { let mut k = vec![7; n]; k.push(b); k }),
    ];
    let value = prop_oneof![
        6 => proptest::collection::vec(any::<u8>(), 0..80).prop_map(Some),
        1 => (0..6000usize, any::<u8>()).prop_map(|(n, b)| Some(vec![b; n])),
        2 => Just(None),
    ];
    proptest::collection::btree_map(key, value, 1..400)
}

fn check_all(records: &Records, options: GroupOptions) {
    let groups = build(options, records);
    let mut expected = records.iter();
    let mut last_key: Option<Vec<u8>> = None;
    for (i, pending) in groups.into_iter().enumerate() {
        let (first, last, needed) = (
            pending.first_key.clone(),
            pending.last_key.clone(),
            pending.bytes_needed,
        );
        assert!(last_key.is_none_or(|before| before < first));
        last_key = Some(last.clone());
        let (group, image) = pending.place(PageId(i as u64 + 9), 4096 * (i as u64 + 1));
        assert_eq!((group.bytes, image.len() as u64), (needed, needed));
        let report = check_group(&image, &group).unwrap();
        assert_eq!(Footer::decode(&image).unwrap().group, group);

        let mut encoded = Vec::new();
        group.encode(&Deadlines::default(), &mut encoded);
        let mut reader = Reader::new("test", &encoded);
        assert_eq!(
            (GroupRef::decode(&mut reader).unwrap(), reader.remaining()),
            ((group, Deadlines::default()), 0)
        );

        let index = index_of(&image, &group);
        assert_eq!(
            (index.first_key(), index.last_key(), index.separator(0)),
            (&first[..], &last[..], (&first[..], &[][..]))
        );
        check_separators(&index);
        assert_eq!(index.records_before(index.blocks()), report.records);
        assert_eq!(index.bytes_before(index.blocks()), report.logical_bytes);
        for _ in 0..group.records {
            let (key, value) = expected.next().unwrap();
            assert_eq!(get(&image, &group, &index, key).as_ref(), Some(value));
            // Neighbours of keys are found exactly if they are records.
            let mut near = key.clone();
            near.push(0);
            if near.len() <= KEY_BYTES_MAX && near < last {
                assert_eq!(
                    get(&image, &group, &index, &near).as_ref(),
                    records.get(&near)
                );
            }
        }
        check_estimates(&index, records);
    }
    assert!(expected.next().is_none());
}

/// A search for separators and for the keys around them agrees with a plain search.
fn check_separators(index: &GroupIndex) {
    let separators: Vec<_> = (0..index.blocks()).map(|n| separator(index, n)).collect();
    for (number, key) in separators.iter().enumerate() {
        let cut = &key[..key.len().saturating_sub(1)];
        let near = [
            cut.to_vec(),
            [&key[..], &[0]].concat(),
            [cut, &[0xff; 9]].concat(),
        ];
        for key in near.iter().chain([key]) {
            let before = separators[1..].partition_point(|separator| separator <= key);
            assert_eq!(index.find(key), before, "{key:?}");
            assert_eq!(
                index.compare_separator(number, key),
                separators[number].cmp(key)
            );
        }
    }
}

fn separator(index: &GroupIndex, number: usize) -> Vec<u8> {
    let (front, rest) = index.separator(number);
    [front, rest].concat()
}

fn check_estimates(index: &GroupIndex, records: &Records) {
    let all = GroupSums {
        records: index.records_before(index.blocks()),
        bytes: index.bytes_before(index.blocks()),
        hidden_bytes: index.hidden_before(index.blocks()),
        separated_bytes: index.separated_before(index.blocks()),
    };
    let nothing = GroupSums::default();
    assert_eq!(index.estimate(None, None), all);
    assert_eq!(index.estimate(Some(index.first_key()), None), all);
    assert_eq!(index.estimate(None, Some(index.first_key())), nothing);
    let mut above = index.last_key().to_vec();
    above.push(0);
    assert_eq!(index.estimate(Some(&above), None), nothing);
    assert_eq!(index.estimate(None, Some(&above)), all);
    let mut before = nothing;
    let largest = (0..index.blocks())
        .map(|b| index.records_before(b + 1) - index.records_before(b))
        .max()
        .unwrap();
    let within = records
        .keys()
        .filter(|k| ***k >= *index.first_key() && ***k <= *index.last_key());
    for (below, key) in (0u64..).zip(within) {
        let estimate = index.estimate(None, Some(key));
        assert!(
            estimate.records >= before.records && estimate.bytes >= before.bytes,
            "estimates only grow"
        );
        assert!(
            estimate.records.abs_diff(below) <= largest,
            "off by no more than a block"
        );
        before = estimate;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_come_back_through_index_and_filter(
        records in records(),
        target in prop_oneof![Just(600u64), Just(4096), Just(1 << 20)],
        filter_bits in prop_oneof![Just(0u32), 6..21u32],
    ) {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            if compression.check().is_ok() {
                check_all(&records, GroupOptions { filter_bits, ..options(target, compression) });
            }
        }
    }

    #[test]
    fn random_bytes_under_a_good_checksum_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 12..400), blocks in 1u32..20, low in any::<bool>(),
    ) {
        if low {
            bytes.iter_mut().skip(12).for_each(|b| *b &= 3);
        }
        let used = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&used.to_le_bytes());
        bytes[8..12].copy_from_slice(&blocks.to_le_bytes());
        seal_index(&mut bytes, PageId(1));
        if let Ok(index) = GroupIndex::decode(&bytes, PageId(1)) {
            use_index(&index);
        }
        let _ = GroupRef::decode(&mut Reader::new("test", &bytes));
        let _ = Footer::decode(&bytes);
    }
}

fn seal_index(bytes: &mut [u8], id: PageId) {
    let crc = terrapin_base::checksum::crc32c_append(part_seed(id, PART_INDEX), &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

fn use_index(index: &GroupIndex) {
    for i in 0..index.blocks() {
        let separator = separator(index, i);
        assert_eq!(index.find(&separator), i);
        let _ = (
            index.block_place(i),
            index.estimate(Some(&separator), Some(b"z")),
            index.block_sums(i),
        );
    }
    let _ = (
        index.find(b""),
        index.find(&[0xff; 20]),
        index.blocks_bytes(),
        index.memory_bytes(),
    );
}

#[test]
fn only_a_lone_group_is_under_half_full() {
    for count in (1..1200).step_by(7) {
        let groups = build(options(8192, Compression::None), &numbered(count, 100));
        let weights: Vec<u64> = groups.iter().map(|g| g.bytes_needed - 128).collect();
        let filters = |g: &PendingGroup| {
            let (partitions, each) = FilterBuilder::shape(g.records as usize, BITS_PER_KEY, 128);
            u64::from(partitions) * each as u64
        };
        for (group, bytes) in groups.iter().zip(&weights) {
            let data = bytes - filters(group);
            assert!(
                groups.len() == 1 || data >= 4096,
                "{count} records: {data} bytes in one of {}",
                groups.len()
            );
            assert!(
                data <= 8192 + 8192 / 20 + 1024,
                "{count} records: {data} bytes"
            );
        }
        assert_eq!(
            groups.iter().map(|g| g.records).sum::<u64>(),
            u64::from(count)
        );
    }
}

/// For every block of the groups: its cover, its own bytes, and its records.
fn covers(options: GroupOptions, records: &Records) -> Vec<(u32, u32, u64)> {
    let mut covers = Vec::new();
    for (i, pending) in build(options, records).into_iter().enumerate() {
        let (group, image) = pending.place(PageId(i as u64), 0);
        check_group(&image, &group).unwrap();
        let index = index_of(&image, &group);
        assert_eq!(index.blocks_bytes(), group.index_offset);
        assert!(group.index_offset.is_multiple_of(options.unit));
        for number in 0..index.blocks() {
            let (start, bytes) = index.block_place(number);
            let end = (start + bytes).next_multiple_of(options.unit);
            let cover = end - start / options.unit * options.unit;
            let records = index.records_before(number + 1) - index.records_before(number);
            covers.push((cover, bytes, records));
        }
    }
    covers
}

#[test]
fn blocks_are_adjacent_and_no_cover_exceeds_the_target() {
    // (value bytes, unit, most bytes for each record besides key and value, most blocks that cover
    // a unit more)
    for (value_bytes, unit, overhead, longer) in [
        (120, 512, 5.0, 0.05),
        (1016, 512, 12.0, 0.0),
        (1016, 128, 12.0, 0.0),
        (2000, 512, 40.0, 0.05),
        (3900, 512, 300.0, 0.0),
        // The unit is too large for two blocks to share one, so each block has the fewest records.
        (120, 4096, 12.0, 0.0),
        (1016, 4096, 345.0, 0.0),
    ] {
        let options = GroupOptions {
            target_bytes: 1 << 20,
            block_bytes: 4096,
            unit,
            compression: Compression::None,
            filter_bits: 0,
            now_ms: 0,
        };
        let records: Records = (0..6_000_000 / value_bytes as u64)
            .map(|i| {
                let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                (key.to_vec(), Some(vec![i as u8; value_bytes]))
            })
            .collect();
        let covers = covers(options, &records);
        let disk: u64 = covers.iter().map(|c| u64::from(c.1)).sum();
        let each = disk as f64 / records.len() as f64 - (8 + value_bytes) as f64;
        assert!(covers.iter().all(|c| c.0 <= 4096 + unit));
        let over = covers.iter().filter(|c| c.0 > 4096).count() as f64 / covers.len() as f64;
        println!("{value_bytes} bytes, units of {unit}: {each:.1} bytes besides, {over:.3} longer");
        assert!(each <= overhead && over <= longer, "{value_bytes} {unit}");
    }
}

/// Numbers that look random.
fn mixed(i: u64) -> u64 {
    let mixed = (i ^ i >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Bytes of which the first `random` do not compress.
fn value_of(i: u64, bytes: usize, random: usize) -> Vec<u8> {
    let words = 0..random.div_ceil(8) as u64;
    let front = words.flat_map(|at| mixed(i << 16 | at).to_le_bytes());
    let rest = std::iter::repeat(i as u8);
    front.take(random).chain(rest).take(bytes).collect()
}

#[test]
fn compressed_blocks_share_a_large_unit() {
    let options = |compression| GroupOptions {
        target_bytes: 16 << 20,
        block_bytes: 4096,
        unit: 4096,
        compression,
        filter_bits: 12,
        now_ms: 0,
    };
    let records: Records = (0..3000u64)
        .map(|i| {
            let key = mixed(i).to_be_bytes();
            (key.to_vec(), Some(value_of(i, 120, 20)))
        })
        .collect();
    let disk = |compression| -> u64 {
        let covers = covers(options(compression), &records);
        assert!(covers.iter().all(|c| c.0 <= 4096));
        covers.iter().map(|c| u64::from(c.1)).sum()
    };
    let (plain, compressed) = (disk(Compression::None), disk(Compression::Lz4));
    println!("{plain} bytes, {compressed} compressed");
    assert!(compressed * 100 < plain * 45, "{compressed} of {plain}");
    check_all(&records, options(Compression::Lz4));
}

#[test]
fn no_cover_of_a_compressed_block_exceeds_the_target() {
    let records: Records = (0..3000u64)
        .map(|i| {
            let bytes = [30, 700, 3950, 90, 1500, 9000][i as usize % 6];
            let random = bytes * (mixed(i) as usize % 4) / 3;
            let key = i.to_be_bytes();
            (key.to_vec(), Some(value_of(i, bytes, random)))
        })
        .collect();
    for unit in [512, 4096] {
        let options = GroupOptions {
            target_bytes: 32 << 20,
            block_bytes: 4096,
            unit,
            compression: Compression::Lz4,
            filter_bits: 0,
            now_ms: 0,
        };
        for (cover, bytes, records) in covers(options, &records) {
            assert!(cover <= 4096 || bytes > 4096 && records == 1, "{bytes}");
        }
        check_all(&records, options);
    }
}

#[test]
fn an_index_estimates_the_decoded_bytes_of_its_blocks() {
    let records: Records = (0..2000u32)
        .map(|i| {
            let key = format!("{}/{i:08}", "x".repeat(60));
            (key.into_bytes(), Some(vec![i as u8; 100]))
        })
        .collect();
    for compression in [Compression::None, Compression::Lz4] {
        let pending = build(options(1 << 20, compression), &records).remove(0);
        let (group, image) = pending.place(PageId(3), 0);
        let index = index_of(&image, &group);
        let (mut all, mut stored) = (0, 0);
        for number in 0..index.blocks() {
            let (start, bytes) = index.block_place(number);
            let block = &image[start as usize..][..bytes as usize];
            let block = Block::decode(block, group.id, number as u32).unwrap();
            let decoded = block.bytes().len() as u64;
            let held = index.held_bytes(number..number + 1);
            match compression {
                Compression::None => assert_eq!(held, u64::from(bytes)),
                _ => assert!(held.abs_diff(decoded) <= decoded / 16, "{held} {decoded}"),
            }
            all += decoded;
            stored += u64::from(bytes);
        }
        let held = index.held_bytes(0..index.blocks());
        match compression {
            Compression::None => assert_eq!(held, stored),
            _ => assert!(held.abs_diff(all) <= all / 16 && stored * 2 < all),
        }
        assert_eq!(index.held_bytes(5..5), 0);
    }
}

#[test]
fn only_a_record_larger_than_the_target_makes_a_longer_read() {
    let records: Records = (0..400u32)
        .map(|i| {
            let value = vec![1; [30, 700, 3950, 90, 4050, 9000][i as usize % 6]];
            (i.to_be_bytes().to_vec(), Some(value))
        })
        .collect();
    let options = GroupOptions {
        target_bytes: 16 << 20,
        block_bytes: 4096,
        unit: 512,
        compression: Compression::None,
        filter_bits: 0,
        now_ms: 0,
    };
    for (cover, bytes, records) in covers(options, &records) {
        assert!(cover <= 4096 || bytes > 4096 && records == 1, "{bytes}");
    }
}

#[test]
fn huge_records_among_small_ones() {
    let mut records = numbered(300, 50);
    let mut key = vec![b'k'; KEY_BYTES_MAX];
    records.insert(key.clone(), Some(vec![1; VALUE_BYTES_MAX]));
    key[KEY_BYTES_MAX - 1] = b'l';
    records.insert(key.clone(), None);
    key.truncate(40_000);
    records.insert(key, Some(Vec::new()));
    records.insert(b"key/00000100x".to_vec(), Some(vec![2; VALUE_BYTES_MAX]));
    records.insert(Vec::new(), Some(Vec::new()));
    for (target, compression) in [
        (4096, Compression::None),
        (65_536, Compression::Lz4),
        (1 << 20, Compression::Lz4),
    ] {
        check_all(&records, options(target, compression));
    }
}

#[test]
fn the_index_is_at_most_a_hundredth_of_the_data() {
    let records: Records = (0..40_000u64)
        .map(|i| {
            (
                i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
                Some(vec![i as u8; 120]),
            )
        })
        .collect();
    let options = GroupOptions {
        target_bytes: 4 << 20,
        block_bytes: 4096,
        unit: 512,
        compression: Compression::None,
        filter_bits: 12,
        now_ms: 0,
    };
    let mut disk = 0;
    for (i, pending) in build(options, &records).into_iter().enumerate() {
        let (group, image) = pending.place(PageId(i as u64), 0);
        let report = check_group(&image, &group).unwrap();
        let memory = index_of(&image, &group).memory_bytes() as u64;
        println!(
            "{report:?}, index in memory {memory}, bytes {}",
            group.bytes
        );
        assert!(
            report.index_bytes * 100 <= report.block_bytes && memory * 100 <= report.block_bytes
        );
        disk += report.block_bytes;
    }
    assert!(disk as f64 / 40_000.0 <= 128.0 + 5.0, "{disk} bytes");
}

#[test]
fn an_index_of_short_separators_takes_few_bytes_for_each_block() {
    let ids = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let named = |i: u64| format!("customers/region-7/{i:012}").into_bytes();
    let nested = |i: u64| [&vec![b'd'; 2000][..], format!("/{i:09}/x").as_bytes()].concat();
    // Zeros at the end cannot be read off a head.
    let zeros = |i: u64| [&(i / 2).to_be_bytes()[..], &[0][..i as usize % 2]].concat();
    type KeyOf<'a> = &'a dyn Fn(u64) -> Vec<u8>;
    let cases: [(KeyOf<'_>, usize, f64); 6] = [
        (&ids, 1016, 11.0),
        (&ids, 120, 11.0),
        (&named, 1016, 14.0),
        (&named, 120, 14.0),
        (&nested, 1016, 16.0),
        (&zeros, 1016, 26.0),
    ];
    for (case, (key_of, value_bytes, most)) in cases.into_iter().enumerate() {
        let records: Records = (0..4_000_000 / value_bytes as u64)
            .map(|i| (key_of(i), Some(vec![i as u8; value_bytes - i as usize % 9])))
            .collect();
        let options = GroupOptions {
            block_bytes: 4096,
            unit: 512,
            ..options(1 << 20, Compression::None)
        };
        let (mut memory, mut blocks) = (0, 0);
        for pending in build(options, &records) {
            let (group, image) = pending.place(PageId(3), 0);
            check_group(&image, &group).unwrap();
            let index = index_of(&image, &group);
            check_separators(&index);
            let keys =
                index.first_key().len() + index.last_key().len() + index.separator(1).0.len();
            memory += index.memory_bytes() - keys - size_of::<GroupIndex>();
            blocks += index.blocks();
        }
        let each = memory as f64 / blocks as f64;
        println!("case {case}: {each:.1} bytes a block, {blocks} blocks");
        assert!(each <= most, "case {case}: {each:.1} bytes a block");
    }
}

#[test]
fn check_group_finds_every_changed_byte() {
    let mut records = numbered(150, 10);
    records.insert(b"key/00000007".to_vec(), None);
    let pending = build(options(1 << 20, Compression::Lz4), &records).remove(0);
    let (group, mut image) = pending.place(PageId(77), 8192);
    check_group(&image, &group).unwrap();
    for at in 0..image.len() {
        image[at] ^= 0x20;
        let error = check_group(&image, &group).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}");
        image[at] ^= 0x20;
    }
    for changed in [
        GroupRef {
            id: PageId(78),
            ..group
        },
        GroupRef {
            offset: 4096,
            ..group
        },
        GroupRef {
            records: group.records + 1,
            ..group
        },
        GroupRef {
            tombstones: 0,
            ..group
        },
        GroupRef {
            index_offset: group.index_offset - 128,
            ..group
        },
    ] {
        assert!(check_group(&image, &changed).is_err());
    }
    assert!(check_group(&image[..image.len() - 1], &group).is_err());
}

#[test]
fn changed_index_bytes_are_harmless_even_under_a_right_checksum() {
    let pending = build(options(1 << 20, Compression::None), &numbered(60, 30)).remove(0);
    let (group, image) = pending.place(PageId(77), 0);
    let mut index = image[group.index_offset as usize..][..group.index_bytes as usize].to_vec();
    for at in 4..index.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, index[at] ^ 1, index[at] ^ 0x10] {
            let before = std::mem::replace(&mut index[at], value);
            seal_index(&mut index, PageId(77));
            if let Ok(decoded) = GroupIndex::decode(&index, PageId(77)) {
                use_index(&decoded);
            }
            index[at] = before;
        }
    }
}

/// A node adds up the sums of its groups. No sum may come near the end of a u64.
#[test]
fn an_index_of_more_bytes_than_a_group_can_hold_is_refused() {
    let decode_hiding = |blocks: &[u64], hides: bool| {
        let mut bytes = vec![0; 12];
        put_prefixed(&mut bytes, b"a");
        put_prefixed(&mut bytes, b"z");
        put_prefixed(&mut bytes, b"");
        bytes.push(0);
        for &sum in blocks {
            let (logical_bytes, hidden_bytes) = if hides { (1, sum) } else { (sum, 0) };
            [10, 1, logical_bytes, hidden_bytes]
                .iter()
                .for_each(|&value| put_varint(&mut bytes, value));
        }
        for number in 1..blocks.len() {
            put_prefixed(&mut bytes, &[b'a' + number as u8]);
        }
        let used = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&used.to_le_bytes());
        bytes[8..12].copy_from_slice(&(blocks.len() as u32).to_le_bytes());
        seal_index(&mut bytes, PageId(1));
        GroupIndex::decode(&bytes, PageId(1))
    };
    let most = decode_hiding(&[1, LOGICAL_BYTES_MAX - 1], false).unwrap();
    assert_eq!(most.bytes_before(2), LOGICAL_BYTES_MAX);
    let most = decode_hiding(&[1, LOGICAL_BYTES_MAX - 1], true).unwrap();
    assert_eq!(most.hidden_before(2), LOGICAL_BYTES_MAX);
    for blocks in [
        &[LOGICAL_BYTES_MAX + 1][..],
        &[1, LOGICAL_BYTES_MAX],
        &[1, u64::MAX - 1],
        &[1, u64::MAX],
    ] {
        for hides in [false, true] {
            let error = decode_hiding(blocks, hides).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{blocks:?}");
        }
    }
}

/// A merge learns the hidden bytes of a range from the index alone. So a block must not hide much
/// more than a small part of a group.
#[test]
fn a_block_of_several_messages_hides_few_bytes() {
    let options = options(64 << 10, Compression::None);
    let most = (options.target_bytes / 32).max(u64::from(options.block_bytes) * 4);
    let hidden_of = |i: u64| match i % 50 {
        0 => 300_000,
        1..40 => i % 90,
        _ => 1000,
    };
    let mut builder = GroupBuilder::new(options);
    let mut groups = Vec::new();
    let key = |i: u64| format!("key-{i:06}").into_bytes();
    for i in 0..20_000 {
        let added = builder.add_hiding(&key(i), Message::Delete, hidden_of(i));
        groups.extend(added.unwrap());
    }
    groups.extend(builder.finish());
    assert!(groups.len() > 2);
    let mut at = 0;
    for (number, pending) in (1..).zip(groups) {
        let (group, image) = pending.place(PageId(number), 1 << 20);
        let report = check_group(&image, &group).unwrap();
        assert_eq!(
            (report.hidden_bytes, report.record_bytes_max),
            (group.hidden_bytes, 10)
        );
        let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
        let index = GroupIndex::decode(index, group.id).unwrap();
        for block in 0..index.blocks() {
            let sums = index.block_sums(block);
            let hidden: u64 = (at..at + sums.records).map(hidden_of).sum();
            assert_eq!(sums.hidden_bytes, hidden, "block {block}");
            assert!(hidden <= most || sums.records == 1, "{sums:?}");
            at += sums.records;
        }
        let other = GroupRef {
            hidden_bytes: group.hidden_bytes + 1,
            ..group
        };
        assert!(check_group(&image, &other).is_err());
    }
    assert_eq!(at, 20_000);
}

#[test]
fn check_group_finds_faults_under_right_checksums() {
    // Sound blocks of two groups with their checksums, each under the other's index.
    let place = |records: &Records| -> (GroupRef, AlignedBuf) {
        build(options(1 << 20, Compression::None), records)
            .remove(0)
            .place(PageId(5), 0)
    };
    let (group, image) = place(&numbered(100, 20));
    let other: Records = numbered(100, 20)
        .into_iter()
        .map(|(mut k, v)| {
            k[3] = b'.';
            (k, v)
        })
        .collect();
    let (other_group, other_image) = place(&other);
    assert_eq!(group, other_group);
    let mut mixed = image.clone();
    mixed[..512].copy_from_slice(&other_image[..512]);
    assert_eq!(
        check_group(&mixed, &group).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let mut filter = image.clone();
    let range = group.filter_offset as usize..(group.filter_offset + group.filter_bytes) as usize;
    filter[range.clone()].copy_from_slice(&other_image[range]);
    assert_eq!(
        check_group(&filter, &group).unwrap_err().message(),
        "filter denies a key"
    );
}

#[test]
fn check_group_finds_cells_that_no_builder_makes() {
    let (group, image) = build(options(1 << 20, Compression::None), &numbered(200, 20))
        .remove(0)
        .place(PageId(5), 0);
    let filter = group.filter_offset as usize..(group.filter_offset + group.filter_bytes) as usize;
    let mut noticed = 0;
    let cells = group.filter_partition_bytes() / CELL_BYTES;
    for cell in 0..cells {
        let mut damaged = image.clone();
        let partition = &mut damaged[filter.clone()];
        // No fingerprints, with remainders of one bit.
        partition[cell * CELL_BYTES..][..2].copy_from_slice(&(1u16 << 10).to_le_bytes());
        seal_partition(partition, part_seed(group.id, PART_FILTER));
        assert_eq!(
            check_group(&damaged, &group).unwrap_err().message(),
            "impossible filter cell"
        );
        noticed += 1;
    }
    assert!(noticed == cells && cells > 1);
}

#[test]
fn the_last_groups_are_divided_without_more_memory() {
    let target = 256 << 10;
    let options = options(target, Compression::None);
    let mut parted = 0;
    for count in (1000..2600).step_by(100) {
        terrapin_disk::largest_buffer();
        let groups = build(options, &numbered(count, 200));
        parted += usize::from(groups.len() == 2);
        assert!(terrapin_disk::largest_buffer() as u64 <= target + target / 4);
    }
    assert!(parted > 4, "{parted}");
}

#[test]
fn groups_built_without_a_filter_have_none() {
    let options = GroupOptions {
        filter_bits: 0,
        ..options(1 << 20, Compression::None)
    };
    let (group, image) = build(options, &numbered(50, 9))
        .remove(0)
        .place(PageId(1), 0);
    assert_eq!((group.filter_bytes, group.filter_partitions()), (0, 0));
    check_group(&image, &group).unwrap();
}

#[test]
fn long_common_prefixes_do_not_multiply_in_memory() {
    // These keys compress well, and each has a block of its own. The index could outweigh the data.
    let records: Records = (0..200u32)
        .map(|i| {
            let mut key = vec![b'p'; 60_000];
            key.extend_from_slice(&i.to_be_bytes());
            (key, None)
        })
        .collect();
    let target = 1 << 20;
    for pending in build(options(target, Compression::Lz4), &records) {
        let (group, image) = pending.place(PageId(1), 0);
        check_group(&image, &group).unwrap();
        assert!(index_of(&image, &group).memory_bytes() as u64 <= 2 * target);
    }
}

#[test]
fn a_huge_record_leaves_no_small_group_behind_it() {
    // 0.4 L, then one record of 4 L, then a small record. No division is possible, so there is one
    // group.
    let mut records = numbered(25, 100);
    records.insert(b"key/00000024x".to_vec(), Some(vec![1; 32 << 10]));
    records.insert(b"z".to_vec(), Some(b"crumb".to_vec()));
    assert_eq!(build(options(8192, Compression::None), &records).len(), 1);
    // With half a group behind the large record there are two groups.
    records.extend(numbered(60, 100).into_iter().map(|(mut key, value)| {
        key[0] = b'z';
        (key, value)
    }));
    assert_eq!(build(options(8192, Compression::None), &records).len(), 2);
}

#[test]
fn check_group_finds_counts_under_the_wrong_block() {
    let pending = build(options(1 << 20, Compression::None), &numbered(60, 30)).remove(0);
    let (group, mut image) = pending.place(PageId(77), 0);
    let start = group.index_offset as usize;
    let index = &mut image[start..start + group.index_bytes as usize];
    // Behind the header: first key, last key, common prefix, the byte of sums that are not there,
    // then {bytes, records, bytes, hidden bytes} of each block.
    let mut at = 12;
    for _ in 0..3 {
        at += 1 + usize::from(index[at]);
    }
    assert_eq!(index[at], 0);
    at += 1;
    let varint_bytes = |at: usize| if index[at] >= 0x80 { 2 } else { 1 };
    let records = at + varint_bytes(at);
    // None are hidden.
    let next = records + 1 + varint_bytes(records + 1) + 1;
    let next_records = next + varint_bytes(next);
    assert!(index[records] > 1 && index[next_records] > 0);
    index[records] -= 1;
    index[next_records] += 1;
    seal_index(index, PageId(77));
    assert_eq!(
        check_group(&image, &group).unwrap_err().message(),
        "index counts"
    );
}
