//! Layer `asan`: tests of the crates with unsafe code, and of their threads, under AddressSanitizer
//! by `scripts/asan.sh`. The script also shows that a bad access is noticed.

use std::path::Path;
use std::process::Command;

use crate::Find;
use crate::build::{last, run};

/// The tests of each unit, as arguments of `cargo test`; cheap ones nearest to the unsafe code come
/// first. Doc tests are left out: they are linked without the sanitizer.
pub(super) const UNITS: [&[&str]; 3] = [
    &[
        "--lib",
        "--tests",
        "-p",
        "terrapin-disk",
        "-p",
        "terrapin-memtable",
        "-p",
        "terrapin-recordcache",
    ],
    &["-p", "terrapin", "--test", "real", "--test", "read_threads"],
    &["--lib", "--tests", "-p", "terrapin-pages"],
];

pub(super) fn unit(number: u64, _scratch: &Path) -> Result<u64, Find> {
    let what = UNITS[number as usize % UNITS.len()];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/asan.sh");
    let said = run(Command::new(script).args(what))?;
    if !said.passed {
        return Err(Find(format!(
            "AddressSanitizer, or a test under it: scripts/asan.sh {}\n{}",
            what.join(" "),
            last(&said.text)
        )));
    }
    Ok(passed(&said.text))
}

/// Sums lines like `test result: ok. 14 passed; 0 failed; …`.
fn passed(text: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn passed_tests_are_counted_over_all_results() {
        let text = "running 2 tests\n\
            test result: ok. 14 passed; 0 failed; 0 ignored\n\
            test result: ok. 3 passed; 0 failed; 1 ignored\n";
        assert_eq!(super::passed(text), 17);
    }
}
