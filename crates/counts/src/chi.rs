//! Whether reads pay for the χ that a store was loaded at (TurtleKV, Fig. 11). It counts
//! instructions of gets and short scans in stores that differ in nothing else. Reads may become
//! cheaper: a larger batch skips the small levels of a node's buffer, so fewer runs remain.

use std::fmt::{self, Display, Formatter};

/// Checkpoint distances of the loads. The largest memtable is half of the data.
pub const DISTANCES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The paths counted for each store.
pub const PATHS: [&str; 3] = ["get block hit", "get miss", "scan of 50"];
/// How many percent a count may be above that at the least χ.
const TOLERANCE: f64 = 5.0;

/// Counts of each path at each χ.
#[derive(Default)]
pub struct Table(Vec<(u32, Vec<f64>)>);

impl Table {
    /// Adds the counts of [`PATHS`] at a χ.
    pub fn add(&mut self, chi: u32, counts: Vec<f64>) {
        self.0.push((chi, counts));
    }

    /// The most percent that a path costs more than at the least χ.
    fn surcharge(&self, path: usize) -> f64 {
        let mut counts = self.0.iter().map(|(_, counts)| counts[path]);
        let Some(least) = counts.next() else {
            return 0.0;
        };
        (counts.fold(least, f64::max) / least - 1.0) * 100.0
    }

    /// Whether no path costs more at a larger χ.
    pub fn holds(&self) -> bool {
        (0..PATHS.len()).all(|path| self.surcharge(path) <= TOLERANCE)
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8}", "χ")?;
        PATHS.iter().try_for_each(|path| write!(f, "{path:>16}"))?;
        for (chi, counts) in &self.0 {
            write!(f, "\n{chi:>8}")?;
            counts
                .iter()
                .try_for_each(|count| write!(f, "{count:>16.1}"))?;
        }
        write!(f, "\n{:>8}", "+ %")?;
        (0..PATHS.len()).try_for_each(|path| write!(f, "{:>16.1}", self.surcharge(path)))?;
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_costs_more_at_a_larger_chi_is_reported() {
        let mut table = Table::default();
        table.add(1, vec![100.0, 50.0, 10.0]);
        table.add(2, vec![104.0, 40.0, 10.0]);
        assert!(table.holds(), "4 % more, and less");
        table.add(4, vec![100.0, 60.0, 10.0]);
        assert!(!table.holds());
        assert!(table.to_string().contains("20.0"), "{table}");
    }
}
