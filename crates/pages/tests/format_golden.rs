//! The golden dumps of the format. Files under `golden/` show a block and a group byte by byte.
//!
//! A change that alters these bytes changes the format. Such a change needs the next format
//! version. `TERRAPIN_BLESS=1` writes the dumps anew.

use std::fmt::Write;
use std::path::Path;

use terrapin_base::codec::Reader;
use terrapin_base::{Message, PageId};
use terrapin_pages::block::{AnyBlock, Block, BlockBuilder, Compression, Record, RecordKind};
use terrapin_pages::group::{
    Deadlines, FOOTER_BYTES, GroupBuilder, GroupOptions, GroupRef, check_group,
    encode_optional_sums,
};

/// Fields of the dump: a number of bytes, and their meaning.
type Fields<'a> = Vec<(usize, &'a str)>;

/// Lines of offset, bytes and meaning. A longer field has lines of 16 bytes. A run of equal lines
/// shows one.
fn dump(bytes: &[u8], fields: &Fields<'_>) -> String {
    let mut out = String::new();
    let mut at = 0;
    for &(count, meaning) in fields {
        let mut shown = meaning;
        let mut before: Option<&[u8]> = None;
        let mut skipped = false;
        for line in bytes[at..at + count].chunks(16) {
            if before == Some(line) {
                if !skipped {
                    out.push_str("*\n");
                }
                skipped = true;
            } else {
                let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
                let text = format!("{at:04x}  {:<47}  {shown}", hex.join(" "));
                writeln!(out, "{}", text.trim_end()).unwrap();
                skipped = false;
            }
            (before, shown) = (Some(line), "");
            at += line.len();
        }
    }
    assert_eq!(at, bytes.len(), "the fields do not add up");
    writeln!(out, "{at:04x}").unwrap();
    out
}

fn compare(name: &str, dump: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("TERRAPIN_BLESS").is_some() {
        std::fs::write(&path, dump).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(
        golden == dump,
        "{name} differs from the bytes written now:\n{dump}"
    );
}

fn block_fields() -> Fields<'static> {
    vec![
        (
            4,
            "CRC32C over page id 0x0000010000000007 (8 bytes), block number 2 (4 bytes), and all that follows here",
        ),
        (1, "magic b1: a block of format 1"),
        (1, "compression: 0 none, 1 LZ4, 2 zstd"),
        (2, "bytes of the common prefix: 3"),
        (2, "records: 3"),
        (2, "reserved"),
        (4, "bytes of the payload: 26"),
        (4, "bytes of the payload as stored: 26"),
        (3, "common prefix \"app\""),
        (1, "record 0: suffix of 2 bytes << 2 | 0, a put"),
        (2, "key suffix \"le\""),
        (3, "value \"red\", up to the next record"),
        (1, "record 1: suffix of 4 bytes << 2 | 1, a delete"),
        (4, "key suffix \"rove\""),
        (1, "record 2: suffix of 1 byte << 2 | 0, a put"),
        (1, "key suffix \"s\""),
        (4, "value \"many\""),
        (2, "start of record 0, from the end of the prefix"),
        (2, "start of record 1"),
        (2, "start of record 2"),
    ]
}

#[test]
fn a_block_has_the_bytes_of_its_dump() {
    let mut builder = BlockBuilder::new(512, Compression::None);
    assert!(builder.add(b"apple", Message::Put(b"red")).unwrap());
    assert!(builder.add(b"approve", Message::Delete).unwrap());
    assert!(builder.add(b"apps", Message::Put(b"many")).unwrap());
    let mut bytes = Vec::new();
    let id = PageId(0x0000_0100_0000_0007);
    builder.finish(id, 2, &mut bytes).unwrap();
    compare("block.txt", &dump(&bytes, &block_fields()));
    assert_eq!(
        Block::decode(&bytes, id, 2).unwrap().message(2),
        Message::Put(b"many")
    );
}

