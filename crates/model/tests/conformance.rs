//! The conformance scripts, run against Terrapin under every configuration of the matrix.

use terrapin_model::{Configuration, SCRIPTS, Simulated, conformance};

fn conforms(name: &str) -> usize {
    let mut matrix = Configuration::matrix().into_iter();
    let (_, configuration) = matrix.find(|(own, _)| *own == name).unwrap();
    let report = conformance(|script| {
        Simulated::new(format!("{script}, {name}"), 1, configuration.clone())
            .unwrap_or_else(|e| panic!("{name}: {e}"))
    });
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.scripts + report.skipped, SCRIPTS.len());
    report.scripts
}

#[test]
fn small() {
    conforms("small");
}

#[test]
fn tiny_groups() {
    conforms("tiny groups");
}

#[test]
fn compressed() {
    conforms("compressed");
}

#[test]
fn the_paper_s_bound_often_synced() {
    conforms("the paper's bound, often synced");
}

/// Only this configuration takes the largest records, so it skips nothing.
#[test]
fn large_records() {
    assert_eq!(conforms("large records"), SCRIPTS.len());
}

#[test]
fn plain() {
    conforms("plain");
}

#[test]
fn some_plain_tiny_groups() {
    conforms("some plain, tiny groups");
}

#[test]
fn separated_values() {
    conforms("separated values");
}

#[test]
fn all_values_separated_tiny_groups() {
    conforms("all values separated, tiny groups");
}

#[test]
fn plain_without_order() {
    conforms("plain without order");
}

#[test]
fn tiered() {
    conforms("tiered");
}

#[test]
fn tiered_and_leveled_by_turns_tiny_groups_compressed() {
    conforms("tiered and leveled by turns, tiny groups, compressed");
}

#[test]
fn in_place() {
    conforms("in place");
}

#[test]
fn in_place_tiny_groups_compressed() {
    conforms("in place, tiny groups, compressed");
}

#[test]
fn hashed() {
    conforms("hashed");
}

#[test]
fn some_keyspaces_hashed() {
    conforms("some hashed, tiny groups");
}

#[test]
fn deadlines() {
    conforms("deadlines");
}

#[test]
fn deadlines_beside_separated_values() {
    conforms("deadlines beside separated values, tiny groups");
}

#[test]
fn large_values() {
    conforms("large values");
}

#[test]
fn all_values_large() {
    conforms("all values large, tiny groups");
}

#[test]
fn large_values_and_separated_ones() {
    conforms("large values and separated ones, hashed or not");
}

#[test]
fn every_configuration_of_the_matrix_is_tested_here() {
    assert_eq!(Configuration::matrix().len(), 21);
}
