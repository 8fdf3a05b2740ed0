//! The location map (Wayfinder, SiMoD '24, §2): where the value of a key is in the data file, in
//! eight bytes of memory for a key, so that a read needs neither the tree nor a second device read.
//!
//! It is a cache. It may know few keys or none, and it forgets. Nothing durable depends on it, and
//! what it says must be compared with the key of the record that it leads to.
//!
//! # Invariants
//!
//! - **M1.** Every entry that a lookup of a key can find is of the key's newest version as of the
//!   last sweep that began, or of another key. So [`LocationMap::set`] takes the place of whatever
//!   matches, and what a resize cannot place for certain goes.
//! - **M2.** A page's index means that page as long as any entry names it. An index is used again
//!   after [`LocationMap::free_pages`] removed its entries.
//! - **M3.** A reader believes an entry only if the record's own key is the reader's, and the page
//!   was born and not yet given up at the reader's checkpoint.
//!
//! # Coherence
//!
//! A *sweep* goes over the keys of a sealed memtable, before that memtable leaves the state. It
//! begins a new epoch. Until the memtable leaves, readers find its keys there first. A reader that
//! learned a place from the tree fills it in only if its epoch, taken before it loaded its state,
//! is still the map's. The check and the store stand under one shard's lock.
//!
//! # How it differs from the paper
//!
//! The paper's map is complete and exact, takes 24 bytes for a key besides the hash table, and
//! makes up for addresses that the tree lacks. This one keeps 33 bits of a hash and 44 of an
//! address in one word, in buckets of a cache line, two for each key. It grows and shrinks by an
//! eighth of one shard at a time.
//!
//! ```
//! use terrapin_base::{Budget, checksum::hash64};
//! use terrapin_valuemap::{Location, LocationMap, Page, SizeClass};
//!
//! let map = LocationMap::new(&Budget::new(64 << 20), 8 << 20, 0x5eed);
//! map.set_bytes_max(8 << 20);
//! let page = Page { id: 1, offset: 1 << 20, bytes: 1 << 20, collection: 7, born: 3 };
//! let index = map.add_page(page).unwrap();
//! let class = SizeClass::of(1100).unwrap();
//! let key = map.key(7, hash64(b"key"));
//! map.begin_sweep();
//! map.set(key, Location { page: index, place: 5, class });
//! let found = map.get(key, 3).unwrap();
//! assert_eq!((found.page, found.location.place), (page, 5));
//! assert!(map.get(key, 2).is_none(), "the page was not there yet");
//! ```
#![forbid(unsafe_code)]

mod entry;
mod map;
mod pages;
mod shard;

pub use entry::{Location, PAGES_MAX, PLACE_BYTES, PLACES_MAX, SizeClass};
pub use map::{Counts, Epoch, Found, Key, LocationMap};
pub use pages::Page;
