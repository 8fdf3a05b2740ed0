//! The conformance scripts: the contract of every structure, in `scripts/*.script`, for any
//! [`Subject`].

use terrapin_base::ErrorKind;

use crate::operation::{Answer, Operation, Read, Reopen, Span, Walk};
use crate::oracle::Oracle;
use crate::pattern::Pattern;
use crate::run::{Failure, Trace, compare};
use crate::script::Script;
use crate::structures::Structures;
use crate::subject::Subject;

macro_rules! scripts {
    ($($name:literal),* $(,)?) => {
        /// Every script: its name and its text.
        pub const SCRIPTS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../scripts/", $name, ".script")))),*];
    };
}

scripts!(
    "basics",
    "batches",
    "both_ends",
    "checkpoints",
    "conditions",
    "deletes",
    "durability",
    "grow_and_shrink",
    "hot_key",
    "ingests",
    "key_shapes",
    "keyspaces",
    "large_records",
    "merges",
    "open_ranges",
    "prefixes",
    "range_deletes",
    "ranges",
    "reopen",
    "snapshots",
    "the_dial",
    "transactions",
    "untouched_keyspace",
    "values",
);

/// The amounts that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Scripts that ran to their end.
    pub scripts: usize,
    /// Scripts skipped because their records are too large for the subject.
    pub skipped: usize,
    /// Operations done.
    pub operations: usize,
}

/// Runs every script on a fresh subject beside the oracle. Every answer must equal the oracle's and
/// the script's.
pub fn conformance<S: Subject>(mut fresh: impl FnMut(&str) -> S) -> Result<Report, Failure> {
    let mut report = Report::default();
    for (name, text) in SCRIPTS {
        let script = Script::parse(name, text)
            .map_err(|e| Trace::new(format!("script {name}"), String::new()).failure(e))?;
        let mut subject = fresh(name);
        if script.record_bytes > subject.record_bytes_max() {
            report.skipped += 1;
            continue;
        }
        report.operations += run_script(&script, &mut subject)?;
        report.scripts += 1;
    }
    Ok(report)
}

/// Runs one script on a new, empty subject. Returns the number of its operations.
pub fn run_script(script: &Script, subject: &mut dyn Subject) -> Result<usize, Failure> {
    let mut trace = Trace::new(format!("script {}", script.name), subject.name());
    let keeps_order = subject.keeps_order();
    let mut oracle = Oracle::new()
        .with_order(keeps_order)
        .with_structures(subject.structures());
    // After a refused write, the records are not those that the script expects.
    let mut diverged = false;
    for step in &script.steps {
        trace.note(step.operation.to_string());
        let failure = |message: String| trace.failure(format!("line {}: {message}", step.line));
        if !keeps_order && matches!(&step.operation, Operation::Next { .. }) {
            // Its range was not opened.
            continue;
        }
        let answer = compare(&mut oracle, subject, &step.operation).map_err(failure)?;
        // The oracle's answer is then the refusal.
        let refuses = !keeps_order || subject.structures() != Structures::Leveled;
        let is_refused = |kind| refuses && kind == ErrorKind::Unsupported;
        let refused = matches!(&answer, Answer::Failed(kind, _) if is_refused(*kind));
        diverged |= refused && !matches!(&step.operation, Operation::Read { .. });
        if let Some(expected) = &step.expected
            && !expected.allows(&answer)
            && !refused
            && !diverged
        {
            return Err(failure(format!(
                "got {answer}, the script expects {expected:?}"
            )));
        }
    }
    // A script's records are still there after a reopen. Without order they are read by key.
    let read = |keyspace: &str, read| Operation::Read {
        snapshot: None,
        keyspace: keyspace.to_owned(),
        read,
    };
    let all = Span::Prefix(Pattern::literal(b""));
    let mut everything = vec![read("default", Read::Range(all, Walk::Forward, None))];
    if !keeps_order {
        for (name, map) in oracle.state().keyspaces() {
            let keys: Vec<_> = map.keys().map(Pattern::literal).collect();
            everything.push(read(name, Read::MultiGet(keys)));
        }
    }
    let reopen = Operation::Reopen(Reopen {
        inspected: true,
        ..Default::default()
    });
    for operation in everything.iter().chain([&reopen]).chain(&everything) {
        trace.note(operation.to_string());
        compare(&mut oracle, subject, operation)
            .map_err(|m| trace.failure(format!("at the end: {m}")))?;
    }
    Ok(script.steps.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_right_about_the_oracle() {
        let report = conformance(|_| Oracle::new()).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(report.scripts, SCRIPTS.len());
    }

    #[test]
    fn every_script_of_the_directory_is_run() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
        let mut names: Vec<String> = std::fs::read_dir(directory)
            .expect("the scripts' directory")
            .filter_map(|entry| {
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_suffix(".script")
                    .map(str::to_owned)
            })
            .collect();
        names.sort();
        assert_eq!(
            names,
            SCRIPTS.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
    }
}