#[test]
fn extended_records_have_the_bytes_of_their_dump() {
    let mut builder = BlockBuilder::new(512, Compression::None);
    let deadline = Some(1_800_000_000_000);
    let records = [
        (&b"k1"[..], RecordKind::Put, deadline, &b"soon"[..]),
        (b"k2", RecordKind::Merge, None, b"+1"),
        (b"k3", RecordKind::Separated, None, b"handle"),
        (b"k4", RecordKind::Large, deadline, b"handle"),
        (b"k5", RecordKind::BaseWithOperands, None, b"base+1"),
        (b"k6", RecordKind::Put, None, b"plain"),
        (b"k7", RecordKind::Delete, None, b""),
    ]
    .map(|(key, kind, deadline_ms, value)| {
        let record = Record {
            kind,
            deadline_ms,
            value,
        };
        (key, record)
    });
    for (key, record) in records {
        assert!(builder.add_record(key, record).unwrap());
    }
    let mut bytes = Vec::new();
    let id = PageId(0x0000_0100_0000_0007);
    builder.finish(id, 2, &mut bytes).unwrap();
    let fields = vec![
        (20, "header: see block.txt"),
        (1, "common prefix \"k\""),
        (
            2,
            "record 0: suffix of 1 byte << 2 | 2, an extended record; key suffix \"1\"",
        ),
        (1, "  extension: 80, a deadline follows, | 00, a put"),
        (6, "  deadline: 1,800,000,000,000 ms since 1970"),
        (4, "  value \"soon\""),
        (2, "record 1: an extended one, \"2\""),
        (1, "  extension: 01, a merge without a deadline"),
        (2, "  operands"),
        (2, "record 2"),
        (1, "  extension: 02, a separated value"),
        (6, "  handle"),
        (2, "record 3"),
        (1, "  extension: 80 | 03, a large value with a deadline"),
        (6, "  deadline"),
        (6, "  handle"),
        (2, "record 4"),
        (1, "  extension: 04, a base with operands"),
        (6, "  base and operands"),
        (
            2,
            "record 5: suffix of 1 byte << 2 | 0, a put without a deadline",
        ),
        (5, "  value \"plain\""),
        (2, "record 6: suffix of 1 byte << 2 | 1, a delete"),
        (14, "starts of the records"),
    ];
    compare("extended.txt", &dump(&bytes, &fields));
    let block = AnyBlock::decode(&bytes, id, 2).unwrap();
    for (i, (_, record)) in records.iter().enumerate() {
        assert_eq!(block.record(i), *record);
    }
}

/// A reference and the sums in front of an index's blocks, in their longest form.
#[test]
fn a_reference_with_optional_sums_has_the_bytes_of_its_dump() {
    let mut counts = [0; 16];
    (counts[0], counts[9], counts[15]) = (1, 300, 2);
    let ends_ms = (1_800_000_000_500, 2_900_000_000_000);
    let deadlines = Deadlines::new(1_800_000_000_000, counts, ends_ms);
    let group = GroupRef {
        id: PageId(7),
        offset: 0x8000,
        bytes: 768,
        index_offset: 384,
        index_bytes: 128,
        filter_offset: 512,
        filter_bytes: 128,
        records: 400,
        tombstones: 1,
        logical_bytes: 289,
        hidden_bytes: 200,
        record_bytes_max: 131,
        separated_bytes: 1_000_000,
    };
    let mut bytes = Vec::new();
    group.encode(&deadlines, &mut bytes);
    let fields = vec![
        (1, "page id (all varints but one byte)"),
        (3, "where the group starts in the data file"),
        (2, "bytes of the group"),
        (2, "index: offset in the group"),
        (2, "index: bytes"),
        (2, "filter: bytes; it starts where the index ends"),
        (2, "records"),
        (1, "deletes"),
        (2, "key and value bytes"),
        (2, "hidden bytes"),
        (2, "key and value bytes of the largest record"),
        (
            1,
            "1 separated bytes follow | 2 deadlines follow | what stands in the place of the filter << 2: 0 cells",
        ),
        (3, "separated bytes: 1,000,000"),
        (6, "deadlines: seen from 1,800,000,000,000 ms since 1970"),
        (1, "  1 record with less than a second left"),
        (
            8,
            "  none with less than 4, 16, 64, 256, 1024, 4096, 16384, 65536 s",
        ),
        (2, "  300 records with 65,536 to 262,143 s left"),
        (5, "  none up to 4^14 s"),
        (1, "  2 records with more left"),
        (6, "  the first deadline: 1,800,000,000,500 ms since 1970"),
        (6, "  the last one, less the first: 1,099,999,999,500 ms"),
    ];
    compare("reference.txt", &dump(&bytes, &fields));
    let mut reader = Reader::new("test", &bytes);
    assert_eq!(
        GroupRef::decode(&mut reader).unwrap(),
        (group, deadlines.clone())
    );
    let mut sums = Vec::new();
    encode_optional_sums(group.separated_bytes, &deadlines, &mut sums);
    assert_eq!(
        sums,
        bytes[bytes.len() - sums.len()..],
        "as before an index's blocks"
    );
}

