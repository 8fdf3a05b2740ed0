//! Emptying buffers on a full disk (D10).
//!
//! A slice that brings a record here and there takes along what buffers hold for these leaves, and
//! the segments that held it stay until their last part is flushed: so it may take more room than
//! it gives back, and many of them use up the reserve. Stretches of leaves one after the other,
//! with all that buffers hold for them, let segments go as they come by. So once slices have used
//! of the reserve, trees are emptied into their leaves, keyspace by keyspace and in the order of
//! keys, until it is whole again (decision 0025). One pass over everything at most for each slice
//! that was merged.

use std::sync::Arc;

use terrapin_base::{EXTENT_ALIGNMENT, KeyspaceId};

use crate::engine::state::{KeyspaceState, State};

/// Groups of fewer extents than this lose more by what fills their last one up than segments give.
const GROUP_EXTENTS_MIN: u64 = 4;

/// How far trees are emptied.
pub(super) struct Drain {
    /// Where the next stretch begins: in a tree, or in the first behind it, at a key.
    at: (KeyspaceId, Box<[u8]>),
    /// Key and value bytes that it is to merge.
    bytes: u64,
    bytes_max: u64,
    /// There is nothing more to be had until another slice is merged.
    is_over: bool,
    /// The most room that the shortest stretch did not find enough.
    refused_room: u64,
}

impl Drain {
    /// Nothing was merged yet.
    pub fn new(group_bytes: u64) -> Drain {
        Drain {
            at: (KeyspaceId(0), Box::default()),
            bytes: group_bytes,
            bytes_max: group_bytes,
            is_over: true,
            refused_room: 0,
        }
    }

    /// The keyspace whose tree is next, if one is.
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

    /// Where the next stretch of that tree begins, and how many bytes it should merge.
    pub fn stretch(&self) -> (&[u8], u64) {
        (&self.at.1, self.bytes)
    }

    /// A slice is merged, and left so much room. Where that is no more than a stretch found too
    /// little, none is tried.
    pub fn is_left(&mut self, room: u64) {
        self.is_over = room <= self.refused_room;
    }

    /// A stretch is merged; another begins there, or the tree has no more, or none that can be
    /// read.
    pub fn went_on(&mut self, next: Option<Box<[u8]>>) {
        self.bytes = (self.bytes * 2).min(self.bytes_max);
        self.refused_room = 0;
        match (next, self.at.0.0.checked_add(1)) {
            (Some(next), _) => self.at.1 = next,
            (None, Some(id)) => self.at = (KeyspaceId(id), Box::default()),
            (None, None) => self.is_done(),
        }
    }

    /// A stretch found that room to be too little: a shorter one may do with it, but for the
    /// shortest.
    pub fn found_no_room(&mut self, room: u64) {
        self.bytes /= 2;
        if self.bytes < self.bytes_max / 4 {
            self.bytes = self.bytes_max;
            self.is_over = true;
            self.refused_room = self.refused_room.max(room);
        }
    }

    /// That was the last tree.
    fn is_done(&mut self) {
        self.is_over = true;
        self.at = (KeyspaceId(0), Box::default());
    }
}
