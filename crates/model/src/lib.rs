//! A model of Terrapin, and the comparison with it.
//!
//! - [`Oracle`]: maps in memory that answer every [`Operation`] as a store should, and that know
//!   which states a crash may leave.
//! - [`Generator`]: random operations from a seed. [`random_run`] and [`crash_run`] compare a
//!   database on a simulated disk with the oracle. The same seed gives the same run to the last
//!   disk call.
//! - [`beside_run`]: readers beside a writer that goes on before each call of theirs.
//! - [`conformance`]: scripts (`scripts/*.script`, one operation per line) for any [`Subject`], so
//!   every structure meets the same contract.
//!
//! A failure prints its operations as lines of a script.
//! `cargo run --release -p terrapin-model --example hunt -- random 1 100 5000` searches seeds 1 to
//! 100 for failures, and reduces the first to the operations that matter.
#![forbid(unsafe_code)]

mod beside;
mod conditional;
mod configuration;
mod conformance;
mod crash;
mod generate;
mod life;
mod operation;
mod oracle;
mod pattern;
mod random;
mod run;
mod script;
mod simulated;
mod step;
mod structures;
mod subject;
mod tail;
mod transaction;
mod turn;

pub use beside::{BesideRun, beside_run};
pub use conditional::{Conditional, updated};
pub use configuration::{Configuration, Deadlines};
pub use conformance::{Report, SCRIPTS, conformance, run_script};
pub use crash::{crash_run, crash_run_on};
pub use generate::{Generator, Profile};
pub use life::Life;
pub use operation::{Answer, Change, Durability, Operation, Read, Record, Reopen, Span, Walk};
pub use oracle::{InFlight, Map, Oracle, State, Survives, UNLOGGED};
pub use pattern::Pattern;
pub use random::Random;
pub use run::{
    Failure, Outcome, minimize, random_operations, random_run, random_run_on, replay, replay_beside,
};
pub use script::{Expected, Script, Step};
pub use simulated::Simulated;
pub use step::TxStep;
pub use structures::Structures;
pub use subject::Subject;
pub use tail::Tail;
