//! Figures as a suite shows them: a line of a table, or an object of JSON.

/// What a suite measured at once.
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
