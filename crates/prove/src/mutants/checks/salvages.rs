//! Checks of salvages: no deleted or replaced record returns among the certain ones.

use std::path::Path;

use terrapin::salvage::salvage_on;
use terrapin::{Database, Durability};
use terrapin_disk::SimDisk;
use terrapin_pages::DATA_FILE;

use super::{FIRST_SEGMENT, Outcome, Truth, fill, key, text, tiny, value};
use crate::process::Process;

/// Salvages a disk, and checks that each certain record is as it was.
fn check(disk: &SimDisk, truth: &Truth, what: &str) -> Outcome {
    let world = Process::new(5, SimDisk::new(5));
    let options = tiny();
    let database = world.open(&options).map_err(text("open"))?;
    let report = salvage_on(&world.env, &disk.fork().handle(), &options, &database);
    let found = match report {
        // The catalog is damaged.
        Err(_) => Ok(Truth::new()),
        Ok(_) => certain(&database),
    };
    world.kill(Some(database));
    for (key, value) in found? {
        if truth.get(&key) != Some(&value) {
            let key = String::from_utf8_lossy(&key);
            return Err(format!("{what}: {key} is not as it was"));
        }
    }
    Ok(())
}

fn certain(database: &Database) -> Result<Truth, String> {
    let records = database.default_keyspace();
    let records = records.iter();
    let owned = records.map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())));
    owned.collect::<terrapin::Result<_>>().map_err(text("read"))
}

/// A store whose buffers have deletes and newer records of keys in leaves.
fn layered(world: &Process) -> Result<Truth, String> {
    let database = world.open(&tiny()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let mut truth = fill(&keyspace, 600, Durability::Process)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    for number in 0..600 {
        match number % 4 {
            0 => {
                keyspace.delete(key(number)).map_err(text("delete"))?;
                truth.remove(&key(number));
            }
            1 => {
                let put = keyspace.put(key(number), value(number + 1));
                put.map_err(text("put"))?;
                truth.insert(key(number), value(number + 1));
            }
            _ => {}
        }
    }
    drop(keyspace);
    database.close().map_err(text("close"))?;
    Ok(truth)
}

/// Damage in any page of a tree.
pub(in crate::mutants) fn damaged_trees(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(1));
    let truth = layered(&world)?;
    let content = world.disk.content(DATA_FILE).unwrap_or_default();
    for at in (8192 + 61..content.len()).step_by(256) {
        if content[at] != 0 {
            let disk = world.disk.fork();
            disk.corrupt(DATA_FILE, at as u64, 0x11);
            check(&disk, &truth, &format!("byte {at}"))?;
        }
    }
    Ok(())
}

/// Damage of a log whose lost records replaced those of the tree.
pub(in crate::mutants) fn damaged_log(_scratch: &Path) -> Outcome {
    let options = tiny().log_segment_bytes(1 << 20).log_bytes_max(4 << 20);
    let world = Process::new(1, SimDisk::new(1));
    let database = world.open(&options).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    let mut truth = fill(&keyspace, 40, Durability::Process)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    for number in 0..20 {
        let deleted = keyspace.delete_with(key(number), Durability::Sync);
        deleted.map_err(text("delete"))?;
        truth.remove(&key(number));
    }
    // A lost last record looks like the end of a log whose ring is lost, too.
    let last = keyspace.put_with(key(40), value(40), Durability::Sync);
    last.map_err(text("put"))?;
    truth.insert(key(40), value(40));
    drop(keyspace);
    world.kill(Some(database));
    let bytes = world.disk.content(FIRST_SEGMENT).unwrap_or_default().len();
    for at in (4096..bytes).step_by(509) {
        let disk = world.disk.fork();
        disk.corrupt(FIRST_SEGMENT, at as u64, 0x11);
        disk.plant("ring", &vec![0; 64 << 10]);
        check(&disk, &truth, &format!("byte {at} of the log"))?;
    }
    Ok(())
}
