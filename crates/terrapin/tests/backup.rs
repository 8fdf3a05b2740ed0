//! Backups: whole and incremental ones, restored and compared; killed at any call, beside writes,
//! on full disks.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Directory, Map, World, all, key, tiny, value};
use terrapin::backup::{BackupOptions, BackupReport, restore, restore_on};
use terrapin::{CheckpointDistance, Database, Durability, ErrorKind, Options};
use terrapin_base::Result;
use terrapin_disk::sim::{CrashMode, Fault, FaultError, SimDisk};
use terrapin_disk::{Disk, DiskThrough, File, OpenOptions};

/// The records of all keyspaces, by name.
type Content = BTreeMap<String, Map>;

fn content(database: &Database) -> Content {
    let infos = database.keyspaces().unwrap();
    let of = |name: String| {
        let records = all(&database.open_keyspace(&name).unwrap());
        (name, records)
    };
    infos.into_iter().map(|info| of(info.name)).collect()
}

fn back_up(database: &Database, target: &SimDisk) -> Result<BackupReport> {
    database.backup_on(target.handle(), &BackupOptions::new().verify(true))
}

/// A world with the database that a backup restores to.
fn restored(target: &SimDisk) -> World {
    let world = World::new(99);
    restore_on(&target.handle(), &world.disk.handle()).unwrap();
    world.verify();
    world
}

fn restored_content(target: &SimDisk) -> Content {
    let world = restored(target);
    let database = world.open(&tiny());
    let found = content(&database);
    database.close().unwrap();
    world.verify();
    found
}

fn fill(database: &Database, from: u64, count: u64) {
    let keyspace = database.default_keyspace();
    for i in from..from + count {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
}

#[test]
fn a_restored_backup_has_everything_that_was_written_before() {
    for (seed, merged) in [(1, false), (2, true)] {
        let (world, target) = (World::new(seed), SimDisk::new(seed));
        let database = world.open(&tiny());
        let empty = content(&database);
        back_up(&database, &target).unwrap();
        assert_eq!(restored_content(&target), empty);

        fill(&database, 0, 2000);
        let other = database.keyspace("other").unwrap();
        other.put("a", "1").unwrap();
        if merged {
            database.checkpoint().unwrap();
        }
        fill(&database, 1000, 300);
        other.delete("a").unwrap();
        other.put_with("b", "2", Durability::Sync).unwrap();
        let expected = content(&database);
        let report = back_up(&database, &target).unwrap();
        assert!(report.pages > 0 && report.log_bytes > 0);
        assert_eq!(restored_content(&target), expected);
        assert_eq!(content(&database), expected);
        database.close().unwrap();
        world.verify();
    }
}

/// Keyspaces that were applied to different LSNs: without its log, the restored copy would have a
/// part of a batch.
#[test]
fn batches_across_keyspaces_with_different_applied_lsns_are_whole() {
    let (world, target) = (World::new(3), SimDisk::new(3));
    let database = world.open(&tiny());
    let [busy, quiet] = ["busy", "quiet"].map(|name| database.keyspace(name).unwrap());
    let mut before = database.metrics().checkpoints;
    let mut numbers = 0..u64::MAX;
    for backups in 1..=4 {
        while database.metrics().checkpoints < before + 3 {
            let number = numbers.next().unwrap();
            let mut batch = database.batch();
            batch.put(&busy, key(number), value(number, 400));
            batch.put(&quiet, key(number), number.to_be_bytes());
            database.write(&batch).unwrap();
        }
        before = database.metrics().checkpoints;
        back_up(&database, &target).unwrap();
        let found = restored_content(&target);
        let keys = |name: &str| found[name].keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys("busy"), keys("quiet"), "backup {backups}");
        assert_eq!(found["busy"].len() as u64, numbers.start);
    }
    drop((busy, quiet));
    database.close().unwrap();
}

