//! YCSB for Terrapin, and for whatever else implements [`Store`] and [`Client`].
//!
//! The workloads are those of Cooper et al., *Benchmarking Cloud Serving Systems with YCSB* (SoCC
//! 2010): load, and A–F. Every read is checked: a missing record or a value that does not belong to
//! its key fails the run. Device bytes, CPU and memory are the operating system's figures for this
//! process, not the store's own.
//!
//! The sweep over χ is in `chi`, what overwriting costs in space in `space`, what a load costs as
//! the data grows in `growth`, reads beside the device in `reads`, opens in `opening`, keys that are
//! not there in `absent`. To change what the workloads do
//! look in `workload`; which records they pick, `generator`; what records look like, `record`; how
//! a phase is timed, `run`; what is asked of the system, `system`; how it is shown, `figures` and
//! `report`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // a benchmark owns threads and measures wall time: that is its subject

mod absent;
mod chi;
mod figures;
mod generator;
mod growth;
mod opening;
mod reads;
mod record;
mod report;
mod run;
mod space;
mod store;
mod system;
mod watch;
mod workload;

/// Goes up when the same phase does something else than before, so that its figures are not set
/// beside older ones. 1: each rank of a zipfian draw is a record of its own; before, ranks shared
/// records, down to a quarter of them. 2: a scan says how many records it wants, to stores that can
/// be told. (That Terrapin's settling waits for the compaction that ranges asked for is no
/// revision: it takes Terrapin longer, and others do what they did.)
pub const REVISION: u32 = 2;

pub use absent::{AbsentReport, measure_absent};
pub use chi::{ChiStep, ChiSweep, ReadFigures};
pub use figures::Figures;
pub use generator::{Distribution, Random, Zipfian};
pub use growth::{GrowthReport, measure_growth};
pub use opening::{OpenReport, measure_open};
pub use reads::{ReadsBench, ReadsTurn};
pub use record::{KeyKind, Records};
pub use report::{Latencies, PhaseReport};
pub use run::{Config, Driver, Phase, Progress, SCAN_RECORDS_MAX, check, check_loaded, run};
pub use space::{SpaceReport, SpaceSeen, Written, measure_space};
pub use store::{Client, FileBytes, Store, TerrapinStore};
pub use system::{Usage, allocated_bytes, reset_rss_peak, rss_peak_bytes};
pub use workload::{Mix, Workload};
