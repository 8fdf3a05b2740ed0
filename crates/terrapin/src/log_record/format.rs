//! Bytes of the engine's log records. The log's own header holds kind, length and checksum. The
//! payload depends on the kind:
//!
//! ```text
//! 16 + operation kind
//!          one operation, without its kind: keyspace: varint, then
//!            put           key length: varint, key, value (the rest). With a deadline, the kind
//!                          has its highest bit set, and the value begins with 6 bytes of deadline
//!            merge         key length: varint, key, operand (the rest)
//!            delete        key (the rest)
//!            delete range  as in a batch
//!            put large     key length: varint, key, large value (the rest)
//! BATCH    operations: kind: u8, keyspace: varint, then
//!            put           key length: varint, key, value length: varint, value
//!            merge         key length: varint, key, operand length: varint, operand
//!            delete        key length: varint, key
//!            delete range  start length: varint, start; end length + 1, or 0 without an end:
//!                          varint, end
//!            put large     key length: varint, key, length of the large value: varint, and that:
//!                          page offset and page bytes in extents: varints; checksum of the page's
//!                          footer: u32; the handle: page id, deadline or 0, length of the
//!                          value: varints
//! UNLOGGED nothing: the writes of this LSN are in a memtable only
//! CREATE   keyspace: varint, name: prefixed UTF-8, options
//! DROP     keyspace: varint
//! CLEAR    keyspace: varint
//! OPTIONS  keyspace: varint, options: all of them (`types/options/format.rs`)
//! NOW      the last now: 6 bytes, milliseconds since 1970
//! ```
//!
//! The kinds of operations are [`OPERATIONS`]. One record is one atomic batch (D7). This file
//! checks everything that a payload holds: kinds, lengths, and the limits of keys and values.

use std::ops::Range;

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{
    Error, ErrorKind, KEY_BYTES_MAX, KeyspaceId, Lsn, Message, MessageKind, Result,
    VALUE_BYTES_MAX, expiry, mutant,
};
use terrapin_valuelog::large::LargeRef;
use terrapin_wal::RECORD_KIND_USER_MIN;

use crate::types::options::KeyspaceOptions;
use crate::types::options::format::{put_options, read_options};

/// The names of the kinds of operations, by number. This version reads and writes puts, deletes,
/// merges, range deletes and large puts. It refuses the others by name.
const OPERATIONS: [&str; 6] = [
    "put",
    "delete",
    "merge",
    "delete range",
    "put large",
    "set structure",
];
const PUT_OPERATION: u8 = 0;
const DELETE_OPERATION: u8 = 1;
const MERGE_OPERATION: u8 = 2;
const DELETE_RANGE_OPERATION: u8 = 3;
const PUT_LARGE_OPERATION: u8 = 4;
/// In the kind of an operation, and of a record of one operation: the value has a deadline
/// ([`terrapin_base::expiry`]). This version knows that of puts, and refuses it elsewhere.
const DEADLINE: u8 = 1 << 7;
const EXPIRING_PUT_OPERATION: u8 = PUT_OPERATION | DEADLINE;
/// Records of one operation have the kind `RECORD_KIND_USER_MIN + n`, where n is the operation's
/// kind and below this number.
const SINGLE_KINDS: u8 = 16;

/// One put.
pub(crate) const PUT: u8 = RECORD_KIND_USER_MIN + PUT_OPERATION;
/// One put with a deadline.
pub(crate) const EXPIRING_PUT: u8 = RECORD_KIND_USER_MIN + EXPIRING_PUT_OPERATION;
/// One delete.
pub(crate) const DELETE: u8 = RECORD_KIND_USER_MIN + DELETE_OPERATION;
/// One merge.
pub(crate) const MERGE: u8 = RECORD_KIND_USER_MIN + MERGE_OPERATION;
/// Any number of operations.
pub(crate) const BATCH: u8 = RECORD_KIND_USER_MIN + SINGLE_KINDS;
/// Stands for writes that only a memtable holds.
pub(crate) const UNLOGGED: u8 = BATCH + 1;
const CREATE: u8 = BATCH + 2;
const DROP: u8 = BATCH + 3;
/// A clear. Its append installs the emptied keyspace.
pub(crate) const CLEAR: u8 = BATCH + 4;
const OPTIONS: u8 = BATCH + 5;
/// Now, by which deadlines count.
pub(crate) const NOW: u8 = BATCH + 6;

