//! The interface of every on-disk structure (layer 3). The engine above uses it and does not know
//! which structure a keyspace has chosen.
//!
//! A [`Version`] is the immutable content of a structure at one moment. A [`Merge`] takes a version
//! and the content of a sealed memtable ([`MergeInput`]). It builds the next version on fresh
//! pages, step by step, and leaves the old version readable. The engine decides when a version
//! becomes durable (D2). A merge hands its page [`Changes`] over for that.
//!
//! What every structure does is in [`Structure`] and [`Version`]. What a structure may do is in
//! [`Ordered`], [`Compacts`] and [`Ingests`], and in answers of [`Structure`].
#![forbid(unsafe_code)]

mod batch;
mod collecting;
mod compaction;
mod figures;
mod found;
mod ingest;
mod input;
mod k_way;
mod merging;
mod ordered;
mod rescue;
mod structure;
mod values;
mod version;

pub use terrapin_pages::{Changes, PageUse};

pub use batch::{Batch, BatchLimits, Filled, Located};
pub use collecting::Collects;
pub use compaction::{Compaction, Compacts, Reclaimable, ToCompact};
pub use figures::{Figure, Finding, PageParts, StructureStats};
pub use found::{Found, Presence};
pub use ingest::{Ingest, Ingests};
pub use input::{Erased, MergeInput, MessageCursor, NoInput};
pub use k_way::KWayMerge;
pub use merging::{Around, EXPIRED_PERMILLE, Merge, MergeOptions, MergeStep, Merged};
pub use ordered::{Direction, Estimate, KeyBounds, Ordered, Scan};
pub use rescue::Rescued;
pub use structure::{Structure, StructureId};
pub use values::{
    StoredValues, ValuePlace, Values, ValuesOwner, at_last_place, finish_fold, report_dropped,
};
pub use version::Version;
