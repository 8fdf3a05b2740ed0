//! The operations of a store and its answers. An [`Operation`] prints as a line of a script, so a
//! failed run's trace can become a script.

use std::fmt;
use std::ops::Bound;

use terrapin_base::ErrorKind;

use crate::conditional::Conditional;
use crate::pattern::{Pattern, Shown};
use crate::step::TxStep;

/// The durability of a write, as [`terrapin::Durability`]; none means the store's default.
pub type Durability = Option<terrapin::Durability>;

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The keyspace's name.
    pub keyspace: String,
    /// What it does.
    pub what: What,
}

/// What a change does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Sets a key's value.
    Put(Pattern, Pattern),
    /// Removes a key.
    Delete(Pattern),
    /// Applies an operand to a key's value, by the operator [`crate::Tail`].
    Merge(Pattern, Pattern),
    /// Removes the keys of a span.
    Erase(Span),
}

impl Change {
    /// A put, or without a value a delete.
    #[must_use]
    pub fn of(keyspace: &str, key: Pattern, value: Option<Pattern>) -> Self {
        Change {
            keyspace: keyspace.to_owned(),
            what: match value {
                Some(value) => What::Put(key, value),
                None => What::Delete(key),
            },
        }
    }

    /// The key of a put or a delete, with the value of the put.
    #[must_use]
    pub fn record(&self) -> Option<(&Pattern, Option<&Pattern>)> {
        match &self.what {
            What::Put(key, value) => Some((key, Some(value))),
            What::Delete(key) => Some((key, None)),
            What::Merge(..) | What::Erase(_) => None,
        }
    }

    /// Bytes in a batch, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        16 + match &self.what {
            // A large value is in a page of its own, and the batch has its handle.
            What::Put(key, value) if value.len() > terrapin_base::VALUE_BYTES_MAX => key.len() + 64,
            What::Put(key, value) | What::Merge(key, value) => key.len() + value.len(),
            What::Delete(key) => key.len(),
            What::Erase(span) => span.bytes(),
        }
    }
}

/// The records that a range shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Between two bounds.
    Between(Bound<Pattern>, Bound<Pattern>),
    /// Keys with this prefix.
    Prefix(Pattern),
}

impl Span {
    /// The keys that bound it, or its prefix.
    pub fn keys(&self) -> impl Iterator<Item = &Pattern> {
        let key = |bound| match bound {
            &Bound::Included(ref key) | &Bound::Excluded(ref key) => Some(key),
            Bound::Unbounded => None,
        };
        let (a, b) = match self {
            Span::Between(lower, upper) => (key(lower), key(upper)),
            Span::Prefix(prefix) => (Some(prefix), None),
        };
        a.into_iter().chain(b)
    }

    /// Bytes of the keys that bound it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let keys: usize = self.keys().map(|key| key.len() + 1).sum();
        match self {
            Span::Between(..) => keys,
            // The log has the prefix, and the key behind all keys with it.
            Span::Prefix(_) => 2 * keys,
        }
    }
}

/// The order in which a range is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// From the front.
    Forward,
    /// From the back.
    Backward,
    /// From both ends, chosen per record by a seed, until they meet.
    Ends(u64),
}

/// A single read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A value.
    Get(Pattern),
    /// Whether there is one.
    Contains(Pattern),
    /// Many values.
    MultiGet(Vec<Pattern>),
    /// The record with the smallest key.
    First,
    /// The record with the largest key.
    Last,
    /// An estimate of the number of records.
    Count,
    /// The records of a range, up to a limit.
    Range(Span, Walk, Option<usize>),
    /// Opens a named range. [`Operation::Next`] consumes it later, beside other operations.
    Open(String, Span),
}

/// How a store is closed and opened again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reopen {
    /// It is dropped without `close`.
    pub dropped: bool,
    /// It is verified, and opened for reading only, in between.
    pub inspected: bool,
    /// It is opened with other options, chosen by this seed; 0 keeps them.
    pub vary: u64,
}

