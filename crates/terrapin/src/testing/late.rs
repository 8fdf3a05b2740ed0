//! A scene for tests: a writer loses its processor between taking its LSN and entering its
//! memtable, while other threads go on. In simulation one thread does everything, so no run gets
//! there by itself. This file therefore arranges the steps by hand. Tests and the build of mutants
//! use it.

use terrapin_base::{Env, Error, ErrorKind, Result};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_pages::DATA_FILE;
use terrapin_wal::Append;

use crate::keyspaces::schema::Attempt;
use crate::log_record::Operations;
use crate::log_record::format::BATCH;
use crate::open::verify::{VerifyOptions, verify_on};
use crate::types::options::{Durability, Options};
use crate::write::enter;

/// How the late writer's keyspace goes.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Cleared,
    Dropped,
}

/// What a power cut left of a batch over two keyspaces, one of which went. The batch was
/// acknowledged as synced.
#[derive(Debug)]
struct Left {
    /// All keys of the keyspace that went. None if the keyspace is missing.
    gone: Option<Vec<String>>,
    /// Whether the other keyspace has the batch's record.
    stayed: bool,
}

/// Checks that after a power cut either all of a synced batch is there, or its clear (or drop) is
/// there, too. Here the batch's writer is late for the clear, and a checkpoint is frozen before the
/// clear and committed after it.
///
/// # Errors
///
/// A description of what the check found instead.
pub fn check() -> std::result::Result<(), String> {
    // The seed decides whether the ring's page with the clear reaches the disk.
    for seed in 1..4 {
        for (gone, memtables) in [
            (Gone::Cleared, false),
            (Gone::Cleared, true),
            (Gone::Dropped, false),
            (Gone::Dropped, true),
        ] {
            let case = format!("{gone:?}, with records in memtables: {memtables}, seed {seed}");
            let left =
                power_cut(seed, gone, memtables).map_err(|error| format!("{case}: {error}"))?;
            let whole = match memtables {
                false => vec!["before", "late"],
                true => vec!["before", "late", "memtable"],
            };
            let is_right = match &left.gone {
                None => matches!(gone, Gone::Dropped),
                Some(keys) => *keys == whole || (keys.is_empty() && matches!(gone, Gone::Cleared)),
            };
            if !left.stayed || !is_right {
                return Err(format!("{case}: {left:?}"));
            }
        }
    }
    Ok(())
}

/// Checks that an open refuses a log that ends above every applied LSN but below the clear (or
/// drop) that the last checkpoint relies on. It would show half of the late writer's batch.
///
/// # Errors
///
/// A description of what the check found instead.
pub fn check_cut() -> std::result::Result<(), String> {
    for gone in [Gone::Cleared, Gone::Dropped] {
        cut(gone).map_err(|error| format!("{gone:?}: {error}"))?;
    }
    Ok(())
}

fn cut(gone: Gone) -> Result<()> {
    let scene = Scene::play(1, gone, false)?;
    let log_of = |disk: &SimDisk| {
        let names = disk.handle().list().unwrap_or_default();
        let names = names.into_iter().filter(|name| name != DATA_FILE);
        let files = names.filter_map(|name| Some((disk.content(&name)?, name)));
        files.collect::<Vec<_>>()
    };
    let cut = scene.disk.fork();
    for (_, name) in log_of(&cut) {
        cut.handle().remove(&name)?;
    }
    for (content, name) in log_of(&scene.before) {
        cut.plant(&name, &content);
    }
    let (env, _sim) = Env::simulated(2);
    let report = verify_on(env.clone(), cut.handle(), &VerifyOptions::new())?;
    let opened = options().open_on(env, cut.handle());
    let refused = match opened {
        Err(error) if error.kind() == ErrorKind::Corrupt => error.to_string(),
        Err(error) => return Err(error),
        Ok(_) => return Err(Error::internal("the log lacks the clear, and was accepted")),
    };
    if report.is_sound() || !refused.contains("the last checkpoint relies on") {
        let findings = format!("{:?}", report.findings);
        let error = Error::internal("the cut log was refused for another reason");
        return Err(error.with("open", refused).with("verify", findings));
    }
    Ok(())
}

