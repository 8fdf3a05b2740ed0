//! [`StructureKind`]: which structure holds a keyspace's records on disk.

use std::fmt;
use std::str::FromStr;

use terrapin_base::Error;
use terrapin_structure::StructureId;

/// The structure that holds a keyspace's records on disk. A keyspace chooses it when it is created
/// ([`KeyspaceOptions::structure`](crate::KeyspaceOptions::structure)). It can change between
/// [`StructureKind::Leveled`] and [`StructureKind::Tiered`] at any time.
///
/// ```
/// use terrapin::{ErrorKind, StructureKind};
/// assert_eq!("leveled".parse::<StructureKind>()?, StructureKind::Leveled);
/// assert_eq!("tiered".parse::<StructureKind>()?, StructureKind::Tiered);
/// let refused = "lsm".parse::<StructureKind>().unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
/// # Ok::<(), terrapin::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StructureKind {
    /// The TurtleTree: a Bε-tree with leveled buffers. It serves every workload.
    #[default]
    Leveled,
    /// The TurtleTree with size-tiered buffers, after SplinterDB. It writes fewer bytes while
    /// records are added: for logs, metrics, and indexes under construction. Ranges visit more
    /// sorted runs, and overwritten records take more space until they are merged.
    Tiered,
    /// The page-grouped tree, after TreeLine: each record has one place, so a get reads the device
    /// once even when memory is a hundredth of the data. Ranges beside updates are cheaper, and
    /// updates of small records that are scattered over far more data than memory are dearer.
    InPlace,
    /// Records in the order of their keys' hashes, for point access. Ranges are refused;
    /// [`Keyspace::unordered`](crate::Keyspace::unordered) reads all records. It suits long or
    /// scattered keys.
    Hashed,
    /// A structure of another number: a later version's, or one that a test registers. The open of
    /// a keyspace refuses a number that no structure has.
    #[doc(hidden)]
    Numbered(StructureId),
}

/// Structures that users choose by name.
const CHOSEN: [StructureKind; 4] = [
    StructureKind::Leveled,
    StructureKind::Tiered,
    StructureKind::InPlace,
    StructureKind::Hashed,
];

impl StructureKind {
    /// The structure's number in the log and in the catalog.
    #[must_use]
    pub(crate) fn id(self) -> StructureId {
        match self {
            StructureKind::Leveled => StructureId::LEVELED,
            StructureKind::Tiered => StructureId::TIERED,
            StructureKind::InPlace => StructureId::IN_PLACE,
            StructureKind::Hashed => StructureId::HASHED,
            StructureKind::Numbered(id) => id,
        }
    }

    /// The structure's name, as the command line and `stat` use it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.id().name().unwrap_or("unknown")
    }
}

impl From<StructureId> for StructureKind {
    fn from(id: StructureId) -> Self {
        match id {
            StructureId::LEVELED => StructureKind::Leveled,
            StructureId::TIERED => StructureKind::Tiered,
            StructureId::IN_PLACE => StructureKind::InPlace,
            StructureId::HASHED => StructureKind::Hashed,
            id => StructureKind::Numbered(id),
        }
    }
}

impl fmt::Display for StructureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads a name. Any other text is refused with
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument).
impl FromStr for StructureKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        if let Some(kind) = CHOSEN.iter().find(|kind| kind.name() == name) {
            return Ok(*kind);
        }
        let error =
            Error::invalid("there is no such structure: choose leveled, tiered, inplace or hashed");
        Err(error.with("structure", name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrapin_base::ErrorKind;

    #[test]
    fn names_and_numbers_of_structures_go_both_ways() {
        for kind in CHOSEN {
            assert_eq!(kind.to_string().parse::<StructureKind>().unwrap(), kind);
        }
        for number in 0..=255 {
            assert_eq!(StructureKind::from(StructureId(number)).id().0, number);
        }
        for name in ["", "Leveled", "lsm", "hash", "plain"] {
            let error = name.parse::<StructureKind>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        }
    }
}
