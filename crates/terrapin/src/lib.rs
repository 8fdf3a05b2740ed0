//! An embedded, durable, larger-than-memory key-value store with a dial between reading and writing.
//!
//! (The rest of this page comes with the public API.)
#![forbid(unsafe_code)]

mod batch;
mod catalog;
mod checkpoint;
mod core;
mod cut;
mod database;
mod gate;
mod health;
mod keyspace;
mod metrics;
mod open;
mod options;
mod owner;
mod pressure;
mod record;
mod recovery;
mod schema;
mod state;
mod view;
mod write;
