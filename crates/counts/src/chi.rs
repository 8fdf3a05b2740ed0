//! Whether reads cost the same whatever χ a store was loaded at (TurtleKV, Fig. 11): instructions of gets and short scans of stores that
//! differ in nothing else.

use std::fmt::{self, Display, Formatter};

/// Checkpoint distances of the loads. The largest window is half of the data.
pub const DISTANCES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// What is counted of each store.
pub const PATHS: [&str; 3] = ["get block hit", "get miss", "scan of 50"];
/// How far a count may lie from the mean of all χ, in percent.
const TOLERANCE: f64 = 5.0;

/// Counts of each path at each χ.
#[derive(Default)]
pub struct Table(Vec<(u32, Vec<f64>)>);

impl Table {
    /// Adds what was counted of [`PATHS`] at a χ.
    pub fn add(&mut self, chi: u32, counts: Vec<f64>) {
        self.0.push((chi, counts));
    }

    /// How far counts of a path lie from their mean at most, in percent.
    fn spread(&self, path: usize) -> f64 {
        let counts: Vec<f64> = self.0.iter().map(|(_, counts)| counts[path]).collect();
        let mean = counts.iter().sum::<f64>() / counts.len().max(1) as f64;
        let away = counts.iter().map(|count| (count - mean).abs() / mean);
        away.fold(0.0, f64::max) * 100.0
    }

    /// Whether no path depends on χ.
    pub fn holds(&self) -> bool {
        (0..PATHS.len()).all(|path| self.spread(path) <= TOLERANCE)
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
        write!(f, "\n{:>8}", "± %")?;
        (0..PATHS.len()).try_for_each(|path| write!(f, "{:>16.1}", self.spread(path)))?;
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_depends_on_chi_is_told() {
        let mut table = Table::default();
        table.add(1, vec![100.0, 50.0, 10.0]);
        table.add(64, vec![104.0, 50.0, 10.0]);
        assert!(table.holds(), "2 % to each side");
        table.add(2, vec![100.0, 60.0, 10.0]);
        assert!(!table.holds());
        assert!(table.to_string().contains("12.5"), "{table}");
    }
}
