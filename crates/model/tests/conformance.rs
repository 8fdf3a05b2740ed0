//! The conformance scripts, run against Terrapin under every configuration of the matrix.

use terrapin_model::{Configuration, SCRIPTS, Simulated, conformance};

fn conforms(at: usize) -> usize {
    let (name, configuration) = Configuration::matrix().swap_remove(at);
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
    conforms(0);
}

#[test]
fn tiny_groups() {
    conforms(1);
}

#[test]
fn compressed() {
    conforms(2);
}

#[test]
fn the_papers_bound_and_synced() {
    conforms(3);
}

/// Only this configuration takes the largest records, so it skips nothing.
#[test]
fn large_records() {
    assert_eq!(conforms(4), SCRIPTS.len());
}

#[test]
fn plain() {
    conforms(5);
}

#[test]
fn some_keyspaces_plain() {
    conforms(6);
}

#[test]
fn separated_values() {
    conforms(7);
}

#[test]
fn all_values_separated_tiny_groups() {
    conforms(8);
}

#[test]
fn plain_without_order() {
    conforms(9);
}

#[test]
fn in_place() {
    conforms(10);
}

#[test]
fn in_place_with_tiny_groups_and_compression() {
    conforms(11);
}

#[test]
fn deadlines() {
    conforms(12);
}

#[test]
fn deadlines_beside_separated_values() {
    conforms(13);
}

#[test]
fn every_configuration_of_the_matrix_is_tested_here() {
    assert_eq!(Configuration::matrix().len(), 14);
}
