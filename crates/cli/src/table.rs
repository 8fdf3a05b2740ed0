//! Columns for people: the first aligned left, the others right, each as wide as its content.

/// Rows under a head, one cell per column.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with only a head.
    #[must_use]
    pub fn new(head: &[&str]) -> Self {
        Table {
            rows: vec![head.iter().map(ToString::to_string).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            for (column, cell) in row.iter().enumerate() {
                match column {
                    0 if row.len() == 1 => write!(f, "{cell}")?,
                    0 => write!(f, "{cell:<width$}", width = widths[0])?,
                    _ => write!(f, "  {cell:>width$}", width = widths[column])?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let mut table = Table::new(&["phase", "χ"]);
        table.row(vec!["a".into(), "1,000".into()]);
        assert_eq!(table.to_string(), "phase      χ\na      1,000");
    }
}
