//! What records touched, as a conditional append sees it.

mod common;

use common::{KIND, Process, tiny};
use terrapin_base::KeyspaceId;
use terrapin_disk::SimDisk;
use terrapin_wal::{Append, Copied, From, Log, Reach, Touch, Touched};

fn touch(key: &[u8]) -> Touch {
    Touch::key(KeyspaceId(0), key, terrapin_base::checksum::hash64(key))
}

fn append(log: &Log, key: &[u8]) {
    match log
        .try_append_touching(KIND, &[key], &[touch(key)])
        .unwrap()
    {
        Append::Done(appended) => log.publish(&appended),
        Append::Full(_) => panic!("the ring is full"),
    }
}

/// Appends unless something since `from` touched the key; returns whether it did.
fn append_unless(log: &Log, key: &[u8], from: From) -> bool {
    let own = touch(key);
    let hits = |entry: &Touched| entry.touch.reach != Reach::Key || entry.touch == own;
    let appended = log
        .try_append_unless((KIND, &[key]), &[own], from, hits, || true)
        .unwrap();
    match appended {
        Some(Append::Done(appended)) => log.publish(&appended),
        Some(Append::Full(_)) => panic!("the ring is full"),
        None => return false,
    }
    true
}

#[test]
fn a_conditional_append_sees_records_that_came_before_it() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    append(&log, b"early");
    assert!(!log.is_watched());
    let before = log.visible();
    // Without a watch nothing is known.
    assert!(!append_unless(&log, b"a", From::Lsn(before)));
    let watch = log.watch();
    assert!(log.is_watched());
    assert!(watch.since() <= log.visible());
    let from = From::Lsn(log.visible());
    append(&log, b"b");
    assert!(append_unless(&log, b"a", from));
    // Its own record counts for the next one.
    assert!(!append_unless(&log, b"a", from));
    assert!(!append_unless(&log, b"b", from));
    assert!(append_unless(&log, b"c", from));
    let mut seen = Vec::new();
    let Copied::All(next) = log.touched_since(from, &mut seen) else {
        panic!("entries are missing");
    };
    let hashes: Vec<_> = seen.iter().map(|entry| entry.touch).collect();
    assert_eq!(hashes, [touch(b"b"), touch(b"a"), touch(b"c")]);
    assert!(append_unless(&log, b"a", next));
    // A bound from before the watch is refused, whatever was touched.
    assert!(!append_unless(
        &log,
        b"d",
        From::Lsn(terrapin_base::Lsn(4096))
    ));
}

#[test]
fn a_synced_log_has_entries_from_the_last_record_on() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    append(&log, b"a");
    log.sync(log.tail()).unwrap();
    // The sync's filler and mark lie behind the last record, and are never published.
    let watch = log.watch();
    assert!(log.tail() > log.visible());
    assert!(watch.since() <= log.visible());
    assert!(append_unless(&log, b"a", From::Lsn(log.visible())));
}

#[test]
fn records_that_do_not_say_what_they_touch_hit_everything() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    let _watch = log.watch();
    let from = From::Lsn(log.visible());
    process.append(&log, 1).unwrap();
    assert!(!append_unless(&log, b"a", from));
}

#[test]
fn a_record_that_is_not_admitted_leaves_no_trace() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    let _watch = log.watch();
    let from = From::Lsn(log.visible());
    process.append(&log, 1).unwrap();
    let tail = log.tail();
    let (record, own) = ((KIND, &[&b"a"[..]][..]), [touch(b"a")]);
    let refused = log.try_append_unless(record, &own, from, |_| true, || true);
    assert!(refused.unwrap().is_none());
    assert_eq!(log.tail(), tail);
    let mut seen = Vec::new();
    assert!(matches!(log.touched_since(from, &mut seen), Copied::All(_)));
    assert_eq!(seen.len(), 1);
}
