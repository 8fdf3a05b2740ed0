//! The bytes of a root and of the list of page groups.
//!
//! ```text
//! root  magic: u8 = 0xf1, kind: u8 (0 empty, 1 with a list); with a list: page reference,
//!       groups: varint, records: varint, key and value bytes: varint
//! list  (a page of kind "node") per group: group reference, first key and last key, each with its
//!       length as a varint in front
//! ```

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, Result};
use terrapin_pages::PageRef;
use terrapin_pages::group::{Deadlines, GroupRef};

/// First byte of every root. No other structure's root begins with it.
const MAGIC: u8 = 0xf1;

/// The root of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// No records.
    Empty,
    /// The list of page groups.
    List(ListRef),
}

/// Where the list is, and what it holds in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListRef {
    pub(crate) page: PageRef,
    pub(crate) groups: u64,
    pub(crate) records: u64,
    /// Key and value bytes.
    pub(crate) bytes: u64,
}

impl Root {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![MAGIC];
        match self {
            Root::Empty => out.push(0),
            Root::List(list) => {
                out.push(1);
                list.page.encode(&mut out);
                for value in [list.groups, list.records, list.bytes] {
                    put_varint(&mut out, value);
                }
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Root> {
        let mut reader = Reader::new("plain root", bytes);
        if reader.u8()? != MAGIC {
            return Err(reader.corrupt("the root of another structure"));
        }
        let root = match reader.u8()? {
            0 => Root::Empty,
            1 => Root::List(ListRef {
                page: PageRef::decode(&mut reader)?,
                groups: reader.varint()?,
                records: reader.varint()?,
                bytes: reader.varint()?,
            }),
            _ => return Err(reader.corrupt("unknown kind of root")),
        };
        match reader.remaining() {
            0 => Ok(root),
            _ => Err(reader.corrupt("bytes behind the root")),
        }
    }
}

/// A page group of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) group: GroupRef,
    pub(crate) first_key: Vec<u8>,
    pub(crate) last_key: Vec<u8>,
}

/// The page groups of a version, in key order: at least one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) groups: Vec<Listed>,
}

impl List {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for listed in &self.groups {
            listed.group.encode(&Deadlines::default(), &mut out);
            put_prefixed(&mut out, &listed.first_key);
            put_prefixed(&mut out, &listed.last_key);
        }
        out
    }

    /// Decodes the list to which `root` refers. What it allocates is bounded by the bytes' length.
    pub(crate) fn decode(bytes: &[u8], root: &ListRef) -> Result<List> {
        let mut reader = Reader::new("plain list", bytes);
        let mut groups: Vec<Listed> = Vec::new();
        let (mut records, mut bytes) = (0u64, 0u64);
        while reader.remaining() > 0 {
            // This structure writes none.
            let (group, _) = GroupRef::decode(&mut reader)?;
            let listed = Listed {
                group,
                first_key: key(&mut reader)?,
                last_key: key(&mut reader)?,
            };
            let group = &listed.group;
            if group.tombstones > 0 || group.hidden_bytes > 0 {
                return Err(reader.corrupt("a group with tombstones"));
            }
            let ascends = match group.records {
                1 => listed.first_key == listed.last_key,
                _ => listed.first_key < listed.last_key,
            };
            let follows = |before: &Listed| before.last_key < listed.first_key;
            if !ascends || !groups.last().is_none_or(follows) {
                return Err(reader.corrupt("keys of groups do not ascend"));
            }
            records = records.saturating_add(group.records);
            bytes = bytes.saturating_add(group.logical_bytes);
            groups.push(listed);
        }
        if (groups.len() as u64, records, bytes) != (root.groups, root.records, root.bytes) {
            return Err(reader.corrupt("root and list contradict each other"));
        }
        match groups.is_empty() {
            true => Err(reader.corrupt("no groups")),
            false => Ok(List { groups }),
        }
    }

    /// What a root says of the list on `page`.
    pub(crate) fn referred(&self, page: PageRef) -> ListRef {
        let groups = || self.groups.iter().map(|listed| &listed.group);
        ListRef {
            page,
            groups: self.groups.len() as u64,
            records: groups().map(|group| group.records).sum(),
            bytes: groups().map(|group| group.logical_bytes).sum(),
        }
    }

    /// Bytes of memory that the list takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let keys = |listed: &Listed| listed.first_key.capacity() + listed.last_key.capacity();
        self.groups.capacity() * size_of::<Listed>() + self.groups.iter().map(keys).sum::<usize>()
    }
}

