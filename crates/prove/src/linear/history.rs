//! The clients' calls and answers in the order of events, in the judge's format.

use std::fmt::Write;

/// What an operation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Set all its keys at one moment, and was acknowledged.
    Write,
    /// Saw all its keys at one moment.
    Read,
    /// A write whose process died before the answer: it took effect by its end, or never.
    Perhaps,
    /// A pop under way: it removes the first of its keys that has a value.
    Pop,
    /// A pop whose process died before the answer.
    PerhapsPop,
}

impl Kind {
    /// The kind of an operation whose process died before the answer. None if it has no effect.
    #[must_use]
    pub fn interrupted(self) -> Option<Kind> {
        match self {
            Kind::Write => Some(Kind::Perhaps),
            Kind::Pop => Some(Kind::PerhapsPop),
            _ => None,
        }
    }
}

/// One operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client.
    pub client: usize,
    /// The time of the call; every event has a time of its own.
    pub call: u64,
    /// The time of the answer, or of the process's death.
    pub answer: u64,
    /// The kind of operation.
    pub kind: Kind,
    /// Keys by number, each with the number of the written or seen value; 0 is no value. Of two
    /// values for one key the last one counts.
    pub values: Vec<(usize, u64)>,
    /// What a conditional write saw at its moment: keys with their values.
    pub saw: Vec<(usize, u64)>,
}

/// The operations of some clients, in any order.
#[derive(Clone, Debug)]
pub struct History {
    /// The values before all operations.
    pub start: Vec<u64>,
    /// The operations.
    pub operations: Vec<Operation>,
}

impl History {
    /// A history that begins with these values, one per key.
    #[must_use]
    pub fn new(start: Vec<u64>) -> Self {
        History {
            start,
            operations: Vec::new(),
        }
    }

    /// As lines of JSON.
    #[must_use]
    pub fn lines(&self) -> String {
        let mut out = format!(
            "{{\"keys\": {}, \"start\": {:?}}}\n",
            self.start.len(),
            self.start
        );
        for operation in &self.operations {
            let kind = match operation.kind {
                Kind::Write => "write",
                Kind::Read => "read",
                Kind::Perhaps => "perhaps",
                Kind::Pop | Kind::PerhapsPop => "perhaps_pop",
            };
            let unzip = |pairs: &[(usize, u64)]| -> (Vec<usize>, Vec<u64>) {
                pairs.iter().copied().unzip()
            };
            let (keys, values) = unzip(&operation.values);
            let (saw_keys, saw) = unzip(&operation.saw);
            let Operation {
                client,
                call,
                answer,
                ..
            } = operation;
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{{\"client\": {client}, \"call\": {call}, \"return\": {answer}, \"kind\": \"{kind}\", \"keys\": {keys:?}, \"values\": {values:?}, \"saw_keys\": {saw_keys:?}, \"saw\": {saw:?}}}"
            );
        }
        out
    }
}
