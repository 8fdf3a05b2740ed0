//! Bytes of the catalog: a root page that names the leaf pages, each with up to 64 keyspaces of
//! neighbouring numbers.
//!
//! ```text
//! root      applied LSN: u64, through: u64, next keyspace number: u32,
//!           leaves: varint, then per leaf: number: varint, page reference;
//!           lives: varint, then per life: incarnation: varint, branch: u64;
//!           further fields: varint
//! leaf      keyspaces: varint, then per keyspace:
//! keyspace  number: varint, name: prefixed UTF-8, options (as in log records),
//!           applied: varint (0: as far as the catalog, else LSN + 1),
//!           root: varint length and what the structure makes of it
//! ```
//!
//! A further field has a tag, as an option has. This version writes two and refuses others: 3, last
//! now (varint, milliseconds since 1970), in a database that ever had a deadline; 4, groups of the
//! reserve (varint), in a database that ever had a keyspace that needs more than
//! [`RESERVE_GROUPS_MIN`].
//!
//! This file checks bounds, order of numbers, and names. Reading a page checks that it is where its
//! reference says. The walk at open checks that no space has two owners (D4).

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::expiry::DEADLINE_MS_MAX;
use terrapin_base::{Error, ErrorKind, Incarnation, KeyspaceId, Lsn, Result};
use terrapin_pages::PageRef;

use crate::log_record::format::{read_id, read_name};
use crate::types::options::KeyspaceOptions;
use crate::types::options::format::{put_options, read_options};
use crate::types::options::settings::RESERVE_GROUPS_MIN;

/// Number of keyspaces with neighbouring numbers for which a leaf page has room.
pub(crate) const LEAF_KEYSPACES: u32 = 64;

/// The most lives that the root lists. A root of a few keyspaces then takes 512 bytes.
pub(crate) const LIVES_MAX: usize = 32;

/// Tags of further fields of the root that this version does not know.
const LATER: [(u64, &str); 2] = [(1, "next birth"), (2, "dead list")];
/// The tag of [`RootPage::last_now_ms`].
const LAST_NOW: u64 = 3;
/// The tag of [`RootPage::reserve_groups`].
const RESERVE_GROUPS: u64 = 4;
/// The most page groups of a reserve that an open believes.
const RESERVE_GROUPS_MAX: u64 = 4096;

/// A life of the database: the time between an open for writing and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// The incarnation of its log. Ids of its pages begin with it.
    pub incarnation: Incarnation,
    /// The random number that no other copy of the database drew for its life.
    pub branch: u64,
}

/// The content of the root page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootPage {
    /// The catalog holds changes of the set of keyspaces below this LSN. Keyspaces without an
    /// applied LSN of their own are applied up to it.
    pub applied: Lsn,
    /// The log was synced below this LSN before a superblock named the catalog.
    pub through: Lsn,
    /// The next keyspace's number.
    pub next_id: u32,
    /// Leaf pages by number (keyspace number / 64), ascending.
    pub leaves: Vec<(u32, PageRef)>,
    /// The last lives that committed a catalog, ascending. The last one wrote this page.
    pub lives: Vec<Life>,
    /// The last now, in milliseconds since 1970; 0 if no record ever had a deadline.
    pub last_now_ms: u64,
    /// The most page groups that a keyspace's structure ever needed in the reserve. A tree keeps
    /// wide pivots after its keyspace changed to a structure that needs fewer.
    pub reserve_groups: u64,
}

impl RootPage {
    /// Encodes the content of the page.
    pub fn encode(&self) -> Vec<u8> {
        let leaves = self.leaves.len() * (PageRef::BYTES + 5);
        let mut out = Vec::with_capacity(40 + leaves + self.lives.len() * 13);
        out.extend_from_slice(&self.applied.0.to_le_bytes());
        out.extend_from_slice(&self.through.0.to_le_bytes());
        out.extend_from_slice(&self.next_id.to_le_bytes());
        put_varint(&mut out, self.leaves.len() as u64);
        for (number, page) in &self.leaves {
            put_varint(&mut out, u64::from(*number));
            page.encode(&mut out);
        }
        put_varint(&mut out, self.lives.len() as u64);
        for life in &self.lives {
            put_varint(&mut out, u64::from(life.incarnation.0));
            out.extend_from_slice(&life.branch.to_le_bytes());
        }
        let reserve = match self.reserve_groups > RESERVE_GROUPS_MIN {
            true => self.reserve_groups,
            false => 0,
        };
        let further = [(LAST_NOW, self.last_now_ms), (RESERVE_GROUPS, reserve)];
        let further = further.iter().filter(|(_, value)| *value > 0);
        put_varint(&mut out, further.clone().count() as u64);
        for &(tag, value) in further {
            put_varint(&mut out, tag);
            put_varint(&mut out, value);
        }
        out
    }

