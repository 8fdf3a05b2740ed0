//! Checks of readers beside a writer.

use std::path::Path;

use terrapin::ErrorKind;
use terrapin_disk::SimDisk;
use terrapin_model::beside_run;

use super::{Outcome, fill, key, text, tiny};
use crate::process::Process;
use terrapin::Durability;

/// Random runs, in which the writer goes on before each call of a reader.
pub(in crate::mutants) fn beside(_scratch: &Path) -> Outcome {
    (1..60).try_for_each(|seed| beside_run(seed, 80).map(drop))
}

/// The table lets no reader in at a generation that it does not announce.
pub(in crate::mutants) fn slots(_scratch: &Path) -> Outcome {
    let disk = SimDisk::new(1).handle();
    let open = |create| disk.open_readers("readers", create).map_err(text("open"));
    let writer = open(true)?;
    for announced in [None, Some(6)] {
        let _ = writer.begin(1, 5);
        if let Some(generation) = announced {
            writer.announce(generation);
        }
        match open(false)?.take(5) {
            Err(error) if error.kind() == ErrorKind::Overtaken => {}
            Err(error) => return Err(format!("a reader at an old generation got {error}")),
            Ok(_) => return Err("a reader took a slot at an old generation".to_owned()),
        }
    }
    Ok(())
}

/// A reader keeps no space from a writer whose disk is full.
pub(in crate::mutants) fn full_disk(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(50));
    let database = world.open(&tiny()).map_err(text("open"))?;
    let keyspace = database.default_keyspace();
    fill(&keyspace, 2000, Durability::Process)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let reader = tiny().open_reader_on(world.env.clone(), world.disk.handle());
    let reader = reader.map_err(text("open a reader"))?;
    fill(&keyspace, 2000, Durability::Process)?;
    database.checkpoint().map_err(text("checkpoint"))?;
    let room = world.disk.used_bytes() + (16 << 10);
    world.disk.set_capacity(room);
    let put = |number: u64| keyspace.put(key(10_000 + number), [7; 300]);
    let refused = (0..20_000).find_map(|number| put(number).err());
    let retired = database.stat().map_err(text("stat"))?.space.retired;
    let seen = reader.default_keyspace().get(key(1));
    let deleted = (0..500).try_for_each(|number| keyspace.delete(key(number)));
    drop((keyspace, reader));
    world.kill(Some(database));
    deleted.map_err(text("delete on a full disk"))?;
    if refused.is_none_or(|error| error.kind() != ErrorKind::NoSpace) {
        return Err("a full disk refused no put".to_owned());
    }
    match seen {
        Err(error) if error.kind() == ErrorKind::Overtaken && retired == 0 => Ok(()),
        seen => Err(format!(
            "a reader on a full disk keeps {retired} bytes and gets {seen:?}"
        )),
    }
}
