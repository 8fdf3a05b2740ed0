//! The memtable compared with a `BTreeMap` of version chains: every read, both directions, version
//! bounds, and counts.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use proptest::prelude::*;
use terrapin_base::{Budget, Lsn, Message, Purpose};
use terrapin_memtable::{Cursor, Estimate, Memtable};

type Chain = BTreeMap<u64, Option<Vec<u8>>>;
type Model = BTreeMap<Vec<u8>, Chain>;

fn message(value: &Option<Vec<u8>>) -> Message<'_> {
    value.as_deref().map_or(Message::Delete, Message::Put)
}

fn newest(chain: &Chain, after: u64, before: u64) -> Option<(u64, Message<'_>)> {
    let (lsn, value) = chain.range(..before).next_back()?;
    (*lsn >= after).then_some((*lsn, message(value)))
}

fn at<'a>(cursor: &Cursor<'a>) -> Option<(&'a [u8], u64, Message<'a>)> {
    cursor
        .key()
        .map(|key| (key, cursor.lsn().0, cursor.message()))
}

/// What a memtable shows within these bounds.
fn visible(model: &Model, after: u64, before: u64) -> Vec<(&[u8], u64, Message<'_>)> {
    model
        .iter()
        .filter_map(|(k, chain)| {
            newest(chain, after, before).map(|(lsn, message)| (&k[..], lsn, message))
        })
        .collect()
}

fn check_reads(memtable: &Memtable, model: &Model, probes: &[Vec<u8>], bounds: &[(u64, u64)]) {
    for &(after, before) in bounds {
        for key in probes.iter().chain(model.keys()) {
            let expected = model.get(key).and_then(|chain| newest(chain, 0, before));
            assert_eq!(
                memtable.get(key, Lsn(before)),
                expected.map(|e| e.1),
                "get {key:?} before {before}"
            );
            assert_eq!(
                memtable
                    .get_versioned(key, Lsn(before))
                    .map(|(lsn, message)| (lsn.0, message)),
                expected
            );
        }
        let all = visible(model, after, before);
        let mut cursor = memtable.cursor(Lsn(after), Lsn(before));
        assert!(at(&cursor).is_none());
        let mut forward = Vec::new();
        cursor.seek_first();
        while let Some(here) = at(&cursor) {
            let mut versions: Vec<_> = cursor.versions().collect();
            // Of versions with one LSN the first counts.
            versions.dedup_by_key(|(lsn, _)| *lsn);
            let chain = model[here.0].range(..before).rev();
            assert!(
                versions
                    .into_iter()
                    .eq(chain.map(|(lsn, value)| (Lsn(*lsn), message(value))))
            );
            forward.push(here);
            cursor.next();
        }
        assert_eq!(forward, all);
        let mut backward = Vec::new();
        cursor.seek_last();
        while let Some(here) = at(&cursor) {
            backward.push(here);
            cursor.prev();
        }
        backward.reverse();
        assert_eq!(backward, all);
        for key in probes {
            let index = all.partition_point(|e| e.0 < &key[..]);
            cursor.seek(key);
            assert_eq!(at(&cursor), all.get(index).copied(), "seek {key:?}");
            cursor.next();
            assert_eq!(
                at(&cursor),
                all.get(index + 1).copied(),
                "seek {key:?}, next"
            );
            cursor.seek_before(key);
            assert_eq!(
                at(&cursor),
                index.checked_sub(1).map(|i| all[i]),
                "seek before {key:?}"
            );
            cursor.prev();
            assert_eq!(
                at(&cursor),
                index.checked_sub(2).map(|i| all[i]),
                "seek before {key:?}, prev"
            );
        }
    }
}

fn check_counts(memtable: &Memtable, model: &Model) {
    let (mut live, mut records, mut tombstones) = (0, 0, 0);
    for (key, chain) in model {
        let Some((_, value)) = chain.last_key_value() else {
            continue;
        };
        live += key.len() + value.as_ref().map_or(0, Vec::len);
        records += u64::from(value.is_some());
        tombstones += u64::from(value.is_none());
    }
    assert_eq!(memtable.live_bytes(), live as u64);
    assert_eq!(
        (memtable.records(), memtable.tombstones()),
        (records, tombstones)
    );
    assert_eq!(memtable.is_empty(), model.is_empty());
    assert!(memtable.live_bytes() + memtable.garbage_bytes() <= memtable.arena_bytes());
}

