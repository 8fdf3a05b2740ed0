//! Sums that most groups do not have, in references, footers and indexes; and what stands in the
//! place of the filter.

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::expiry::DEADLINE_MS_MAX;
use terrapin_base::{ErrorKind, Message, PageId, Result};
use terrapin_disk::AlignedBuf;
use terrapin_pages::block::{Compression, PART_FOOTER, PART_INDEX, part_seed};
use terrapin_pages::group::{
    Deadlines, FOOTER_BYTES, Footer, GroupBuilder, GroupIndex, GroupOptions, GroupRef, check_group,
    decode_optional_sums, encode_optional_sums,
};

/// A group of N puts.
fn group_of(records: u32) -> (GroupRef, AlignedBuf) {
    let mut builder = GroupBuilder::new(GroupOptions {
        target_bytes: 1 << 20,
        block_bytes: 512,
        unit: 128,
        compression: Compression::None,
        filter_bits: 12,
        now_ms: 0,
    });
    for number in 0..records {
        let added = builder.add(&number.to_be_bytes(), Message::Put(b"value"));
        assert!(added.unwrap().is_none());
    }
    builder.finish().remove(0).place(PageId(77), 8192)
}

fn reference(bytes: &[u8]) -> Result<(GroupRef, Deadlines)> {
    GroupRef::decode(&mut Reader::new("test", bytes))
}

fn seal_index(bytes: &mut [u8], id: PageId) {
    let crc = terrapin_base::checksum::crc32c_append(part_seed(id, PART_INDEX), &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Separated bytes and deadlines: none, one of both, both.
fn optional_sums() -> [(u64, Deadlines); 4] {
    let counts = std::array::from_fn(|i| i as u64);
    let ends_ms = (DEADLINE_MS_MAX - 9, DEADLINE_MS_MAX);
    let deadlines = || Deadlines::new(DEADLINE_MS_MAX, counts, ends_ms);
    [
        (0, Deadlines::default()),
        (3 << 30, Deadlines::default()),
        (0, deadlines()),
        (3 << 30, deadlines()),
    ]
}

#[test]
fn references_with_optional_sums_round_trip_and_every_cut_is_refused() {
    let (group, _) = group_of(200);
    for (separated_bytes, deadlines) in optional_sums() {
        let group = GroupRef {
            separated_bytes,
            ..group
        };
        let mut bytes = Vec::new();
        group.encode(&deadlines, &mut bytes);
        assert_eq!(reference(&bytes).unwrap(), (group, deadlines));
        for end in 0..bytes.len() {
            assert!(reference(&bytes[..end]).is_err());
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Ok((group, deadlines)) = reference(&changed) {
                    let mut again = Vec::new();
                    group.encode(&deadlines, &mut again);
                    assert_eq!(reference(&again).unwrap(), (group, deadlines));
                }
            }
        }
    }
}

#[test]
fn optional_sums_that_no_group_has_are_refused() {
    let decode = |bytes: &[u8]| decode_optional_sums(&mut Reader::new("test", bytes));
    for (bytes, refusal) in [
        (vec![1, 0], "impossible sum of separated bytes"),
        (
            [&[1][..], &varint((1 << 47) + 1)].concat(),
            "impossible sum of separated bytes",
        ),
        // No counter counts; a moment and a counter out of bounds.
        (
            [&[2, 5][..], &[0; 16], &[7, 1]].concat(),
            "impossible counters",
        ),
        (
            [&[2][..], &varint(1 << 48), &[1; 16], &[7, 1]].concat(),
            "impossible counters",
        ),
        (
            [&[2, 5][..], &[1; 15], &varint((1 << 47) + 1), &[7, 1]].concat(),
            "impossible counters",
        ),
        // The last deadline is out of bounds.
        (
            [&[2, 5][..], &[1; 16], &[7], &varint((1 << 48) - 7)].concat(),
            "impossible counters",
        ),
        (
            [&[2, 5][..], &[1; 16], &[7], &varint(u64::MAX)].concat(),
            "impossible counters",
        ),
        (vec![4], "unknown sums"),
        (vec![0x80], "unknown sums"),
    ] {
        let error = decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().starts_with(refusal), "{error}");
    }
    // More records with a deadline than records.
    let (group, _) = group_of(2);
    let three = Deadlines::new(9, std::array::from_fn(|i| u64::from(i < 3)), (9, 9));
    let mut bytes = Vec::new();
    group.encode(&three, &mut bytes);
    let error = reference(&bytes).unwrap_err();
    assert_eq!(error.message(), "more deadlines than records");
}

fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, value);
    out
}

