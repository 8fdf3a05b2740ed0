//! Unit tests of the format: checksums, fillers, marks, headers and names.

use super::*;

const LIFE: LifeId = LifeId {
    branch: 0xd1,
    incarnation: 3,
};

#[test]
fn a_record_counts_only_where_it_was_written() {
    let bytes = LIFE.record(16, b"payload", 5000);
    let header = RecordHeader::decode(&bytes).unwrap();
    let payload = &bytes[RECORD_HEADER_BYTES as usize..];
    assert_eq!(header.record_bytes(), bytes.len() as u64);
    assert!(LIFE.holds(&header, payload, 5000));
    assert!(!LIFE.holds(&header, payload, 5001));
    assert!(!LIFE.holds(&header, b"paYload", 5000));
    assert!(
        !LifeId {
            incarnation: 4,
            ..LIFE
        }
        .holds(&header, payload, 5000)
    );
    assert!(!LifeId { branch: 0, ..LIFE }.holds(&header, payload, 5000));
    assert!(!LIFE.holds(&RecordHeader { kind: 17, ..header }, payload, 5000));
    assert!(RecordHeader::decode(&[0; 9]).is_none());
    assert!(RecordHeader::decode(&[9; 8]).is_none());
}

#[test]
fn a_checksum_over_pieces_equals_the_checksum_over_the_whole() {
    assert_eq!(
        LIFE.begin(16, 6, &[b"ab", b"", b"cdef"]),
        LIFE.begin(16, 6, &[b"abcdef"])
    );
}

#[test]
fn a_draft_of_any_length_becomes_the_record() {
    let bytes: Vec<u8> = (0..SMALL_PAYLOAD_BYTES + 3).map(|i| i as u8).collect();
    for length in (0..20).chain(SMALL_PAYLOAD_BYTES - 2..=bytes.len()) {
        let payload = &bytes[..length];
        let (head, rest) = payload.split_at(length / 3);
        let pieces = [head, &[], rest];
        let mut buffer = DraftBuffer::new();
        let mut draft = LIFE.draft(16, length as u32, &pieces, &mut buffer);
        let bytes = draft.record_bytes();
        for lsn in [5000, 70_001] {
            let mut written = Vec::new();
            draft.write(lsn, |at, piece| {
                assert_eq!(at, lsn + written.len() as u64);
                written.extend_from_slice(piece);
            });
            assert_eq!(written.len() as u64, bytes);
            assert_eq!(written, LIFE.record(16, payload, lsn), "{length}");
        }
    }
}

#[test]
fn fillers_end_at_a_block_and_are_never_smaller_than_a_header() {
    for lsn in 4096..3 * 4096 {
        let bytes = filler_bytes(lsn);
        assert!((lsn + bytes).is_multiple_of(BLOCK_BYTES));
        assert!(bytes == 0 || (RECORD_HEADER_BYTES..=FILLER_BYTES_MAX).contains(&bytes));
        assert_eq!(bytes == 0, lsn.is_multiple_of(BLOCK_BYTES));
    }
}

#[test]
fn a_mark_that_reports_bytes_behind_itself_is_ignored() {
    let mark = LIFE.record(KIND_MARK, &encode_mark(4096), 8192);
    assert_eq!(mark.len() as u64, MARK_BYTES);
    assert_eq!(decode_mark(&LIFE, 8192, &mark), Some(4096));
    assert_eq!(decode_mark(&LIFE, 12288, &mark), None);
    let lie = LIFE.record(KIND_MARK, &encode_mark(8193), 8192);
    assert_eq!(decode_mark(&LIFE, 8192, &lie), None);
}

#[test]
fn a_mark_in_the_ring_is_found_after_any_number_of_wraps() {
    let ring = 64 << 10;
    for wraps in [0, 1, 2, 1000, (LSN_LIMIT / ring) - 2] {
        for behind in [0, 4096, ring - 4096] {
            let synced = wraps * ring + 8192;
            let lsn = synced + behind;
            let mark = LIFE.record(KIND_MARK, &encode_mark(synced), lsn);
            let found = |offset| decode_mark_in_ring(&LIFE, ring, offset, &mark);
            assert_eq!(found(lsn % ring), Some(synced));
            assert_eq!(found((lsn + 4096) % ring), None);
        }
    }
    assert_eq!(decode_mark_in_ring(&LIFE, ring, 0, &[0xff; 17]), None);
    assert_eq!(decode_mark_in_ring(&LIFE, ring, 0, &[0; 3]), None);
}

fn header() -> SegmentHeader {
    SegmentHeader {
        database_id: 0xd1,
        number: 7,
        incarnation: 3,
        start: 40960,
        previous_end: 40960,
        whole_below: 40000,
        first: 41000,
        capacity: 65536,
        branch: 0xb1b2_b3b4_b5b6_b7b8,
        previous_branch: 0xc1c2_c3c4,
    }
}

#[test]
fn a_segment_header_round_trips_and_no_flipped_bit_passes() {
    let mut block = [0xff; BLOCK_BYTES as usize];
    header().encode(&mut block);
    assert_eq!(SegmentHeader::decode(&block).unwrap(), header());
    for bit in 0..SEGMENT_HEADER_BYTES * 8 {
        let mut bad = block;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
    }
    assert!(SegmentHeader::decode(&block[..80]).is_err());
    let contradictions = [
        SegmentHeader {
            start: 40961,
            ..header()
        },
        SegmentHeader {
            capacity: 0,
            ..header()
        },
        SegmentHeader {
            capacity: u64::MAX - 4095,
            ..header()
        },
        SegmentHeader {
            previous_end: 50000,
            ..header()
        },
        SegmentHeader {
            previous_end: 0,
            ..header()
        },
        SegmentHeader {
            whole_below: 40960 + 65536 + 1,
            ..header()
        },
        SegmentHeader {
            first: 1,
            ..header()
        },
    ];
    for bad in contradictions {
        bad.encode(&mut block);
        assert!(SegmentHeader::decode(&block).is_err(), "{bad:?}");
    }
}

#[test]
fn another_format_version_is_not_reported_as_damage() {
    let mut block = [0; BLOCK_BYTES as usize];
    header().encode(&mut block);
    let kind = |block: &[u8]| SegmentHeader::decode(block).unwrap_err().kind();
    for bit in 0..32 {
        let mut damaged = block;
        damaged[8 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(kind(&damaged), ErrorKind::Corrupt);
    }
    let summed = SEGMENT_HEADER_BYTES - 4;
    let versions = [
        (FORMAT_VERSION + 1, ErrorKind::NewerFormat),
        (FORMAT_VERSION - 1, ErrorKind::Unsupported),
        (0, ErrorKind::Corrupt),
    ];
    for (version, expected) in versions {
        block[8..12].copy_from_slice(&version.to_le_bytes());
        let crc = crc32c(&block[..summed]);
        block[summed..SEGMENT_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(kind(&block), expected);
    }
}

#[test]
fn names_are_read_strictly() {
    assert_eq!(segment_number(&segment_name(0xab)), Some(0xab));
    assert_eq!(spare_number(&spare_name(u64::MAX)), Some(u64::MAX));
    for name in [
        "log-1",
        "log-00000000000000AB",
        "log-+000000000000001",
        "ring",
        "spare-0000000000000001",
    ] {
        assert_eq!(segment_number(name), None, "{name}");
    }
}