/// Ranges of so few keys are counted exactly.
fn check_estimates(memtable: &Memtable, model: &Model, probes: &[Vec<u8>], befores: &[(u64, u64)]) {
    for (pair, &(_, before)) in probes.windows(2).zip(befores.iter().cycle()) {
        let (a, b) = (&pair[0][..], &pair[1][..]);
        let ranges = [
            (Bound::Included(a), Bound::Excluded(b)),
            (Bound::Excluded(a), Bound::Included(b)),
            (Bound::Included(a), Bound::Included(a)),
            (Bound::Excluded(a), Bound::Excluded(a)),
            (Bound::Included(a), Bound::Unbounded),
            (Bound::Unbounded, Bound::Included(b)),
            (Bound::Unbounded, Bound::Excluded(b)),
        ];
        for range in ranges {
            let mut expected = Estimate::default();
            for (key, _, message) in visible(model, 0, before) {
                if RangeBounds::<[u8]>::contains(&range, key) {
                    expected.records += u64::from(message != Message::Delete);
                    expected.tombstones += u64::from(message == Message::Delete);
                    expected.bytes += (key.len() + message.value_bytes()) as u64;
                }
            }
            assert_eq!(memtable.estimate(range, Lsn(before)), expected, "{range:?}");
        }
    }
}

fn insert(memtable: &Memtable, model: &mut Model, key: &[u8], lsn: u64, value: Option<Vec<u8>>) {
    memtable.insert(key, Lsn(lsn), message(&value));
    model.entry(key.to_vec()).or_default().insert(lsn, value);
}

/// Keys over few letters, so that prefixes, splits and equal keys are frequent. Some have long
/// equal stretches.
fn any_key() -> impl Strategy<Value = Vec<u8>> {
    let letters = prop::sample::select(vec![0u8, 1, b'a', b'b', 254, 255]);
    prop_oneof![
        4 => prop::collection::vec(letters, 0..7),
        2 => (0u8..3, 0usize..40, prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(letter, stretch, end)| {
            let mut key = vec![letter; stretch];
            key.extend(end);
            key
        }),
        2 => any::<u8>().prop_map(|byte| vec![7, byte]),
        1 => any::<u64>().prop_map(|n| n.to_be_bytes().to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn a_memtable_reads_like_a_map(
        writes in prop::collection::vec((any_key(), 0u64..24, prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..12))), 0..300),
        probes in prop::collection::vec(any_key(), 0..40),
        bounds in prop::collection::vec((0u64..26, 0u64..26), 1..4),
        exact in any::<bool>(),
    ) {
        let budget = Budget::new(1 << 30);
        let memtable = if exact { Memtable::new_for_memory_checkers(&budget) } else { Memtable::new(&budget) };
        let mut model = Model::new();
        for (key, lsn, value) in writes {
            insert(&memtable, &mut model, &key, lsn, value);
        }
        let mut bounds = bounds;
        bounds.push((0, u64::MAX));
        check_reads(&memtable, &model, &probes, &bounds);
        check_counts(&memtable, &model);
        check_estimates(&memtable, &model, &probes, &bounds);
        prop_assert_eq!(budget.used(Purpose::Memtable), memtable.arena_bytes());
        drop(memtable);
        prop_assert_eq!(budget.used(Purpose::Memtable), 0);
    }

    #[test]
    fn a_cursor_walks_like_a_map(
        keys in prop::collection::btree_set(any_key(), 1..200),
        old in any::<u64>(),
        walk in prop::collection::vec((0u8..6, any_key()), 1..120),
    ) {
        // A third of the keys is outside the cursor's bounds.
        let memtable = Memtable::new(&Budget::new(1 << 30));
        let mut model = Model::new();
        for (i, key) in keys.iter().enumerate() {
            let lsn = [5, 10, 20][(old >> (i % 60)) as usize % 3];
            insert(&memtable, &mut model, key, lsn, Some(key.clone()));
        }
        let shown: BTreeMap<&[u8], u64> = visible(&model, 10, 30).into_iter().map(|(k, lsn, _)| (k, lsn)).collect();
        let mut cursor = memtable.cursor(Lsn(10), Lsn(30));
        let mut place: Option<&[u8]> = None;
        for (step, key) in &walk {
            match step {
                0 => {
                    cursor.seek(key);
                    place = shown.range::<[u8], _>((Bound::Included(&key[..]), Bound::Unbounded)).next().map(|e| *e.0);
                }
                1 => {
                    cursor.seek_before(key);
                    place = shown.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&key[..]))).next_back().map(|e| *e.0);
                }
                2 | 3 => {
                    cursor.next();
                    place = place.and_then(|p| shown.range::<[u8], _>((Bound::Excluded(p), Bound::Unbounded)).next()).map(|e| *e.0);
                }
                _ => {
                    cursor.prev();
                    place = place.and_then(|p| shown.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(p))).next_back()).map(|e| *e.0);
                }
            }
            prop_assert_eq!(cursor.key(), place);
            if let Some(place) = place {
                prop_assert_eq!(cursor.lsn().0, shown[place]);
            }
        }
    }
}