    /// Decodes the content of a page.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("catalog root", bytes);
        let applied = Lsn(reader.u64()?);
        let through = Lsn(reader.u64()?);
        if through < applied {
            return Err(reader.corrupt("the log was synced through less than what is applied"));
        }
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
        let lives = read_lives(&mut reader)?;
        let mut last_now_ms = 0;
        let mut reserve_groups = RESERVE_GROUPS_MIN;
        for _ in 0..reader.varint()? {
            let tag = reader.varint()?;
            if tag == LAST_NOW && last_now_ms == 0 {
                last_now_ms = reader.varint()?;
                if last_now_ms == 0 || last_now_ms > DEADLINE_MS_MAX {
                    return Err(reader.corrupt("the last now is out of bounds"));
                }
                continue;
            }
            if tag == RESERVE_GROUPS && reserve_groups == RESERVE_GROUPS_MIN {
                reserve_groups = reader.varint()?;
                if !(RESERVE_GROUPS_MIN + 1..=RESERVE_GROUPS_MAX).contains(&reserve_groups) {
                    return Err(reader.corrupt("the reserve's groups are out of bounds"));
                }
                continue;
            }
            let later = LATER.iter().find(|(later, _)| *later == tag);
            let name = later.map_or(String::new(), |(_, name)| format!(" ({name})"));
            let message = format!(
                "field {tag}{name} of the catalog: made by a newer Terrapin, open the database with that version"
            );
            return Err(Error::new(ErrorKind::NewerFormat, message));
        }
        if reader.remaining() > 0 {
            return Err(reader.corrupt("there are bytes after the last field"));
        }
        Ok(RootPage {
            applied,
            through,
            next_id,
            leaves,
            lives,
            last_now_ms,
            reserve_groups,
        })
    }
}

