//! The workloads of YCSB by their letters, and one with updates only.

use terrapin_base::{Error, Result};

use crate::generator::Random;

/// One phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Inserts all records in scattered order.
    Load,
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads, mostly of the newest records; 5 % inserts.
    D,
    /// 95 % scans of 1–100 records, 5 % inserts.
    E,
    /// Half reads, half read-modify-writes.
    F,
    /// Updates only. It is not part of YCSB; it measures the cost of overwriting.
    Overwrite,
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

impl Workload {
    /// The name in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::Load => "load",
            Workload::A => "a",
            Workload::B => "b",
            Workload::C => "c",
            Workload::D => "d",
            Workload::E => "e",
            Workload::F => "f",
            Workload::Overwrite => "overwrite",
        }
    }

    /// Whether the phase writes, so that `settle` follows.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Workload::C
    }

    pub(crate) fn action(self, random: &mut Random) -> Action {
        let percent = random.below(100);
        match self {
            Workload::Load => Action::Insert,
            Workload::Overwrite => Action::Update,
            Workload::A if percent < 50 => Action::Update,
            Workload::B if percent < 5 => Action::Update,
            Workload::D if percent < 5 => Action::Insert,
            Workload::E => {
                if percent < 5 {
                    Action::Insert
                } else {
                    Action::Scan
                }
            }
            Workload::F if percent < 50 => Action::ReadModifyWrite,
            _ => Action::Read,
        }
    }
}

impl std::str::FromStr for Workload {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let all = [
            Workload::Load,
            Workload::A,
            Workload::B,
            Workload::C,
            Workload::D,
            Workload::E,
            Workload::F,
            Workload::Overwrite,
        ];
        all.into_iter()
            .find(|w| w.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                Error::invalid("a workload is load, a, b, c, d, e, f or overwrite")
                    .with("given", text.to_owned())
            })
    }
}
