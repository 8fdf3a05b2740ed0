//! The engines, one adapter per file. An adapter's head states its options and the reasons.
//!
//! An adapter lists its engine first, then variants: the same engine with other options. A variant
//! is an entry of that list, with a name, a few words, and the options that it changes. It keeps
//! the memory, the limits and the I/O of its engine.

#[cfg(feature = "bf-tree")]
mod bf_tree;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "heed")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;
#[cfg(feature = "sled")]
mod sled;
mod terrapin;

use std::fmt::Display;

use terrapin_base::{Error, ErrorKind, Result};

use crate::files::IsDataFile;
use crate::plan::{MemoryKind, Size};
use crate::worker::Job;

/// Versions of everything, as they were built.
const LOCK: &str = include_str!("../../Cargo.lock");

/// Bytes of the smallest value that variants keep apart from its key: records of 1 KiB are kept
/// so, those of 128 bytes are not.
const SEPARATE_BYTES_MIN: u32 = 512;

/// An engine that can be run.
pub struct Engine {
    /// The name on the command line and in tables.
    pub name: &'static str,
    /// The packages whose versions identify what was measured.
    packages: &'static [&'static str],
    /// Whether it runs with a log.
    pub logged: bool,
    /// How its memory is bounded.
    pub memory: MemoryKind,
    /// Bytes its process may have beyond the limit of others, since its memory cannot be bounded.
    /// Its peak is in the tables.
    pub overhead_bytes: u64,
    /// Whether it is too slow for the sizes full and shape.
    pub small_only: bool,
    /// Which of its files hold data. The other bytes that it writes are its log's. None if its
    /// files do not tell, or if its adapter counts.
    pub is_data_file: Option<IsDataFile>,
    /// How it writes and reads, in a few words.
    pub how: &'static str,
    /// Does a job in this process.
    pub run: fn(&Job) -> Result<()>,
}

/// The engines of this build, Terrapin first, each with its variants.
const FAMILIES: &[&[Engine]] = &[
    terrapin::ENGINES,
    #[cfg(feature = "rocksdb")]
    rocksdb::ENGINES,
    #[cfg(feature = "heed")]
    &[lmdb::ENGINE],
    #[cfg(feature = "redb")]
    &[redb::ENGINE],
    #[cfg(feature = "fjall")]
    fjall::ENGINES,
    #[cfg(feature = "sled")]
    &[sled::ENGINE],
    #[cfg(feature = "bf-tree")]
    &[bf_tree::ENGINE],
];

/// All engines and variants of this build.
pub fn all() -> impl Iterator<Item = &'static Engine> {
    FAMILIES.iter().copied().flatten()
}

/// The engines without their variants.
pub fn plain() -> impl Iterator<Item = &'static Engine> {
    FAMILIES.iter().filter_map(|family| family.first())
}

impl Engine {
    /// Terrapin's commit, or the packages' versions.
    pub fn version(&self) -> String {
        if self.packages.is_empty() {
            return env!("TERRAPIN_COMMIT").to_owned();
        }
        let versions: Vec<String> = self
            .packages
            .iter()
            .map(|package| format!("{package} {}", locked(package)))
            .collect();
        versions.join(", ")
    }

    /// Whether it takes part in runs of a size.
    pub fn fits(&self, size: Size) -> bool {
        !self.small_only || matches!(size, Size::Tiny | Size::Quick)
    }
}

/// The engine with a name.
pub fn find(name: &str) -> Result<&'static Engine> {
    all().find(|engine| engine.name == name).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "this build has no such engine").with("given", name)
    })
}

/// The process's `malloc`, for all engines: RocksDB's jemalloc replaces it everywhere.
pub fn allocator() -> String {
    if cfg!(feature = "rocksdb") {
        format!("jemalloc ({})", locked("tikv-jemalloc-sys"))
    } else {
        "the system's".into()
    }
}

fn locked(package: &str) -> &'static str {
    let name = format!("name = \"{package}\"");
    let mut lines = LOCK.lines().skip_while(|line| *line != name);
    lines
        .find_map(|line| line.strip_prefix("version = \""))
        // Without the commit that some versions have at their end.
        .and_then(|rest| rest.trim_end_matches('"').split("-0-g").next())
        .unwrap_or("unknown")
}

/// Converts an engine's error.
#[allow(dead_code)] // a build with Terrapin alone has no other engine's errors
pub(crate) fn foreign(error: impl Display) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

/// Copies what a read found to `out`. Returns whether it found anything.
#[allow(dead_code)] // a build with Terrapin alone has no other engine's reads
fn copied(found: Option<impl AsRef<[u8]>>, out: &mut Vec<u8>) -> bool {
    out.clear();
    found.is_some_and(|value| {
        out.extend_from_slice(value.as_ref());
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_their_names_and_say_their_versions() {
        for engine in all() {
            assert_eq!(find(engine.name).unwrap().name, engine.name);
            assert!(!engine.version().contains("unknown"), "{}", engine.name);
        }
        assert!(find("sqlite").is_err());
        let mut names: Vec<&str> = all().map(|engine| engine.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn a_variant_has_the_limits_and_the_log_of_its_engine() {
        for family in FAMILIES {
            for variant in &family[1..] {
                let same =
                    |of: fn(&Engine) -> (bool, MemoryKind, u64)| of(variant) == of(&family[0]);
                assert!(
                    same(|e| (e.logged, e.memory, e.overhead_bytes)),
                    "{}",
                    variant.name
                );
                let prefix = format!("{}-", family[0].name);
                assert!(variant.name.starts_with(&prefix), "{}", variant.name);
            }
        }
    }
}