/// The longest bound of a range delete: the first key behind the longest key is one byte longer.
const BOUND_BYTES_MAX: usize = KEY_BYTES_MAX + 1;

/// The longest name of a keyspace, in bytes.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// The head of the payload of one operation, built on the stack.
pub(crate) struct Head {
    bytes: [u8; 8],
    count: usize,
}

impl Head {
    /// The head for a put or a merge whose key has `key_bytes` bytes.
    pub fn put(keyspace: KeyspaceId, key_bytes: usize) -> Self {
        let mut head = Head {
            bytes: [0; 8],
            count: 0,
        };
        head.varint(u64::from(keyspace.0));
        head.varint(key_bytes as u64);
        head
    }

    /// The head for a delete.
    pub fn delete(keyspace: KeyspaceId) -> Self {
        let mut head = Head {
            bytes: [0; 8],
            count: 0,
        };
        head.varint(u64::from(keyspace.0));
        head
    }

    /// Appends a varint. A u32 takes at most 5 bytes and a key length at most 3.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes[self.count] = value as u8 | 0x80;
            self.count += 1;
            value >>= 7;
        }
        self.bytes[self.count] = value as u8;
        self.count += 1;
    }

    /// The bytes of the head.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// Appends one operation to the payload of a BATCH.
pub(crate) fn put_operation(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    key: &[u8],
    message: Message<'_>,
) {
    out.push(match message {
        Message::Put(_) => PUT_OPERATION,
        Message::Delete => DELETE_OPERATION,
        Message::Merge(_) => MERGE_OPERATION,
        Message::Expiring(_) => EXPIRING_PUT_OPERATION,
        Message::Stack(_) | Message::Separated(_) => unreachable!("users write no such messages"),
    });
    put_varint(out, u64::from(keyspace.0));
    put_prefixed(out, key);
    if !message.is_delete() {
        put_prefixed(out, message.payload());
    }
}

/// Appends a range delete to the payload of a BATCH.
pub(crate) fn put_range_delete(
    out: &mut Vec<u8>,
    keyspace: KeyspaceId,
    lo: &[u8],
    hi: Option<&[u8]>,
) {
    out.push(DELETE_RANGE_OPERATION);
    put_varint(out, u64::from(keyspace.0));
    put_prefixed(out, lo);
    put_varint(out, hi.map_or(0, |hi| hi.len() as u64 + 1));
    out.extend_from_slice(hi.unwrap_or_default());
}

/// Appends the put of a large value to the payload of a BATCH.
pub(crate) fn put_large(out: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], large: &LargeRef) {
    out.push(PUT_LARGE_OPERATION);
    put_varint(out, u64::from(keyspace.0));
    put_prefixed(out, key);
    let mut bytes = Vec::with_capacity(32);
    large.encode(&mut bytes);
    put_prefixed(out, &bytes);
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// Writes a message for a key.
    Message(&'a [u8], Message<'a>),
    /// Deletes the keys from the first one to below the second one. None is the end of all keys.
    DeleteRange(&'a [u8], Option<&'a [u8]>),
    /// Puts a large value: the key, and the bytes of a [`LargeRef`], which were checked.
    Large(&'a [u8], &'a [u8]),
}