#[test]
fn an_empty_memtable_has_no_keys() {
    let memtable = Memtable::new(&Budget::new(1 << 20));
    check_reads(
        &memtable,
        &Model::new(),
        &[vec![], vec![0], vec![255; 9]],
        &[(0, u64::MAX)],
    );
    check_counts(&memtable, &Model::new());
    let all = (Bound::Unbounded, Bound::Unbounded);
    let behind = (Bound::Excluded(&b"a"[..]), Bound::Unbounded);
    for range in [all, behind] {
        assert_eq!(memtable.estimate(range, Lsn(9)), Estimate::default());
    }
    let mut cursor = memtable.cursor(Lsn(0), Lsn(9));
    cursor.next();
    cursor.prev();
    assert!(!cursor.is_valid());
}

#[test]
fn the_longest_keys_and_all_prefixes_of_one_are_found() {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    let mut model = Model::new();
    let longest: Vec<u8> = (0..65_535u32).map(|i| (i / 7) as u8).collect();
    let mut probes = vec![longest.clone()];
    for cut in [
        0, 1, 2, 6, 7, 8, 9, 255, 256, 257, 32_767, 65_527, 65_528, 65_533, 65_534, 65_535,
    ] {
        insert(
            &memtable,
            &mut model,
            &longest[..cut],
            7,
            Some(vec![1; cut % 5]),
        );
        if cut > 0 {
            // The longest key with a different last byte, where the paths part.
            let mut other = longest[..cut].to_vec();
            other[cut - 1] ^= 0x80;
            probes.push(other.clone());
            insert(&memtable, &mut model, &other, 8, None);
            other[cut - 1] ^= 0xff;
            probes.push(other);
        }
    }
    let mut early = longest.clone();
    early[100] ^= 1;
    probes.push(early);
    check_reads(&memtable, &model, &probes, &[(0, 9), (8, 9), (0, 8)]);
    check_counts(&memtable, &model);
}

#[test]
fn a_tower_of_prefixes_is_walked_without_recursion() {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    let key = vec![b'x'; 5_000];
    for cut in 0..=key.len() {
        memtable.insert(&key[..cut], Lsn(1), Message::Put(b""));
    }
    let mut cursor = memtable.cursor(Lsn(0), Lsn(2));
    cursor.seek_first();
    for cut in 0..=key.len() {
        assert_eq!(cursor.key().map(<[u8]>::len), Some(cut));
        cursor.next();
    }
    assert!(!cursor.is_valid());
    cursor.seek_last();
    for cut in (0..=key.len()).rev() {
        assert_eq!(cursor.key().map(<[u8]>::len), Some(cut));
        cursor.prev();
    }
    assert!(!cursor.is_valid());
}

#[test]
fn nodes_of_every_size_keep_their_order_as_they_grow() {
    // 131 is prime to 256, so bytes come in scattered order. Every count of children occurs, with
    // and without a terminal.
    for terminal in [false, true] {
        let memtable = Memtable::new(&Budget::new(1 << 30));
        let mut model = Model::new();
        if terminal {
            insert(&memtable, &mut model, b"pre", 1, None);
        }
        let probes: Vec<Vec<u8>> = (0..=255).map(|b| vec![b'p', b'r', b'e', b]).collect();
        for i in 0..256u32 {
            let byte = (i * 131 + 7) as u8;
            insert(
                &memtable,
                &mut model,
                &[b'p', b'r', b'e', byte, b'!'],
                1,
                Some(vec![byte]),
            );
            if i % 5 == 0 || i > 250 {
                check_reads(&memtable, &model, &probes, &[(0, 2)]);
            }
        }
        check_counts(&memtable, &model);
    }
}

#[test]
fn later_versions_inherit_the_mark_of_a_read_key() {
    let memtable = Arc::new(Memtable::new(&Budget::new(1 << 30)));
    let was_read = |key: &[u8]| {
        let mut cursor = memtable.cursor_owned(Lsn(0), Lsn(u64::MAX));
        cursor.seek(key);
        assert_eq!(cursor.key(), Some(key));
        cursor.was_read()
    };
    for key in [b"asked", b"other"] {
        memtable.insert(key, Lsn(10), Message::Put(b"old"));
    }
    assert_eq!(memtable.get(b"asked", Lsn(11)), Some(Message::Put(b"old")));
    assert!(!was_read(b"asked"), "only looked at");
    assert_eq!(memtable.read(b"asked", Lsn(10)), None);
    assert!(!was_read(b"asked"), "there was nothing yet");
    assert_eq!(memtable.read(b"asked", Lsn(11)), Some(Message::Put(b"old")));
    assert_eq!(memtable.get(b"asked", Lsn(11)), Some(Message::Put(b"old")));
    assert!(was_read(b"asked") && !was_read(b"other"));
    memtable.insert(b"asked", Lsn(20), Message::Delete);
    assert_eq!(memtable.read(b"asked", Lsn(21)), Some(Message::Delete));
    assert!(was_read(b"asked") && !was_read(b"other"));
}

