//! The accuracy of a memtable's estimates of ranges, for keys of several shapes.

use std::ops::Bound;

use terrapin_base::{Budget, Lsn, Message};
use terrapin_memtable::Memtable;

const RANGES: u64 = 300;

fn scrambled(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Errors of estimates as shares of the true content. The first is the greatest error of ranges
/// with at least a tenth of all keys. The second is the mean error of all ranges.
fn errors(mut keys: Vec<Vec<u8>>) -> (f64, f64) {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    for (number, key) in (0..).zip(&keys) {
        let message = match number % 10 {
            0 => Message::Delete,
            _ => Message::Put(&[7; 30]),
        };
        memtable.insert(key, Lsn(number), message);
    }
    keys.sort();
    keys.dedup();
    let (mut greatest, mut sum) = (0.0f64, 0.0);
    for number in 0..RANGES {
        let place = |salt| scrambled(2 * number + salt) as usize % keys.len();
        let (a, b) = (place(1), place(2));
        let (low, high) = (a.min(b), a.max(b));
        let range = (
            Bound::Included(&keys[low][..]),
            Bound::Excluded(&keys[high][..]),
        );
        let estimate = memtable.estimate(range, Lsn(u64::MAX));
        let found = (estimate.records + estimate.tombstones) as f64;
        let exact = (high - low) as f64;
        let error = (found - exact).abs() / exact.max(1.0);
        sum += error;
        if exact >= keys.len() as f64 / 10.0 {
            greatest = greatest.max(error);
            let deletes = estimate.tombstones as f64 / found;
            assert!((0.05..0.15).contains(&deletes), "{deletes} deletes");
            let each = estimate.bytes as f64 / found;
            assert!(each > 30.0 && each < 80.0, "{each} bytes a record");
        }
    }
    (greatest, sum / RANGES as f64)
}

#[test]
fn large_ranges_are_estimated_within_some_per_cent() {
    const KEYS: u64 = 200_000;
    let shapes: [(&str, Vec<Vec<u8>>); 5] = [
        (
            "random numbers",
            (0..KEYS)
                .map(|i| scrambled(i).to_be_bytes().into())
                .collect(),
        ),
        (
            "numbers in order",
            (0..KEYS).map(|i| i.to_be_bytes().into()).collect(),
        ),
        (
            "names with numbers",
            (0..KEYS).map(|i| format!("user{i:010}").into()).collect(),
        ),
        (
            // A few tenants have most of the keys.
            "tenants",
            (0..KEYS)
                .map(|i| format!("tenant{:04}/{i:08}", 1000 / (1 + scrambled(i) % 1000)).into())
                .collect(),
        ),
        (
            // One in eight records of a user has many more below it.
            "events of users",
            (0..KEYS)
                .map(|i| match i % 28 {
                    kind @ 0..7 => format!("user{:06}/{kind}", i / 28).into(),
                    event => format!("user{:06}/7/{event:03}", i / 28).into(),
                })
                .collect(),
        ),
    ];
    for (shape, keys) in shapes {
        let (greatest, mean) = errors(keys);
        println!("{shape}: {greatest:.3} at most, {mean:.3} on average");
        assert!(greatest < 0.15, "{shape}: {greatest}");
        assert!(mean < 0.06, "{shape}: {mean}");
    }
}
