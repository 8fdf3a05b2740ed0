//! The fixed workloads.

mod checkpoints;
mod conditions;
mod deadlines;
mod full_disks;
mod keyspaces;
mod large;
mod log;
mod reopens;
mod structures;
mod values;
mod views;
mod writes;

use super::workload::Workload;

const KINDS: [&[Workload]; 8] = [
    writes::ALL,
    conditions::ALL,
    log::ALL,
    checkpoints::ALL,
    keyspaces::ALL,
    views::ALL,
    reopens::ALL,
    full_disks::ALL,
];

/// All workloads by number. The kinds alternate, so that the first few numbers cover every kind.
/// Workloads with other structures and with separated or large values come last, and newer ones:
/// a workload keeps its number.
pub(super) fn all() -> impl Iterator<Item = &'static Workload> {
    let longest = KINDS.iter().map(|kind| kind.len()).max().unwrap_or(0);
    let by_kind =
        (0..longest).flat_map(|nth| KINDS.into_iter().filter_map(move |kind| kind.get(nth)));
    let others = structures::ALL.iter().chain(values::ALL);
    let by_kind = by_kind.chain(others).chain(large::ALL);
    by_kind.chain(deadlines::ALL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn at_least_fifty_workloads_parse_and_have_different_names() {
        let names: BTreeSet<_> = all().map(|w| w.name).collect();
        assert_eq!(
            names.len(),
            KINDS.iter().map(|kind| kind.len()).sum::<usize>()
                + structures::ALL.len()
                + values::ALL.len()
                + large::ALL.len()
                + deadlines::ALL.len()
        );
        assert!(names.len() >= 50);
        for workload in all() {
            let course = workload.read().unwrap_or_else(|find| panic!("{find}"));
            assert!(!course.steps.is_empty(), "{}", course.name);
        }
    }
}