impl Change<'_> {
    /// Whether it puts a value with a deadline.
    pub fn has_deadline(&self) -> bool {
        match self {
            Change::Message(_, message) => message.deadline_ms().is_some(),
            Change::Large(..) if mutant::active("replay-forgets-large-deadlines") => false,
            Change::Large(_, bytes) => {
                LargeRef::decode(bytes).is_ok_and(|(large, _)| large.deadline_ms.is_some())
            }
            Change::DeleteRange(..) => false,
        }
    }

    /// Bytes of keys and values.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self {
            Change::Message(key, message) => key.len() + message.value_bytes(),
            Change::DeleteRange(lo, hi) => lo.len() + hi.map_or(0, <[u8]>::len),
            Change::Large(key, large) => key.len() + large.len(),
        }
    }
}

/// One operation of a record.
pub(crate) struct Operation<'a> {
    /// The offset in the record's payload at which the operation begins.
    pub offset: u64,
    /// The operation's keyspace.
    pub keyspace: KeyspaceId,
    /// What it does.
    pub change: Change<'a>,
}

impl Operation<'_> {
    /// The LSN of the operation in a logged record, given where the record starts and ends. It is
    /// not below the record's LSN and below its end: the record is longer than its payload, by the
    /// log's header. So every bound between records has all operations of a record on one side.
    #[inline]
    pub fn lsn(&self, record: &Range<Lsn>) -> Lsn {
        let lsn = Lsn(record.start.0 + self.offset);
        debug_assert!(record.contains(&lsn), "{lsn:?} of {record:?}");
        if mutant::active("earlier-operation-of-batch-wins") {
            return Lsn(record.end.0 - 1 - self.offset);
        }
        if mutant::active("operation-lsn-past-record") {
            return Lsn(lsn.0 + self.offset);
        }
        lsn
    }
}

/// The payload of a NOW record.
pub(crate) fn now_payload(now_ms: u64) -> [u8; expiry::DEADLINE_BYTES] {
    expiry::deadline_bytes(now_ms)
}

/// The last now of a NOW record, in milliseconds since 1970.
pub(crate) fn read_now(payload: &[u8]) -> Result<u64> {
    match expiry::split(payload) {
        Ok((now_ms, [])) => Ok(now_ms),
        _ => Err(Error::corrupt("a record of now has another length")),
    }
}

/// An iterator over the operations of a record, in their order.
pub(crate) struct Operations<'a> {
    /// The kind of the only operation. None in a batch, where each operation begins with its kind.
    only: Option<u8>,
    payload_bytes: usize,
    reader: Reader<'a>,
    done: bool,
}

impl<'a> Operations<'a> {
    /// Decodes a payload. None if records of this kind hold no operations.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Option<Self> {
        let only = match kind {
            BATCH => None,
            _ => Some(single_kind(kind)?),
        };
        Some(Operations {
            only,
            payload_bytes: payload.len(),
            reader: Reader::new("operation record", payload),
            done: false,
        })
    }

    fn one(&mut self) -> Result<Operation<'a>> {
        let reader = &mut self.reader;
        let offset = (self.payload_bytes - reader.remaining()) as u64;
        let is_only = self.only.is_some();
        let kind = match self.only {
            Some(kind) => kind,
            None => reader.u8()?,
        };
        if !matches!(
            kind,
            PUT_OPERATION
                | EXPIRING_PUT_OPERATION
                | DELETE_OPERATION
                | MERGE_OPERATION
                | DELETE_RANGE_OPERATION
                | PUT_LARGE_OPERATION
        ) {
            return Err(unknown_operation(reader, kind));
        }
        let keyspace = read_id(reader)?;
        if kind == DELETE_RANGE_OPERATION {
            let change = read_range(reader, is_only)?;
            return Ok(Operation {
                offset,
                keyspace,
                change,
            });
        }
        if kind == PUT_LARGE_OPERATION {
            let change = read_large(reader, is_only)?;
            return Ok(Operation {
                offset,
                keyspace,
                change,
            });
        }
        let (key, message) = match (kind, is_only) {
            (DELETE_OPERATION, true) => (rest(reader)?, Message::Delete),
            (DELETE_OPERATION, false) => (reader.prefixed()?, Message::Delete),
            _ => {
                let key = reader.prefixed()?;
                let bytes = match is_only {
                    true => rest(reader)?,
                    false => reader.prefixed()?,
                };
                let kind = match kind {
                    MERGE_OPERATION => MessageKind::Merge,
                    EXPIRING_PUT_OPERATION => MessageKind::Expiring,
                    _ => MessageKind::Put,
                };
                (key, Message::of(kind, bytes))
            }
        };
        let value_bytes = match message {
            Message::Expiring(payload) => expiry::split(payload)?.1.len(),
            message => message.value_bytes(),
        };
        if key.len() > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err(reader.corrupt("a key or value exceeds the limit"));
        }
        Ok(Operation {
            offset,
            keyspace,
            change: Change::Message(key, message),
        })
    }
}

