//! Random operations with crashes: a prefix survives that holds every acknowledged write. The
//! example `hunt` tries more seeds.

use terrapin_model::crash_run;

fn runs(seeds: std::ops::Range<u64>, operations: usize) -> u64 {
    let mut crashes = 0;
    for seed in seeds {
        match crash_run(seed, operations) {
            Ok(outcome) => crashes += outcome.crashes,
            Err(failure) => panic!("{failure}"),
        }
    }
    crashes
}

#[test]
fn many_short_lives() {
    assert!(runs(1..60, 400) > 200, "too few crashes to mean anything");
}

#[test]
fn longer_lives() {
    assert!(
        runs(200..210, 3000) > 200,
        "too few crashes to mean anything"
    );
}

#[test]
fn the_same_seed_gives_the_same_crashes() {
    let run = |seed| crash_run(seed, 1500).unwrap_or_else(|f| panic!("{f}"));
    assert_eq!(run(5), run(5));
    assert!(run(5).crashes > 0);
}
