//! Layer `fuzz-replay`, which CI runs instead of fuzzing: every input of the corpus, every past
//! find, and some thousands of changed inputs. The unit's number determines the changes.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use terrapin_model::Random;

use crate::Find;

use super::{TARGETS, Target, template};

/// Changed inputs per unit. The first units also try the corpus and the finds.
pub const CHANGED: u64 = 100;
/// A longer time for one input counts as a hang.
const INPUT_SECONDS_MAX: u64 = 60;
/// Longest changed input.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Inputs of a target in a folder, by name.
#[must_use]
pub fn inputs(folder: &str, target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = template::folder().join(folder).join(target);
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
        .into_iter()
        .filter(|path| path.extension().is_none_or(|extension| extension != "md"))
        .filter_map(|path| fs::read(&path).ok().map(|input| (path, input)))
        .collect()
}

/// Unit n tries target n mod 8. The first unit of each target also replays the kept inputs.
pub fn unit(number: u64, _scratch: &Path) -> Result<u64, Find> {
    let target = &TARGETS[(number % TARGETS.len() as u64) as usize];
    let round = number / TARGETS.len() as u64;
    let corpus = inputs("corpus", target.name);
    if corpus.is_empty() {
        return Err(Find(format!("the corpus of {} is missing", target.name)));
    }
    let mut count = 0;
    if round == 0 {
        for (path, input) in corpus.iter().chain(&inputs("finds", target.name)) {
            one(target, input)
                .map_err(|find| Find(format!("{} on {}: {find}", target.name, path.display())))?;
            count += 1;
        }
    }
    let mut random = Random::new(number);
    for change in 0..CHANGED {
        let mut input = corpus[random.index(corpus.len())].1.clone();
        (target.change)(&mut input, &mut random, INPUT_BYTES_MAX);
        one(target, &input).map_err(|find| {
            let kept = keep(target, &input);
            Find(format!(
                "{} on change {change} of unit {number}, kept in {kept}: {find}",
                target.name
            ))
        })?;
        count += 1;
    }
    Ok(count)
}

/// Writes an input with a find to a place where people can take it.
fn keep(target: &Target, input: &[u8]) -> String {
    let name = format!(
        "terrapin-find-{}-{:016x}",
        target.name,
        terrapin_base::checksum::hash64(input)
    );
    let path = std::env::temp_dir().join(name);
    match fs::write(&path, input) {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("no file ({error})"),
    }
}

/// Runs a target on an input. A panic is a find, and so is a hang, which keeps running.
pub fn one(target: &Target, input: &[u8]) -> Result<bool, Find> {
    let (answer, answered) = channel();
    let (run, input) = (target.run, input.to_vec());
    #[expect(
        clippy::disallowed_methods,
        reason = "a hanging target outlives its caller, which no scope allows"
    )]
    let worker = thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&input)));
        // The caller may have given up.
        let _ = answer.send(outcome.map_err(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            text.unwrap_or("a panic without a message").to_owned()
        }));
    });
    match answered.recv_timeout(Duration::from_secs(INPUT_SECONDS_MAX)) {
        Ok(outcome) => {
            let _ = worker.join();
            outcome.map_err(Find)
        }
        Err(RecvTimeoutError::Timeout) => {
            Err(Find(format!("a hang: {INPUT_SECONDS_MAX} s and no end")))
        }
        Err(RecvTimeoutError::Disconnected) => Err(Find("the worker died".to_owned())),
    }
}