/// One operation on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are what their names say
pub enum Operation {
    /// Sets a value.
    Put {
        keyspace: String,
        key: Pattern,
        value: Pattern,
        durability: Durability,
    },
    /// Removes a key.
    Delete {
        keyspace: String,
        key: Pattern,
        durability: Durability,
    },
    /// Applies an operand to a value.
    Merge {
        keyspace: String,
        key: Pattern,
        operand: Pattern,
        durability: Durability,
    },
    /// Removes the keys of a span.
    Erase {
        keyspace: String,
        span: Span,
        durability: Durability,
    },
    /// Changes that become visible together.
    Batch {
        changes: Vec<Change>,
        durability: Durability,
    },
    /// A write that depends on the records of a keyspace.
    Conditional { keyspace: String, how: Conditional },
    /// Changes that become visible together, if each required key has its value, or none.
    Guarded {
        required: Vec<Change>,
        changes: Vec<Change>,
        durability: Durability,
    },
    /// A transaction. The answer has what it reads, and whether it commits.
    Transact {
        snapshot: bool,
        steps: Vec<TxStep>,
        durability: Durability,
    },
    /// Records in key order that become visible and durable together, without the log.
    Ingest {
        keyspace: String,
        records: Vec<(Pattern, Pattern)>,
    },
    /// A read of the newest state, or of a snapshot.
    Read {
        snapshot: Option<String>,
        keyspace: String,
        read: Read,
    },
    /// The next records of an open range, from its front or its back.
    Next {
        range: String,
        count: usize,
        back: bool,
    },
    /// Drops an open range.
    Shut { range: String },
    /// Takes a snapshot under a name.
    Snapshot { name: String },
    /// Drops a snapshot.
    Release { name: String },
    /// Creates a keyspace.
    Create { keyspace: String },
    /// Drops a keyspace.
    Drop { keyspace: String },
    /// Removes every record of a keyspace.
    Clear { keyspace: String },
    /// The names of the keyspaces.
    Keyspaces,
    /// Merges every memtable, durably.
    Checkpoint,
    /// Makes everything durable.
    Flush,
    /// Changes χ of all keyspaces; none means auto.
    Chi { distance: Option<u32> },
    /// Changes χ of one keyspace; none means auto.
    Dial {
        keyspace: String,
        distance: Option<u32>,
    },
    /// Changes the memory budget, in KiB.
    Memory { kib: u64 },
    /// Closes the store and opens it again. Snapshots and ranges end.
    Reopen(Reopen),
    /// Lets milliseconds pass, and background work catch up.
    Pass { ms: u64 },
}

impl Operation {
    /// Whether the operation may change what later reads see.
    #[must_use]
    pub fn is_write(&self) -> bool {
        use Operation as O;
        matches!(
            self,
            O::Put { .. }
                | O::Delete { .. }
                | O::Merge { .. }
                | O::Erase { .. }
                | O::Batch { .. }
                | O::Conditional { .. }
                | O::Guarded { .. }
                | O::Transact { .. }
                | O::Ingest { .. }
                | O::Create { .. }
                | O::Drop { .. }
                | O::Clear { .. }
        )
    }
}

/// A record: key and value.
pub type Record = (Vec<u8>, Vec<u8>);

/// The answer of a store.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The operation succeeded without a result.
    Done,
    /// A value, or none.
    Value(Option<Vec<u8>>),
    /// Values, or none, in the order of the keys.
    Values(Vec<Option<Vec<u8>>>),
    /// Yes or no.
    Flag(bool),
    /// Records in the order in which they were shown.
    Records(Vec<Record>),
    /// Names, sorted.
    Names(Vec<String>),
    /// An estimated count.
    About(u64),
    /// An error, and its text.
    Failed(ErrorKind, String),
    /// The store broke a promise that the operation itself checks. It equals no other answer.
    Broken(String),
}

impl Answer {
    /// Whether two stores gave the same answer. Errors agree if their kinds do, and any two counts
    /// do.
    #[must_use]
    pub fn agrees(&self, other: &Answer) -> bool {
        use Answer as A;
        match (self, other) {
            (A::Done, A::Done) | (A::About(_), A::About(_)) => true,
            (A::Value(a), A::Value(b)) => a == b,
            (A::Values(a), A::Values(b)) => a == b,
            (A::Flag(a), A::Flag(b)) => a == b,
            (A::Records(a), A::Records(b)) => a == b,
            (A::Names(a), A::Names(b)) => a == b,
            (A::Failed(a, _), A::Failed(b, _)) => a == b,
            _ => false,
        }
    }

    /// The difference between two answers, in one line.
    #[must_use]
    pub fn difference(&self, expected: &Answer) -> String {
        if let (Answer::Records(got), Answer::Records(want)) = (self, expected) {
            let at = got.iter().zip(want).take_while(|(a, b)| a == b).count();
            let show = |list: &[Record]| {
                list.get(at).map_or("the end".to_owned(), |(k, v)| {
                    format!("{}={}", brief(k), brief(v))
                })
            };
            let (got_count, want_count) = (got.len(), want.len());
            return format!(
                "record {at}: got {}, expected {} (got {got_count} records, expected {want_count})",
                show(got),
                show(want)
            );
        }
        format!("got {self}, expected {expected}")
    }
}

