//! Output of a suite's figures: a line of a table, or a JSON object.

/// The figures of one measurement.
pub trait Figures {
    /// The table's head.
    #[must_use]
    fn table_head() -> String;

    /// The figures as a line of the table.
    #[must_use]
    fn table_line(&self) -> String;

    /// One JSON object on one line.
    #[must_use]
    fn json(&self) -> String;
}
