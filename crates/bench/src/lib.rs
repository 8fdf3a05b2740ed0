//! YCSB for Terrapin and for any other [`Store`] and [`Client`].
//!
//! The workloads are those of Cooper et al., *Benchmarking Cloud Serving Systems with YCSB* (SoCC
//! 2010): load, and A to F. Every read is checked. A missing record, or a value that does not
//! belong to its key, fails the run. Device bytes, CPU and memory are the operating system's
//! figures for this process.
//!
//! - `chi`: the sweep over χ
//! - `space`: the cost of overwriting in space
//! - `growth`: the cost of a load as data grows
//! - `transactions`: puts, compare-and-swaps and transactions by turns; `merges`: merges beside
//!   puts; `range_delete`, `expiry`, `backup`: the cost of each
//! - `reads`: reads beside the raw device; `opening`: opens; `absent`: gets of absent keys;
//!   `ingest`: sorted ingests
//! - `workload`: what the workloads do; `generator`: which records they pick; `record`: their bytes
//! - `run`: how a phase is timed; `clients`: its threads; `system`: the operating system's figures;
//!   `figures`, `report`: output
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // a benchmark owns threads and measures wall time: that is its subject

mod absent;
mod backup;
mod chi;
mod clients;
mod expiry;
mod figures;
mod generator;
mod growth;
mod ingest;
mod merges;
mod opening;
mod range_delete;
mod reads;
mod record;
mod report;
mod run;
mod space;
mod store;
mod system;
mod transactions;
mod watch;
mod workload;

/// The revision of the workloads. It grows when a phase does other work than before, so that
/// figures are not compared with older ones.
///
/// 1: each rank of a zipfian draw is a record of its own; before, ranks shared records, down to a
/// quarter of them. 2: a scan tells stores how many records it wants. Terrapin's settling, which
/// waits for compaction for ranges, is no revision: only Terrapin takes longer.
pub const REVISION: u32 = 2;

pub use absent::{AbsentReport, measure_absent};
pub use backup::{BackupBenchReport, measure_backup};
pub use chi::{ChiStep, ChiSweep, ReadFigures};
pub use clients::in_threads;
pub use expiry::{ExpiryReport, measure_expiry};
pub use figures::Figures;
pub use generator::{Distribution, Random, Zipfian};
pub use growth::{GrowthReport, measure_growth};
pub use ingest::{IngestReport, measure_ingest};
pub use merges::{MergesReport, measure_merges};
pub use opening::{OpenReport, measure_open};
pub use range_delete::{RangeDeleteReport, measure_range_delete};
pub use reads::{ReadsBench, ReadsTurn};
pub use record::{KeyKind, Records};
pub use report::{Latencies, PhaseReport};
pub use run::{Config, Driver, Phase, Progress, SCAN_RECORDS_MAX, check, check_loaded, run};
pub use space::{SpaceReport, SpaceSeen, Written, measure_space};
pub use store::{Client, FileBytes, ReadCounts, Store, TerrapinStore};
pub use system::{Usage, allocated_bytes, reset_rss_peak, rss_peak_bytes};
pub use transactions::{TransactionsReport, measure_transactions};
pub use workload::{Mix, Workload};