/// Bytes in the notation of scripts, long ones cut.
fn brief(bytes: &[u8]) -> String {
    match bytes.get(..40) {
        Some(head) if bytes.len() > 48 => format!("{}… ({} bytes)", Shown(head), bytes.len()),
        _ => Shown(bytes).to_string(),
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |v: &Option<Vec<u8>>| v.as_deref().map_or("none".to_owned(), brief);
        match self {
            Answer::Done => f.write_str("done"),
            Answer::Value(v) => f.write_str(&value(v)),
            Answer::Values(all) => {
                f.write_str(&all.iter().map(value).collect::<Vec<_>>().join(" "))
            }
            Answer::Flag(yes) => f.write_str(if *yes { "yes" } else { "no" }),
            Answer::Records(all) if all.is_empty() => f.write_str("nothing"),
            Answer::Records(all) => {
                for (i, (key, value)) in all.iter().take(8).enumerate() {
                    write!(
                        f,
                        "{}{}={}",
                        if i == 0 { "" } else { " " },
                        brief(key),
                        brief(value)
                    )?;
                }
                if all.len() > 8 {
                    write!(f, " … ({} records)", all.len())
                } else {
                    Ok(())
                }
            }
            Answer::Names(names) => f.write_str(&names.join(" ")),
            Answer::About(count) => write!(f, "about {count}"),
            Answer::Failed(kind, message) => write!(f, "error {kind:?}: {message}"),
            Answer::Broken(what) => write!(f, "a broken promise: {what}"),
        }
    }
}

pub(crate) fn place(f: &mut fmt::Formatter<'_>, keyspace: &str) -> fmt::Result {
    if keyspace == "default" {
        Ok(())
    } else {
        write!(f, "@{keyspace} ")
    }
}

fn show_changes(f: &mut fmt::Formatter<'_>, changes: &[Change]) -> fmt::Result {
    for (i, change) in changes.iter().enumerate() {
        f.write_str(if i == 0 { " " } else { " ; " })?;
        show_change(f, change)?;
    }
    Ok(())
}

pub(crate) fn show_change(f: &mut fmt::Formatter<'_>, change: &Change) -> fmt::Result {
    place(f, &change.keyspace)?;
    match &change.what {
        What::Put(key, value) => write!(f, "put {key} {value}"),
        What::Delete(key) => write!(f, "delete {key}"),
        What::Merge(key, operand) => write!(f, "merge {key} {operand}"),
        What::Erase(span) => write!(f, "erase {span}"),
    }
}

/// Writes the conditions of a batch: `require KEY VALUE` and `lack KEY`.
fn show_required(f: &mut fmt::Formatter<'_>, required: &[Change]) -> fmt::Result {
    for required in required {
        f.write_str(" ")?;
        place(f, &required.keyspace)?;
        match required.record() {
            Some((key, Some(value))) => write!(f, "require {key} {value} ;")?,
            Some((key, None)) => write!(f, "lack {key} ;")?,
            None => {}
        }
    }
    Ok(())
}

