//! [`StructureKind`]: which structure holds a keyspace's records on disk.

use std::fmt;
use std::str::FromStr;

use terrapin_base::{Error, ErrorKind};

/// The structure that holds a keyspace's records on disk. A keyspace chooses it when it is created
/// ([`KeyspaceOptions::structure`](crate::KeyspaceOptions::structure)).
///
/// ```
/// use terrapin::{ErrorKind, StructureKind};
/// assert_eq!("leveled".parse::<StructureKind>()?, StructureKind::Leveled);
/// let refused = "tiered".parse::<StructureKind>().unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Unsupported);
/// # Ok::<(), terrapin::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StructureKind {
    /// The TurtleTree: a Bε-tree with leveled buffers. It serves every workload.
    #[default]
    Leveled,
}

/// Structures that have a number on disk and are not in this version.
const LATER: [(u64, &str); 3] = [(1, "tiered"), (2, "inplace"), (3, "hashed")];

impl StructureKind {
    const ALL: [StructureKind; 1] = [StructureKind::Leveled];

    /// The structure's number in the log and in the catalog.
    pub(crate) fn number(self) -> u64 {
        match self {
            StructureKind::Leveled => 0,
        }
    }

    /// The structure of a number. None if this version lacks it.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The name of a number, for errors. Other numbers have none.
    pub(crate) fn name_of(number: u64) -> &'static str {
        let known = Self::ALL.map(|kind| (kind.number(), kind.name()));
        let mut names = known.iter().chain(&LATER);
        let named = names.find(|(n, _)| *n == number);
        named.map_or("unknown", |(_, name)| name)
    }

    /// The structure's name, as the command line and `stat` use it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StructureKind::Leveled => "leveled",
        }
    }
}

impl fmt::Display for StructureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads a name. Errors: [`ErrorKind::Unsupported`] for a structure that this version lacks;
/// [`ErrorKind::InvalidArgument`] for any other name.
impl FromStr for StructureKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        if let Some(kind) = Self::ALL.into_iter().find(|kind| kind.name() == name) {
            return Ok(kind);
        }
        let error = match LATER.iter().any(|(_, later)| *later == name) {
            true => Error::new(
                ErrorKind::Unsupported,
                "this structure is not in this version: choose leveled",
            ),
            false => Error::invalid("there is no such structure: choose leveled"),
        };
        Err(error.with("structure", name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_later_versions_are_refused_by_name() {
        for kind in StructureKind::ALL {
            assert_eq!(kind.to_string().parse::<StructureKind>().unwrap(), kind);
            assert_eq!(StructureKind::from_number(kind.number()), Some(kind));
        }
        for (number, name) in LATER {
            assert_eq!(StructureKind::from_number(number), None);
            assert_eq!(StructureKind::name_of(number), name);
            let error = name.parse::<StructureKind>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("not in this version"), "{error}");
        }
        for name in ["", "Leveled", "lsm"] {
            let error = name.parse::<StructureKind>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        }
    }
}
