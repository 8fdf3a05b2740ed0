//! Models of the memtable for the checker of interleavings, in a build with `--cfg
//! terrapin_shuttle`. In some, nodes grow and paths part while writers, gets and scans run. In one,
//! a memtable gives its memory to a pool that is being closed.
#![cfg(terrapin_shuttle)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex; // notes of the models are no scheduling points

use terrapin_base::sync::explore::{explore, spawn};
use terrapin_base::{Budget, Lsn, Message, Purpose};
use terrapin_memtable::{Memtable, Pool};

const ALL: Lsn = Lsn(u64::MAX);

/// Inserts that have returned: the versions of each key.
type Notes = Arc<Mutex<BTreeMap<Vec<u8>, Vec<u64>>>>;

fn value(key: &[u8], lsn: u64) -> Vec<u8> {
    [&lsn.to_be_bytes()[..], key].concat()
}

fn insert(memtable: &Memtable, notes: &Notes, key: &[u8], lsn: u64) {
    memtable.insert(key, Lsn(lsn), Message::Put(&value(key, lsn)));
    let mut notes = notes.lock().unwrap();
    notes.entry(key.to_vec()).or_default().push(lsn);
}

/// One get. It must find at least what was inserted before it began.
fn get(memtable: &Memtable, notes: &Notes, key: &[u8], before: u64) {
    let known = notes.lock().unwrap().get(key).cloned().unwrap_or_default();
    let newest = known.into_iter().filter(|&lsn| lsn < before).max();
    match memtable.get_versioned(key, Lsn(before)) {
        None => assert_eq!(newest, None, "{key:?} is missing"),
        Some((lsn, message)) => {
            assert_eq!(message, Message::Put(&value(key, lsn.0)), "torn");
            assert!(
                newest.is_none_or(|newest| lsn.0 >= newest),
                "{key:?} is old"
            );
            assert!(lsn.0 < before);
        }
    }
}

/// One scan. It must be in order, return nothing twice, and return at least what was inserted
/// before it began.
fn scan(memtable: &Memtable, notes: &Notes, forward: bool) {
    let known = notes.lock().unwrap().clone();
    let mut found = Vec::new();
    let mut cursor = memtable.cursor(Lsn(0), ALL);
    match forward {
        true => cursor.seek_first(),
        false => cursor.seek_last(),
    }
    while let Some(key) = cursor.key() {
        assert_eq!(
            cursor.message(),
            Message::Put(&value(key, cursor.lsn().0)),
            "torn"
        );
        found.push((key.to_vec(), cursor.lsn().0));
        match forward {
            true => cursor.next(),
            false => cursor.prev(),
        }
    }
    if !forward {
        found.reverse();
    }
    assert!(
        found.is_sorted_by(|a, b| a.0 < b.0),
        "out of order: {found:?}"
    );
    for (key, versions) in known {
        let at = found.binary_search_by(|(found, _)| found.cmp(&key));
        let at = at.unwrap_or_else(|_| panic!("a scan missed {key:?}"));
        assert!(versions.iter().all(|&lsn| lsn <= found[at].1), "old");
    }
}

/// Two writers add keys to a node with room for one more. So the node grows under them, on its path
/// and below it. A reader and a scanner run meanwhile.
fn growth(before: u8) {
    let notes = Notes::default();
    let memtable = Arc::new(Memtable::new(&Budget::new(1 << 30)));
    let key = |i: u8| vec![b'k', b'k', i.wrapping_mul(37)];
    for i in 0..before {
        insert(&memtable, &notes, &key(i), 1);
    }
    let writers = (0..2u8).map(|writer| {
        let (memtable, notes) = (memtable.clone(), notes.clone());
        spawn(move || {
            for i in 0..2 {
                insert(&memtable, &notes, &key(before + 2 * i + writer), 2);
            }
            // These inserts change the node's links and path while it is replaced.
            match writer {
                0 => insert(&memtable, &notes, b"kk", 2),
                _ => insert(&memtable, &notes, &[&key(0)[..], b"!"].concat(), 2),
            }
            // Also the other writer's last key: an insert or an overwrite, in any order of the two
            // LSNs.
            insert(
                &memtable,
                &notes,
                &key(before + 3 - writer),
                3 + u64::from(writer),
            );
        })
    });
    let reader = {
        let (memtable, notes) = (memtable.clone(), notes.clone());
        spawn(move || {
            get(&memtable, &notes, b"kk", u64::MAX);
            for i in [0, before / 2, before - 1, before, before + 1, before + 3] {
                get(&memtable, &notes, &key(i), u64::MAX);
            }
        })
    };
    let scanner = {
        let (memtable, notes) = (memtable.clone(), notes.clone());
        spawn(move || {
            scan(&memtable, &notes, true);
            scan(&memtable, &notes, false);
        })
    };
    let threads: Vec<_> = writers.chain([reader, scanner]).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for forward in [true, false] {
        scan(&memtable, &notes, forward);
    }
    assert_eq!(memtable.records(), u64::from(before) + 6);
    let bytes = |key_bytes: u64| key_bytes + 8 + key_bytes;
    let live_bytes = (u64::from(before) + 4) * bytes(3) + bytes(2) + bytes(4);
    assert_eq!(memtable.live_bytes(), live_bytes);
}

