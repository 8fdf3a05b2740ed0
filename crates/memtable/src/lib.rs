//! The memtable (layer 2): all writes to a keyspace since its last memtable was sealed, in key
//! order, in memory.
//!
//! A [`Memtable`] is a concurrent adaptive radix tree over byte strings. Each key has a chain of
//! versions, ordered by LSN. The memory is an arena that only grows. Nothing that a reader can
//! reach is freed or moved before the memtable is dropped. So results borrow from the memtable, and
//! reads need no epoch, no reference count, and no copy.
//!
//! Where to look:
//!
//! - `chunk` and `arena` allocate memory.
//! - `leaf` holds a key and its versions.
//! - `node` holds the four sizes of inner nodes.
//! - `lock` and `memtable` define what readers and writers may do concurrently.
//! - `cursor` reads in key order.
//! - `estimate` estimates the content of a range.
//! - `fragments` holds range deletes.
//!
//! ```
//! use terrapin_base::{Budget, Lsn, Message};
//! use terrapin_memtable::Memtable;
//! let memtable = Memtable::new(&Budget::new(1 << 30));
//! memtable.insert(b"turtle", Lsn(10), Message::Put(b"slow"));
//! memtable.insert(b"turtle", Lsn(20), Message::Delete);
//! assert_eq!(memtable.get(b"turtle", Lsn(20)), Some(Message::Put(b"slow")));
//! assert_eq!(memtable.get(b"turtle", Lsn(21)), Some(Message::Delete));
//! ```

mod arena;
mod bytes;
mod chunk;
mod cursor;
mod estimate;
mod fragments;
mod leaf;
mod lock;
mod memtable;
mod node;
mod thread_number;

pub use chunk::Pool;
pub use cursor::{Cursor, OwnedCursor, OwnedVersions};
pub use estimate::Estimate;
pub use fragments::{Fragment, Fragments, Tree as FragmentTree};
pub use leaf::{Folded, ValueOrFold, Versions};
pub use memtable::Memtable;
