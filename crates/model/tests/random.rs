//! Random operations beside the oracle, under random options. The example `hunt` tries more seeds.

use terrapin_model::random_run;

fn runs(seeds: std::ops::Range<u64>, operations: usize) {
    for seed in seeds {
        if let Err(failure) = random_run(seed, operations) {
            panic!("{failure}");
        }
    }
}

#[test]
fn short_runs_agree_with_the_oracle() {
    runs(1..80, 300);
}

#[test]
fn runs_agree_with_the_oracle() {
    runs(100..120, 2500);
}

#[test]
fn a_long_run_agrees_with_the_oracle() {
    runs(1000..1002, 20_000);
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_last_disk_call() {
    for seed in [7, 8, 9] {
        let (first, second) = (random_run(seed, 1500), random_run(seed, 1500));
        assert_eq!(
            first.unwrap_or_else(|f| panic!("{f}")),
            second.unwrap_or_else(|f| panic!("{f}"))
        );
    }
    let other = random_run(10, 1500).unwrap_or_else(|f| panic!("{f}"));
    assert_ne!(
        other.trace_hash,
        random_run(7, 1500)
            .unwrap_or_else(|f| panic!("{f}"))
            .trace_hash
    );
}
