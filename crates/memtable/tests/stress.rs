//! Writers, readers and scanners run concurrently. Readers must see only what was written, in
//! order. They must find all that was there before they looked.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrapin_base::{Budget, Lsn, Message, Purpose};
use terrapin_memtable::Memtable;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of a kind and a number. The kinds make nodes of all sizes, long paths that part, and
/// prefixes of one another.
fn key(kind: u64, number: u64) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes();
    match kind {
        0 => mixed.to_be_bytes().to_vec(),
        1 => format!("user:{:012}:{}", mixed % 100_000, number).into_bytes(),
        // The number's digits in base 3, so that keys are prefixes of keys.
        2 => {
            let mut key = vec![b'p'];
            let mut rest = number + 1;
            while rest > 0 {
                key.push((rest % 3) as u8);
                rest /= 3;
            }
            key
        }
        _ => [
            vec![b'z'; (number % 50) as usize],
            number.to_be_bytes()[5..].to_vec(),
        ]
        .concat(),
    }
}

/// A value that names its key and LSN.
fn value(key: &[u8], lsn: u64) -> Vec<u8> {
    let mut value = lsn.to_be_bytes().to_vec();
    value.extend_from_slice(key);
    value
}

fn check(key: &[u8], message: Message<'_>) -> u64 {
    let bytes = message.put_value().expect("only puts were written");
    let (lsn, of) = bytes.split_at(8);
    assert_eq!(of, key, "a value of another key");
    u64::from_be_bytes(lsn.try_into().expect("eight bytes"))
}

#[test]
fn concurrent_reads_lose_nothing_and_see_whole_values_in_order() {
    const WRITERS: u64 = 2;
    const KEYS: u64 = 6_000;
    for round in 0..8 {
        let kind = round % 4;
        let budget = Budget::new(1 << 30);
        let memtable = if round < 4 {
            Memtable::new_for_memory_checkers(&budget)
        } else {
            Memtable::new(&budget)
        };
        let written: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let over = AtomicBool::new(false);
        let barrier = Barrier::new(WRITERS as usize + 2);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|w| {
                    let (memtable, written, barrier) = (&memtable, &written, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        for i in 0..KEYS {
                            let key = key(kind, i * WRITERS + w);
                            memtable.insert(&key, Lsn(i + 1), Message::Put(&value(&key, i + 1)));
                            written[w as usize].store(i + 1, Ordering::Release);
                        }
                    })
                })
                .collect();
            // Gets find what a writer has reported as written.
            scope.spawn(|| {
                barrier.wait();
                let mut rng = round;
                while !over.load(Ordering::Acquire) {
                    let w = random(&mut rng) % WRITERS;
                    let known = written[w as usize].load(Ordering::Acquire);
                    if known > 0 {
                        let i = random(&mut rng) % known;
                        let key = key(kind, i * WRITERS + w);
                        let message = memtable
                            .get(&key, Lsn(u64::MAX))
                            .expect("written before the get began");
                        assert_eq!(check(&key, message), i + 1);
                    }
                    let i = random(&mut rng) % KEYS;
                    let key = key(kind, i * WRITERS + w);
                    if let Some(message) = memtable.get(&key, Lsn(u64::MAX)) {
                        assert_eq!(check(&key, message), i + 1);
                    }
                }
            });
            // Scans in both directions are strictly ordered. They return at least what was written
            // before they began.
            scope.spawn(|| {
                barrier.wait();
                let mut forward = true;
                let mut seen = Vec::new();
                while !over.load(Ordering::Acquire) {
                    let known: Vec<u64> =
                        written.iter().map(|w| w.load(Ordering::Acquire)).collect();
                    let below = *known.iter().min().expect("writers") + 1;
                    let expected = (below - 1) * WRITERS;
                    let mut cursor = memtable.cursor(Lsn(0), Lsn(below));
                    if forward {
                        cursor.seek_first()
                    } else {
                        cursor.seek_last()
                    }
                    seen.clear();
                    while let Some(key) = cursor.key() {
                        let lsn = check(key, cursor.message());
                        assert!(lsn < below && lsn == cursor.lsn().0);
                        if let Some(last) = seen.last() {
                            assert!(
                                if forward { *last < key } else { *last > key },
                                "out of order"
                            );
                        }
                        seen.push(key);
                        if forward {
                            cursor.next()
                        } else {
                            cursor.prev()
                        }
                    }
                    assert_eq!(
                        seen.len() as u64,
                        expected,
                        "a scan missed keys or showed others"
                    );
                    forward = !forward;
                }
            });
            for writer in writers {
                // Readers must end even if an assertion in a writer fails.
                let result = writer.join();
                if result.is_err() {
                    over.store(true, Ordering::Release);
                }
                result.expect("writer");
            }
            over.store(true, Ordering::Release);
        });
        let keys: std::collections::BTreeSet<Vec<u8>> =
            (0..KEYS * WRITERS).map(|n| key(kind, n)).collect();
        assert_eq!(keys.len() as u64, KEYS * WRITERS);
        let bytes: usize = keys.iter().map(|key| 2 * key.len() + 8).sum();
        assert_eq!(
            (memtable.records(), memtable.live_bytes()),
            (KEYS * WRITERS, bytes as u64)
        );
        let mut cursor = memtable.cursor(Lsn(0), Lsn(u64::MAX));
        cursor.seek_first();
        for key in &keys {
            assert_eq!(cursor.key(), Some(&key[..]));
            cursor.next();
        }
        assert!(!cursor.is_valid());
        assert_eq!(budget.used(Purpose::Memtable), memtable.arena_bytes());
        drop(memtable);
        assert_eq!(budget.used(Purpose::Memtable), 0);
    }
}

