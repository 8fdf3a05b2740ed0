//! Calls that new users try first: iteration over a keyspace and its values, whether it is empty,
//! and the advice of an open on a small disk.

mod common;

use common::{World, tiny};
use terrapin::{ErrorKind, IntegerKey, Options};

#[test]
fn a_keyspace_is_iterated_by_reference_and_its_values_from_both_ends() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for number in -2..3_i32 {
        keyspace.put(number.to_key(), number.to_string()).unwrap();
    }
    for checkpointed in [false, true] {
        if checkpointed {
            database.checkpoint().unwrap();
        }
        let mut numbers = Vec::new();
        for record in &keyspace {
            let (key, _) = record.unwrap();
            numbers.push(i32::from_key(&key).unwrap());
        }
        assert_eq!(numbers, [-2, -1, 0, 1, 2]);
        let mut values = keyspace.range(0_i32.to_key()..).values();
        assert_eq!(values.next().unwrap().unwrap(), "0");
        assert_eq!(values.next_back().unwrap().unwrap(), "2");
        assert_eq!(values.next_ref().unwrap().unwrap(), b"1");
        assert!(values.next_back_ref().unwrap().is_none());
        assert!(values.next().is_none());
    }
    database.close().unwrap();
    let mut closed = keyspace.iter().values();
    assert_eq!(
        closed.next().unwrap().unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert!(closed.next().is_none());
}

#[test]
fn a_keyspace_is_empty_without_records_wherever_its_deletes_are() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    assert!(keyspace.is_empty().unwrap());
    keyspace.put("a", "1").unwrap();
    assert!(!keyspace.is_empty().unwrap());
    database.checkpoint().unwrap();
    assert!(!keyspace.is_empty().unwrap());
    keyspace.delete("a").unwrap();
    assert!(keyspace.is_empty().unwrap());
    database.checkpoint().unwrap();
    assert!(keyspace.is_empty().unwrap());
    database.close().unwrap();
    assert_eq!(keyspace.is_empty().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn an_open_without_enough_space_names_the_option_that_needs_less() {
    let world = World::new(3);
    world.disk.set_capacity(32 << 20);
    let error = world.try_open(&Options::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let text = error.to_string();
    assert!(text.contains("Options::memory"), "{text}");
    assert!(text.contains("--memory 8MiB"), "{text}");
    // An open that follows the advice succeeds.
    let database = world.open(&Options::new().memory(8 << 20));
    database.default_keyspace().put("a", "1").unwrap();
    database.close().unwrap();
}
