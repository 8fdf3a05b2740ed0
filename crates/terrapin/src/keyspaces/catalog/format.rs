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
//! Checked here: bounds, order of numbers, names; that pages lie where they say is checked by
//! reading them, and that no two own the same space by the walk at open (D4).

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{KeyspaceId, Lsn, Result};
use terrapin_pages::PageRef;

use crate::log_record::format::{
    STRUCTURE_LEVELED, check_name, put_options, read_id, read_options,
};
use crate::types::options::KeyspaceOptions;

/// Keyspaces of neighbouring numbers that a leaf page has room for.
pub(crate) const LEAF_KEYSPACES: u32 = 64;

/// What the root page says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootPage {
    /// Changes of the set of keyspaces below this LSN are in the catalog, and keyspaces without an
    /// LSN of their own are applied up to it.
    pub applied: Lsn,
    /// The next keyspace's number.
    pub next_id: u32,
    /// Leaf pages by number (keyspace number / 64), ascending.
    pub leaves: Vec<(u32, PageRef)>,
}

impl RootPage {
    /// Its content.
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

    /// Of a page's content.
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
                return Err(reader.corrupt("leaves out of order"));
            }
            leaves.push((number, PageRef::decode(&mut reader)?));
        }
        if reader.remaining() > 0 {
            return Err(reader.corrupt("bytes behind the last leaf"));
        }
        Ok(RootPage {
            applied,
            next_id,
            leaves,
        })
    }
}

/// What the catalog says of one keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Its number.
    pub id: KeyspaceId,
    /// Its name.
    pub name: Box<str>,
    /// Its options.
    pub options: KeyspaceOptions,
    /// Every record below is in the tree; none: as far as the catalog itself.
    pub applied: Option<Lsn>,
    /// The tree's root.
    pub root: Vec<u8>,
}

/// Content of a leaf page.
pub(crate) fn encode_leaf(keyspaces: &[Stored]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, keyspaces.len() as u64);
    for keyspace in keyspaces {
        put_varint(&mut out, u64::from(keyspace.id.0));
        put_varint(&mut out, STRUCTURE_LEVELED);
        put_options(&mut out, &keyspace.options);
        put_varint(&mut out, keyspace.applied.map_or(0, |lsn| lsn.0 + 1));
        put_prefixed(&mut out, keyspace.name.as_bytes());
        put_prefixed(&mut out, &keyspace.root);
    }
    out
}

/// The keyspaces of leaf page `number`.
pub(crate) fn decode_leaf(number: u32, bytes: &[u8]) -> Result<Vec<Stored>> {
    let mut reader = Reader::new("catalog leaf", bytes);
    let count = reader.varint()?;
    if count == 0 || count > u64::from(LEAF_KEYSPACES) {
        return Err(reader.corrupt("impossible number of keyspaces"));
    }
    let mut keyspaces: Vec<Stored> = Vec::new();
    for _ in 0..count {
        let id = read_id(&mut reader)?;
        let ordered = keyspaces.last().is_none_or(|last| last.id < id);
        if id.0 / LEAF_KEYSPACES != number || !ordered {
            return Err(reader.corrupt("keyspaces out of order or in the wrong leaf"));
        }
        if reader.varint()? != STRUCTURE_LEVELED {
            return Err(reader.corrupt("unknown structure"));
        }
        let options = read_options(&mut reader)?;
        let applied = reader.varint()?.checked_sub(1).map(Lsn);
        let name = std::str::from_utf8(reader.prefixed()?)
            .map_err(|_| reader.corrupt("keyspace name is not UTF-8"))?;
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
        return Err(reader.corrupt("bytes behind the last keyspace"));
    }
    Ok(keyspaces)
}

#[cfg(test)]
mod tests {
    use terrapin_base::PageId;

    use super::*;
    use crate::types::options::CheckpointDistance;

    fn stored(id: u32) -> Stored {
        Stored {
            id: KeyspaceId(id),
            name: format!("name {id}").into(),
            options: KeyspaceOptions {
                checkpoint_distance: Some(CheckpointDistance::Fixed(id + 1)),
            },
            applied: id.is_multiple_of(2).then_some(Lsn(u64::from(id) << 20)),
            root: vec![7; id as usize % 50],
        }
    }

    #[test]
    fn pages_round_trip_and_every_shorter_prefix_is_refused() {
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
    fn bytes_of_a_leaf_are_what_the_format_document_shows() {
        let keyspace = Stored {
            id: KeyspaceId(1),
            name: "kv".into(),
            options: KeyspaceOptions {
                checkpoint_distance: Some(CheckpointDistance::Fixed(16)),
            },
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
