//! [`Drain`]: emptying buffers on a full disk (D10).
//!
//! A slice with records in scattered leaves also flushes what buffers hold for these leaves. The
//! segments that held those messages stay until their last part is flushed. A slice may therefore
//! take more room than it frees, and many slices use up the reserve. A stretch of consecutive
//! leaves, merged with all that buffers hold for them, frees segments one after another. Once
//! slices have used some of the reserve, the engine therefore empties trees into their leaves
//! (decision 0025). It goes keyspace by keyspace, in the order of keys, until the reserve is whole
//! again. For each merged slice, it makes at most one pass over all trees.

use std::sync::Arc;

use terrapin_base::{EXTENT_ALIGNMENT, KeyspaceId};

use crate::engine::state::{KeyspaceState, State};

/// With groups of fewer extents, the unused rest of each last extent costs more than freed segments
/// give.
const GROUP_EXTENTS_MIN: u64 = 4;

/// How far trees are emptied.
pub(super) struct Drain {
    /// Where the next stretch begins: a keyspace (or the next one above that id), and a key.
    at: (KeyspaceId, Box<[u8]>),
    /// Key and value bytes that the next stretch merges.
    bytes: u64,
    bytes_max: u64,
    /// Set when emptying can free nothing more until another slice is merged.
    is_over: bool,
    /// The largest room that was too small even for the shortest stretch.
    refused_room: u64,
}

impl Drain {
    /// The state before the first slice was merged.
    pub fn new(group_bytes: u64) -> Drain {
        Drain {
            at: (KeyspaceId(0), Box::default()),
            bytes: group_bytes,
            bytes_max: group_bytes,
            is_over: true,
            refused_room: 0,
        }
    }

    /// The keyspace whose tree is emptied next, if any.
    pub fn next<'a>(&mut self, state: &'a State) -> Option<&'a Arc<KeyspaceState>> {
        if self.is_over || self.bytes_max < GROUP_EXTENTS_MIN * EXTENT_ALIGNMENT {
            return None;
        }
        let next = state.keyspaces.iter_from(self.at.0).next();
        match next.map(|keyspace| keyspace.id) {
            Some(id) if id > self.at.0 => self.at = (id, Box::default()),
            Some(_) => {}
            None => self.is_done(),
        }
        next
    }

    /// The start of the next stretch in that tree, and the bytes to merge.
    pub fn stretch(&self) -> (&[u8], u64) {
        (&self.at.1, self.bytes)
    }

    /// Notes that a slice was merged and left this much room. Does nothing if that is no more than
    /// the room that was too small for a stretch.
    pub fn is_left(&mut self, room: u64) {
        self.is_over = room <= self.refused_room;
    }

    /// Notes that a stretch was merged. The next one begins at `next`. None means that the tree has
    /// no further stretch, or none that can be read.
    pub fn went_on(&mut self, next: Option<Box<[u8]>>) {
        self.bytes = (self.bytes * 2).min(self.bytes_max);
        self.refused_room = 0;
        match (next, self.at.0.0.checked_add(1)) {
            (Some(next), _) => self.at.1 = next,
            (None, Some(id)) => self.at = (KeyspaceId(id), Box::default()),
            (None, None) => self.is_done(),
        }
    }

    /// Notes that this much room was too small for a stretch. A shorter stretch follows, unless
    /// this one was the shortest.
    pub fn found_no_room(&mut self, room: u64) {
        self.bytes /= 2;
        if self.bytes < self.bytes_max / 4 {
            self.bytes = self.bytes_max;
            self.is_over = true;
            self.refused_room = self.refused_room.max(room);
        }
    }

    /// Notes that the last tree is done.
    fn is_done(&mut self) {
        self.is_over = true;
        self.at = (KeyspaceId(0), Box::default());
    }
}