#[test]
fn an_incremental_backup_reads_what_changed_and_restores_everything() {
    let (world, target) = (World::new(4), SimDisk::new(4));
    let database = world.open(&tiny());
    fill(&database, 0, 6000);
    database.checkpoint().unwrap();
    let full = back_up(&database, &target).unwrap();
    assert_eq!(full.kept_bytes, 0);
    assert_eq!(database.metrics().backup_bytes, full.copied_bytes);

    let again = back_up(&database, &target).unwrap();
    assert_eq!(
        (again.copied_bytes, again.kept_bytes),
        (0, full.copied_bytes)
    );

    let keyspace = database.default_keyspace();
    for i in 0..20_u64 {
        keyspace.put(i.to_be_bytes(), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    let expected = content(&database);
    let next = back_up(&database, &target).unwrap();
    assert!(
        next.copied_bytes > 0 && next.copied_bytes < full.copied_bytes / 8,
        "{next:?}"
    );
    assert!(next.kept_bytes > full.copied_bytes / 2);
    assert_eq!(restored_content(&target), expected);

    // The directory has the files of one backup.
    let names = target.handle().list().unwrap();
    assert_eq!(
        names.iter().filter(|name| name.ends_with("-data")).count(),
        1,
        "{names:?}"
    );
    drop(keyspace);
    database.close().unwrap();

    // Later lives of the database go on.
    let database = world.open(&tiny());
    fill(&database, 9000, 50);
    database.checkpoint().unwrap();
    let later = back_up(&database, &target).unwrap();
    assert!(later.kept_bytes > full.copied_bytes / 2);
    assert_eq!(restored_content(&target), content(&database));
    database.close().unwrap();
}

/// A restored copy and its original give equal ids to different pages.
#[test]
fn incremental_backups_after_a_restore_keep_both_branches_apart() {
    let (world, target) = (World::new(5), SimDisk::new(5));
    let database = world.open(&tiny());
    fill(&database, 0, 1500);
    database.checkpoint().unwrap();
    back_up(&database, &target).unwrap();
    database.close().unwrap();
    let copy = restored(&target);

    let live = |world: &World, from: u64| {
        let database = world.open(&tiny());
        fill(&database, from, 700);
        database.checkpoint().unwrap();
        database
    };
    for round in 0..3_u64 {
        for (mark, world) in [&world, &copy].into_iter().enumerate() {
            let database = live(world, 10_000 * (1 + mark as u64) + 700 * round);
            let report = back_up(&database, &target).unwrap();
            assert_eq!(restored_content(&target), content(&database));
            assert!(report.copied_bytes > 0);
            database.close().unwrap();
        }
    }
}

/// Two copies that do the same with other values give equal ids and places to different pages. Page
/// ids begin with the low 40 bits of a life's branch, and those are equal here.
#[test]
fn incremental_backups_of_two_copies_take_no_page_of_the_other() {
    let (world, target) = (World::new(5), SimDisk::new(5));
    // One merge by one thread, so that both copies allocate alike.
    let options = tiny()
        .memory(4 << 20)
        .background_threads(1)
        .checkpoint_distance(CheckpointDistance::Fixed(64));
    let database = world.open(&options);
    fill(&database, 0, 600);
    database.checkpoint().unwrap();
    back_up(&database, &target).unwrap();
    database.close().unwrap();
    let copies = [6, 7].map(|seed| {
        let copy = World::new(seed);
        restore_on(&target.handle(), &copy.disk.handle()).unwrap();
        copy
    });
    for round in 0..3 {
        for (mark, copy) in (b'a'..).zip(&copies) {
            let branch = 7 + u64::from(round) * 1000 + (u64::from(mark) << 40);
            copy.sim.fix_random(Some(branch));
            let database = copy.open(&options);
            copy.sim.set_breathing(false);
            let keyspace = database.default_keyspace();
            for number in 0..200 {
                let value = [mark + 2 * round; 60];
                keyspace.put(key(3 * number), value).unwrap();
            }
            drop(keyspace);
            database.checkpoint().unwrap();
            back_up(&database, &target).unwrap();
            assert_eq!(restored_content(&target), content(&database));
            database.close().unwrap();
        }
    }
}

/// A disk that does something each time a file is opened or created under a name.
struct Opens<F> {
    disk: Arc<dyn Disk>,
    at: &'static str,
    act: F,
}

impl<F: Fn() + Send + Sync> DiskThrough for Opens<F> {
    fn behind(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        if options.create_new && name.contains(self.at) {
            (self.act)();
        }
        self.disk.open(name, options)
    }
}

/// Merges free and reuse the pages of the generation that a backup copies, and checkpoints trim
/// the log that it needs.
#[test]
fn merges_that_free_and_reuse_space_do_not_disturb_a_backup() {
    for at in ["-log-", "-data"] {
        let (world, target) = (World::new(6), SimDisk::new(6));
        let database = world.open(&tiny());
        fill(&database, 0, 1500);
        database.checkpoint().unwrap();
        fill(&database, 0, 50);
        let expected = content(&database);
        let other = database.clone();
        let act = move || {
            for round in 0..4 {
                for i in 0..1500 {
                    let keyspace = other.default_keyspace();
                    keyspace.put(key(i), value(i + round, 90)).unwrap();
                }
                other.checkpoint().unwrap();
            }
        };
        let disk = target.handle();
        let hooked = Arc::new(Opens { disk, at, act });
        let options = BackupOptions::new().verify(true);
        database.backup_on(hooked, &options).unwrap();
        assert_eq!(restored_content(&target), expected, "{at}");
        assert!(content(&database) != expected);
        database.close().unwrap();
        world.verify();
    }
}

/// A checkpoint trims nothing of a log that is being copied, and the next trim does what was held
/// back.
#[test]
fn checkpoints_do_not_trim_the_log_under_a_backup() {
    let (world, target) = (World::new(19), SimDisk::new(19));
    let options = tiny()
        .memory(32 << 20)
        .group_bytes(64 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(64))
        .log_bytes_max(16 << 20);
    let database = world.open(&options);
    fill(&database, 0, 20_000);
    let expected = content(&database);
    let other = database.clone();
    let act = move || {
        fill(&other, 0, 100);
        other.checkpoint().unwrap();
        fill(&other, 0, 100);
        other.checkpoint().unwrap();
    };
    let hooked = Arc::new(Opens {
        disk: target.handle(),
        at: "-log-",
        act,
    });
    let report = database.backup_on(hooked, &BackupOptions::new()).unwrap();
    assert!(report.log_bytes > 2 << 20, "{report:?}");
    assert!(database.metrics().log_kept_bytes < 1 << 20);
    let copy = restored(&target);
    let restored = copy.open(&options);
    assert!(content(&restored) == expected);
    restored.close().unwrap();
    database.close().unwrap();
}

/// A clear or a drop discards memtables. The backup shows all of it or nothing.
#[test]
fn clears_and_drops_during_a_backup_are_whole() {
    for at in ["-log-", "-data"] {
        for (seed, drops) in [(7, false), (8, true)] {
            let (world, target) = (World::new(seed), SimDisk::new(seed));
            let database = world.open(&tiny());
            let [a, b] = ["a", "b"].map(|name| database.keyspace(name).unwrap());
            for i in 0..400 {
                let mut batch = database.batch();
                batch.put(&a, key(i), value(i, 100));
                batch.put(&b, key(i), value(i, 100));
                database.write(&batch).unwrap();
            }
            let expected = content(&database);
            let other = database.clone();
            let act = move || {
                match drops {
                    true => other.drop_keyspace("a").unwrap(),
                    false => other.open_keyspace("a").unwrap().clear().unwrap(),
                }
                other.checkpoint().unwrap();
                other.keyspace("new").unwrap().put("new", "1").unwrap();
            };
            let acted = AtomicBool::new(false);
            let once = move || {
                if !acted.swap(true, Ordering::SeqCst) {
                    act();
                }
            };
            let disk = target.handle();
            let hooked = Arc::new(Opens {
                disk,
                at,
                act: once,
            });
            database
                .backup_on(hooked, &BackupOptions::new().verify(true))
                .unwrap();
            assert_eq!(restored_content(&target), expected);
            back_up(&database, &target).unwrap();
            assert_eq!(restored_content(&target), content(&database));
            drop((a, b));
            database.close().unwrap();
        }
    }
}

/// The target loses its process or its power at each call of a backup in turn. It then has the old
/// backup or the new one, and the next backup works.
#[test]
fn a_backup_killed_at_any_call_leaves_the_old_one_or_the_new_one() {
    let (world, target) = (World::new(9), SimDisk::new(9));
    let database = world.open(&tiny());
    fill(&database, 0, 400);
    database.checkpoint().unwrap();
    back_up(&database, &target).unwrap();
    let old = content(&database);
    fill(&database, 300, 200);
    database.checkpoint().unwrap();
    fill(&database, 600, 10);
    let new = content(&database);
    let (mut saw_old, mut saw_new) = (0, 0);
    for call in 1.. {
        let modes = [None].into_iter().chain(CrashMode::ALL.map(Some));
        let mut ended = false;
        for mode in modes {
            let disk = target.fork();
            let handle = disk.handle();
            disk.die_at_call(call);
            let outcome = database.backup_on(handle, &BackupOptions::new());
            disk.die_at_call(u64::MAX);
            ended |= disk.is_alive();
            match mode {
                None => disk.crash_process(),
                Some(mode) => disk.crash_power(mode),
            }
            let found = restored_content(&disk);
            assert!(found == old || found == new, "call {call}, {mode:?}");
            assert!(
                outcome.is_err() || found == new,
                "call {call}, {mode:?}: not durable"
            );
            saw_old += u64::from(found == old);
            saw_new += u64::from(found == new);
            back_up(&database, &disk).unwrap();
            assert_eq!(restored_content(&disk), new, "call {call}, {mode:?}");
        }
        if ended {
            break;
        }
    }
    assert!(saw_old > 20 && saw_new > 3, "{saw_old} old, {saw_new} new");
    database.close().unwrap();
}

#[test]
fn a_restore_killed_at_any_call_can_be_repeated() {
    let (world, target) = (World::new(10), SimDisk::new(10));
    let database = world.open(&tiny());
    fill(&database, 0, 300);
    database.checkpoint().unwrap();
    fill(&database, 300, 10);
    back_up(&database, &target).unwrap();
    let expected = content(&database);
    for call in 1.. {
        let mut ended = false;
        for (seed, mode) in (11..15).flat_map(|seed| CrashMode::ALL.map(|mode| (seed, mode))) {
            let copy = World::new(seed);
            let handle = copy.disk.handle();
            copy.disk.die_at_call(call);
            let outcome = restore_on(&target.handle(), &handle);
            copy.disarm();
            ended |= copy.disk.is_alive();
            copy.disk.crash_power(mode);
            match restore_on(&target.handle(), &copy.disk.handle()) {
                Ok(()) => assert!(outcome.is_err()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}"),
            }
            let database = copy.open(&tiny());
            assert_eq!(content(&database), expected, "call {call}, {mode:?}");
            database.close().unwrap();
        }
        if ended {
            break;
        }
    }
    database.close().unwrap();
}

/// Each call on the target fails in turn. The error is the call's, the old backup stays, and the
/// database goes on.
#[test]
fn a_failed_call_on_the_target_leaves_the_old_backup() {
    let (world, target) = (World::new(12), SimDisk::new(12));
    let database = world.open(&tiny());
    fill(&database, 0, 400);
    database.checkpoint().unwrap();
    back_up(&database, &target).unwrap();
    let old = content(&database);
    fill(&database, 400, 100);
    let new = content(&database);
    for (error, kind) in [
        (FaultError::Io, ErrorKind::Io),
        (FaultError::NoSpace, ErrorKind::NoSpace),
    ] {
        for n in 1.. {
            let disk = target.fork();
            let handle = disk.handle();
            disk.inject(Fault::nth(n, error).lasting());
            let outcome = database.backup_on(handle, &BackupOptions::new());
            disk.clear_faults();
            let found = restored_content(&disk);
            assert!(found == old || found == new);
            match outcome {
                Err(error) => assert_eq!(error.kind(), kind, "call {n}: {error}"),
                Ok(_) => {
                    assert!(found == new);
                    break;
                }
            }
            back_up(&database, &disk).unwrap();
            assert_eq!(restored_content(&disk), new);
        }
    }
    database.close().unwrap();
    world.verify();
}

/// A pin keeps freed space. On a full disk the backup gives it up, and deletes pass.
#[test]
fn a_full_disk_ends_a_backup_and_deletes_pass() {
    let (world, target) = (World::new(13), SimDisk::new(13));
    let options = tiny()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .block_bytes(2048)
        .fanout(16)
        .stall_limit(std::time::Duration::from_secs(5));
    let database = world.open(&options);
    fill(&database, 0, 8000);
    database.checkpoint().unwrap();
    back_up(&database, &target).unwrap();
    let old = content(&database);
    let (other, disk) = (database.clone(), world.disk.clone());
    let act = move || {
        disk.set_capacity(disk.used_bytes() + (4 << 20));
        let keyspace = other.default_keyspace();
        let mut stored = 8000;
        let refused = loop {
            match keyspace.put(key(stored), value(stored, 100)) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < 100_000, "the disk never filled");
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        for i in 0..stored * 3 / 4 {
            keyspace
                .delete(key(i))
                .unwrap_or_else(|e| panic!("delete {i} of {stored}: {e}"));
        }
        other.checkpoint().unwrap();
        keyspace.put("again", "1").unwrap();
    };
    let hooked = Arc::new(Opens {
        disk: target.handle(),
        at: "-data",
        act,
    });
    let error = database
        .backup_on(hooked, &BackupOptions::new())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let wide = World::new(14);
    restore_on(&target.handle(), &wide.disk.handle()).unwrap();
    let copy = wide.open(&options);
    assert!(content(&copy) == old, "the old backup");
    copy.close().unwrap();
    back_up(&database, &target).unwrap();
    database.close().unwrap();
}

/// A database that was killed has its newest records in the ring only. A read-only open backs them
/// up without a write to the database.
#[test]
fn a_read_only_database_is_backed_up_with_what_only_the_ring_has() {
    for killed in [true, false] {
        let (world, target) = (World::new(15), SimDisk::new(15));
        let database = world.open(&tiny());
        fill(&database, 0, 500);
        database.checkpoint().unwrap();
        fill(&database, 500, 7);
        let expected = content(&database);
        match killed {
            true => world.kill(database),
            false => drop(database.close().unwrap()),
        }
        let database = world.open(&tiny().read_only(true));
        let before = world.disk.stats_total();
        back_up(&database, &target).unwrap();
        let after = world.disk.stats_total();
        assert_eq!(before.written_bytes, after.written_bytes);
        assert_eq!(restored_content(&target), expected);
        database.close().unwrap();
    }
}

#[test]
fn directories_of_other_things_are_refused() {
    let (world, target) = (World::new(16), SimDisk::new(16));
    let database = world.open(&tiny());
    fill(&database, 0, 100);
    let kind = |result: Result<BackupReport>| result.map_err(|error| error.kind()).unwrap_err();
    let missing = restore_on(&target.handle(), &SimDisk::new(1).handle());
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let foreign = SimDisk::new(17);
    foreign.plant("letter.txt", b"dear");
    assert_eq!(kind(back_up(&database, &foreign)), ErrorKind::NotADatabase);
    assert_eq!(foreign.handle().list().unwrap(), ["letter.txt"]);
    back_up(&database, &target).unwrap();
    let another = World::new(18);
    let stranger = another.open(&tiny());
    assert_eq!(
        kind(back_up(&stranger, &target)),
        ErrorKind::InvalidArgument
    );
    let over = restore_on(&target.handle(), &another.disk.handle());
    assert_eq!(over.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let beside = restore_on(&target.handle(), &foreign.handle());
    assert_eq!(beside.unwrap_err().kind(), ErrorKind::NotADatabase);
    // A damaged page of the database does not replace a sound backup.
    database.checkpoint().unwrap();
    let data = world.disk.content("data").unwrap();
    for offset in (8192..data.len()).step_by(512) {
        world.disk.corrupt("data", offset as u64, 0x40);
    }
    let error = back_up(&database, &target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(restored_content(&target)["default"].len(), 100);
    database.close().unwrap();
    stranger.close().unwrap();
}

#[test]
fn a_real_directory_is_backed_up_and_restored() {
    let directory = Directory::new("backup");
    let path = |name: &str| directory.0.join(name);
    let database = Options::new()
        .memory(8 << 20)
        .open(path("database"))
        .unwrap();
    fill(&database, 0, 5000);
    database.checkpoint().unwrap();
    let full = database.backup(path("backup")).unwrap();
    fill(&database, 5000, 10);
    let next = database
        .backup_with(path("backup"), &BackupOptions::new().verify(true))
        .unwrap();
    assert_eq!(next.kept_bytes, full.copied_bytes);
    let own = database.backup(path("database")).unwrap_err();
    assert!(
        matches!(own.kind(), ErrorKind::NotADatabase | ErrorKind::Locked),
        "{own}"
    );
    let expected = content(&database);
    restore(path("backup"), path("copy")).unwrap();
    database.close().unwrap();
    let closed = database.backup(path("backup")).unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    let copy = Database::open(path("copy")).unwrap();
    assert!(content(&copy) == expected);
    copy.close().unwrap();
}
