//! What users call: the database, its keyspaces, snapshots and batches. No logic: each call checks
//! what it was handed and goes on to the engine.

pub mod batch;
pub mod conditions;
pub mod database;
pub mod expiry;
pub mod ingest;
pub mod keyspace;
pub mod large;
pub mod range_deletes;
pub mod reads;
pub mod snapshot;
pub mod streamed;
pub mod transaction;
pub mod unordered;
