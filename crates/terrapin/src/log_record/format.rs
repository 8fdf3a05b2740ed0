//! Bytes of the engine's log records. The log's own header holds kind, length and checksum. The
//! payload depends on the kind:
//!
//! ```text
//! PUT      keyspace: varint, key length: varint, key, value (the rest)
//! DELETE   keyspace: varint, key (the rest)
//! BATCH    operations: (keyspace << 1 | is put): varint, key length: varint, key, then for a put value length: varint, value
//! UNLOGGED nothing: the writes of this LSN are in a memtable only
//! CREATE   keyspace: varint, structure: varint, options, name (the rest, UTF-8)
//! DROP     keyspace: varint
//! CLEAR    keyspace: varint
//! OPTIONS  keyspace: varint, options
//! options  χ: varint (0 the database's, 1 auto, n + 1 for n)
//! ```
//!
//! One record is one atomic batch (D7). This file checks everything that a payload holds: kinds,
//! lengths, and the limits of keys and values.

use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, KeyspaceId, Message, Result, VALUE_BYTES_MAX};
use terrapin_structure::StructureId;
use terrapin_wal::RECORD_KIND_USER_MIN;

use crate::types::options::{CheckpointDistance, KeyspaceOptions};

/// One put.
pub(crate) const PUT: u8 = RECORD_KIND_USER_MIN;
/// One delete.
pub(crate) const DELETE: u8 = RECORD_KIND_USER_MIN + 1;
/// Any number of puts and deletes.
pub(crate) const BATCH: u8 = RECORD_KIND_USER_MIN + 2;
/// Stands for writes that only a memtable holds.
pub(crate) const UNLOGGED: u8 = RECORD_KIND_USER_MIN + 3;
const CREATE: u8 = RECORD_KIND_USER_MIN + 4;
const DROP: u8 = RECORD_KIND_USER_MIN + 5;
/// A clear. Its append installs the emptied keyspace.
pub(crate) const CLEAR: u8 = RECORD_KIND_USER_MIN + 6;
const OPTIONS: u8 = RECORD_KIND_USER_MIN + 7;

/// The longest name of a keyspace, in bytes.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 255;

/// The head of a single PUT or DELETE payload, built on the stack.
pub(crate) struct Head {
    bytes: [u8; 8],
    count: usize,
}

impl Head {
    /// The head for a put whose key has `key_bytes` bytes.
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
    let (is_put, value) = match message {
        Message::Put(value) => (true, Some(value)),
        Message::Delete => (false, None),
    };
    put_varint(out, u64::from(keyspace.0) << 1 | u64::from(is_put));
    put_varint(out, key.len() as u64);
    out.extend_from_slice(key);
    if let Some(value) = value {
        put_varint(out, value.len() as u64);
        out.extend_from_slice(value);
    }
}

/// One operation of a record.
pub(crate) struct Operation<'a> {
    /// The operation's keyspace.
    pub keyspace: KeyspaceId,
    /// The operation's key.
    pub key: &'a [u8],
    /// The put or delete.
    pub message: Message<'a>,
}

/// An iterator over the operations of a record, in their order.
pub(crate) struct Operations<'a> {
    kind: u8,
    reader: Reader<'a>,
    done: bool,
}

impl<'a> Operations<'a> {
    /// Decodes a payload. None if records of this kind hold no operations.
    pub fn decode(kind: u8, payload: &'a [u8]) -> Option<Self> {
        let reader = Reader::new("operation record", payload);
        matches!(kind, PUT | DELETE | BATCH).then_some(Operations {
            kind,
            reader,
            done: false,
        })
    }

