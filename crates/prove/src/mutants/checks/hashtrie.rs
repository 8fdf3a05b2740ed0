//! Checks of hashed keyspaces.

use std::path::Path;

use terrapin::{CheckpointDistance, KeyspaceOptions, SpaceAmplification, StructureKind};
use terrapin_disk::SimDisk;

use super::tiered::compare_gets;
use super::{Outcome, Truth, key, text, tiny};
use crate::process::Process;

const KEYS: u64 = 4000;
const ROUNDS: u64 = 120;

/// Overwrites keys again and again, a tenth in each checkpoint. The trie accepts half as much space
/// as its records take.
pub(in crate::mutants) fn overwriting(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(85));
    let options = tiny()
        .memory(4 << 20)
        .group_bytes(2 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(64));
    let database = world.open(&options).map_err(text("open"))?;
    let stored = KeyspaceOptions::new()
        .structure(StructureKind::Hashed)
        .space_amplification(SpaceAmplification::from(1.5));
    let keyspace = database
        .create_keyspace("k", stored)
        .map_err(text("create"))?;
    let mut truth = Truth::new();
    let mut most_permille = 0;
    for round in 0..ROUNDS {
        let each = if round == 0 { KEYS } else { KEYS / 10 };
        for i in 0..each {
            let number = (round * 7919 + i * 37) % KEYS;
            let value = format!("{number} of round {round} ").repeat(3).into_bytes();
            keyspace.put(key(number), &value).map_err(text("put"))?;
            truth.insert(key(number), value);
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        let stat = database.stat().map_err(text("stat"))?;
        let tree = stat.keyspaces.iter().find(|keyspace| keyspace.name == "k");
        let held = tree.map_or(0, |k| k.tree.leaf_records + k.tree.buffered_records);
        most_permille = most_permille.max(held * 1000 / KEYS);
        if round % 10 == 9 {
            compare_gets(&keyspace, &truth, &format!("round {round}"))?;
        }
    }
    drop(keyspace);
    world.kill(Some(database));
    match most_permille <= 2700 {
        true => Ok(()),
        false => Err(format!(
            "the runs had {most_permille} records for each thousand"
        )),
    }
}