#[test]
fn writers_that_race_for_the_same_keys_leave_every_version_and_exact_counts() {
    const WRITERS: u64 = 4;
    for round in 0..4 {
        let keys = [1, 30, 300, 4_000][round as usize];
        let inserts = 12_000;
        let memtable = Memtable::new(&Budget::new(1 << 30));
        let barrier = Barrier::new(WRITERS as usize);
        // Each writer has its own LSNs, and writes them up to 16 out of order.
        let lsn_of = |w: u64, i: u64| ((i ^ 0xf) * WRITERS + w) + 1;
        let number_of = |w: u64, i: u64| random(&mut (w << 32 | i).wrapping_mul(31)) % keys;
        std::thread::scope(|scope| {
            for w in 0..WRITERS {
                let (memtable, barrier) = (&memtable, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for i in 0..inserts {
                        let key = key(round % 4, number_of(w, i));
                        let lsn = lsn_of(w, i);
                        let value = value(&key, lsn);
                        let message = if lsn % 5 == 0 {
                            Message::Delete
                        } else {
                            Message::Put(&value)
                        };
                        memtable.insert(&key, Lsn(lsn), message);
                    }
                });
            }
        });
        let mut model =
            std::collections::BTreeMap::<Vec<u8>, std::collections::BTreeSet<u64>>::new();
        for w in 0..WRITERS {
            for i in 0..inserts {
                model
                    .entry(key(round % 4, number_of(w, i)))
                    .or_default()
                    .insert(lsn_of(w, i));
            }
        }
        let (mut live, mut records, mut tombstones) = (0, 0, 0);
        for (key, lsns) in &model {
            for lsn in lsns {
                let (found, message) = memtable
                    .get_versioned(key, Lsn(lsn + 1))
                    .expect("every version is there");
                assert_eq!(found.0, *lsn);
                assert!(if lsn % 5 == 0 {
                    message == Message::Delete
                } else {
                    check(key, message) == *lsn
                });
            }
            let deleted = lsns.last().expect("a version") % 5 == 0;
            live += key.len() + if deleted { 0 } else { 8 + key.len() };
            records += u64::from(!deleted);
            tombstones += u64::from(deleted);
        }
        assert_eq!(memtable.live_bytes(), live as u64);
        assert_eq!(
            (memtable.records(), memtable.tombstones()),
            (records, tombstones)
        );
    }
}

#[test]
fn more_threads_than_slots_write_and_count_correctly() {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    let (threads, each) = (48u64, 200u64);
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (memtable, barrier) = (&memtable, &barrier);
            scope.spawn(move || {
                // All threads live at once, so some have no slot of their own.
                memtable.insert(b"shared", Lsn(t), Message::Put(&[1; 10]));
                barrier.wait();
                for i in 0..each {
                    memtable.insert(
                        &(i * threads + t).to_be_bytes(),
                        Lsn(1),
                        Message::Put(&[2; 20]),
                    );
                }
                barrier.wait();
            });
        }
    });
    assert_eq!(memtable.records(), threads * each + 1);
    assert_eq!(memtable.live_bytes(), threads * each * 28 + 16);
}