    fn one(&mut self) -> Result<Operation<'a>> {
        let reader = &mut self.reader;
        let (keyspace, is_put) = match self.kind {
            BATCH => {
                let tag = reader.varint()?;
                (tag >> 1, tag & 1 == 1)
            }
            kind => (reader.varint()?, kind == PUT),
        };
        let keyspace = u32::try_from(keyspace)
            .map_err(|_| reader.corrupt("the keyspace number is too large"))?;
        let key = if self.kind == DELETE {
            reader.bytes(reader.remaining())?
        } else {
            reader.prefixed()?
        };
        let message = match (is_put, self.kind) {
            (false, _) => Message::Delete,
            (true, BATCH) => Message::Put(reader.prefixed()?),
            (true, _) => Message::Put(reader.bytes(reader.remaining())?),
        };
        if key.len() > KEY_BYTES_MAX || message.value_bytes() > VALUE_BYTES_MAX {
            return Err(reader.corrupt("a key or value exceeds the limit"));
        }
        Ok(Operation {
            keyspace: KeyspaceId(keyspace),
            key,
            message,
        })
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || (self.kind == BATCH && self.reader.remaining() == 0) {
            return None;
        }
        let item = self.one();
        self.done = self.kind != BATCH || item.is_err();
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

/// Appends the number of a keyspace's structure. The catalog uses the same bytes.
pub(crate) fn put_structure(out: &mut Vec<u8>, structure: StructureId) {
    put_varint(out, u64::from(structure.0));
}

/// Reads the number of a keyspace's structure. Whether this build has the structure is checked when
/// the keyspace is opened.
pub(crate) fn read_structure(reader: &mut Reader<'_>) -> Result<StructureId> {
    let number = u8::try_from(reader.varint()?);
    let number = number.map_err(|_| reader.corrupt("the structure's number is too large"))?;
    Ok(StructureId(number))
}

/// Appends a keyspace's options, except its structure. The catalog uses the same bytes.
pub(crate) fn put_options(out: &mut Vec<u8>, options: &KeyspaceOptions) {
    put_varint(
        out,
        match options.checkpoint_distance {
            None => 0,
            Some(CheckpointDistance::Auto) => 1,
            Some(CheckpointDistance::Fixed(chi)) => u64::from(chi) + 1,
        },
    );
}

/// Reads options that [`put_options`] wrote.
pub(crate) fn read_options(reader: &mut Reader<'_>) -> Result<KeyspaceOptions> {
    let checkpoint_distance = match reader.varint()? {
        0 => None,
        1 => Some(CheckpointDistance::Auto),
        n => Some(CheckpointDistance::Fixed(u32::try_from(n - 1).map_err(
            |_| reader.corrupt("the checkpoint distance is too large"),
        )?)),
    };
    Ok(KeyspaceOptions::new().checkpoint_distance(checkpoint_distance))
}

/// Reads a keyspace's number.
pub(crate) fn read_id(reader: &mut Reader<'_>) -> Result<KeyspaceId> {
    Ok(KeyspaceId(u32::try_from(reader.varint()?).map_err(
        |_| reader.corrupt("the keyspace number is too large"),
    )?))
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
                put_structure(&mut out, options.structure);
                put_options(&mut out, options);
                out.extend_from_slice(name.as_bytes());
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

    /// Decodes a record. Fails for kinds that this version does not know.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Schema> {
        let mut reader = Reader::new("keyspace record", payload);
        if !matches!(kind, CREATE | DROP | CLEAR | OPTIONS) {
            return Err(reader
                .corrupt("the kind of record is unknown")
                .with("kind", kind));
        }
        let id = read_id(&mut reader)?;
        let change = match kind {
            CREATE => {
                let structure = read_structure(&mut reader)?;
                let options = read_options(&mut reader)?.structure(structure);
                let name = std::str::from_utf8(reader.bytes(reader.remaining())?)
                    .map_err(|_| reader.corrupt("the keyspace's name is not UTF-8"))?;
                check_name(name).map_err(|_| reader.corrupt("impossible keyspace name"))?;
                Schema::Create {
                    id,
                    name: name.into(),
                    options,
                }
            }
            DROP => Schema::Drop(id),
            CLEAR => Schema::Clear(id),
            _ => Schema::SetOptions(id, read_options(&mut reader)?),
        };
        if reader.remaining() > 0 {
            return Err(reader.corrupt("there are bytes after the record"));
        }
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!((all[0].keyspace, all[0].key), (id, &key[..]));
            assert!(matches!(all[0].message, Message::Put(b"value")));
        }
        let head = Head::delete(KeyspaceId(7));
        let delete: Vec<_> = Operations::decode(DELETE, head.bytes()).unwrap().collect();
        assert!(matches!(
            delete[0].as_ref().unwrap(),
            Operation {
                keyspace: KeyspaceId(7),
                key: b"",
                message: Message::Delete
            }
        ));
    }

    #[test]
    fn keyspace_records_round_trip_and_hostile_bytes_are_refused() {
        let options = KeyspaceOptions::new().checkpoint_distance(CheckpointDistance::Fixed(7));
        for change in [
            Schema::Create {
                id: KeyspaceId(3),
                name: "größe".into(),
                options: options.structure(StructureId::IN_PLACE),
            },
            Schema::Drop(KeyspaceId(1)),
            Schema::Clear(KeyspaceId(70_000)),
            Schema::SetOptions(KeyspaceId(2), KeyspaceOptions::default()),
        ] {
            let (kind, payload) = change.encode();
            assert_eq!(Schema::decode(kind, &payload).unwrap(), change);
            for seal in 0..payload.len() {
                if let Ok(other) = Schema::decode(kind, &payload[..seal]) {
                    assert!(
                        matches!(other, Schema::Create { .. }),
                        "only a name can be cut short: {other:?}"
                    );
                }
            }
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
                let _ = Schema::decode(kind, &bytes);
                if let Some(operations) = Operations::decode(kind, &bytes) {
                    assert!(operations.count() <= length.max(1));
                }
            }
        }
    }
}
