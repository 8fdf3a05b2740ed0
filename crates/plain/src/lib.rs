//! The plain structure (layer 5): page groups in key order, and one page that lists them. Each
//! merge rewrites all of them.
//!
//! Only tests use it. It proves the contract of `terrapin_structure`: the engine serves a keyspace
//! of it like any other. Databases of tests have keyspaces of it beside others. It is as small as a
//! structure can be, so it also shows what a structure must do. It keeps nothing in memory but what
//! the page store caches.
//!
//! What differs between structures can be chosen in [`PlainParams`]: whether keys are in order for
//! readers, and whether the structure writes the runs of views.
//!
//! ```
//! use terrapin_base::{Budget, checksum::hash64};
//! use terrapin_disk::SimDisk;
//! use terrapin_pages::{PageStore, StoreOptions};
//! use terrapin_plain::{Plain, PlainParams};
//! use terrapin_structure::{Found, Structure};
//! let budget = Budget::new(1 << 20);
//! let options = StoreOptions { budget: budget.clone(), reserve_bytes: 0, system_cache: false };
//! let store = PageStore::create(&SimDisk::new(1).handle(), options, 7)?;
//! let plain = Plain::new(store, PlainParams::new(budget));
//! let empty = plain.empty();
//! assert_eq!(plain.open(&empty.root())?.get(b"key", hash64(b"key"))?, Found::Nothing);
//! # Ok::<(), terrapin_base::Error>(())
//! ```
#![forbid(unsafe_code)]

mod format;
mod merge;
mod scan;
mod structure;
mod verify;
mod version;

pub use structure::{Plain, PlainParams};
