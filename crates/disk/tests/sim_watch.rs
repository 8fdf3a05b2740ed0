//! Watchers of the simulated disk see every call before and after it, and can fork the disk there.

mod common;

use std::sync::{Arc, Mutex};

use common::{CREATE, WRITE, durable_file};
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Landing, Moment, Op};
use terrapin_disk::{RingOptions, SimDisk};

type Told = Arc<Mutex<Vec<String>>>;

#[test]
fn a_watcher_sees_every_call_before_and_after_it() {
    let medium = SimDisk::new(1);
    let told = Told::default();
    let notes = told.clone();
    let watching = medium.watch(Box::new(move |probe, call| {
        let number = match call.op {
            Op::RingWrite => probe.ring_writes(),
            _ => probe.io_count(),
        };
        match call.moment {
            Moment::Before => assert_eq!(number + 1, call.number),
            Moment::After { .. } => assert_eq!(number, call.number),
        }
        assert!(call.data.is_empty() || call.data.len() as u64 == call.bytes);
        let after = match call.moment {
            Moment::Before => "",
            Moment::After { failed: false } => ", done",
            Moment::After { failed: true } => ", failed",
        };
        let bytes = probe.bytes(call.file).unwrap_or(0);
        notes
            .lock()
            .unwrap()
            .push(format!("{call}; {bytes}{after}"));
    }));
    let disk = medium.handle();
    let file = disk.open("a", CREATE).unwrap();
    file.write_at(&[1; 100], 50).unwrap();
    medium.inject(Fault::nth(1, FaultError::Io));
    assert!(file.sync().is_err());
    disk.rename("a", "b").unwrap();
    file.set_bytes(60).unwrap();
    let ring = RingOptions {
        bytes: 4096,
        create: true,
    };
    let ring = disk.open_ring("ring", ring).unwrap();
    let (mut writer, _reader, _) = ring.split(0);
    writer.write(8, b"x");
    medium.crash_process();
    assert!(file.sync().is_err(), "the calls of the dead are none");
    drop(watching);
    medium.handle().list().unwrap();
    let expected = [
        "call 1: Open a; 0",
        "call 1: Open a; 0, done",
        "call 2: Write a at 50, 100 bytes; 0",
        "call 2: Write a at 50, 100 bytes; 150, done",
        "call 3: Sync a; 150",
        "call 3: Sync a; 150, failed",
        "call 4: Rename a to b; 150",
        "call 4: Rename a to b; 0, done",
        "call 5: SetBytes a at 0, 60 bytes; 0",
        "call 5: SetBytes a at 0, 60 bytes; 0, done",
        "call 6: OpenRing ring at 0, 4096 bytes; 0",
        "call 6: OpenRing ring at 0, 4096 bytes; 0, done",
        "call 7: Open ring; 0",
        "call 7: Open ring; 0, done",
        "call 8: Allocate ring at 0, 4096 bytes; 0",
        "call 8: Allocate ring at 0, 4096 bytes; 4096, done",
        "call 9: Write ring at 0, 4096 bytes; 4096",
        "call 9: Write ring at 0, 4096 bytes; 4096, done",
        "call 10: Sync ring; 4096",
        "call 10: Sync ring; 4096, done",
        "call 11: SyncDirectory; 0",
        "call 11: SyncDirectory; 0, done",
        "call 1: RingWrite ring at 8, 1 bytes; 4096",
        "call 1: RingWrite ring at 8, 1 bytes; 4096, done",
    ];
    assert_eq!(*told.lock().unwrap(), expected);
}