fn key(reader: &mut Reader<'_>) -> Result<Vec<u8>> {
    let key = reader.prefixed()?;
    match key.len() {
        0..=KEY_BYTES_MAX => Ok(key.to_vec()),
        bytes => Err(Error::corrupt("a key of impossible length").with("bytes", bytes)),
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::{ErrorKind, Incarnation, PageId};

    use super::*;

    fn list() -> (List, ListRef) {
        let group = |number: u64, records| GroupRef {
            id: PageId::new(Incarnation(1), number),
            offset: 8192 * number,
            bytes: 4096,
            index_offset: 1024,
            index_bytes: 512,
            filter_offset: 1536,
            filter_bytes: 0,
            records,
            tombstones: 0,
            logical_bytes: records * 10,
            hidden_bytes: 0,
            record_bytes_max: 10,
            separated_bytes: 0,
        };
        let listed = |number, records, first: &[u8], last: &[u8]| Listed {
            group: group(number, records),
            first_key: first.to_vec(),
            last_key: last.to_vec(),
        };
        let groups = vec![
            listed(1, 1, b"", b""),
            listed(2, 20, b"a", b"m"),
            listed(3, 9, b"n", b"z"),
        ];
        let page = PageRef {
            id: PageId::new(Incarnation(1), 9),
            offset: 1 << 20,
            bytes: 512,
        };
        let list = List { groups };
        let root = list.referred(page);
        (list, root)
    }

    #[test]
    fn roots_and_lists_come_back() {
        let (list, root) = list();
        assert_eq!((root.groups, root.records, root.bytes), (3, 30, 300));
        for root in [Root::Empty, Root::List(root)] {
            assert_eq!(Root::decode(&root.encode()).unwrap(), root);
        }
        assert_eq!(List::decode(&list.encode(), &root).unwrap(), list);
    }

    #[test]
    fn any_other_bytes_are_corrupt_and_no_panic() {
        let (list, root) = list();
        let is_corrupt = |kind| kind == ErrorKind::Corrupt;
        let bytes = list.encode();
        for at in 0..bytes.len() {
            assert!(List::decode(&bytes[..at], &root).is_err_and(|e| is_corrupt(e.kind())));
            for bit in 0..8 {
                let mut hostile = bytes.clone();
                hostile[at] ^= 1 << bit;
                // A place or a name has no second copy in the list: `verify` finds these.
                if let Err(error) = List::decode(&hostile, &root) {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                }
            }
        }
        assert!(
            List::decode(
                &[],
                &ListRef {
                    groups: 0,
                    records: 0,
                    bytes: 0,
                    ..root
                }
            )
            .is_err()
        );
        let mut turned = list.groups.clone();
        turned.swap(1, 2);
        assert!(List::decode(&List { groups: turned }.encode(), &root).is_err());
        let bytes = Root::List(root).encode();
        for at in 0..bytes.len() {
            assert!(Root::decode(&bytes[..at]).is_err_and(|e| is_corrupt(e.kind())));
        }
        assert!(Root::decode(&[&bytes[..], &[0]].concat()).is_err());
        for foreign in [&[0u8][..], &[1, 0], &[MAGIC, 2], &[MAGIC]] {
            assert!(Root::decode(foreign).is_err_and(|e| is_corrupt(e.kind())));
        }
    }
}