/// Reads a large put, which ends its record if `is_only`.
fn read_large<'a>(reader: &mut Reader<'a>, is_only: bool) -> Result<Change<'a>> {
    let key = reader.prefixed()?;
    let bytes = match is_only {
        true => rest(reader)?,
        false => reader.prefixed()?,
    };
    let (large, _) = LargeRef::decode(bytes)?;
    let is_possible = key.len() <= KEY_BYTES_MAX
        && large.page.bytes == terrapin_valuelog::large::page_bytes(large.length, key.len());
    match is_possible {
        true => Ok(Change::Large(key, bytes)),
        false => Err(reader.corrupt("a large value and its key contradict each other")),
    }
}

/// Reads the bounds of a range delete, which ends its record if `is_only`.
fn read_range<'a>(reader: &mut Reader<'a>, is_only: bool) -> Result<Change<'a>> {
    let lo = reader.prefixed()?;
    let end = reader.varint()?.checked_sub(1).map(usize::try_from);
    let end = end.transpose();
    let end = end.map_err(|_| reader.corrupt("the end of a range delete exceeds the limit"))?;
    let hi = end.map(|bytes| reader.bytes(bytes)).transpose()?;
    if lo.len() > BOUND_BYTES_MAX || hi.is_some_and(|hi| hi.len() > BOUND_BYTES_MAX) {
        return Err(reader.corrupt("a bound of a range delete exceeds the limit"));
    }
    if hi.is_some_and(|hi| hi <= lo) {
        return Err(reader.corrupt("a range delete ends before its start"));
    }
    if is_only && reader.remaining() > 0 {
        return Err(reader.corrupt("there are bytes after a range delete"));
    }
    Ok(Change::DeleteRange(lo, hi))
}

/// The kind of the operation that a record of this kind consists of.
fn single_kind(kind: u8) -> Option<u8> {
    let operation = kind.checked_sub(RECORD_KIND_USER_MIN)?;
    (operation & !DEADLINE < SINGLE_KINDS).then_some(operation)
}

fn rest<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    reader.bytes(reader.remaining())
}

/// The error of an operation that this version cannot do. A number without a name is damage.
#[cold]
fn unknown_operation(reader: &Reader<'_>, kind: u8) -> Error {
    let Some(name) = OPERATIONS.get(usize::from(kind & !DEADLINE)) else {
        let unknown = reader.corrupt("the kind of an operation is unknown");
        return unknown.with("kind", kind);
    };
    let deadline = match kind & DEADLINE {
        0 => "",
        _ => " with a deadline",
    };
    Error::new(
        ErrorKind::NewerFormat,
        format!(
            "operation kind {name}{deadline}: this version of Terrapin does not know it; open the database with a newer version"
        ),
    )
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || (self.only.is_none() && self.reader.remaining() == 0) {
            return None;
        }
        let item = self.one();
        self.done = self.only.is_some() || item.is_err();
        Some(item)
    }
}

/// A change of the set of keyspaces or of one keyspace's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Schema {
    /// Creates a keyspace.
    Create {
        /// The new keyspace's number.
        id: KeyspaceId,
        /// The new keyspace's name.
        name: String,
        /// The new keyspace's options.
        options: KeyspaceOptions,
    },
    /// Drops a keyspace with its records.
    Drop(KeyspaceId),
    /// Removes a keyspace's records.
    Clear(KeyspaceId),
    /// Sets a keyspace's options.
    SetOptions(KeyspaceId, KeyspaceOptions),
}

