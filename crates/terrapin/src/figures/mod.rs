//! Figures of an open database: metrics for programs, statistics for people.

pub mod metrics;
pub mod stat;
