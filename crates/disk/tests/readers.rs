//! The table of readers, on both disks: slots, revoking, and what dead and forked processes leave.
#![allow(clippy::disallowed_methods)] // a child waits for its death

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use terrapin_base::{Env, ErrorKind};
use terrapin_disk::{
    Disk, Forked, READER_SLOTS, READERS_BYTES, ReaderSlot, ReaderTable, RealDisk, SimDisk,
};

const CHILD: &str = "TERRAPIN_DISK_READING_CHILD";

fn directory(name: &str) -> PathBuf {
    let name = format!("readers-{name}-{}", std::process::id());
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn real(name: &str) -> (Arc<dyn Disk>, PathBuf) {
    let path = directory(name);
    (
        Arc::new(RealDisk::open(Env::threads(), &path, true).unwrap()),
        path,
    )
}

fn on_both(name: &str, test: impl Fn(&dyn Disk)) {
    test(&*SimDisk::new(1).handle());
    let (disk, path) = real(name);
    test(&*disk);
    std::fs::remove_dir_all(path).unwrap();
}

fn table(disk: &dyn Disk) -> ReaderTable {
    disk.open_readers("readers", false).unwrap()
}

fn take(disk: &dyn Disk) -> terrapin_base::Result<ReaderSlot> {
    table(disk).take(5)
}

/// The writer's handle and a reader's, at generation 5.
fn tables(disk: &dyn Disk) -> (ReaderTable, ReaderTable) {
    let writer = disk.open_readers("readers", true).unwrap();
    assert_eq!(writer.begin(7, 4), []);
    let reader = table(disk);
    assert_eq!(reader.current(), None);
    writer.announce(5);
    (writer, reader)
}

#[test]
fn a_slot_is_seen_until_its_reader_leaves_or_is_revoked() {
    on_both("seen", |disk| {
        assert_eq!(
            disk.open_readers("readers", false).err().map(|e| e.kind()),
            Some(ErrorKind::NotFound)
        );
        let (writer, other) = tables(disk);
        assert!(other.is_of(7) && !other.is_of(8));
        assert_eq!(other.take(4).err().unwrap().kind(), ErrorKind::Overtaken);
        assert_eq!(writer.taken(), []);
        let first = take(disk).unwrap();
        let second = take(disk).unwrap();
        let taken = writer.taken();
        assert_eq!(taken.len(), 2);
        assert!(
            taken
                .iter()
                .all(|(_, t)| t.generation() == 5 && t.copies_log())
        );
        assert_eq!(taken[0].1.process, u64::from(std::process::id()));
        first.log_is_copied().unwrap();
        let (slot, old) = taken[0];
        assert!(!writer.revoke(slot, old), "its word is another one since");
        let (slot, now) = writer.taken()[0];
        assert!(now.is_of(&old) && !now.copies_log());
        first.check().unwrap();
        assert!(writer.revoke(slot, now));
        assert_eq!(first.check().unwrap_err().kind(), ErrorKind::Overtaken);
        second.check().unwrap();
        drop((first, second));
        assert_eq!(writer.taken(), []);
    });
}

#[test]
fn a_writer_that_opens_keeps_readers_of_what_it_found_only() {
    on_both("begin", |disk| {
        let _dead = tables(disk);
        let (same, copying) = (take(disk).unwrap(), take(disk).unwrap());
        same.log_is_copied().unwrap();
        let writer = disk.open_readers("readers", true).unwrap();
        let kept = writer.begin(7, 5);
        assert_eq!(kept.len(), 1);
        same.check().unwrap();
        assert_eq!(
            copying.log_is_copied().unwrap_err().kind(),
            ErrorKind::Overtaken
        );
        assert_eq!(take(disk).err().unwrap().kind(), ErrorKind::Overtaken);
        assert_eq!(writer.begin(7, 6), []);
        assert_eq!(same.check().unwrap_err().kind(), ErrorKind::Overtaken);
    });
}

#[test]
fn more_readers_than_slots_are_refused() {
    on_both("slots", |disk| {
        let (writer, _) = tables(disk);
        let all: Vec<_> = (0..READER_SLOTS).map(|_| take(disk).unwrap()).collect();
        assert_eq!(take(disk).err().unwrap().kind(), ErrorKind::Locked);
        assert_eq!(writer.taken().len(), READER_SLOTS);
        drop(all);
        take(disk).unwrap();
    });
}

#[test]
fn words_without_locks_do_not_count() {
    let sim = SimDisk::new(1);
    let disk = sim.handle();
    let slot = tables(&*disk).1.take(5).unwrap();
    sim.crash_process();
    drop(slot);
    let writer = sim.handle().open_readers("readers", true).unwrap();
    assert_eq!(writer.taken(), []);
    // Any bytes are possible after a power cut. The next writer makes the table anew.
    sim.plant("readers", &[0xee; READERS_BYTES as usize]);
    let writer = sim.handle().open_readers("readers", true).unwrap();
    assert!(!writer.is_of(7));
    assert_eq!(writer.begin(7, 5), []);
    assert!(writer.is_of(7));
    assert_eq!(writer.taken(), []);
    for length in [0, 1, READERS_BYTES + 1] {
        sim.plant("readers", &vec![0; length as usize]);
        let found = sim.handle().open_readers("readers", false);
        assert_eq!(found.err().unwrap().kind(), ErrorKind::Corrupt);
        let created = sim.handle().open_readers("readers", true);
        assert_eq!(created.is_ok(), length < READERS_BYTES);
    }
}

#[test]
fn a_killed_reader_leaves_its_slot_and_a_living_one_does_not() {
    if let Some(path) = std::env::var_os(CHILD) {
        let disk = RealDisk::open(Env::threads(), path, false).unwrap();
        let _slot = take(&disk).unwrap();
        println!("taken");
        std::thread::sleep(std::time::Duration::from_secs(60));
        return;
    }
    let (disk, path) = real("killed");
    let (writer, _) = tables(&*disk);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["a_killed_reader_leaves", "--nocapture"])
        .env(CHILD, &path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    while !lines.next().unwrap().unwrap().contains("taken") {}
    let taken = writer.taken();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].1.process, u64::from(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(writer.taken(), []);
    std::fs::remove_dir_all(path).unwrap();
}

/// A child has the descriptors of its parent. It must not use or give back the parent's slot.
#[test]
fn a_forked_child_cannot_use_the_slot_of_its_parent() {
    let (disk, path) = real("forked");
    let (writer, table) = tables(&*disk);
    let slot = table.take(5).unwrap();
    let kind = |slot: &ReaderSlot| slot.check().err().map(|e| e.kind());
    let child = Forked::run(|| u8::from(kind(&slot) != Some(ErrorKind::Closed)));
    assert_eq!(child.unwrap().ended().unwrap(), Some(0));
    slot.check().unwrap();
    let idle = Forked::idle().unwrap();
    drop(slot);
    assert_eq!(
        writer.taken(),
        [],
        "the parent's slot is free, although a child lives"
    );
    drop(idle);
    std::fs::remove_dir_all(path).unwrap();
}
