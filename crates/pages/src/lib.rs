//! Terrapin's pages (layer 2): page groups and the blocks in them, checksummed pages, the data
//! file's space, superblocks, and the cache that serves every read.
//!
//! The store writes a page once, under an id that it never uses again. It leaves the page unchanged
//! until no durable superblock and no pinned generation reaches the page (D1, D5). Only
//! [`PageStore`] knows which bytes of the data file are free.
#![forbid(unsafe_code)]

pub mod block;
mod cache;
mod footer;
pub mod group;
pub mod heads;
mod metrics;
mod page;
mod space;
mod store;
mod superblock;

pub use cache::Standing;
pub use footer::FooterFrame;
pub use metrics::{CacheCounts, DeviceReads, ReadFor, StoreMetrics, WrittenBytes};
pub use page::{Changes, Extent, PageKind, PageRef, PageUse};
pub use space::{HeldPage, Pin, SpaceClass};
pub use store::{
    DATA_FILE, DecodePage, Fill, GroupHandle, Handle, KnownOutlines, MapletHandle, OutlinePlaces,
    PageStore, Presence, PrivatePages, Reading, SegmentOutlines, StoreOptions, UNFINISHED_FILE,
    check_maplet_partition,
};
pub use superblock::{FORMAT_VERSION, PAGES_START, SLOT_BYTES, SLOTS, Superblock};
