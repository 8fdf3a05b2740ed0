//! The steps of a script's transaction.

use std::fmt;

use crate::operation::{Change, Read, Span, Walk, What, place, show_change};
use crate::pattern::Pattern;

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxStep {
    /// The transaction writes.
    Change(Change),
    /// It reads a key of a keyspace.
    Get(String, Pattern),
    /// It reads a key of a keyspace for update.
    GetForUpdate(String, Pattern),
    /// It reads a range of a keyspace.
    Range {
        /// The keyspace.
        keyspace: String,
        /// The keys.
        span: Span,
        /// Whether it reads from the back.
        back: bool,
        /// The most records that it takes.
        limit: Option<usize>,
    },
    /// It notes a place to go back to.
    Save,
    /// It takes back all writes since the place of this number, the first of which is 0.
    Undo(usize),
    /// Another writer writes.
    Beside(Change),
    /// Memtables are merged.
    Checkpoint,
}

impl TxStep {
    /// The keyspace in which a step needs an order of keys.
    #[must_use]
    pub fn needs_order(&self) -> Option<&str> {
        match self {
            TxStep::Range { keyspace, .. } => Some(keyspace),
            step => {
                let change = step.change()?;
                matches!(change.what, What::Erase(_)).then_some(&*change.keyspace)
            }
        }
    }

    /// The change of a step, also of another writer.
    #[must_use]
    pub fn change(&self) -> Option<&Change> {
        match self {
            TxStep::Change(change) | TxStep::Beside(change) => Some(change),
            _ => None,
        }
    }
}

impl fmt::Display for TxStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TxStep::Change(change) => show_change(f, change),
            TxStep::Get(keyspace, key) => {
                place(f, keyspace)?;
                write!(f, "get {key}")
            }
            TxStep::GetForUpdate(keyspace, key) => {
                place(f, keyspace)?;
                write!(f, "lock {key}")
            }
            TxStep::Range {
                keyspace,
                span,
                back,
                limit,
            } => {
                place(f, keyspace)?;
                let walk = match back {
                    true => Walk::Backward,
                    false => Walk::Forward,
                };
                Read::Range(span.clone(), walk, *limit).fmt(f)
            }
            TxStep::Save => f.write_str("save"),
            TxStep::Undo(number) => write!(f, "undo {number}"),
            TxStep::Beside(change) => {
                f.write_str("beside ")?;
                show_change(f, change)
            }
            TxStep::Checkpoint => f.write_str("checkpoint"),
        }
    }
}
