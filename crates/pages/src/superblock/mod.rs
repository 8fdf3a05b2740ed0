//! The superblock, the root of everything durable. Checkpoints write it to two slots. The newest
//! valid slot counts. A checkpoint writes the second slot only after the first is on stable
//! storage, so one damaged slot does no harm (D2).

pub(crate) mod format;

use terrapin_base::{Error, ErrorKind, Generation, Incarnation, Result};
use terrapin_disk::FileIdentity;

use crate::page::PageRef;

/// The format that this code writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 3;
/// Bytes of a slot. Slot `n` starts at `n * SLOT_BYTES`.
pub const SLOT_BYTES: u64 = 4096;
/// The number of slots.
pub const SLOTS: usize = 2;
/// The offset of the first page.
pub const PAGES_START: u64 = SLOT_BYTES * SLOTS as u64;

/// The last generation. One number above it stays unused, so the next generation after any that a
/// slot holds does not overflow.
pub(crate) const GENERATION_MAX: Generation = Generation(u64::MAX - 1);

/// The content of a superblock slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Format of the whole database: [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Random id of the database. Its log has the same id.
    pub database_id: u64,
    /// The checkpoint whose root this is.
    pub generation: Generation,
    /// The life of the log in which this superblock was written.
    pub incarnation: Incarnation,
    /// Bytes that offsets and lengths of pages are multiples of. A power of two from 512 to 4096.
    pub unit: u32,
    /// The catalog's root. `None` before the first checkpoint.
    pub catalog: Option<PageRef>,
    /// Random number of the open for writing that wrote this superblock. 0 before there is a log.
    /// Copies of a database that are written separately have different branches.
    pub branch: u64,
    /// Branch of the log that this life opened. Equal to `branch` once this life has written a
    /// checkpoint. The newest life of the log has one of the two.
    pub log_branch: u64,
    /// The identity of the data file that this superblock was written to.
    pub home: FileIdentity,
    /// Whether the database was closed with this superblock as its last write to the data file.
    pub closed: bool,
}

impl Superblock {
    /// The branches that the newest life of the log may have.
    #[must_use]
    pub fn branches(&self) -> [u64; 2] {
        [self.branch, self.log_branch]
    }
}

/// The content of a slot's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A superblock.
    Valid(Superblock),
    /// A sound superblock of a newer format.
    Newer(u32),
    /// A sound superblock of an older format.
    Older(u32),
    /// A superblock by its first bytes, but damaged.
    Damaged,
    /// Other bytes.
    Foreign,
}

/// The slot that counts, and its number.
pub(crate) fn choose(slots: [Slot; SLOTS]) -> Result<(usize, Superblock)> {
    for slot in slots {
        let (version, kind, message) = match slot {
            Slot::Newer(version) => (
                version,
                ErrorKind::NewerFormat,
                "a newer version of Terrapin wrote this database",
            ),
            Slot::Older(version) => (
                version,
                ErrorKind::Unsupported,
                "an older version of Terrapin wrote this database, in a format that this version does not read: export it with that version, and import it with this one",
            ),
            Slot::Valid(_) | Slot::Damaged | Slot::Foreign => continue,
        };
        return Err(Error::new(kind, message)
            .with("its format", version)
            .with("format read here", FORMAT_VERSION));
    }
    match slots {
        [Slot::Valid(a), Slot::Valid(b)] => {
            if a.database_id != b.database_id
                || a.unit != b.unit
                || (a.generation == b.generation && a != b)
            {
                return Err(Error::corrupt("the superblock slots contradict each other")
                    .with("slot 0", format_args!("{a:?}"))
                    .with("slot 1", format_args!("{b:?}")));
            }
            Ok(if b.generation > a.generation {
                (1, b)
            } else {
                (0, a)
            })
        }
        [Slot::Valid(a), _] => Ok((0, a)),
        [_, Slot::Valid(b)] => Ok((1, b)),
        [Slot::Foreign, Slot::Foreign] => Err(Error::new(
            ErrorKind::NotADatabase,
            "the file holds no Terrapin database",
        )),
        _ => Err(Error::corrupt("both superblock slots are damaged")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sb(generation: u64) -> Superblock {
        Superblock {
            format_version: FORMAT_VERSION,
            database_id: 9,
            generation: Generation(generation),
            incarnation: Incarnation(1),
            unit: 512,
            catalog: None,
            branch: 1,
            log_branch: 1,
            home: FileIdentity::default(),
            closed: false,
        }
    }

    #[test]
    fn the_newest_valid_slot_counts() {
        use Slot::{Damaged, Foreign, Newer, Older, Valid};
        assert_eq!(choose([Valid(sb(4)), Valid(sb(5))]).unwrap(), (1, sb(5)));
        assert_eq!(choose([Valid(sb(5)), Valid(sb(4))]).unwrap(), (0, sb(5)));
        assert_eq!(choose([Valid(sb(5)), Valid(sb(5))]).unwrap(), (0, sb(5)));
        assert_eq!(choose([Damaged, Valid(sb(4))]).unwrap(), (1, sb(4)));
        assert_eq!(choose([Valid(sb(4)), Foreign]).unwrap(), (0, sb(4)));
        let kind = |slots| choose(slots).unwrap_err().kind();
        assert_eq!(kind([Damaged, Damaged]), ErrorKind::Corrupt);
        assert_eq!(kind([Damaged, Foreign]), ErrorKind::Corrupt);
        assert_eq!(kind([Foreign, Foreign]), ErrorKind::NotADatabase);
        assert_eq!(kind([Valid(sb(4)), Newer(9)]), ErrorKind::NewerFormat);
        assert_eq!(kind([Older(1), Older(1)]), ErrorKind::Unsupported);
        assert_eq!(kind([Damaged, Older(1)]), ErrorKind::Unsupported);
        let other = Superblock {
            database_id: 8,
            ..sb(5)
        };
        assert_eq!(kind([Valid(sb(4)), Valid(other)]), ErrorKind::Corrupt);
        let twin = Superblock { branch: 2, ..sb(4) };
        assert_eq!(kind([Valid(sb(4)), Valid(twin)]), ErrorKind::Corrupt);
    }

    #[test]
    fn another_format_is_refused_naming_both_versions() {
        for slot in [Slot::Newer(7), Slot::Older(7)] {
            let text = choose([slot, Slot::Damaged]).unwrap_err().to_string();
            assert!(
                text.contains('7') && text.contains(&FORMAT_VERSION.to_string()),
                "{text}"
            );
        }
    }
}
