//! The cache beside a map: it may forget a record, and never returns a wrong one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Purpose};
use terrapin_recordcache::{Collection, RecordCache, SealedRecord};

/// A budget whose memory blocks take, so that records get only their share.
fn contested(bytes: u64) -> Arc<Budget> {
    let budget = Budget::new(bytes);
    budget.take(Purpose::Blocks, bytes);
    budget
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn key(number: u64) -> Vec<u8> {
    let mut key = format!("{number}").into_bytes();
    key.resize(key.len() + number as usize % 11, b'-');
    key
}

fn value(number: u64, version: u64) -> Vec<u8> {
    let bytes = (number * 7 + version * 13) as usize % 90;
    let mut value = format!("{number}:{version}:").into_bytes();
    value.resize(value.len() + bytes, b'v');
    value
}

#[test]
fn a_found_value_is_the_last_one_of_its_key() {
    for seed in 0..8 {
        let budget = contested(1 << 20);
        let cache = RecordCache::new(&budget, 1 << 20);
        cache.set_share(200);
        let mut random = Random(seed);
        let mut tree: HashMap<(u32, u64), u64> = HashMap::new();
        let mut version = 0;
        let mut collections = [0, 1];
        let (mut hits, mut lookups) = (0u64, 0u64);
        let (mut records_max, mut bytes_max) = (0, 0);
        for step in 0..60_000u64 {
            if step % 1000 == 0 {
                let counts = cache.counts();
                records_max = records_max.max(counts.records);
                bytes_max = bytes_max.max(counts.bytes);
            }
            let which = random.below(2) as usize;
            let collection = collections[which];
            // Some keys are read repeatedly.
            let span = if random.below(2) == 0 { 50 } else { 4000 };
            let number = random.below(span);
            let id = Collection(collection);
            let (bytes, epoch) = (key(number), cache.epoch());
            let hash = hash64(&bytes);
            match random.below(10) {
                0 if random.below(20) == 0 => {
                    // A memtable of some keys is merged into the tree.
                    let swept = cache.begin_sweep();
                    for _ in 0..random.below(200) {
                        let number = random.below(4000);
                        version += 1;
                        let gone = random.below(3) == 0;
                        let text = value(number, version);
                        let told = (!gone).then_some(&text[..]);
                        if swept {
                            cache.sweep(
                                id,
                                &key(number),
                                hash64(&key(number)),
                                SealedRecord {
                                    value: told,
                                    was_read: random.below(2) == 0,
                                },
                                number.is_multiple_of(2),
                            );
                        }
                        if gone {
                            tree.remove(&(collection, number));
                        } else {
                            tree.insert((collection, number), version);
                        }
                    }
                    // A fill with the previous epoch has no effect.
                    cache.fill(epoch, id, &bytes, hash, b"stale");
                }
                1 if random.below(400) == 0 => {
                    // A clear. A reader of an older state fills what it saw.
                    tree.retain(|&(c, _), _| c != collection);
                    collections[which] += 2;
                    cache.fill(epoch, id, &bytes, hash, b"cleared");
                }
                2 if random.below(50) == 0 => {
                    cache.set_share(random.below(400));
                    while cache.shrink_step() {}
                    assert!(cache.bytes() <= cache.target().max(20 << 10), "step {step}");
                }
                _ => {
                    let found = cache.get(epoch, id, &bytes, hash);
                    assert_eq!(found.is_some(), cache.contains(epoch, id, &bytes, hash));
                    let there = tree.get(&(collection, number)).map(|v| value(number, *v));
                    lookups += 1;
                    if let Some(found) = found {
                        hits += 1;
                        assert_eq!(
                            Some(&found[..]),
                            there.as_deref(),
                            "seed {seed}, step {step}"
                        );
                    } else if let Some(there) = there {
                        cache.fill(epoch, id, &bytes, hash, &there);
                    }
                }
            }
            if tree.len() < 2000 {
                version += 1;
                cache.begin_sweep();
                cache.sweep(
                    id,
                    &bytes,
                    hash,
                    SealedRecord {
                        value: Some(&value(number, version)),
                        was_read: number.is_multiple_of(3),
                    },
                    number.is_multiple_of(2),
                );
                tree.insert((collection, number), version);
            }
        }
        assert!(hits * 4 > lookups, "{hits} hits of {lookups}");
        assert!(records_max > 100, "{records_max}");
        assert!(bytes_max <= 430 << 10, "{bytes_max}");
        drop(cache);
        assert_eq!(budget.used(Purpose::Records), 0);
    }
}

#[test]
fn used_records_stay_when_many_unused_ones_come() {
    let budget = contested(8 << 20);
    let cache = RecordCache::new(&budget, 8 << 20);
    cache.set_share(125);
    let id = Collection(7);
    let epoch = cache.epoch();
    let ask = |number: u64| {
        let bytes = key(number);
        let hash = hash64(&bytes);
        let found = cache.get(epoch, id, &bytes, hash).is_some();
        if !found {
            cache.fill(epoch, id, &bytes, hash, &value(number, 1));
        }
        found
    };
    let mut misses = 0;
    for round in 0..200_000u64 {
        let hot = ask(round % 500);
        if round > 5000 && !hot {
            misses += 1;
        }
        ask(1_000_000 + round);
    }
    assert!(misses < 200, "{misses} misses of hot records");
}

/// Fills a cache of one MiB with records from 0 on until many were evicted. Returns their number.
fn overfilled() -> (RecordCache, u64) {
    let budget = contested(4 << 20);
    let cache = RecordCache::new(&budget, 1 << 20);
    cache.set_share(250);
    for number in 0..20_000 {
        let bytes = key(number);
        cache.fill(
            cache.epoch(),
            Collection(7),
            &bytes,
            hash64(&bytes),
            &value(number, 1),
        );
    }
    (cache, 20_000)
}

fn is_there(cache: &RecordCache, number: u64) -> bool {
    let bytes = key(number);
    cache.contains(cache.epoch(), Collection(7), &bytes, hash64(&bytes))
}

/// Records that are read once leave early: of these requests 174 in a thousand miss. With one
/// queue, in which each record stays a whole pass, 186 miss.
#[test]
fn zipfian_requests_mostly_hit_with_room_for_a_quarter_of_the_records() {
    const KEYS: u64 = 20_000;
    let budget = contested(16 << 20);
    let cache = RecordCache::new(&budget, 1 << 20);
    cache.set_share(40);
    let mut weights = Vec::new();
    for rank in 1..=KEYS {
        weights.push(weights.last().unwrap_or(&0.0) + 1.0 / (rank as f64).powf(0.99));
    }
    let mut random = Random(7);
    let (mut misses, requests) = (0, 400_000);
    for request in 0..requests {
        let point =
            random.below(1 << 31) as f64 / f64::from(1u32 << 31) * weights[KEYS as usize - 1];
        let rank = weights.partition_point(|&weight| weight < point) as u64;
        let bytes = rank.to_be_bytes();
        let hash = hash64(&bytes);
        if !cache.contains(cache.epoch(), Collection(7), &bytes, hash) {
            cache.fill(cache.epoch(), Collection(7), &bytes, hash, &[1; 100]);
            misses += u64::from(request >= requests / 2);
        }
    }
    let held = cache.counts().records;
    let permille = misses * 2000 / requests;
    assert!(held < KEYS / 4, "{held}");
    assert!(permille < 180, "{permille}");
}

#[test]
fn used_records_stay_when_the_cache_shrinks() {
    let (cache, count) = overfilled();
    let used: Vec<u64> = (0..count)
        .filter(|number| number % 10 == 0 && is_there(&cache, *number))
        .collect();
    let before = cache.counts().records;
    cache.set_share(140);
    while cache.shrink_step() {}
    let kept = used.iter().filter(|&&number| is_there(&cache, number));
    let (kept, used) = (kept.count(), used.len());
    assert!(kept * 10 > used * 9, "{kept} of {used}");
    let after = cache.counts().records;
    assert!(after * 4 < before * 3, "{after} of {before}");
}

/// Sweeps one record of a memtable, in an epoch of its own.
fn merge(cache: &RecordCache, number: u64, was_read: bool) {
    let (bytes, text) = (key(number), value(number, 1));
    cache.begin_sweep();
    let said = SealedRecord {
        value: Some(&text),
        was_read,
    };
    let hash = hash64(&bytes);
    cache.sweep(Collection(7), &bytes, hash, said, true);
}

/// Then as many records follow as fit: by then, records that were read once are gone.
#[test]
fn a_memtables_record_stays_if_it_was_read_and_displaces_none_if_not() {
    let (cache, count) = overfilled();
    let held = cache.counts().records;
    let (read, unread) = (count..count + 500, count + 500..count + 1000);
    unread
        .clone()
        .for_each(|number| merge(&cache, number, false));
    assert_eq!(cache.counts().records, held, "there is no room");
    read.clone().for_each(|number| merge(&cache, number, true));
    for number in 10 * count..10 * count + held {
        let bytes = key(number);
        let (hash, text) = (hash64(&bytes), value(number, 1));
        cache.fill(cache.epoch(), Collection(7), &bytes, hash, &text);
    }
    let kept = read.filter(|&number| is_there(&cache, number)).count();
    assert!(kept > 450, "{kept} of 500");
    assert!(!unread.into_iter().any(|number| is_there(&cache, number)));
    let once = 10 * count..10 * count + held / 2;
    let once = once.filter(|&number| is_there(&cache, number)).count();
    assert_eq!(once, 0, "what was asked for once and long ago");
}

#[test]
fn records_of_a_memtable_enter_where_there_is_room() {
    let cache = RecordCache::new(&contested(8 << 20), 1 << 20);
    cache.set_share(125);
    (0..100).for_each(|number| merge(&cache, number, false));
    assert!((0..100).all(|number| is_there(&cache, number)));
}

#[test]
fn only_first_uses_in_the_oldest_quarter_are_counted() {
    let (cache, count) = overfilled();
    for number in count - 200..count {
        assert!(is_there(&cache, number));
    }
    assert_eq!(cache.rescues(), 0, "the youngest");
    // Of the records that came after the cache was full, only the last is here.
    let young = (count / 2..count - 200).filter(|&number| is_there(&cache, number));
    let young = young.collect::<Vec<_>>();
    let first = cache.rescues();
    assert!(
        first > 100 && first < young.len() as u64 * 2 / 3,
        "{first} of {}",
        young.len()
    );
    for &number in &young {
        assert!(is_there(&cache, number));
    }
    assert_eq!(cache.rescues(), first, "second uses");
}

/// A clear gives a keyspace's records a new number.
#[test]
fn records_of_other_collections_are_not_found() {
    let budget = contested(8 << 20);
    let cache = RecordCache::new(&budget, 1 << 20);
    cache.set_share(500);
    let fill = |collection, numbers: std::ops::Range<u64>| {
        for bytes in numbers.map(key) {
            let hash = hash64(&bytes);
            cache.fill(cache.epoch(), Collection(collection), &bytes, hash, b"v");
        }
    };
    let count = |collection| {
        let is_there = |bytes: &Vec<u8>| {
            let collection = Collection(collection);
            cache.contains(cache.epoch(), collection, bytes, hash64(bytes))
        };
        (0..100).map(key).filter(is_there).count()
    };
    fill(1, 0..100);
    assert_eq!((count(1), count(2)), (100, 0));
    fill(2, 0..100);
    assert_eq!((count(1), count(2)), (100, 100));
    cache.clear();
    assert_eq!(cache.counts().records, 0);
}

#[test]
fn too_large_records_and_a_target_of_zero_are_no_trouble() {
    let budget = contested(1 << 20);
    let cache = RecordCache::new(&budget, 1 << 20);
    let id = Collection(0);
    cache.fill(cache.epoch(), id, b"k", 1, b"v");
    assert!(!cache.contains(cache.epoch(), id, b"k", 1));
    cache.set_share(1000);
    cache.fill(cache.epoch(), id, b"k", 1, &vec![1; 256 << 10]);
    cache.fill(cache.epoch(), id, b"k", 1, &vec![1; 2 << 20]);
    assert!(!cache.contains(cache.epoch(), id, b"k", 1));
    cache.fill(cache.epoch(), id, b"k", 1, b"");
    assert_eq!(
        cache.get(cache.epoch(), id, b"k", 1).as_deref(),
        Some(&b""[..])
    );
}

/// One thread is tree and checkpoint: it raises keys' versions, in memtables that it sweeps.
/// Readers must not see a version older than the tree's at the time of their epoch.
#[test]
fn readers_beside_sweeps_see_no_swept_version() {
    const KEYS: u64 = 300;
    let budget = contested(1 << 20);
    let cache = RecordCache::new(&budget, 1 << 20);
    // So small that strips are recycled all the time.
    cache.set_share(40);
    let id = Collection(1);
    let versions: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(1)).collect();
    let in_memtable: Vec<AtomicBool> = (0..KEYS).map(|_| AtomicBool::new(false)).collect();
    let stop = AtomicBool::new(false);
    let hits = AtomicU64::new(0);
    let read = |seed: u64| {
        let mut random = Random(seed);
        while !stop.load(Ordering::Relaxed) {
            let number = random.below(KEYS);
            let bytes = key(number);
            let hash = hash64(&bytes);
            let epoch = cache.epoch();
            if in_memtable[number as usize].load(Ordering::SeqCst) {
                continue;
            }
            let at_least = versions[number as usize].load(Ordering::SeqCst);
            match cache.get(epoch, id, &bytes, hash) {
                Some(found) => {
                    hits.fetch_add(1, Ordering::Relaxed);
                    let text = std::str::from_utf8(&found).unwrap();
                    let mut parts = text.split(':');
                    assert_eq!(parts.next().unwrap().parse(), Ok(number));
                    let version: u64 = parts.next().unwrap().parse().unwrap();
                    assert_eq!(found, value(number, version)[..]);
                    assert!(version >= at_least, "{version} < {at_least}");
                }
                None => cache.fill(epoch, id, &bytes, hash, &value(number, at_least)),
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let read = &read;
            scope.spawn(move || read(seed));
        }
        let mut random = Random(99);
        // Continues while readers have not run yet.
        for round in 0..400_000 {
            if round >= 4000 && hits.load(Ordering::Relaxed) > 1000 {
                break;
            }
            let chosen: Vec<u64> = (0..20).map(|_| random.below(KEYS)).collect();
            let set = |sealed| {
                for &number in &chosen {
                    in_memtable[number as usize].store(sealed, Ordering::SeqCst);
                }
            };
            set(true);
            cache.begin_sweep();
            for &number in &chosen {
                let next = versions[number as usize].load(Ordering::SeqCst) + 1;
                let text = value(number, next);
                let told = (!number.is_multiple_of(3)).then_some(&text[..]);
                cache.sweep(
                    id,
                    &key(number),
                    hash64(&key(number)),
                    SealedRecord {
                        value: told,
                        was_read: number.is_multiple_of(5),
                    },
                    number.is_multiple_of(2),
                );
                versions[number as usize].store(next, Ordering::SeqCst);
            }
            set(false);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(hits.load(Ordering::Relaxed) > 1000);
}

#[test]
fn a_small_share_accepts_only_some_fills() {
    let budget = contested(64 << 20);
    let cache = RecordCache::new(&budget, 64 << 20);
    let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let fill = |numbers: std::ops::Range<u64>| {
        for n in numbers {
            cache.fill(
                cache.epoch(),
                Collection(1),
                &n.to_le_bytes(),
                hash(n),
                &[7; 1000],
            );
        }
    };
    let held = |numbers: std::ops::Range<u64>| {
        let is_there =
            |n: &u64| cache.contains(cache.epoch(), Collection(1), &n.to_le_bytes(), hash(*n));
        numbers.filter(is_there).count()
    };
    // 50 thousandths are 3.2 MiB, room for about 3000 of these records.
    cache.set_share(50);
    fill(0..2000);
    assert!(held(0..2000) > 1900, "while there is room all come in");
    fill(2000..10_000);
    let some = held(9000..10_000);
    assert!((200..350).contains(&some), "{some} of 1000");
    cache.set_share(500);
    fill(10_000..11_000);
    assert!(held(10_000..11_000) > 950);
}

#[test]
fn values_of_equal_length_are_replaced_in_place_without_evictions() {
    let budget = contested(16 << 20);
    let cache = RecordCache::new(&budget, 16 << 20);
    cache.set_share(500);
    let count = 30_000u64;
    for n in 0..count {
        let bytes = key(n);
        cache.fill(
            cache.epoch(),
            Collection(7),
            &bytes,
            hash64(&bytes),
            &[0; 100],
        );
    }
    let held = cache.counts();
    assert_eq!(held.records, count);
    for round in 1..=5u8 {
        cache.begin_sweep();
        for n in 0..count {
            let bytes = key(n);
            cache.sweep(
                Collection(7),
                &bytes,
                hash64(&bytes),
                SealedRecord {
                    value: Some(&[round; 100]),
                    was_read: false,
                },
                false,
            );
        }
    }
    assert_eq!(cache.counts(), held);
    for n in 0..count {
        let bytes = key(n);
        let value = cache.get(cache.epoch(), Collection(7), &bytes, hash64(&bytes));
        assert_eq!(value.as_deref(), Some(&[5; 100][..]), "record {n}");
    }
}

#[test]
fn records_use_memory_that_blocks_leave_until_blocks_need_it() {
    let budget = Budget::new(64 << 20);
    let cache = RecordCache::new(&budget, 64 << 20);
    cache.set_share(250);
    let fill = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let bytes = key(number);
            let (epoch, hash) = (cache.epoch(), hash64(&bytes));
            cache.fill(epoch, Collection(7), &bytes, hash, &[1; 1000]);
        }
    };
    fill(0..100_000);
    assert!(cache.bytes() > 60 << 20, "{}", cache.bytes());
    budget.take(Purpose::Blocks, 24 << 20);
    assert!(cache.over_target());
    while cache.shrink_step() {}
    assert!(
        (38 << 20..41 << 20).contains(&cache.bytes()),
        "{}",
        cache.bytes()
    );
    budget.take(Purpose::Blocks, 40 << 20);
    while cache.shrink_step() {}
    assert!(
        (15 << 20..17 << 20).contains(&cache.bytes()),
        "{}",
        cache.bytes()
    );
    cache.set_share(0);
    assert_eq!(cache.target(), 0, "none at all");
}

#[test]
fn the_cache_follows_a_budget_that_grows_far_and_shrinks_again() {
    let budget = contested(1 << 20);
    let cache = RecordCache::new(&budget, 1 << 20);
    if cache.bytes_max() < 64 << 20 {
        return; // the system refused the address space
    }
    cache.set_share(1000);
    let fill = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let bytes = key(number);
            let (epoch, hash) = (cache.epoch(), hash64(&bytes));
            cache.fill(epoch, Collection(7), &bytes, hash, &[1; 500]);
        }
    };
    fill(0..10_000);
    assert!((900 << 10..=1 << 20).contains(&cache.bytes()));
    budget.set_limit(32 << 20);
    fill(10_000..40_000);
    assert!((10_000..40_000).all(|number| is_there(&cache, number)));
    budget.set_limit(1 << 40);
    assert_eq!(cache.target(), cache.bytes_max());
    budget.set_limit(1 << 20);
    while cache.shrink_step() {}
    assert!((900 << 10..=1 << 20).contains(&cache.bytes()));
    drop(cache);
    assert_eq!(budget.used(Purpose::Records), 0);
}
