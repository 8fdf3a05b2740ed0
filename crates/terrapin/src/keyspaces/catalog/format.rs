//! Bytes of the catalog: a root page that names the leaf pages, each with up to 64 keyspaces of
//! neighbouring numbers.
//!
//! ```text
//! root      applied LSN: u64, next keyspace number: u32, leaves: varint, then per leaf: number: varint, page reference
//! leaf      keyspaces: varint, then per keyspace:
//! keyspace  number: varint, structure: varint, options (as in log records), applied: varint (0: as far as the catalog,
//!           else LSN + 1), name: varint length and UTF-8, root: varint length and what the structure makes of it
//! ```
//!
//! This file checks bounds, order of numbers, and names. Reading a page checks that it is where its
//! reference says. The walk at open checks that no space has two owners (D4).

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{KeyspaceId, Lsn, Result};
use terrapin_pages::PageRef;

use crate::log_record::format::{
    check_name, put_options, put_structure, read_id, read_options, read_structure,
};
use crate::types::options::KeyspaceOptions;

/// Number of keyspaces with neighbouring numbers for which a leaf page has room.
pub(crate) const LEAF_KEYSPACES: u32 = 64;

/// The content of the root page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootPage {
    /// The catalog holds changes of the set of keyspaces below this LSN. Keyspaces without an
    /// applied LSN of their own are applied up to it.
    pub applied: Lsn,
    /// The next keyspace's number.
    pub next_id: u32,
    /// Leaf pages by number (keyspace number / 64), ascending.
    pub leaves: Vec<(u32, PageRef)>,
}

impl RootPage {
    /// Encodes the content of the page.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 + self.leaves.len() * (PageRef::BYTES + 5));
        out.extend_from_slice(&self.applied.0.to_le_bytes());
        out.extend_from_slice(&self.next_id.to_le_bytes());
        put_varint(&mut out, self.leaves.len() as u64);
        for (number, page) in &self.leaves {
            put_varint(&mut out, u64::from(*number));
            page.encode(&mut out);
        }
        out
    }

    /// Decodes the content of a page.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("catalog root", bytes);
        let applied = Lsn(reader.u64()?);
        let next_id = reader.u32()?;
        let count = reader.varint()?;
        let mut leaves: Vec<(u32, PageRef)> = Vec::new();
        for _ in 0..count {
            let number = u32::try_from(reader.varint()?)
                .map_err(|_| reader.corrupt("leaf number too large"))?;
            if leaves.last().is_some_and(|(last, _)| *last >= number) {
                return Err(reader.corrupt("the leaves are out of order"));
            }
            leaves.push((number, PageRef::decode(&mut reader)?));
        }
        if reader.remaining() > 0 {
            return Err(reader.corrupt("there are bytes after the last leaf"));
        }
        Ok(RootPage {
            applied,
            next_id,
            leaves,
        })
    }
}

/// The catalog's entry for one keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The keyspace's number.
    pub id: KeyspaceId,
    /// The keyspace's name.
    pub name: Box<str>,
    /// The keyspace's options.
    pub options: KeyspaceOptions,
    /// Every record below this LSN is in the tree. None: the catalog's own applied LSN counts.
    pub applied: Option<Lsn>,
    /// The tree's root.
    pub root: Vec<u8>,
}

/// Encodes the content of a leaf page.
pub(crate) fn encode_leaf(keyspaces: &[Stored]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, keyspaces.len() as u64);
    for keyspace in keyspaces {
        put_varint(&mut out, u64::from(keyspace.id.0));
        put_structure(&mut out, keyspace.options.structure);
        put_options(&mut out, &keyspace.options);
        put_varint(&mut out, keyspace.applied.map_or(0, |lsn| lsn.0 + 1));
        put_prefixed(&mut out, keyspace.name.as_bytes());
        put_prefixed(&mut out, &keyspace.root);
    }
    out
}

