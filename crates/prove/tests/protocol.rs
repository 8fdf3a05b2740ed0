//! The protocol's checker notices every broken order, and none in runs of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prove::protocol::Protocol;
use terrapin::verify::{VerifyOptions, reach_on};
use terrapin::{Database, Durability, Options};
use terrapin_base::{Env, Result};
use terrapin_disk::{Disk, File, FileThrough, FilesThrough, OpenOptions, SimDisk};
use terrapin_model::{crash_run_on, random_run_on};
use terrapin_pages::{PAGES_START, SLOT_BYTES};

/// A disk that reports a sync without one, once it began to cheat.
struct CheatFile {
    file: Arc<dyn File>,
    cheats: Arc<AtomicBool>,
    skips: fn(&str) -> bool,
}

impl FileThrough for CheatFile {
    const FLIES: bool = false;

    fn behind(&self) -> &dyn File {
        &*self.file
    }

    fn sync(&self) -> Result<()> {
        match self.cheats.load(Ordering::Relaxed) && (self.skips)(&self.file.describe()) {
            true => Ok(()),
            false => self.file.sync(),
        }
    }
}

fn open(disk: Arc<dyn Disk>) -> Database {
    let (env, _sim) = Env::simulated(1);
    Options::new().open_on(env, disk).unwrap()
}

fn fill(database: &Database) {
    let keyspace = database.default_keyspace();
    for i in 0..200_u32 {
        keyspace
            .put_with(i.to_be_bytes(), [7; 100], Durability::Process)
            .unwrap();
    }
}

/// A disk with a closed, checkpointed database.
fn stored() -> SimDisk {
    let medium = SimDisk::new(1);
    let database = open(medium.handle());
    fill(&database);
    database.close().unwrap();
    medium
}

/// The checker's result for a manual change of the data file.
fn tampered(change: impl Fn(&dyn File)) -> String {
    let medium = stored();
    let protocol = Protocol::watch(&medium);
    let write = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let file = medium.handle().open("data", write).unwrap();
    change(&*file);
    told(&protocol)
}

/// The breach found; empty without one.
fn told(protocol: &Protocol) -> String {
    match protocol.check() {
        Ok(_) => String::new(),
        Err(find) => find.to_string(),
    }
}

#[test]
fn runs_of_the_engine_break_no_order() {
    let mut checked = 0;
    for seed in 0..12 {
        let disk = SimDisk::new(seed);
        let protocol = Protocol::watch(&disk);
        random_run_on(seed, 1500, disk).unwrap();
        checked += protocol.check().unwrap();
    }
    assert!(checked > 5000, "{checked}");
}

#[test]
fn crashes_and_recoveries_break_no_order() {
    let mut checked = 0;
    for seed in 0..24 {
        let disk = SimDisk::new(seed);
        let protocol = Protocol::watch(&disk);
        crash_run_on(seed, 800, disk).unwrap();
        checked += protocol.check().unwrap();
    }
    assert!(checked > 5000, "{checked}");
}

#[test]
fn a_reached_page_is_not_overwritten_punched_or_truncated() {
    let reach = reach_on(stored().handle(), &VerifyOptions::default());
    let page = reach.unwrap().unwrap().extents[0].start;
    let overwritten = tampered(|file| file.write_at(&[0; 512], page).unwrap());
    assert!(overwritten.contains("overwritten"), "{overwritten}");
    assert!(overwritten.contains("(D1)"), "{overwritten}");
    assert!(overwritten.contains("Write data at"), "{overwritten}");
    let punched = tampered(|file| _ = file.punch_hole(page, 4096).unwrap());
    assert!(punched.contains("punched"), "{punched}");
    let cut = tampered(|file| file.set_bytes(page + 1).unwrap());
    assert!(cut.contains("cut off"), "{cut}");
    let slot = tampered(|file| _ = file.punch_hole(0, 4096).unwrap());
    assert!(slot.contains("a superblock is punched"), "{slot}");
    let both = tampered(|file| file.write_at(&[0; 8192], 0).unwrap());
    assert!(both.contains("beyond one superblock slot"), "{both}");
}

#[test]
fn unreached_space_may_be_written_and_truncated() {
    let told = tampered(|file| {
        let end = file.bytes().unwrap();
        file.allocate(end, 8192).unwrap();
        file.write_at(&[1; 8192], end).unwrap();
        file.punch_hole(end, 4096).unwrap();
        file.set_bytes(end).unwrap();
    });
    assert_eq!(told, "");
}

#[test]
fn the_data_file_is_not_removed() {
    let medium = stored();
    let protocol = Protocol::watch(&medium);
    medium.handle().rename("ring", "data").unwrap();
    let told = told(&protocol);
    assert!(told.contains("removed"), "{told}");
}

#[test]
fn both_slots_are_never_in_progress_at_once() {
    let told = tampered(|file| {
        let mut slot = vec![0; SLOT_BYTES as usize];
        file.read_at(&mut slot, 0).unwrap();
        slot[700] = 1; // no part of the superblock
        file.write_at(&slot, 0).unwrap();
        file.write_at(&slot, SLOT_BYTES).unwrap();
    });
    assert!(told.contains("while the other is not durable"), "{told}");
}

/// The checker's result for a checkpoint on a disk that skips the syncs of some files.
fn cheated(skips: fn(&str) -> bool) -> String {
    let medium = stored();
    let protocol = Protocol::watch(&medium);
    let cheats = Arc::new(AtomicBool::new(false));
    let begun = cheats.clone();
    let wrap = move |file| -> Arc<dyn File> {
        let cheats = cheats.clone();
        Arc::new(CheatFile {
            file,
            cheats,
            skips,
        })
    };
    let database = open(Arc::new(FilesThrough::new(medium.handle(), wrap)));
    begun.store(true, Ordering::Relaxed);
    fill(&database);
    database.checkpoint().unwrap();
    told(&protocol)
}

#[test]
fn a_slot_waits_for_its_pages_and_for_the_log() {
    assert_eq!(cheated(|_| false), "");
    let pages = cheated(|file| file == "data");
    assert!(pages.contains("before its page at"), "{pages}");
    let log = cheated(|file| file != "data");
    assert!(log.contains("before the log is durable"), "{log}");
}

#[test]
fn a_needed_segment_is_not_removed() {
    let medium = stored();
    let protocol = Protocol::watch(&medium);
    let disk = medium.handle();
    let names = disk.list().unwrap();
    let newest = names.iter().rfind(|name| name.starts_with("log-")).unwrap();
    disk.remove(newest).unwrap();
    let told = told(&protocol);
    assert!(told.contains("the log is trimmed"), "{told}");
}

#[test]
fn an_unsound_tree_is_reported() {
    let medium = stored();
    let content = medium.content("data").unwrap();
    for at in (PAGES_START..content.len() as u64).step_by(512) {
        medium.corrupt("data", at + 20, 0xff);
    }
    let protocol = Protocol::watch(&medium);
    medium.handle().list().unwrap();
    let told = told(&protocol);
    assert!(told.contains("unsound tree"), "{told}");
}

#[test]
fn watching_a_run_does_not_change_it() {
    let run = |watched: bool| {
        let disk = SimDisk::new(3);
        let protocol = watched.then(|| Protocol::watch(&disk));
        let hash = crash_run_on(3, 400, disk).unwrap().trace_hash;
        drop(protocol);
        hash
    };
    assert_eq!(run(true), run(false));
}
