//! A workload: options and a few operations, short enough to try every death in it.

use terrapin_model::{Configuration, Operation, Script};

use crate::Find;

/// A workload as it is written down.
pub(super) struct Workload {
    pub name: &'static str,
    /// Changes the tiny options.
    pub options: fn(&mut Configuration),
    /// Lines in the language of the conformance scripts (`crates/model/scripts/README.md`), and
    /// `disk KIB`, which sets the size of the disk.
    pub script: &'static str,
}

/// A workload to run.
pub(super) struct Course {
    pub name: String,
    pub configuration: Configuration,
    pub steps: Vec<Step>,
}

/// One step of it.
pub(super) enum Step {
    Do(Operation),
    /// The disk has this many bytes from here on.
    Disk(u64),
}

/// The smallest store: groups of 1 KiB and memtables of two, so that a few writes fill them.
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
        let mut configuration = tiny();
        (self.options)(&mut configuration);
        let mut steps = Vec::new();
        for line in self.script.lines() {
            if let Some(kib) = line.strip_prefix("disk ") {
                steps.push(Step::Disk(kib.parse::<u64>()? << 10));
                continue;
            }
            let script = Script::parse(self.name, line)?;
            steps.extend(script.steps.into_iter().map(|s| Step::Do(s.operation)));
        }
        Ok(Course {
            name: self.name.to_owned(),
            configuration,
            steps,
        })
    }
}
