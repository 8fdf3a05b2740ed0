//! The engines, one adapter per file. An adapter's head states its options and the reasons.

#[cfg(feature = "bf-tree")]
mod bf_tree;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "heed")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sled")]
mod sled;
mod terrapin;

use std::fmt::Display;

use terrapin_base::{Error, ErrorKind, Result};

use crate::plan::{MemoryKind, Size};
use crate::worker::Job;

/// Versions of everything, as they were built.
const LOCK: &str = include_str!("../../Cargo.lock");

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
    /// Whether it is too slow for the full size.
    pub small_only: bool,
    /// How it writes and reads, in a few words.
    pub how: &'static str,
    /// Does a job in this process.
    pub run: fn(&Job) -> Result<()>,
}

/// All engines of this build, Terrapin first.
pub const ENGINES: &[Engine] = &[
    terrapin::ENGINE,
    #[cfg(feature = "rocksdb")]
    rocksdb::ENGINE,
    #[cfg(feature = "heed")]
    lmdb::ENGINE,
    #[cfg(feature = "redb")]
    redb::ENGINE,
    #[cfg(feature = "fjall")]
    fjall::ENGINE,
    #[cfg(feature = "sled")]
    sled::ENGINE,
    #[cfg(feature = "bf-tree")]
    bf_tree::ENGINE,
];

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
        !self.small_only || size != Size::Full
    }
}

/// The engine with a name.
pub fn find(name: &str) -> Result<&'static Engine> {
    ENGINES
        .iter()
        .find(|engine| engine.name == name)
        .ok_or_else(|| {
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
fn foreign(error: impl Display) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_their_names_and_say_their_versions() {
        for engine in ENGINES {
            assert_eq!(find(engine.name).unwrap().name, engine.name);
            assert!(!engine.version().contains("unknown"), "{}", engine.name);
        }
        assert!(find("sqlite").is_err());
    }
}