/// Decodes the keyspaces of leaf page `number`.
pub(crate) fn decode_leaf(number: u32, bytes: &[u8]) -> Result<Vec<Stored>> {
    let mut reader = Reader::new("catalog leaf", bytes);
    let count = reader.varint()?;
    if count == 0 || count > u64::from(LEAF_KEYSPACES) {
        return Err(reader.corrupt("the number of keyspaces is out of bounds"));
    }
    let mut keyspaces: Vec<Stored> = Vec::new();
    for _ in 0..count {
        let id = read_id(&mut reader)?;
        let ordered = keyspaces.last().is_none_or(|last| last.id < id);
        if id.0 / LEAF_KEYSPACES != number || !ordered {
            return Err(reader.corrupt("the keyspaces are out of order or in the wrong leaf"));
        }
        let structure = read_structure(&mut reader)?;
        let options = read_options(&mut reader)?.structure(structure);
        let applied = reader.varint()?.checked_sub(1).map(Lsn);
        let name = std::str::from_utf8(reader.prefixed()?)
            .map_err(|_| reader.corrupt("the keyspace's name is not UTF-8"))?;
        check_name(name).map_err(|_| reader.corrupt("impossible keyspace name"))?;
        let root = reader.prefixed()?.to_vec();
        keyspaces.push(Stored {
            id,
            name: name.into(),
            options,
            applied,
            root,
        });
    }
    if reader.remaining() > 0 {
        return Err(reader.corrupt("there are bytes after the last keyspace"));
    }
    Ok(keyspaces)
}

#[cfg(test)]
mod tests {
    use terrapin_base::PageId;
    use terrapin_structure::StructureId;

    use super::*;
    use crate::types::options::CheckpointDistance;

    fn stored(id: u32) -> Stored {
        Stored {
            id: KeyspaceId(id),
            name: format!("name {id}").into(),
            options: KeyspaceOptions::new()
                .checkpoint_distance(CheckpointDistance::Fixed(id + 1))
                .structure(StructureId(id as u8)),
            applied: id.is_multiple_of(2).then_some(Lsn(u64::from(id) << 20)),
            root: vec![7; id as usize % 50],
        }
    }

    #[test]
    fn pages_round_trip_and_every_truncation_is_refused() {
        let all: Vec<_> = (64..128).map(stored).collect();
        let bytes = encode_leaf(&all);
        assert_eq!(decode_leaf(1, &bytes).unwrap(), all);
        assert!(decode_leaf(2, &bytes).is_err());
        assert!((0..bytes.len()).all(|n| decode_leaf(1, &bytes[..n]).is_err()));
        assert!(decode_leaf(1, &encode_leaf(&[stored(65), stored(64)])).is_err());
        let page = PageRef {
            id: PageId(9),
            offset: 8192,
            bytes: 512,
        };
        let root = RootPage {
            applied: Lsn(77),
            next_id: 128,
            leaves: vec![(0, page), (1, page)],
        };
        let bytes = root.encode();
        assert_eq!(RootPage::decode(&bytes).unwrap(), root);
        assert!((0..bytes.len()).all(|n| RootPage::decode(&bytes[..n]).is_err()));
        let backwards = RootPage {
            leaves: vec![(1, page), (1, page)],
            ..root
        };
        assert!(RootPage::decode(&backwards.encode()).is_err());
    }

    #[test]
    fn the_bytes_of_a_leaf_match_the_format_document() {
        let keyspace = Stored {
            id: KeyspaceId(1),
            name: "kv".into(),
            options: KeyspaceOptions::new().checkpoint_distance(CheckpointDistance::Fixed(16)),
            applied: Some(Lsn(4096)),
            root: vec![0xaa, 0xbb],
        };
        // one keyspace | number 1, structure 0, χ 16 + 1, LSN 4096 + 1 | "kv" | root
        assert_eq!(
            encode_leaf(&[keyspace]),
            [1, 1, 0, 17, 0x81, 0x20, 2, b'k', b'v', 2, 0xaa, 0xbb]
        );
    }
}
