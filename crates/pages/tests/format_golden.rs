//! The golden dumps of the format. Files under `golden/` show a block and a group byte by byte.
//!
//! A change that alters these bytes changes the format. Such a change needs the next format
//! version. `TERRAPIN_BLESS=1` writes the dumps anew.

use std::fmt::Write;
use std::path::Path;

use terrapin_base::{Message, PageId};
use terrapin_pages::block::{Block, BlockBuilder, Compression};
use terrapin_pages::group::{FOOTER_BYTES, GroupBuilder, GroupOptions, check_group};

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
fn a_group_has_the_bytes_of_its_dump() {
    let options = GroupOptions {
        target_bytes: 4096,
        block_bytes: 256,
        unit: 128,
        compression: Compression::None,
        filter_bits: 12,
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
        (4, "bytes in use: 59"),
        (4, "blocks: 2"),
        (
            12,
            "first key, its length (varint) in front: \"colour/blue\"",
        ),
        (12, "last key: \"colour/rust\""),
        (9, "what all separators begin with: \"colour/r\""),
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
        (32, "reserved"),
        (
            4,
            "CRC32C over page id, part fffffffe, and the footer in front of this",
        ),
    ]);
    compare("group.txt", &dump(&image, &fields));
}