fn durability_word(durability: Durability) -> &'static str {
    match durability {
        None => "",
        Some(terrapin::Durability::Process) => " process",
        Some(terrapin::Durability::Sync) => " sync",
        Some(terrapin::Durability::None) => " none",
        Some(_) => " other",
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Prefix(prefix) => write!(f, "prefix {prefix}"),
            Span::Between(lower, upper) => {
                f.write_str("range")?;
                match lower {
                    Bound::Unbounded => {}
                    Bound::Included(key) => write!(f, " from {key}")?,
                    Bound::Excluded(key) => write!(f, " after {key}")?,
                }
                match upper {
                    Bound::Unbounded => Ok(()),
                    Bound::Included(key) => write!(f, " through {key}"),
                    Bound::Excluded(key) => write!(f, " to {key}"),
                }
            }
        }
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Read::Get(key) => write!(f, "get {key}"),
            Read::Contains(key) => write!(f, "contains {key}"),
            Read::MultiGet(keys) => {
                f.write_str("multi")?;
                keys.iter().try_for_each(|key| write!(f, " {key}"))
            }
            Read::First => f.write_str("first"),
            Read::Last => f.write_str("last"),
            Read::Count => f.write_str("count"),
            Read::Range(span, walk, limit) => {
                span.fmt(f)?;
                match walk {
                    Walk::Forward => {}
                    Walk::Backward => f.write_str(" reverse")?,
                    Walk::Ends(seed) => write!(f, " ends {seed}")?,
                }
                limit.map_or(Ok(()), |limit| write!(f, " limit {limit}"))
            }
            Read::Open(name, span) => write!(f, "open {name} {span}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Put {
                keyspace,
                key,
                value,
                durability,
            } => {
                place(f, keyspace)?;
                write!(f, "put {key} {value}{}", durability_word(*durability))
            }
            Operation::Delete {
                keyspace,
                key,
                durability,
            } => {
                place(f, keyspace)?;
                write!(f, "delete {key}{}", durability_word(*durability))
            }
            Operation::Merge {
                keyspace,
                key,
                operand,
                durability,
            } => {
                place(f, keyspace)?;
                write!(f, "merge {key} {operand}{}", durability_word(*durability))
            }
            Operation::Erase {
                keyspace,
                span,
                durability,
            } => {
                place(f, keyspace)?;
                write!(f, "erase {span}{}", durability_word(*durability))
            }
            Operation::Batch {
                changes,
                durability,
            } => {
                write!(f, "batch{}", durability_word(*durability))?;
                show_changes(f, changes)
            }
            Operation::Conditional { keyspace, how } => {
                place(f, keyspace)?;
                how.fmt(f)
            }
            Operation::Ingest { keyspace, records } => {
                place(f, keyspace)?;
                f.write_str("ingest")?;
                for (i, (key, value)) in records.iter().enumerate() {
                    write!(f, "{} {key} {value}", if i == 0 { "" } else { " ;" })?;
                }
                Ok(())
            }
            Operation::Guarded {
                required,
                changes,
                durability,
            } => {
                write!(f, "guarded{}", durability_word(*durability))?;
                show_required(f, required)?;
                show_changes(f, changes)
            }
            Operation::Transact {
                snapshot,
                steps,
                durability,
            } => {
                f.write_str(if *snapshot {
                    "transact snapshot"
                } else {
                    "transact"
                })?;
                f.write_str(durability_word(*durability))?;
                for (i, step) in steps.iter().enumerate() {
                    write!(f, "{}{step}", if i == 0 { " " } else { " ; " })?;
                }
                Ok(())
            }
            Operation::Read {
                snapshot,
                keyspace,
                read,
            } => {
                if let Some(snapshot) = snapshot {
                    write!(f, "%{snapshot} ")?;
                }
                place(f, keyspace)?;
                read.fmt(f)
            }
            Operation::Next { range, count, back } => {
                write!(f, "{} {range} {count}", if *back { "back" } else { "next" })
            }
            Operation::Shut { range } => write!(f, "shut {range}"),
            Operation::Snapshot { name } => write!(f, "snapshot {name}"),
            Operation::Release { name } => write!(f, "release {name}"),
            Operation::Create { keyspace } => write!(f, "create {}", Shown(keyspace.as_bytes())),
            Operation::Drop { keyspace } => write!(f, "drop {}", Shown(keyspace.as_bytes())),
            Operation::Clear { keyspace } => {
                place(f, keyspace)?;
                f.write_str("clear")
            }
            Operation::Keyspaces => f.write_str("keyspaces"),
            Operation::Checkpoint => f.write_str("checkpoint"),
            Operation::Flush => f.write_str("flush"),
            Operation::Chi {
                distance: Some(distance),
            } => write!(f, "chi {distance}"),
            Operation::Chi { distance: None } => f.write_str("chi auto"),
            Operation::Dial { keyspace, distance } => {
                place(f, keyspace)?;
                match distance {
                    Some(distance) => write!(f, "dial {distance}"),
                    None => f.write_str("dial auto"),
                }
            }
            Operation::Memory { kib } => write!(f, "memory {kib}"),
            Operation::Reopen(how) => {
                f.write_str("reopen")?;
                f.write_str(if how.dropped { " dropped" } else { "" })?;
                f.write_str(if how.inspected { " inspected" } else { "" })?;
                if how.vary != 0 {
                    write!(f, " vary {}", how.vary)
                } else {
                    Ok(())
                }
            }
            Operation::Pass { ms } => write!(f, "pass {ms}"),
        }
    }
}
