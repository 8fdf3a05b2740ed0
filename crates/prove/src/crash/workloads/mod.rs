//! The fixed workloads.

mod checkpoints;
mod keyspaces;
mod log;
mod reopens;
mod views;
mod writes;

use super::workload::Workload;

/// All of them, in the order of their numbers.
pub(super) fn all() -> impl Iterator<Item = &'static Workload> {
    [
        writes::ALL,
        log::ALL,
        checkpoints::ALL,
        keyspaces::ALL,
        views::ALL,
        reopens::ALL,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_at_least_fifty_workloads_each_with_its_name_and_all_can_be_read() {
        let names: BTreeSet<_> = all().map(|w| w.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 50);
        for workload in all() {
            let course = workload.read().unwrap_or_else(|find| panic!("{find}"));
            assert!(!course.operations.is_empty(), "{}", course.name);
        }
    }
}
