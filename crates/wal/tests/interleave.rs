//! Models of the log for the checker of interleavings. They run real code over a simulated disk, in
//! a build with `--cfg terrapin_shuttle`.
#![cfg(terrapin_shuttle)]

mod common;

use std::sync::Arc;
use std::sync::Mutex; // the models' own notes are no points

use common::{KIND, Process, payload, tiny};
use terrapin_base::sync::explore::{explore, spawn};
use terrapin_base::sync::point;
use terrapin_base::{Env, Lsn};
use terrapin_disk::{Disk, SimDisk};
use terrapin_wal::{Append, Appended, Log, Recovery};

/// What the writers of a model have done.
#[derive(Default)]
struct Notes {
    /// LSNs of records and boundaries, noted under the append lock.
    order: Vec<(Lsn, bool)>,
    /// Records whose effect is visible and that are about to be published.
    installed: Vec<(Lsn, u64)>,
}

/// Appends a record of `bytes` bytes; its payload follows from `index`.
fn append(env: &Env, log: &Log, notes: &Mutex<Notes>, index: u64, bytes: usize) -> Appended {
    let mut payload = payload(index);
    payload.resize(bytes.max(8), index as u8);
    loop {
        let note = |lsn| notes.lock().unwrap().order.push((lsn, false));
        match log.try_append_with(KIND, &[&payload], note).unwrap() {
            Append::Done(appended) => return appended,
            Append::Full(condition) => drop(env.wait(&condition).unwrap()),
        }
    }
}

fn install(notes: &Mutex<Notes>, appended: &Appended, index: u64) {
    notes.lock().unwrap().installed.push((appended.lsn, index));
}

/// Asserts that each record below `visible` was installed when the reader saw `visible`.
fn assert_covered(seen: &[(Lsn, Vec<(Lsn, u64)>)], all: &[(Lsn, u64)]) {
    for (visible, installed) in seen {
        for record in all.iter().filter(|(lsn, _)| lsn < visible) {
            assert!(
                installed.contains(record),
                "{record:?} was visible below {visible:?} before it was installed"
            );
        }
    }
}

fn look(log: &Log, notes: &Mutex<Notes>) -> (Lsn, Vec<(Lsn, u64)>) {
    let visible = log.visible();
    (visible, notes.lock().unwrap().installed.clone())
}

/// Three writers, one thread that makes a boundary, one reader.
///
/// Seen red with each of these faults. In `Publisher::finish`: passing over unfinished records,
/// reading a record's end after freeing its slot, finishing before storing the end, moving the
/// bound back. In `Log::publish`: waiting for neither a slot nor the bound. In `Log::boundary`:
/// running `install` without the append lock.
#[test]
fn records_are_published_in_order_and_a_boundary_divides_them() {
    explore("wal-publication", || {
        let env = Env::threads();
        let disk: Arc<dyn Disk> = SimDisk::new(1).handle();
        let log = Log::create(&env, &disk, tiny()).unwrap();
        let notes = Arc::new(Mutex::new(Notes::default()));
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let (env, log, notes) = (env.clone(), log.clone(), notes.clone());
                spawn(move || {
                    for i in 0..3 {
                        let index = writer << 8 | i;
                        let appended = append(&env, &log, &notes, index, 20);
                        for _ in 0..6 {
                            let visible = log.visible();
                            assert!(visible <= appended.lsn, "visible before published");
                        }
                        install(&notes, &appended, index);
                        log.publish(&appended);
                        assert!(log.visible() >= appended.end, "published and not visible");
                    }
                })
            })
            .collect();
        let reader = {
            let (log, notes) = (log.clone(), notes.clone());
            spawn(move || (0..6).map(|_| look(&log, &notes)).collect::<Vec<_>>())
        };
        let divider = {
            let (env, log, notes) = (env.clone(), log.clone(), notes.clone());
            spawn(move || {
                let note = |lsn| {
                    point(); // as when the engine installs a memtable
                    notes.lock().unwrap().order.push((lsn, true));
                };
                let ((), boundary) = log.boundary(note);
                env.wait(&log.boundary_condition(&boundary)).unwrap();
                (boundary.lsn, notes.lock().unwrap().installed.clone())
            })
        };
        for writer in writers {
            writer.join().unwrap();
        }
        let mut seen = reader.join().unwrap();
        let boundary = divider.join().unwrap();
        let notes = notes.lock().unwrap();
        assert_eq!(notes.installed.len(), 9);
        let at = notes
            .order
            .iter()
            .position(|&(_, is_boundary)| is_boundary)
            .unwrap();
        let (before, after) = notes.order.split_at(at);
        assert!(
            before.iter().all(|&(lsn, _)| lsn < boundary.0),
            "below the boundary"
        );
        assert!(
            after.iter().all(|&(lsn, _)| lsn >= boundary.0),
            "above the boundary"
        );
        assert!(after[1..].is_sorted() && before.is_sorted());
        seen.push(boundary);
        assert_covered(&seen, &notes.installed);
    });
}

/// Writers fill the ring again and again beside the drain, and one requests syncs. Then the log
/// ends and a second life begins.
///
/// Seen red when `Drain::write_piece` frees the drained bytes instead of whole records, or frees
/// before it writes. A deadlock was seen when a step of the drain resets `woken` at its end instead
/// of its start.
#[test]
fn a_full_ring_loses_no_record() {
    explore("wal-ring", || {
        let medium = SimDisk::new(2);
        let env = Env::threads();
        let disk: Arc<dyn Disk> = medium.handle();
        let log = Log::create(&env, &disk, tiny()).unwrap();
        let drain = env.spawn(log.drain_job()).unwrap();
        let notes = Arc::new(Mutex::new(Notes::default()));
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (env, log, notes) = (env.clone(), log.clone(), notes.clone());
                spawn(move || {
                    for i in 0..4 {
                        let index = writer << 8 | i;
                        let bytes = 9_000 + 1_500 * i as usize;
                        let appended = append(&env, &log, &notes, index, bytes);
                        install(&notes, &appended, index);
                        log.publish(&appended);
                        if writer == 0 && i % 2 == 1 {
                            log.sync(appended.end).unwrap();
                            assert!(log.synced() >= appended.end);
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        log.close().unwrap();
        drain.join().unwrap();
        drop((log, disk));
        let mut expected = std::mem::take(&mut notes.lock().unwrap().installed);
        expected.sort();

        let process = Process::new(&medium, 3);
        let recovery = Recovery::scan(&process.env, &process.disk, tiny(), Lsn(4096)).unwrap();
        let (_log, mut replay) = recovery.begin().unwrap();
        let mut found = Vec::new();
        while let Some(record) = replay.next().unwrap() {
            let index = u64::from_le_bytes(record.payload[..8].try_into().unwrap());
            found.push((record.lsn, index));
        }
        assert_eq!(found, expected);
    });
}
