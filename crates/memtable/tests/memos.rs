//! Memos of operands in a memtable: a fold gives the same value with and without them.

use terrapin_base::{Budget, Env, Fold, Lsn, Message, Operator, Sim};
use terrapin_memtable::{Memtable, ValueOrFold};

/// One message of the key, in the order of LSNs. Operands are numbers to add.
#[derive(Clone, Copy, Debug)]
enum Event {
    Put(i64),
    Delete,
    DeleteRange,
    Merge(i64),
}

/// What the events say of the key, if `below` is the value below the memtable.
fn value(events: &[Event], below: Option<i64>) -> Option<i64> {
    events.iter().fold(below, |value, event| match event {
        Event::Put(number) => Some(*number),
        Event::Delete | Event::DeleteRange => None,
        Event::Merge(number) => Some(value.unwrap_or(0).wrapping_add(*number)),
    })
}

fn enter(memtable: &Memtable, lsn: Lsn, event: Event) -> bool {
    let bytes;
    let message = match event {
        Event::DeleteRange => {
            memtable.insert_range(b"a", Some(b"z"), lsn);
            return false;
        }
        Event::Delete => Message::Delete,
        Event::Put(number) => {
            bytes = number.to_le_bytes();
            Message::Put(&bytes)
        }
        Event::Merge(number) => {
            bytes = number.to_le_bytes();
            Message::Merge(&bytes)
        }
    };
    memtable.insert(b"key", lsn, message)
}

/// What a reader does, which may remember the value (basis and value below) or the operands.
fn read(
    memtable: &Memtable,
    before: Lsn,
    (basis, below): (Option<u32>, Option<i64>),
    remembers: bool,
) -> Option<i64> {
    let add = Operator::named("add-i64", &[]);
    let mut fold = Fold::default();
    // One that remembers nothing takes a remembered value as it is.
    let folded = match remembers {
        true => memtable.fold(b"key", before, basis, &mut fold).unwrap(),
        false => match memtable
            .value_or_fold(b"key", before, basis, &mut fold)
            .unwrap()
        {
            Some(ValueOrFold::Value(value)) => {
                let bytes = value.put_value()?;
                return Some(i64::from_le_bytes(bytes.try_into().unwrap()));
            }
            Some(ValueOrFold::Fold(folded)) => Some(folded),
            None => None,
        },
    };
    let Some(folded) = folded else { return below };
    if basis.is_none() && remembers {
        let message = fold.finish(&add, b"key", None);
        memtable.remember(folded, None, message);
        return read(memtable, before, (None, below), false);
    }
    if !folded.is_based {
        let bytes = below.map(i64::to_le_bytes);
        let message = bytes.as_ref().map_or(Message::Delete, |b| Message::Put(b));
        fold.push(message).unwrap();
    }
    let value = fold.value(&add, b"key", |_| true).unwrap();
    if remembers {
        let message = value.map_or(Message::Delete, Message::Put);
        memtable.remember(folded, basis, message);
    }
    value.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
}

fn any_event(random: &Sim) -> Event {
    let number = random.below(1_000) as i64;
    match random.below(40) {
        0 => Event::Put(number),
        1 => Event::Delete,
        2 => Event::DeleteRange,
        _ => Event::Merge(number),
    }
}

