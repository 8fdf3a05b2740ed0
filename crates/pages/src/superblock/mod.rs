//! The root of everything durable. Two slots hold it in turn; the newest valid one counts, and one
//! damaged slot is no harm, since a checkpoint writes the second slot only when the first is on
//! stable storage (D2).

pub(crate) mod format;

use terrapin_base::{Error, ErrorKind, Generation, Incarnation, Result};
use terrapin_disk::FileIdentity;

use crate::page::PageRef;

/// The format that this code writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 3;
/// Bytes of a slot; slot `n` starts at `n * SLOT_BYTES`.
pub const SLOT_BYTES: u64 = 4096;
/// How many slots there are.
pub const SLOTS: usize = 2;
/// Where pages start.
pub const PAGES_START: u64 = SLOT_BYTES * SLOTS as u64;

/// The last generation: there is one number behind it, so that counting on from any that a slot has
/// is no overflow.
pub(crate) const GENERATION_MAX: Generation = Generation(u64::MAX - 1);

/// What a superblock slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Format of the whole database: [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Random name of the database, the same in its log.
    pub database_id: u64,
    /// The checkpoint that this is the root of.
    pub generation: Generation,
    /// The life of the log in which it was written.
    pub incarnation: Incarnation,
    /// Bytes that offsets and lengths of pages are multiples of: 512 to 4096, a power of two.
    pub unit: u32,
    /// The catalog's root; none before the first checkpoint.
    pub catalog: Option<PageRef>,
    /// Random number of the open for writing that wrote it; 0 before there is a log. Copies of a
    /// database that go on separately have different ones.
    pub branch: u64,
    /// Branch of the log that it was opened with; equal to `branch` once a checkpoint of this life
    /// was written. The newest life of the log has one of the two.
    pub log_branch: u64,
    /// The data file that it was written to.
    pub home: FileIdentity,
    /// Nothing was written to the data file afterwards: the database was closed.
    pub closed: bool,
}

impl Superblock {
    /// The branches that the newest life of its log may have.
    #[must_use]
    pub fn branches(&self) -> [u64; 2] {
        [self.branch, self.log_branch]
    }
}

/// What a slot's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A superblock.
    Valid(Superblock),
    /// A sound superblock of a newer format.
    Newer(u32),
    /// A sound superblock of an older format.
    Older(u32),
    /// Ours by its first bytes, but damaged.
    Damaged,
    /// Something else.
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
