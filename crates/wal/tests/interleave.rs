//! Models of the log for the checker of interleavings: real code over a simulated disk, in a build
//! with `--cfg terrapin_shuttle`.
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

/// What the writers of a model did.
#[derive(Default)]
struct Notes {
    /// Under the append lock: LSNs of records and of boundaries.
    order: Vec<(Lsn, bool)>,
    /// Records that stand for something that can be seen: about to be published.
    installed: Vec<(Lsn, u64)>,
}

/// A record whose payload is told by its number and is that long.
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

/// Every record below `visible`, of all that there came to be, was installed when that was seen.
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

/// Three writers, one thread that makes a boundary, one reader. Seen red when `Publisher::finish`
/// passes over records that are not marked, reads a record's end after it gave the slot away, marks
/// before it stores the end, or lets the bound go back; when `Log::publish` waits neither for a
/// slot nor for the bound; and when `Log::boundary` installs without the append lock.
#[test]
fn records_are_published_in_order_and_a_cut_parts_them() {
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
        let cutter = {
            let (env, log, notes) = (env.clone(), log.clone(), notes.clone());
            spawn(move || {
                let note = |lsn| {
                    point(); // as where a memtable is installed
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
        let cut = cutter.join().unwrap();
        let notes = notes.lock().unwrap();
        assert_eq!(notes.installed.len(), 9);
        let at = notes.order.iter().position(|&(_, is_cut)| is_cut).unwrap();
        let (before, after) = notes.order.split_at(at);
        assert!(
            before.iter().all(|&(lsn, _)| lsn < cut.0),
            "below the boundary"
        );
        assert!(
            after.iter().all(|&(lsn, _)| lsn >= cut.0),
            "above the boundary"
        );
        assert!(after[1..].is_sorted() && before.is_sorted());
        seen.push(cut);
        assert_covered(&seen, &notes.installed);
    });
}

/// Writers whose records fill the ring again and again beside the drain, one that wants its records
/// synced, then an end and a second life. Seen red when `Drain::write_chunk` frees what it drained
/// instead of whole records, or before it wrote; a deadlock when a drain's step takes note of being
/// woken at its end instead of its start.
#[test]
fn nothing_is_lost_through_a_full_ring() {
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