/// Every reader sees what it would without memos: at each bound, over each basis, and after range
/// deletes between operands.
#[test]
fn memos_change_no_answer() {
    for seed in 0..60 {
        let (_env, random) = Env::simulated(seed);
        let memtable = Memtable::new(&Budget::new(1 << 30));
        let below = |basis: u32| (basis > 0).then(|| i64::from(basis) * 1_000_000);
        let mut events = Vec::new();
        for step in 0..300 {
            let event = any_event(&random);
            events.push(event);
            enter(&memtable, Lsn(10 + step), event);
            for _ in 0..random.below(3) {
                // Readers of older views read beside those of the newest.
                let seen = match random.below(2) {
                    0 => events.len(),
                    _ => 1 + random.below(events.len() as u64) as usize,
                };
                let number = random.below(3) as u32;
                let basis = (random.below(3) > 0).then_some(number);
                let before = Lsn(10 + seen as u64);
                let read = read(
                    &memtable,
                    before,
                    (basis, below(number)),
                    random.below(2) == 0,
                );
                let expected = value(&events[..seen], below(number));
                assert_eq!(read, expected, "seed {seed}, {seen} of {events:?}");
            }
            // A merge sees the same.
            let (add, mut fold) = (Operator::named("add-i64", &[]), Fold::default());
            let mut cursor = memtable.cursor(Lsn(0), Lsn(10 + step + 1));
            cursor.seek_first();
            if cursor.is_valid() && cursor.message().has_operands() {
                cursor.fold(&mut fold).unwrap();
                let merged = match fold.finish(&add, b"key", None) {
                    Message::Put(bytes) => Some(i64::from_le_bytes(bytes.try_into().unwrap())),
                    Message::Merge(bytes) => {
                        let sum = i64::from_le_bytes(bytes.try_into().unwrap());
                        Some(sum + below(2).unwrap())
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(merged, value(&events, below(2)), "seed {seed}: {events:?}");
            }
        }
    }
}

/// A remembered value is the answer for its basis, until an operand, a put or a range delete comes.
#[test]
fn a_remembered_value_needs_no_fold() {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    for (lsn, event) in [(10, Event::Merge(1)), (11, Event::Merge(2))] {
        enter(&memtable, Lsn(lsn), event);
    }
    let seven = Some(7);
    assert_eq!(read(&memtable, Lsn(12), (Some(1), seven), true), Some(10));
    let is_value = |before, basis| {
        let mut fold = Fold::default();
        let found = memtable.value_or_fold(b"key", Lsn(before), basis, &mut fold);
        matches!(found.unwrap(), Some(ValueOrFold::Value(_)))
    };
    assert!(is_value(12, Some(1)));
    // Another tree below, none that is known, or an older moment.
    assert!(!is_value(12, Some(2)) && !is_value(12, None) && !is_value(11, Some(1)));
    enter(&memtable, Lsn(12), Event::Merge(3));
    assert!(!is_value(13, Some(1)) && is_value(12, Some(1)));
    enter(&memtable, Lsn(13), Event::DeleteRange);
    assert!(!is_value(14, Some(1)));
}

/// Operands of a key are folded once. What a later fold finds is a bounded number of messages.
#[test]
fn a_writer_learns_when_many_operands_wait() {
    let memtable = Memtable::new(&Budget::new(1 << 30));
    let (mut asked, mut longest) = (0, 0);
    for lsn in 1..=10_000 {
        if enter(&memtable, Lsn(lsn), Event::Merge(1)) {
            asked += 1;
            read(&memtable, Lsn(lsn + 1), (None, None), true);
        }
        let mut fold = Fold::default();
        let folded = memtable.fold(b"key", Lsn(lsn + 1), None, &mut fold);
        longest = longest.max(folded.unwrap().map_or(0, |folded| folded.bytes()));
    }
    // Each operand takes 40 bytes.
    assert!((10_000 / 128..=10_000 / 64).contains(&asked), "{asked}");
    assert!(longest <= 64 * 40, "{longest}");
    let sum = read(&memtable, Lsn(10_001), (None, None), false);
    assert_eq!(sum, Some(10_000));
}

/// An operand that grows is copied a few times, and takes at most twice its memory.
#[test]
fn memos_of_growing_operands_take_no_more_memory_than_the_operands() {
    let append = Operator::named("append", &[]);
    let budget = Budget::new(1 << 30);
    let memtable = Memtable::new(&budget);
    let (mut asked, mut garbage) = (0, 0);
    for lsn in 1..=20_000 {
        if memtable.insert(b"key", Lsn(lsn), Message::Merge(&[7; 100])) {
            asked += 1;
            let mut fold = Fold::default();
            let folded = memtable.fold(b"key", Lsn(lsn + 1), None, &mut fold);
            let message = fold.finish(&append, b"key", None);
            memtable.remember(folded.unwrap().unwrap(), None, message);
        }
        garbage = memtable.garbage_bytes();
    }
    // A version of 100 bytes takes 128, and all but the newest are garbage.
    let versions = 19_999 * 128;
    assert!((versions..2 * versions).contains(&garbage), "{garbage}");
    assert!(asked < 40, "{asked}");
}
