//! A workload: options and a few operations, short enough to try every death in it.

use terrapin_model::{Configuration, Operation, Script};

use crate::Find;

/// A workload as it is written down.
pub(super) struct Workload {
    pub name: &'static str,
    /// Changes the tiny options.
    pub options: fn(&mut Configuration),
    /// Lines in the language of the conformance scripts (`crates/model/scripts/README.md`).
    pub script: &'static str,
}

/// A workload to run.
pub(super) struct Course {
    pub name: String,
    pub configuration: Configuration,
    pub operations: Vec<Operation>,
}

/// The smallest store: groups and windows of 1 KiB, so that a few writes fill them.
fn tiny() -> Configuration {
    Configuration {
        group_bytes: 1 << 10,
        chi: Some(2),
        fanout: Some(4),
        segment_bytes: 16 << 10,
        ..Configuration::small()
    }
}

impl Workload {
    pub fn read(&self) -> Result<Course, Find> {
        let script = Script::parse(self.name, self.script)?;
        let mut configuration = tiny();
        (self.options)(&mut configuration);
        Ok(Course {
            name: self.name.to_owned(),
            configuration,
            operations: script.steps.into_iter().map(|s| s.operation).collect(),
        })
    }
}