fn read_lives(reader: &mut Reader<'_>) -> Result<Vec<Life>> {
    let count = reader.varint()?;
    if count == 0 || count > LIVES_MAX as u64 {
        return Err(reader.corrupt("the number of lives is out of bounds"));
    }
    let mut lives: Vec<Life> = Vec::new();
    for _ in 0..count {
        let incarnation = u32::try_from(reader.varint()?).map(Incarnation);
        let incarnation = incarnation
            .ok()
            .filter(|incarnation| *incarnation <= Incarnation::MAX)
            .filter(|incarnation| {
                lives
                    .last()
                    .is_none_or(|last| last.incarnation < *incarnation)
            })
            .ok_or_else(|| reader.corrupt("the lives are out of order or out of bounds"))?;
        let branch = reader.u64()?;
        if branch == 0 {
            return Err(reader.corrupt("a life has no branch"));
        }
        lives.push(Life {
            incarnation,
            branch,
        });
    }
    Ok(lives)
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
        put_prefixed(&mut out, keyspace.name.as_bytes());
        put_options(&mut out, &keyspace.options);
        put_varint(&mut out, keyspace.applied.map_or(0, |lsn| lsn.0 + 1));
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
        let name = read_name(&mut reader)?;
        let options = read_options(&mut reader, &name)?;
        let applied = reader.varint()?.checked_sub(1).map(Lsn);
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
                .filter_bits(id.is_multiple_of(3).then_some(8))
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
        let life = |number| Life {
            incarnation: Incarnation(number),
            branch: u64::MAX - u64::from(number),
        };
        let root = RootPage {
            applied: Lsn(77),
            through: Lsn(77),
            next_id: 128,
            leaves: vec![(0, page), (1, page)],
            lives: (3..3 + LIVES_MAX as u32).map(life).collect(),
            last_now_ms: 1_800_000_000_000,
            reserve_groups: 20,
        };
        let bytes = root.encode();
        assert_eq!(RootPage::decode(&bytes).unwrap(), root);
        assert!((0..bytes.len()).all(|n| RootPage::decode(&bytes[..n]).is_err()));
        let refused = |change: &dyn Fn(&mut RootPage)| {
            let mut root = root.clone();
            change(&mut root);
            let error = RootPage::decode(&root.encode()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        };
        refused(&|root| root.leaves = vec![(1, page), (1, page)]);
        refused(&|root| root.through = Lsn(76));
        refused(&|root| root.lives.clear());
        refused(&|root| root.lives.push(life(99)));
        refused(&|root| root.lives = vec![life(4), life(4)]);
        refused(&|root| root.lives = vec![life(1 << 24)]);
        refused(&|root| root.lives[5].branch = 0);
        refused(&|root| root.last_now_ms = DEADLINE_MS_MAX + 1);
        refused(&|root| root.reserve_groups = RESERVE_GROUPS_MAX + 1);
    }

    #[test]
    fn fields_of_a_later_version_are_refused_by_name() {
        let root = RootPage {
            applied: Lsn(1),
            through: Lsn(2),
            next_id: 1,
            leaves: Vec::new(),
            lives: vec![Life {
                incarnation: Incarnation(1),
                branch: 1,
            }],
            last_now_ms: 0,
            reserve_groups: RESERVE_GROUPS_MIN,
        };
        let bytes = root.encode();
        for (field, named) in [
            (&[1, 2, 1, 0][..], "field 2 (dead list) of the catalog"),
            (&[2, 3, 1, 2, 0], "field 2 (dead list) of the catalog"),
            (&[2, 9, 0, 10, 0], "field 9 of the catalog"),
        ] {
            let bytes = [&bytes[..bytes.len() - 1], field].concat();
            let error = RootPage::decode(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NewerFormat);
            assert!(error.to_string().contains(named), "{error}");
        }
        let keyspace = stored(0);
        let mut leaf = encode_leaf(&[keyspace]);
        // The number of keyspaces, the keyspace's number and name, and the number of options.
        let tag = leaf.iter().position(|&byte| byte == b'0').unwrap() + 2;
        leaf[tag] = 77;
        let error = decode_leaf(0, &leaf).unwrap_err().to_string();
        assert!(
            error.contains("option tag 77 of keyspace name 0"),
            "{error}"
        );
    }

    #[test]
    fn the_bytes_of_a_root_match_the_format_document() {
        let root = RootPage {
            applied: Lsn(0x1100),
            through: Lsn(0x1200),
            next_id: 2,
            leaves: vec![(
                0,
                PageRef {
                    id: PageId(0x0300_0000_0009),
                    offset: 8192,
                    bytes: 512,
                },
            )],
            lives: vec![Life {
                incarnation: Incarnation(3),
                branch: 0x2122_2324_2526_2728,
            }],
            reserve_groups: RESERVE_GROUPS_MIN,
            last_now_ms: 0,
        };
        let wanted = [
            &[0x00, 0x11, 0, 0, 0, 0, 0, 0][..], // applied
            &[0x00, 0x12, 0, 0, 0, 0, 0, 0],     // through
            &[2, 0, 0, 0],                       // next keyspace number
            &[1, 0],                             // one leaf, number 0
            &[
                9, 0, 0, 0, 0, 3, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0,
            ], // its page
            &[1, 3, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21], // one life
            &[0],                                // no further fields
        ];
        assert_eq!(root.encode(), wanted.concat());
    }

    #[test]
    fn the_bytes_of_a_leaf_match_the_format_document() {
        let keyspace = Stored {
            id: KeyspaceId(1),
            name: "kv".into(),
            options: KeyspaceOptions::new()
                .checkpoint_distance(CheckpointDistance::Fixed(16))
                .filter_bits(8),
            applied: Some(Lsn(4096)),
            root: vec![0xaa, 0xbb],
        };
        let wanted = [
            &[1, 1, 2, b'k', b'v'][..], // one keyspace: number 1, "kv"
            &[2, 2, 1, 16, 4, 1, 8],    // two options: χ 16, 8 filter bits
            &[0x81, 0x20],              // applied: LSN 4096 + 1
            &[2, 0xaa, 0xbb],           // the root
        ];
        assert_eq!(encode_leaf(&[keyspace]), wanted.concat());
    }
}
