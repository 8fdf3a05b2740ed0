//! Readers beside a writer that goes on before each of their calls.

use terrapin_model::beside_run;

#[test]
fn a_reader_sees_one_moment_whatever_the_writer_does() {
    let (mut views, mut overtaken, mut verified) = (0, 0, 0);
    for seed in 1..20 {
        let ran = beside_run(seed, 80).unwrap_or_else(|error| panic!("{error}"));
        views += ran.views;
        overtaken += ran.overtaken;
        verified += ran.verified;
    }
    assert!(
        views > 50 && overtaken > 5 && verified > 50,
        "{views}, {overtaken}, {verified}"
    );
}
