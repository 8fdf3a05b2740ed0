//! Extended records. Those that this version does not execute come back as they are, nothing
//! executes them, and what the format does not have is damage.

use proptest::prelude::*;
use terrapin_base::expiry::DEADLINE_MS_MAX;
use terrapin_base::{
    ErrorKind, KEY_BYTES_MAX, Message, PageId, STACK_BYTES_MAX, Stack, StackBase, VALUE_BYTES_MAX,
    expiry,
};
use terrapin_pages::block::{
    AnyBlock, Block, BlockBuilder, Compression, Record, RecordKind, seal_block,
};

const ID: PageId = PageId(0x0102_0304);

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

/// A record of any kind that the format has.
fn any_record() -> impl Strategy<Value = (RecordKind, Option<u64>, Vec<u8>)> {
    let kind = (0..RecordKind::ALL.len()).prop_map(|i| RecordKind::ALL[i]);
    let deadline = proptest::option::of(0..=DEADLINE_MS_MAX);
    let value = proptest::collection::vec(any::<u8>(), 0..60);
    (kind, deadline, value).prop_map(|(kind, deadline, value)| match kind {
        RecordKind::Delete => (kind, None, Vec::new()),
        RecordKind::Merge => (kind, None, value),
        _ => (kind, deadline, value),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_of_every_kind_come_back_and_messages_execute(
        records in proptest::collection::btree_map(
            proptest::collection::vec(0u8..5, 0..40), any_record(), 1..40),
    ) {
        for compression in [Compression::None, Compression::Lz4] {
            let mut builder = BlockBuilder::new(64 << 10, compression);
            let record_of = |(kind, deadline_ms, value)| Record { kind, deadline_ms, value };
            let expected: Vec<Record<'_>> = records
                .values()
                .map(|(kind, deadline, value)| record_of((*kind, *deadline, &value[..])))
                .collect();
            for (key, record) in records.keys().zip(&expected) {
                prop_assert!(builder.add_record(key, *record).unwrap());
            }
            let mut bytes = Vec::new();
            let cut = builder.finish(ID, 0, &mut bytes).unwrap();
            let bytes_of = |r: &Record<'_>| r.value.len() + 6 * usize::from(r.deadline_ms.is_some());
            let sizes = records.keys().zip(&expected).map(|(k, r)| (k.len() + bytes_of(r)) as u64);
            prop_assert_eq!(cut.logical_bytes, sizes.clone().sum::<u64>());
            prop_assert_eq!(Some(u64::from(cut.record_bytes_max)), sizes.max());
            let deletes = expected.iter().filter(|r| r.kind == RecordKind::Delete).count();
            prop_assert_eq!(cut.tombstones as usize, deletes);

            let block = AnyBlock::decode(&bytes, ID, 0).unwrap();
            prop_assert_eq!(block.len(), expected.len());
            let mut key = Vec::new();
            for (i, (wanted, record)) in records.keys().zip(&expected).enumerate() {
                block.key_into(i, &mut key);
                prop_assert_eq!(&key, wanted);
                prop_assert_eq!(block.record(i), *record);
            }
            let checked = expected.iter().try_for_each(|record| record.check());
            match (checked, Block::decode(&bytes, ID, 0)) {
                (Ok(()), Ok(block)) => {
                    for (i, expected) in expected.iter().enumerate() {
                        prop_assert_eq!(Record::from(block.message(i)), *expected);
                    }
                }
                (Err(one), Err(whole)) => {
                    prop_assert_eq!(whole.kind(), ErrorKind::Corrupt);
                    prop_assert_eq!(whole.message(), one.message());
                }
                (one, whole) => prop_assert!(false, "{:?} and {:?}", one, whole),
            }
        }
    }
}

/// A block of one record: key "k", then these bytes behind it.
fn extended(behind_key: &[u8]) -> Vec<u8> {
    let mut builder = BlockBuilder::new(512, Compression::None);
    let value = [&[0][..], behind_key].concat();
    assert!(builder.add(b"", Message::Put(&value)).unwrap());
    let mut bytes = Vec::new();
    builder.finish(ID, 0, &mut bytes).unwrap();
    // The payload of a lone record is prefix, tag, suffix and value. All of the key is prefix.
    bytes[20] = 1 << 2 | 2;
    bytes[21] = b'k';
    seal_block(&mut bytes, ID, 0);
    bytes
}

#[test]
fn records_that_this_version_does_not_execute_are_refused_by_name() {
    let deadline = [1, 2, 3, 4, 5, 6];
    let with_deadline = |kind: u8| [&[0x80 | kind][..], &deadline, b"v"].concat();
    for (behind_key, kind, refusal) in [
        (
            with_deadline(2),
            RecordKind::Separated,
            "kind separated value",
        ),
        (vec![3, b'v'], RecordKind::Large, "kind large value"),
        (with_deadline(3), RecordKind::Large, "kind large value"),
        (
            with_deadline(4),
            RecordKind::BaseWithOperands,
            "kind base with operands",
        ),
    ] {
        let bytes = extended(&behind_key);
        let block = AnyBlock::decode(&bytes, ID, 0).unwrap();
        let record = block.record(0);
        let deadline_ms = (behind_key[0] & 0x80 != 0).then_some(0x0605_0403_0201);
        let expected = Record {
            kind,
            deadline_ms,
            value: b"v",
        };
        assert_eq!(record, expected);
        let error = Block::decode(&bytes, ID, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let said = error.to_string();
        assert!(said.contains("this version does not execute"), "{said}");
        assert!(
            said.contains(refusal) && said.contains("record 0"),
            "{said}"
        );
    }
}

#[test]
fn extended_records_that_the_format_does_not_have_are_damage() {
    let unknown = "unknown record kind";
    let impossible = "impossible extended record";
    for (behind_key, refusal) in [
        // No extension, or a deadline that ends too early.
        (vec![], "ends too early"),
        (vec![0x80], "ends too early"),
        (vec![0x82, 1, 2, 3, 4, 5], "ends too early"),
        // A put without a deadline has another form; operands have no deadline of their own.
        (vec![0, b'v'], impossible),
        (vec![0x81, 1, 2, 3, 4, 5, 6, b'v'], impossible),
        (vec![5, b'v'], unknown),
        (vec![0x7f, b'v'], unknown),
        (vec![0xff, 1, 2, 3, 4, 5, 6, b'v'], unknown),
    ] {
        let bytes = extended(&behind_key);
        for error in [
            AnyBlock::decode(&bytes, ID, 0).unwrap_err(),
            Block::decode(&bytes, ID, 0).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(refusal), "{error}");
        }
    }
}

#[test]
fn every_changed_byte_of_extended_records_is_harmless() {
    let mut builder = BlockBuilder::new(1024, Compression::None);
    for (i, kind) in (0u8..).zip(RecordKind::ALL) {
        let is_delete = kind == RecordKind::Delete;
        let record = Record {
            kind,
            deadline_ms: (!is_delete && kind != RecordKind::Merge).then_some(1 << 40),
            value: if is_delete { b"" } else { b"value" },
        };
        assert!(builder.add_record(&[b'k', i], record).unwrap());
    }
    let mut bytes = Vec::new();
    builder.finish(ID, 3, &mut bytes).unwrap();
    use_records(&bytes, 3);
    for at in 4..bytes.len() {
        for value in [0, 1, 2, 5, 0x7f, 0x80, 0x83, 0xff, bytes[at] ^ 2] {
            let before = std::mem::replace(&mut bytes[at], value);
            seal_block(&mut bytes, ID, 3);
            use_records(&bytes, 3);
            bytes[at] = before;
        }
    }
}

#[test]
fn the_largest_extended_record_fits_a_block_and_a_longer_value_does_not() {
    let (key, value) = (vec![7; KEY_BYTES_MAX], vec![9; STACK_BYTES_MAX]);
    let record = Record {
        kind: RecordKind::BaseWithOperands,
        deadline_ms: Some(DEADLINE_MS_MAX),
        value: &value,
    };
    let mut builder = BlockBuilder::new(4096, Compression::None);
    assert!(builder.add(b"", Message::Delete).unwrap());
    let mut bytes = Vec::new();
    builder.cut(&mut bytes);
    assert!(builder.add_record(&key, record).unwrap());
    bytes.clear();
    builder.finish(ID, 0, &mut bytes).unwrap();
    let block = AnyBlock::decode(&bytes, ID, 0).unwrap();
    assert_eq!(block.record(0), record);
    let longer = [&value[..], b"x"].concat();
    let longer = Record {
        value: &longer,
        ..record
    };
    assert!(!longer.is_possible());
    for (kind, longest) in [
        (RecordKind::Put, STACK_BYTES_MAX),
        (RecordKind::Merge, VALUE_BYTES_MAX),
        (RecordKind::Separated, VALUE_BYTES_MAX),
        (RecordKind::Large, VALUE_BYTES_MAX),
    ] {
        let of = |bytes: usize| Record {
            kind,
            deadline_ms: None,
            value: &longer.value[..bytes],
        };
        assert!(of(longest).is_possible() && !of(longest + 1).is_possible());
    }
}

/// Operands, alone and in a stack, are executed; damaged stacks are not.
#[test]
fn merges_and_stacks_are_messages() {
    let mut stack = Vec::new();
    Stack::encode(StackBase::Value(b"7"), [&b"+1"[..], b"+2"], &mut stack);
    let expiring = expiry::payload(0x0605_0403_0201, b"v");
    let messages = [
        Message::Put(b"value"),
        Message::Expiring(&expiring),
        Message::Merge(b"+1"),
        Message::Merge(b""),
        Message::Stack(&stack),
        Message::Delete,
    ];
    let mut builder = BlockBuilder::new(1024, Compression::None);
    for (i, message) in (0u8..).zip(messages) {
        assert!(builder.add(&[b'k', i], message).unwrap());
    }
    let mut bytes = Vec::new();
    builder.finish(ID, 0, &mut bytes).unwrap();
    let block = Block::decode(&bytes, ID, 0).unwrap();
    assert!(block.has_extended() && block.has_deletes() && !block.is_plain());
    for (i, message) in messages.into_iter().enumerate() {
        assert_eq!(block.message(i), message);
        assert_eq!(block.message_of(&block.entry(i).place), message);
        assert_eq!(block.kind(i), message.kind());
        let (place, _) = block.look(i);
        let kinds = (place.is_put(), place.is_delete());
        assert_eq!(kinds, (i == 0, message == Message::Delete));
    }
    // The number of the kind, the deadline, and the value.
    let found = Block::decode(&extended(&[0x80, 1, 2, 3, 4, 5, 6, b'v']), ID, 0).unwrap();
    assert_eq!(found.message(0), Message::Expiring(&expiring));
    for damaged in [&[4, 9][..], &[4, 2, 5, b'x'], &[4, 0]] {
        let error = Block::decode(&extended(damaged), ID, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("base with operands"), "{error}");
    }
}