fn options() -> Options {
    Options::small().background_threads(1)
}

fn power_cut(seed: u64, gone: Gone, memtables: bool) -> Result<Left> {
    let disk = Scene::play(seed, gone, memtables)?.disk;
    disk.crash_power(CrashMode::LoseUnsynced);
    let (env, _sim) = Env::simulated(seed);
    let database = options().open_on(env, disk.handle())?;
    let gone = match database.open_keyspace("goes") {
        Ok(keyspace) => {
            let keys = keyspace.iter().map(|record| {
                let (key, _) = record?;
                Ok(String::from_utf8_lossy(&key).into_owned())
            });
            Some(keys.collect::<Result<_>>()?)
        }
        Err(error) if error.kind() == ErrorKind::KeyspaceNotFound => None,
        Err(error) => return Err(error),
    };
    let stayed = database.open_keyspace("stays")?.contains("late")?;
    Ok(Left { gone, stayed })
}

/// The disk at two moments of the scene.
struct Scene {
    /// Before the clear was logged. The log is synced up to the seal of the checkpoint.
    before: SimDisk,
    /// After the checkpoint committed and the process died.
    disk: SimDisk,
}

impl Scene {
    fn play(seed: u64, gone: Gone, memtables: bool) -> Result<Scene> {
        let options = options();
        let disk = SimDisk::new(seed);
        let (env, sim) = Env::simulated(seed);
        let database = options.open_on(env, disk.handle())?;
        sim.set_breathing(false);
        let (goes, stays) = (database.keyspace("goes")?, database.keyspace("stays")?);
        goes.put("before", "1")?;
        database.checkpoint()?;
        if memtables {
            goes.put("memtable", "1")?;
            stays.put("memtable", "1")?;
        }

        let core = database.core().clone();
        let log = core.log()?;
        let mut batch = database.batch();
        batch.put(&goes, "late", "1");
        batch.put(&stays, "late", "1");
        let payload = batch.prepared()?.payload;
        let Append::Done(late) = log.try_append(BATCH, &[payload])? else {
            return Err(Error::internal("the ring is full"));
        };
        // The writer stops here. A checkpoint is frozen and waits for it. The log is synced as far
        // as it goes.
        let checkpoints = core.counters.checkpoints.get();
        core.schedule.ask(log.end());
        sim.settle();
        let _synced = log.request_sync(log.tail());
        sim.settle();
        let before = disk.fork();
        let attempt = {
            let mut install = core.install.lock();
            match gone {
                Gone::Cleared => core.try_clear(log, &mut install, &goes.shared)?,
                Gone::Dropped => core.try_drop(log, &mut install, goes.name())?,
            }
        };
        let Attempt::Done(appended, _, replaced) = attempt else {
            return Err(Error::internal("the ring is full"));
        };
        for operation in Operations::decode(BATCH, payload).into_iter().flatten() {
            enter(
                &core,
                &core.state.load(),
                &operation?,
                late.lsn..late.end,
                Durability::Sync,
            );
        }
        log.publish(&late);
        log.sync(late.end)?;
        log.publish(&appended);
        drop(replaced);
        if log.synced() > appended.lsn || core.counters.checkpoints.get() != checkpoints {
            return Err(Error::internal("it is not the order that was meant"));
        }
        // The next checkpoint would sync more.
        while core.counters.checkpoints.get() == checkpoints {
            if !sim.step() {
                return Err(Error::internal("the checkpoint did not commit"));
            }
        }

        sim.kill();
        disk.crash_process();
        drop((goes, stays, database));
        Ok(Scene { before, disk })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_write_that_is_late_for_a_clear_survives_or_is_cleared() {
        super::check().unwrap();
    }

    #[test]
    fn a_log_without_a_clear_that_a_checkpoint_relies_on_is_refused() {
        super::check_cut().unwrap();
    }
}