#[test]
fn versions_may_come_in_any_order_and_an_equal_lsn_replaces() {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    for (lsn, value) in [
        (50, "e"),
        (10, "a"),
        (30, "c"),
        (20, "b"),
        (30, "C"),
        (40, "d"),
        (50, "E"),
        (10, "A"),
    ] {
        memtable.insert(b"key", Lsn(lsn), Message::Put(value.as_bytes()));
    }
    let shown = |before| {
        memtable
            .get(b"key", Lsn(before))
            .and_then(Message::put_value)
    };
    assert_eq!(shown(10), None);
    assert_eq!(
        [11, 21, 31, 41, 51].map(shown),
        ["A", "b", "C", "d", "E"].map(|v| Some(v.as_bytes()))
    );
    // Each version takes 24 bytes. All but the newest are superseded.
    assert_eq!(
        (
            memtable.live_bytes(),
            memtable.records(),
            memtable.garbage_bytes()
        ),
        (4, 1, 7 * 24)
    );
    memtable.insert(b"key", Lsn(60), Message::Delete);
    assert_eq!(
        (
            memtable.live_bytes(),
            memtable.records(),
            memtable.tombstones()
        ),
        (3, 0, 1)
    );
    assert_eq!(memtable.garbage_bytes(), 8 * 24);
    memtable.insert(b"key", Lsn(55), Message::Put(&[0; 100]));
    assert_eq!(
        (
            memtable.live_bytes(),
            memtable.tombstones(),
            memtable.garbage_bytes()
        ),
        (3, 1, 8 * 24 + 120)
    );
}

#[test]
fn garbage_of_an_overwritten_key_is_counted() {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    for lsn in 0..20_000 {
        memtable.insert(b"hot", Lsn(lsn), Message::Put(&[0; 100]));
    }
    assert_eq!((memtable.live_bytes(), memtable.records()), (103, 1));
    assert_eq!(memtable.garbage_bytes(), 19_999 * 120);
    assert!(memtable.arena_bytes() < memtable.garbage_bytes() * 2);
}

#[test]
fn large_and_small_values_are_stored_together() {
    let budget = Budget::new(1 << 30);
    let memtable = Memtable::new(&budget);
    let mut model = Model::new();
    for i in 0..40u8 {
        let bytes = [0, 1, 5_000, 70_000, 262_144, 700_000, 3_000_000][usize::from(i) % 7];
        insert(
            &memtable,
            &mut model,
            &[i % 20],
            u64::from(i),
            Some(vec![i; bytes]),
        );
    }
    check_reads(&memtable, &model, &[vec![3]], &[(0, 40), (0, 20)]);
    check_counts(&memtable, &model);
    drop(memtable);
    assert_eq!(budget.used_total(), 0);
}

#[test]
fn an_owned_cursor_outlives_its_memtable_handle() {
    let memtable = std::sync::Arc::new(Memtable::new(&Budget::new(1 << 30)));
    for byte in 0..100u8 {
        memtable.insert(&[byte], Lsn(1), Message::Put(&[byte; 3]));
    }
    let mut cursor = memtable.cursor_owned(Lsn(0), Lsn(2));
    drop(memtable);
    cursor.seek(&[40]);
    for byte in 40..100u8 {
        assert_eq!(
            (cursor.key(), cursor.message()),
            (Some(&[byte][..]), Message::Put(&[byte; 3]))
        );
        cursor.next();
    }
    assert!(cursor.key().is_none());
}

#[test]
fn owned_versions_descend_and_outlive_the_cursor() {
    let memtable = Arc::new(Memtable::new(&Budget::new(1 << 20)));
    for lsn in [10, 20, 20, 30, 40] {
        memtable.insert(b"a", Lsn(lsn), Message::Put(&lsn.to_be_bytes()));
    }
    let mut cursor = memtable.cursor_owned(Lsn(0), Lsn(40));
    cursor.seek_first();
    assert_eq!(cursor.versions().next().map(|(lsn, _)| lsn), Some(Lsn(30)));
    let mut versions = cursor.versions_owned();
    drop((cursor, memtable));
    for (before, shown) in [(35, 30), (30, 20), (20, 10)] {
        let found = versions
            .below(Lsn(before))
            .and_then(|mut below| below.next());
        let value = u64::to_be_bytes(shown);
        assert_eq!(found, Some((Lsn(shown), Message::Put(&value))));
    }
    assert!(versions.below(Lsn(10)).is_none());
}

#[test]
#[should_panic(expected = "a key of 65536 bytes")]
fn a_key_that_is_too_long_panics() {
    Memtable::new(&Budget::new(1 << 30)).insert(&[0; 65_536], Lsn(1), Message::Delete);
}