#[test]
fn a_group_has_the_bytes_of_its_dump() {
    let options = GroupOptions {
        target_bytes: 4096,
        block_bytes: 256,
        unit: 128,
        compression: Compression::None,
        filter_bits: 12,
        now_ms: 0,
    };
    let mut builder = GroupBuilder::new(options);
    for (key, message, hidden) in [
        (&b"colour/blue"[..], Message::Put(&[b'b'; 120]), 0),
        (b"colour/green", Message::Delete, 200),
        (b"colour/red", Message::Put(&[b'r'; 120]), 0),
        (b"colour/rust", Message::Put(b"brown"), 0),
    ] {
        let group = builder.add_hiding(key, message, hidden).unwrap();
        assert!(group.is_none());
    }
    let pending = builder.finish().remove(0);
    let id = PageId(0x0000_0100_0000_0007);
    let (group, image) = pending.place(id, 0x8000);
    assert_eq!(group.index_offset, 384);
    check_group(&image, &group).unwrap();
    let mut fields: Fields<'_> = vec![
        (162, "block 0: see block.txt"),
        (
            222,
            "block 1, right behind; the last of a group is padded with zeros up to the unit",
        ),
        (
            4,
            "index: CRC32C over page id, part ffffffff, and all that follows up to the unit",
        ),
        (4, "bytes in use: 60"),
        (4, "blocks: 2"),
        (
            12,
            "first key, its length (varint) in front: \"colour/blue\"",
        ),
        (12, "last key: \"colour/rust\""),
        (9, "what all separators begin with: \"colour/r\""),
        (
            1,
            "no optional sums; with separated bytes each block has a fifth varint (see reference.txt)",
        ),
        (
            7,
            "block 0: bytes, records, key and value bytes, bytes that are hidden: 200 (varints)",
        ),
        (6, "block 1"),
        (
            1,
            "separator before block 1: the rest of \"colour/r\", nothing",
        ),
    ];
    let used: usize = fields[2..].iter().map(|f| f.0).sum();
    assert_eq!(image[388..392], (used as u32).to_le_bytes());
    fields.push((128 - used, "zeros up to the unit"));
    fields.extend([
        (
            124,
            "filter: a lone partition of a unit, its only cell shortened by the checksum",
        ),
        (
            4,
            "CRC32C over page id, part 80000000 | 0, and the partition in front of this",
        ),
        (
            128 - FOOTER_BYTES,
            "zeros up to the footer, which ends the unit",
        ),
        (8, "footer: magic \"TPGROUP3\""),
        (8, "page id"),
        (8, "where the group starts in the data file"),
        (8, "bytes of the group"),
        (4, "index: offset in the group"),
        (4, "index: bytes"),
        (4, "filter: offset in the group"),
        (4, "filter: bytes"),
        (8, "records: 4"),
        (8, "deletes: 1"),
        (8, "key and value bytes"),
        (8, "bytes that the messages hide: 200"),
        (4, "key and value bytes of the largest record: 131"),
        (4, "unit"),
        (4, "blocks: 2"),
        (8, "separated bytes"),
        (1, "what stands in the place of the filter: 0 cells"),
        (23, "reserved"),
        (
            4,
            "CRC32C over page id, part fffffffe, and the footer in front of this",
        ),
    ]);
    compare("group.txt", &dump(&image, &fields));
}
