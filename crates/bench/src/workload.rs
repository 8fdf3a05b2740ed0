//! The workloads of YCSB by their letters, one with updates only, and mixes.

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
    /// Deletes, each followed by a put of the same key. One operation is both. Not one of YCSB's.
    Replace,
    /// Transactions that read four records and write two of them. Not one of YCSB's.
    Transactions,
    /// Compare-and-swaps, each client on records of its own. Not one of YCSB's.
    Swaps,
    /// A mix of gets, ranges and updates. Not one of YCSB's.
    Mix(Mix),
    /// Ranges of this many records only. Not one of YCSB's.
    Ranges(u64),
}

/// How many operations of a hundred are which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Gets.
    pub gets: u64,
    /// Ranges, of 1 to as many records as the run's longest scan has.
    pub ranges: u64,
    /// Updates.
    pub updates: u64,
}

impl std::str::FromStr for Mix {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<u64> = text
            .split(',')
            .map_while(|part| part.parse().ok())
            .collect();
        match parts[..] {
            [gets, ranges, updates]
                if text.matches(',').count() == 2
                    && gets.saturating_add(ranges).saturating_add(updates) == 100 =>
            {
                Ok(Mix {
                    gets,
                    ranges,
                    updates,
                })
            }
            _ => Err(Error::invalid(
                "a mix is three whole numbers that sum to 100, of gets, ranges and updates: 10,40,50",
            )
            .with("given", text.to_owned())),
        }
    }
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Update,
    Replace,
    Insert,
    Scan,
    ReadModifyWrite,
    Transaction,
    Swap,
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
            Workload::Replace => "replace",
            Workload::Transactions => "transactions",
            Workload::Swaps => "swaps",
            Workload::Mix(_) => "mix",
            Workload::Ranges(_) => "ranges",
        }
    }

    /// Whether the phase writes, so that `settle` follows.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Workload::C | Workload::Ranges(_) => false,
            Workload::Mix(mix) => mix.updates > 0,
            _ => true,
        }
    }

    pub(crate) fn action(self, random: &mut Random) -> Action {
        let percent = random.below(100);
        match self {
            Workload::Load => Action::Insert,
            Workload::Overwrite => Action::Update,
            Workload::Replace => Action::Replace,
            Workload::Transactions => Action::Transaction,
            Workload::Swaps => Action::Swap,
            Workload::Ranges(_) => Action::Scan,
            Workload::Mix(mix) if percent < mix.updates => Action::Update,
            Workload::Mix(mix) if percent < mix.updates + mix.ranges => Action::Scan,
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
            Workload::Replace,
            Workload::Transactions,
            Workload::Swaps,
        ];
        all.into_iter()
            .find(|w| w.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                Error::invalid(
                    "a workload is load, a, b, c, d, e, f, overwrite, replace, transactions or swaps",
                )
                .with("given", text.to_owned())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_does_what_its_numbers_say() {
        let mix: Mix = "10,40,50".parse().unwrap();
        let mut random = Random::new(1);
        let mut seen = [0; 3];
        for _ in 0..100_000 {
            match Workload::Mix(mix).action(&mut random) {
                Action::Read => seen[0] += 1,
                Action::Scan => seen[1] += 1,
                Action::Update => seen[2] += 1,
                other => panic!("{other:?}"),
            }
        }
        for (seen, percent) in seen.into_iter().zip([10_u64, 40, 50]) {
            assert!(percent.abs_diff(seen / 1000) <= 1, "{seen}");
        }
        for wrong in [
            "",
            "100",
            "50,50",
            "50,50,1",
            "10,40,50,0",
            "10,40,50,",
            "a,b,c",
        ] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
        let reads: Mix = "60,40,0".parse().unwrap();
        assert!(!Workload::Mix(reads).writes() && Workload::Mix(mix).writes());
    }
}
