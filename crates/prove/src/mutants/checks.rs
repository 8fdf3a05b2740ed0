//! Checks for what the general runs do not show: media that rot, syncs that fail, disks that are full. Each passes with a sound engine.

use terrapin::{Database, Durability, Options};
use terrapin_base::{Env, ErrorKind, Sim};
use terrapin_disk::SimDisk;

/// One simulated machine.
struct World {
    env: Env,
    sim: Sim,
    disk: SimDisk,
}

impl World {
    fn on(disk: SimDisk) -> Self {
        let (env, sim) = Env::simulated(1);
        World { env, sim, disk }
    }

    fn open(&self, options: &Options) -> Result<Database, String> {
        options
            .open_on(self.env.clone(), self.disk.handle())
            .map_err(|e| format!("open: {e}"))
    }

    /// The process dies.
    fn kill(&self, database: Database) {
        self.sim.kill();
        self.disk.crash_process();
        drop(database);
        self.sim.kill();
    }
}

/// Small in everything.
fn tiny() -> Options {
    Options::new()
        .memory(1 << 20)
        .ring_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .log_bytes_max(512 << 10)
        .group_bytes(4 << 10)
        .block_bytes(512)
        .background_threads(1)
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    format!("value {number} ").repeat(4).into_bytes()
}

/// Damage of a synced record in the log of a killed process is refused, or harmless: never a record less (DESIGN §4).
pub(super) fn damaged_log() -> Result<(), String> {
    const RECORDS: u64 = 60;
    // One segment, several times as large as the ring, so that the ring does not have what is damaged.
    let options = tiny().log_segment_bytes(1 << 20).log_bytes_max(4 << 20);
    let world = World::on(SimDisk::new(7));
    let database = world.open(&options)?;
    let keyspace = database.default_keyspace();
    for number in 0..RECORDS {
        let put = keyspace.put_with(key(number), value(number), Durability::Sync);
        put.map_err(|e| format!("put: {e}"))?;
    }
    world.kill(database);
    let name = "log-0000000000000001";
    let bytes = world.disk.content(name).unwrap_or_default().len() as u64;
    for offset in (4096..bytes).step_by(997) {
        let world = World::on(world.disk.fork());
        world.disk.corrupt(name, offset, 0x10);
        let opened = options.open_on(world.env.clone(), world.disk.handle());
        let database = match opened {
            Err(error) if error.kind() == ErrorKind::Corrupt => continue,
            Err(error) => return Err(format!("a damaged log is {error}")),
            Ok(database) => database,
        };
        for number in 0..RECORDS {
            let got = database.default_keyspace().get(key(number));
            let got = got.map_err(|e| format!("get: {e}"))?;
            if got.as_deref() != Some(&value(number)[..]) {
                return Err(format!(
                    "{name} was damaged at {offset} and opens without synced record {number}"
                ));
            }
        }
        world.kill(database);
    }
    Ok(())
}
