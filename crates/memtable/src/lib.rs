//! The memtable (layer 2): everything written to a keyspace since its last checkpoint was cut, in
//! key order, in memory.
//!
//! A [`Memtable`] is a concurrent adaptive radix tree over byte strings; each key carries a chain
//! of versions ordered by LSN. Its memory is an arena that only grows: nothing reachable is ever
//! freed or moved before the memtable is dropped, so whatever a read returns borrows from the
//! memtable and needs no epoch, no reference count and no copy.
//!
//! To change how bytes are allocated look in `chunk` and `arena`; what a key and its versions look
//! like, `leaf`; the node sizes, `node`; who may do what beside whom, `lock` and `memtable`;
//! ordered reading, `cursor`; how much a range holds, `estimate`.
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
mod leaf;
mod lock;
mod memtable;
mod node;
mod slots;

pub use chunk::Pool;
pub use cursor::{Cursor, OwnedCursor, OwnedVersions};
pub use estimate::Estimate;
pub use leaf::Versions;
pub use memtable::Memtable;