/// From 4 links to 16. Fails if `NodeRef::child` does not validate.
#[test]
fn a_node_of_4_grows_under_readers_and_writers() {
    explore("memtable-growth-4", || growth(3));
}

/// From 16 links to 48. Fails if `Insert::attempt` does not validate.
#[test]
fn a_node_of_16_grows_under_readers_and_writers() {
    explore("memtable-growth-16", || growth(15));
}

/// From 48 links to 256.
#[test]
fn a_node_of_48_grows_under_readers_and_writers() {
    explore("memtable-growth-48", || growth(47));
}

/// A node and the node above it are both full, and grow at the same time. Fails if `Insert::grow`
/// does not lock the node above, or does not retire the node that it replaces.
#[test]
fn a_node_grows_while_the_one_above_it_does() {
    explore("memtable-growth-nested", || {
        let notes = Notes::default();
        let memtable = Arc::new(Memtable::new(&Budget::new(1 << 30)));
        for key in [&b"aa"[..], b"ab", b"ac", b"ad", b"b", b"c", b"d"] {
            insert(&memtable, &notes, key, 1);
        }
        let of: [&[&[u8]]; 3] = [&[b"ae", b"af"], &[b"e", b"f"], &[b"ag", b"a"]];
        let writers = of.into_iter().map(|keys| {
            let (memtable, notes) = (memtable.clone(), notes.clone());
            spawn(move || {
                for key in keys {
                    insert(&memtable, &notes, key, 2);
                    get(&memtable, &notes, key, 3);
                }
            })
        });
        let scanner = {
            let (memtable, notes) = (memtable.clone(), notes.clone());
            spawn(move || {
                scan(&memtable, &notes, false);
                scan(&memtable, &notes, true);
            })
        };
        for thread in writers.chain([scanner]).collect::<Vec<_>>() {
            thread.join().unwrap();
        }
        scan(&memtable, &notes, true);
        assert_eq!(memtable.records(), 13);
    });
}

/// Keys that are prefixes of one another, so that paths part and nodes get terminals concurrently.
/// One key gets its versions in any order. Fails if `Insert::part` stores its node without the lock
/// of the node above. Fails if `LeafRef::add` stores a link instead of exchanging it, or if
/// `NodeRef::child` does not validate.
#[test]
fn paths_part_and_versions_line_up_under_readers_and_writers() {
    explore("memtable-paths", || {
        let notes = Notes::default();
        let memtable = Arc::new(Memtable::new(&Budget::new(1 << 30)));
        insert(&memtable, &notes, b"turtle", 1);
        let of: [&[&[u8]]; 3] = [
            &[b"turtles", b"tur", b"hot"],
            &[b"turtle", b"turf", b"hot", b"t"],
            &[b"", b"turn", b"hot", b"turtles all the way down"],
        ];
        let writers = of.into_iter().enumerate().map(|(writer, keys)| {
            let (memtable, notes) = (memtable.clone(), notes.clone());
            spawn(move || {
                for (i, key) in keys.iter().enumerate() {
                    let lsn = 2 + ((i + 2 * writer) % 4) as u64 * 3 + writer as u64;
                    insert(&memtable, &notes, key, lsn);
                    get(&memtable, &notes, key, lsn + 1);
                }
            })
        });
        let reader = {
            let (memtable, notes) = (memtable.clone(), notes.clone());
            spawn(move || {
                for key in [&b"turtle"[..], b"hot", b"tur", b"", b"turtle"] {
                    get(&memtable, &notes, key, u64::MAX);
                    get(&memtable, &notes, key, 6);
                }
                scan(&memtable, &notes, true);
                scan(&memtable, &notes, false);
            })
        };
        for thread in writers.chain([reader]).collect::<Vec<_>>() {
            thread.join().unwrap();
        }
        let all = notes.lock().unwrap().clone();
        for (key, versions) in &all {
            for &lsn in versions {
                let found = memtable.get_versioned(key, Lsn(lsn + 1));
                assert_eq!(found, Some((Lsn(lsn), Message::Put(&value(key, lsn)))));
            }
        }
        assert_eq!(memtable.records(), all.len() as u64);
    });
}

/// The last reader drops a memtable while its database is closed and while memory is set. Fails if
/// `Pool::keep` reads the bound before it has the lock, or if a bound of 0 is raised again.
#[test]
fn a_closed_pool_keeps_nothing_of_a_memtable_dropped_meanwhile() {
    explore("memtable-pool-close", || {
        let budget = Budget::new(1 << 30);
        let pool = Pool::new(&budget, 16 << 20);
        let memtable = Memtable::with_pool(&budget, &pool);
        // Large values make chunks grow to whole ones, which the pool takes back.
        let value = vec![7u8; 400 << 10];
        let mut lsn = 0;
        while memtable.arena_bytes() <= 2 * Pool::CHUNK_BYTES {
            lsn += 1;
            memtable.insert(&[lsn as u8], Lsn(lsn), Message::Put(&value));
        }
        let reader = spawn(move || drop(memtable));
        let closing = {
            let pool = pool.clone();
            spawn(move || pool.set_bytes_max(0))
        };
        let setting = {
            let pool = pool.clone();
            spawn(move || pool.set_bytes_max(8 << 20))
        };
        for thread in [reader, closing, setting] {
            thread.join().unwrap();
        }
        assert_eq!((pool.bytes(), budget.used(Purpose::Memtable)), (0, 0));
    });
}
