//! Checks of page-grouped keyspaces.

use std::path::Path;

use terrapin::{CheckpointDistance, KeyspaceOptions, StructureKind};
use terrapin_disk::SimDisk;

use super::tiered::{compare, figure, put};
use super::{Outcome, Truth, text, tiny};
use crate::process::Process;

const KEYS: u64 = 3000;
const ROUNDS: u64 = 60;

/// Overwrites scattered keys, so that several groups wait beside each leaf, and reads all of them
/// again and again, the last time after an open.
pub(in crate::mutants) fn overwriting(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(86));
    let options = tiny()
        .memory(4 << 20)
        .group_bytes(2 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(64));
    let database = world.open(&options).map_err(text("open"))?;
    let stored = KeyspaceOptions::new().structure(StructureKind::InPlace);
    let keyspace = database
        .create_keyspace("k", stored)
        .map_err(text("create"))?;
    let (mut truth, mut waiting) = (Truth::new(), 0);
    for round in 0..ROUNDS {
        let each = if round == 0 { KEYS } else { KEYS / 30 };
        for i in 0..each {
            put(&keyspace, &mut truth, (round * 7919 + i * 37) % KEYS, round)?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        waiting = waiting.max(figure(&database, "most_waiting_groups_of_a_leaf")?);
        if round % 10 == 9 {
            compare(&keyspace, &truth, &format!("round {round}"))?;
        }
    }
    drop(keyspace);
    database.close().map_err(text("close"))?;
    let database = world.open(&options).map_err(text("open"))?;
    let keyspace = database.open_keyspace("k").map_err(text("keyspace"))?;
    compare(&keyspace, &truth, "after an open")?;
    drop(keyspace);
    world.kill(Some(database));
    match waiting >= 2 {
        true => Ok(()),
        false => Err(format!("{waiting} groups waited beside a leaf at most")),
    }
}