/// Reads a keyspace's number.
pub(crate) fn read_id(reader: &mut Reader<'_>) -> Result<KeyspaceId> {
    Ok(KeyspaceId(u32::try_from(reader.varint()?).map_err(
        |_| reader.corrupt("the keyspace number is too large"),
    )?))
}

/// Reads a keyspace's name.
pub(crate) fn read_name<'a>(reader: &mut Reader<'a>) -> Result<&'a str> {
    let name = std::str::from_utf8(reader.prefixed()?)
        .map_err(|_| reader.corrupt("the keyspace's name is not UTF-8"))?;
    check_name(name).map_err(|_| reader.corrupt("impossible keyspace name"))?;
    Ok(name)
}

/// Checks whether a name is allowed for a keyspace.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > KEYSPACE_NAME_BYTES_MAX || name.chars().any(char::is_control)
    {
        return Err(Error::invalid(
            "a keyspace's name has 1 to 255 bytes and no control characters",
        )
        .with("name", format_args!("{name:?}"))
        .with("bytes", name.len()));
    }
    Ok(())
}

impl Schema {
    /// The record's kind and payload.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        let kind = match self {
            Schema::Create { id, name, options } => {
                put_varint(&mut out, u64::from(id.0));
                put_prefixed(&mut out, name.as_bytes());
                put_options(&mut out, options);
                CREATE
            }
            Schema::Drop(id) => {
                put_varint(&mut out, u64::from(id.0));
                DROP
            }
            Schema::Clear(id) => {
                put_varint(&mut out, u64::from(id.0));
                CLEAR
            }
            Schema::SetOptions(id, options) => {
                put_varint(&mut out, u64::from(id.0));
                put_options(&mut out, options);
                OPTIONS
            }
        };
        (kind, out)
    }

    /// Decodes a record. Fails for kinds and options that this version does not know. `name_of`
    /// names existing keyspaces, for errors.
    pub fn decode(
        kind: u8,
        payload: &[u8],
        name_of: &dyn Fn(KeyspaceId) -> Option<Box<str>>,
    ) -> Result<Schema> {
        let mut reader = Reader::new("keyspace record", payload);
        if !matches!(kind, CREATE | DROP | CLEAR | OPTIONS) {
            return Err(reader
                .corrupt("the kind of record is unknown")
                .with("kind", kind));
        }
        let id = read_id(&mut reader)?;
        let change = match kind {
            CREATE => {
                let name = read_name(&mut reader)?;
                let options = read_options(&mut reader, &name)?;
                Schema::Create {
                    id,
                    name: name.into(),
                    options,
                }
            }
            DROP => Schema::Drop(id),
            CLEAR => Schema::Clear(id),
            _ => {
                let name = name_of(id).unwrap_or_else(|| format!("number {id}").into());
                Schema::SetOptions(id, read_options(&mut reader, &name)?)
            }
        };
        if reader.remaining() > 0 {
            return Err(reader.corrupt("there are bytes after the record"));
        }
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use terrapin_structure::StructureId;

    use super::*;
    use crate::types::options::CheckpointDistance;

    #[test]
    fn single_operations_and_batches_decode_to_the_same() {
        let key = [b'k'; 300];
        let id = KeyspaceId(u32::MAX);
        let mut single = Head::put(id, key.len()).bytes().to_vec();
        single.extend_from_slice(&key);
        single.extend_from_slice(b"value");
        let mut batch = Vec::new();
        put_operation(&mut batch, id, &key, Message::Put(b"value"));
        put_operation(&mut batch, KeyspaceId(0), b"", Message::Delete);
        for (kind, payload, count) in [(PUT, &single, 1), (BATCH, &batch, 2)] {
            let all: Vec<_> = Operations::decode(kind, payload)
                .unwrap()
                .map(|o| o.unwrap())
                .collect();
            assert_eq!(all.len(), count);
            let put = Change::Message(&key, Message::Put(b"value"));
            assert_eq!((all[0].keyspace, all[0].change), (id, put));
        }
        let head = Head::delete(KeyspaceId(7));
        let delete: Vec<_> = Operations::decode(DELETE, head.bytes()).unwrap().collect();
        assert!(matches!(
            delete[0].as_ref().unwrap(),
            Operation {
                offset: 0,
                keyspace: KeyspaceId(7),
                change: Change::Message(b"", Message::Delete),
            }
        ));
    }

    #[test]
    fn records_have_the_documented_bytes() {
        assert_eq!((PUT, DELETE, BATCH, UNLOGGED), (16, 17, 32, 33));
        assert_eq!((CREATE, DROP, CLEAR, OPTIONS), (34, 35, 36, 37));
        // keyspace 300 | key length 3; the key and the value follow
        assert_eq!(Head::put(KeyspaceId(300), 3).bytes(), b"\xac\x02\x03");
        // keyspace 7; the key follows
        assert_eq!(Head::delete(KeyspaceId(7)).bytes(), b"\x07");
        let mut batch = Vec::new();
        put_operation(&mut batch, KeyspaceId(300), b"key", Message::Put(b"value"));
        put_operation(&mut batch, KeyspaceId(7), b"k", Message::Delete);
        // kind 0, a put | keyspace 300 | "key" | "value" | kind 1, a delete | keyspace 7 | "k"
        assert_eq!(batch, b"\x00\xac\x02\x03key\x05value\x01\x07\x01k");
        batch.clear();
        put_range_delete(&mut batch, KeyspaceId(7), b"a", Some(b"bc"));
        put_range_delete(&mut batch, KeyspaceId(7), b"d", None);
        // kind 3, a range delete | keyspace 7 | "a" | end of 2 bytes | … | "d" | no end
        assert_eq!(batch, b"\x03\x07\x01a\x03bc\x03\x07\x01d\x00");
        let read = |kind, payload| {
            let mut operations = Operations::decode(kind, payload).unwrap();
            operations.next().unwrap().map(|operation| {
                let is_range = operation.change == Change::DeleteRange(b"a", Some(b"bc"));
                assert!(is_range && operation.keyspace == KeyspaceId(7));
            })
        };
        read(BATCH, &batch).unwrap();
        let kind = RECORD_KIND_USER_MIN + DELETE_RANGE_OPERATION;
        read(kind, &batch[1..7]).unwrap();
        // Bytes behind a record's only operation, a missing end, an end before the start.
        for damaged in [
            &batch[1..8],
            &batch[1..6],
            b"\x07\x01b\x02a",
            b"\x07\x01b\x02b",
        ] {
            assert_eq!(read(kind, damaged).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    /// Bounds lie between records: a bound inside would show half a batch.
    #[test]
    fn the_lsns_of_operations_are_their_offsets_in_the_payload() {
        let mut batch = Vec::new();
        let mut begin = Vec::new();
        for i in 0..100 {
            begin.push(batch.len() as u64);
            let value = [i; 300];
            let message = match i % 3 {
                0 => Message::Delete,
                _ => Message::Put(&value[..usize::from(i) * 3]),
            };
            put_operation(&mut batch, KeyspaceId(u32::from(i) * 100), b"", message);
        }
        // The shortest batch, and the shortest records of one operation.
        for (kind, payload, offsets) in [
            (BATCH, &batch[..], &begin[..]),
            (BATCH, &[1, 0, 0], &[0]),
            (PUT, &[0, 0], &[0]),
            (DELETE, &[0], &[0]),
            (DELETE + 2, &[0, 0, 0], &[0]),
        ] {
            let start = 4096;
            let end = start + terrapin_wal::RECORD_HEADER_BYTES + payload.len() as u64;
            let lsns: Vec<u64> = Operations::decode(kind, payload)
                .unwrap()
                .map(|operation| operation.unwrap().lsn(&(Lsn(start)..Lsn(end))).0)
                .collect();
            let expected: Vec<u64> = offsets.iter().map(|offset| start + offset).collect();
            assert_eq!(lsns, expected);
            assert!(lsns.iter().all(|lsn| (start..end).contains(lsn)));
        }
    }

    #[test]
    fn kinds_of_operations_are_read_or_refused_by_name() {
        let refused = |kind: u8, payload: &[u8]| {
            let mut operations = Operations::decode(kind, payload).unwrap();
            let error = operations.next().unwrap().err();
            // An iterator that went on behind the operation would skip it.
            assert!(error.is_none() || operations.next().is_none());
            error.map(|error| (error.kind(), error.to_string()))
        };
        for kind in 0..=u8::MAX {
            let number = kind & !DEADLINE;
            let in_batch = refused(BATCH, &[kind, 0, 0, 0]);
            if number < SINGLE_KINDS {
                // The record's kind takes the place of the operation's.
                let alone = refused(RECORD_KIND_USER_MIN + kind, &[0, 0, 0]);
                assert_eq!(alone, in_batch, "{kind}");
            }
            match (OPERATIONS.get(usize::from(number)), in_batch) {
                (Some(&"put"), None) => {}
                (Some(&"put"), Some((ErrorKind::Corrupt, text))) => {
                    assert!(kind != number && text.contains("ends too early"), "{text}");
                }
                (Some(&"put large"), Some((ErrorKind::Corrupt, _))) => {}
                (Some(&("delete" | "merge" | "delete range")), None) => {
                    assert_eq!(kind, number)
                }
                (Some(name), Some((ErrorKind::NewerFormat, text))) => {
                    assert!(text.contains(&format!("operation kind {name}")), "{text}");
                    let has_deadline = text.contains(&format!("{name} with a deadline"));
                    assert_eq!(has_deadline, kind != number, "{text}");
                }
                (None, Some((ErrorKind::Corrupt, text))) => {
                    assert!(text.contains(&format!("kind {kind}")), "{text}");
                }
                (_, other) => panic!("kind {kind}: {other:?}"),
            }
        }
        // Kinds between those of one operation and the others, and above them, are no operations.
        for kind in (BATCH + 1..0x90).chain(0xa0..=0xff) {
            assert!(Operations::decode(kind, &[]).is_none(), "{kind}");
        }
    }

    #[test]
    fn keyspace_records_round_trip_and_hostile_bytes_are_refused() {
        let options = KeyspaceOptions::new()
            .checkpoint_distance(CheckpointDistance::Fixed(7))
            .filter_bits(20);
        let decode = |kind, payload: &[u8]| Schema::decode(kind, payload, &|_| None);
        for change in [
            Schema::Create {
                id: KeyspaceId(3),
                name: "größe".into(),
                options: options.structure(StructureId::IN_PLACE),
            },
            Schema::Drop(KeyspaceId(1)),
            Schema::Clear(KeyspaceId(70_000)),
            Schema::SetOptions(KeyspaceId(2), KeyspaceOptions::default()),
            Schema::SetOptions(KeyspaceId(0), options),
        ] {
            let (kind, payload) = change.encode();
            assert_eq!(decode(kind, &payload).unwrap(), change);
            assert!((0..payload.len()).all(|n| decode(kind, &payload[..n]).is_err()));
        }
        let unknown = [70, 1, 99, 0];
        for (name, named) in [(None, "number 70"), (Some("birds"), "birds")] {
            let refused = Schema::decode(OPTIONS, &unknown, &|_| name.map(Into::into));
            let text = refused.unwrap_err().to_string();
            let wanted = format!("option tag 99 of keyspace {named}: made by a newer Terrapin");
            assert!(text.contains(&wanted), "{text}");
        }
        let mut state = 1u64;
        for length in 0..200usize {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            for kind in 0..=255 {
                let _ = decode(kind, &bytes);
                if let Some(operations) = Operations::decode(kind, &bytes) {
                    assert!(operations.count() <= length.max(1));
                }
            }
        }
    }
}
