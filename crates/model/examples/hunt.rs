//! Searches many seeds for failures: `hunt random|crash FIRST COUNT OPERATIONS`. It reduces the
//! first failing random run to the operations that matter, and prints it as a script.

use std::process::ExitCode;

use terrapin_model::{crash_run, minimize, random_operations, random_run, replay};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        arguments
            .get(at)
            .map_or(Some(default), |text| text.parse().ok())
    };
    let kind = arguments.first().map_or("random", String::as_str);
    let (Some(first), Some(count), Some(operations)) =
        (number(1, 1), number(2, 100), number(3, 2000))
    else {
        eprintln!("hunt random|crash FIRST COUNT OPERATIONS");
        return ExitCode::from(2);
    };
    let operations = usize::try_from(operations).unwrap_or(usize::MAX);
    let (mut done, mut crashes, mut failed) = (0, 0, 0);
    for seed in first..first.saturating_add(count) {
        let outcome = if kind == "crash" {
            crash_run(seed, operations)
        } else {
            random_run(seed, operations)
        };
        match outcome {
            Ok(outcome) => {
                done += outcome.operations;
                crashes += outcome.crashes;
            }
            Err(failure) => {
                println!("{failure}");
                failed += 1;
                if kind != "crash" && failed == 1 {
                    shrink(seed, operations);
                }
            }
        }
    }
    println!("{count} runs: {done} operations, {crashes} crashes, {failed} failures");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn shrink(seed: u64, operations: usize) {
    let (configuration, all) = random_operations(seed, operations);
    let run = |all: &[_]| replay("shrunk", seed, &configuration, all.iter().cloned());
    std::panic::set_hook(Box::new(|_| {}));
    let least = minimize(all, |all| run(all).is_err());
    let _ = std::panic::take_hook();
    println!("# {configuration}");
    least.iter().for_each(|operation| println!("{operation}"));
    if let Err(failure) = run(&least) {
        println!("# {}", failure.message);
    }
}