/// Writes, stores into a ring and changes the directory, with a fork at every call.
fn forked(
    take: impl Fn(&terrapin_disk::sim::Probe<'_>, u64) -> SimDisk + Send + 'static,
) -> Vec<SimDisk> {
    let medium = SimDisk::new(2);
    durable_file(&medium, "f", &[1; 2048]);
    let forks: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
    let kept = forks.clone();
    let _watching = medium.watch(Box::new(move |probe, call| {
        if call.moment == Moment::Before && call.changes() {
            let mut kept = kept.lock().unwrap();
            for seed in 0..20 {
                kept.push(take(probe, seed));
            }
        }
    }));
    let disk = medium.handle();
    let ring = RingOptions {
        bytes: 4096,
        create: true,
    };
    let (mut writer, _reader, _) = disk.open_ring("ring", ring).unwrap().split(0);
    let file = disk.open("f", WRITE).unwrap();
    file.write_at(&[2; 2048], 0).unwrap();
    writer.write(0, &[3; 64]);
    disk.remove("f").unwrap();
    let forks = std::mem::take(&mut *forks.lock().unwrap());
    assert_eq!(forks.len(), 20 * 8);
    forks
}

fn contents(forks: &[SimDisk]) -> Vec<[Option<Vec<u8>>; 2]> {
    let content = |fork: &SimDisk| [fork.content("f"), fork.content("ring")];
    forks.iter().map(content).collect()
}

#[test]
fn a_fork_before_a_call_has_nothing_of_it() {
    let forks = forked(|probe, _| probe.fork());
    assert!(forks.iter().all(|fork| !fork.is_alive()));
    let all = contents(&forks);
    let (write, store, remove) = (&all[100..120], &all[120..140], &all[140..]);
    assert!(write.iter().all(|c| c[0] == Some(vec![1; 2048])));
    assert!(store.iter().all(|c| c[0] == Some(vec![2; 2048])));
    assert!(store.iter().all(|c| c[1] == Some(vec![0; 4096])));
    assert!(remove.iter().all(|c| c[0] == Some(vec![2; 2048])));
    assert!(
        remove
            .iter()
            .all(|c| c[1].as_ref().unwrap()[..64] == [3; 64])
    );
    // A fork is independent.
    let disk = forks[110].handle();
    disk.open("f", WRITE).unwrap().write_at(b"x", 0).unwrap();
    disk.sync_directory().unwrap();
    forks[110].crash_power(CrashMode::LoseUnsynced);
    assert_eq!(forks[110].content("f").unwrap(), [1; 2048]);
}

#[test]
fn a_fork_within_a_call_has_any_part_of_it() {
    let forks = forked(|probe, seed| probe.fork_within(seed, Landing::AtDeath));
    assert!(forks.iter().all(|fork| !fork.is_alive()));
    let all = contents(&forks);
    let (write, store, remove) = (&all[100..120], &all[120..140], &all[140..]);
    let new = |c: &[Option<Vec<u8>>; 2], i: usize, value| {
        let content = c[i].as_ref().unwrap();
        content.iter().filter(|&&b| b == value).count()
    };
    let written: std::collections::BTreeSet<usize> = write.iter().map(|c| new(c, 0, 2)).collect();
    assert_eq!(written, [0, 512, 1024, 1536, 2048].into());
    let stored: std::collections::BTreeSet<usize> = store.iter().map(|c| new(c, 1, 3)).collect();
    assert!(stored.len() > 10, "{stored:?}");
    let removed = remove.iter().filter(|c| c[0].is_none()).count();
    assert!((1..20).contains(&removed));
    let again = forked(|probe, seed| probe.fork_within(seed, Landing::AtDeath));
    assert!(contents(&again) == all, "the seed decides");
}

#[test]
fn a_write_in_flight_in_a_fork_lands_there_later() {
    let forks = forked(|probe, seed| probe.fork_within(seed, Landing::Later));
    let landed = forks[100..120].iter().filter(|fork| {
        let before = fork.content("f");
        let _locked = fork.handle().open("f", WRITE).unwrap();
        fork.content("f") != before
    });
    assert!(landed.count() > 5);
}

#[test]
fn watching_changes_nothing() {
    let run = |watched: bool| {
        let medium = SimDisk::new(3);
        let _watching = watched.then(|| {
            medium.watch(Box::new(|probe, _| {
                drop(probe.fork_within(7, Landing::Later));
            }))
        });
        let file = durable_file(&medium, "f", &[1; 2048]);
        medium.die_at_call(1);
        assert!(file.write_at(&[2; 2048], 0).is_err());
        (medium.content("f"), medium.trace_hash())
    };
    assert_eq!(run(true), run(false));
}
