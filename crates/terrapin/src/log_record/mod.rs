//! What the engine writes into the log: operations on records, and changes of the set of keyspaces.

pub(crate) mod format;

pub(crate) use format::{Operation, Operations, Schema};