#[test]
fn other_things_in_the_place_of_the_filter_are_refused_by_name() {
    let (group, image) = group_of(20);
    let mut bytes = Vec::new();
    group.encode(&Deadlines::default(), &mut bytes);
    let hash_list = "this version does not read lists of hashes in the place of the filter";
    let unknown = "unknown kind of filter";
    for (kind, refusal) in [(1, unknown), (2, hash_list), (3, unknown), (63, unknown)] {
        let last = bytes.len() - 1;
        bytes[last] = kind << 2;
        let error = reference(&bytes).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Corrupt, refusal)
        );
        let mut footer = image[image.len() - FOOTER_BYTES..].to_vec();
        footer[100] = kind;
        let body = FOOTER_BYTES - 4;
        let seed = part_seed(group.id, PART_FOOTER);
        let crc = terrapin_base::checksum::crc32c_append(seed, &footer[..body]);
        footer[body..].copy_from_slice(&crc.to_le_bytes());
        let error = Footer::decode(&footer).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Corrupt, refusal)
        );
    }
}

/// The index of a group of three blocks with optional sums, of which each block has a share.
fn index_with((all, deadlines): &(u64, Deadlines), separated: &[u64; 3]) -> Result<GroupIndex> {
    let mut bytes = vec![0; 12];
    for key in [&b"a"[..], b"z", b""] {
        put_prefixed(&mut bytes, key);
    }
    encode_optional_sums(*all, deadlines, &mut bytes);
    for &separated in separated {
        for value in [10, 2, 30, 4] {
            put_varint(&mut bytes, value);
        }
        if *all > 0 {
            put_varint(&mut bytes, separated);
        }
    }
    put_prefixed(&mut bytes, b"h");
    put_prefixed(&mut bytes, b"p");
    let used = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&used.to_le_bytes());
    bytes[8..12].copy_from_slice(&3u32.to_le_bytes());
    seal_index(&mut bytes, PageId(1));
    GroupIndex::decode(&bytes, PageId(1))
}

#[test]
fn an_index_tells_separated_bytes_of_blocks_and_deadlines_of_the_group() {
    for optional in optional_sums() {
        let all = optional.0;
        let index = index_with(&optional, &[all / 3, 0, all - all / 3]).unwrap();
        assert_eq!(index.deadlines(), optional.1);
        let before: Vec<u64> = (0..=3).map(|i| index.separated_before(i)).collect();
        assert_eq!(before, [0, all / 3, all / 3, all]);
        assert_eq!(index.block_sums(2).separated_bytes, all - all / 3);
        assert_eq!(index.estimate(None, None).separated_bytes, all);
        assert_eq!(index.estimate(None, Some(b"h")).separated_bytes, all / 3);
        assert_eq!(
            index.estimate(Some(b"q"), None).separated_bytes,
            all - all / 3 - (all - all / 3) / 2
        );
    }
    let [_, separated, ..] = &optional_sums();
    for parts in [[1, 1, 1], [0, 0, 0], [u64::MAX, 1, separated.0]] {
        let error = index_with(separated, &parts).unwrap_err();
        assert_eq!(
            error.message(),
            "separated bytes of blocks and group differ"
        );
    }
}

/// No record has a deadline or a separated value today: a group that says so contradicts itself.
#[test]
fn check_group_finds_optional_sums_that_no_record_has() {
    let (group, image) = group_of(200);
    assert_eq!(group.separated_bytes, 0);
    for (separated_bytes, deadlines) in &optional_sums()[1..] {
        // The same in reference, footer and index; but blocks have no separated bytes.
        let claimed = GroupRef {
            separated_bytes: *separated_bytes,
            ..group
        };
        let mut image = image.clone();
        let footer = Footer {
            group: claimed,
            ..Footer::decode(&image).unwrap()
        };
        let at = image.len() - FOOTER_BYTES;
        image[at..].copy_from_slice(&footer.encode());
        let start = group.index_offset as usize;
        let index = &mut image[start..start + group.index_bytes as usize];
        let mut at = 12;
        for _ in 0..3 {
            at += 1 + usize::from(index[at]);
        }
        let mut sums = Vec::new();
        encode_optional_sums(0, deadlines, &mut sums);
        let used = u32::from_le_bytes(index[4..8].try_into().unwrap()) as usize;
        index.copy_within(at + 1..used, at + sums.len());
        index[at..at + sums.len()].copy_from_slice(&sums);
        let used = (used + sums.len() - 1) as u32;
        index[4..8].copy_from_slice(&used.to_le_bytes());
        seal_index(index, group.id);
        let error = check_group(&image, &claimed).unwrap_err();
        let found = match separated_bytes {
            0 => "deadlines and index contradict each other",
            _ => "index and footer contradict each other",
        };
        assert_eq!(error.message(), found);
        if *separated_bytes > 0 {
            let error = check_group(&image, &group).unwrap_err();
            assert_eq!(
                error.message(),
                "footer and reference contradict each other"
            );
        }
    }
}
