//! The page-grouped tree (layer 5), after TreeLine: every record has one place, in one sorted line
//! of pages.
//!
//! - Sixteen pages that follow each other by key share one extent: a *segment*. A get reads one
//!   page. A range reads one extent for sixteen pages.
//! - A small copy-on-write tree, the *map*, names the segments. Its leaves hold copies of the
//!   segments' indexes, so the map is all that a get needs besides the page.
//! - A merge rewrites the segments that its records change. Where that would write much for few
//!   records, these *wait* beside their leaf of the map, in small page groups of that leaf's keys,
//!   until the leaf is merged. A read asks waiting groups first, newest first.
//!
//! Invariants: segments partition the keys in ascending order. A group waits for one leaf, and has
//! keys of that leaf only. A leaf that is merged takes in all that waits for it. So what a key's
//! leaf says is all there is to know about the key.
//!
//! ```
//! use terrapin_base::{Budget, checksum::hash64};
//! use terrapin_disk::SimDisk;
//! use terrapin_inplace::{InPlace, InPlaceParams};
//! use terrapin_pages::{PageStore, StoreOptions};
//! use terrapin_structure::{Found, Structure};
//! let budget = Budget::new(1 << 20);
//! let options = StoreOptions { budget: budget.clone(), reserve_bytes: 0, system_cache: false };
//! let store = PageStore::create(&SimDisk::new(1).handle(), options, 7)?;
//! let tree = InPlace::new(store, InPlaceParams::new(budget));
//! let empty = tree.empty();
//! assert_eq!(tree.open(&empty.root())?.get(b"key", hash64(b"key"))?, Found::Nothing);
//! # Ok::<(), terrapin_base::Error>(())
//! ```
#![forbid(unsafe_code)]

mod assemble;
mod compact;
mod contract;
mod format;
mod get;
mod merge;
mod node;
mod plan;
mod scan;
mod source;
mod stats;
mod structure;
mod task;
mod verify;
mod version;

pub use structure::{InPlace, InPlaceParams};
