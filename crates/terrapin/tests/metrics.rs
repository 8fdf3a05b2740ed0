//! Metrics for programs: what counts for which keyspace, and what an exporter reads.

mod common;

use common::{World, key, tiny, value};
use terrapin::{Durability, KeyspaceMetrics};

fn of<'a>(all: &'a [KeyspaceMetrics], name: &str) -> &'a KeyspaceMetrics {
    all.iter().find(|k| k.name == name).unwrap()
}

#[test]
fn operations_count_for_their_keyspace_and_for_the_database() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let (red, blue) = (
        database.keyspace("red").unwrap(),
        database.keyspace("blue").unwrap(),
    );
    database.keyspace("unused").unwrap();
    red.put("a", "12345").unwrap();
    red.put("b", "1").unwrap();
    red.delete("b").unwrap();
    let mut batch = database.batch();
    batch.put(&red, "c", "2");
    batch.put(&blue, "c", "3");
    batch.delete(&blue, "d");
    database.write(&batch).unwrap();
    blue.put_with("e", "4", Durability::None).unwrap();
    red.get("a").unwrap();
    red.contains("a").unwrap();
    blue.multi_get(&["c", "d", "e"]).unwrap();
    let snapshot = database.snapshot().unwrap();
    snapshot.get(&blue, "c").unwrap();
    assert_eq!(red.iter().count(), 2);
    assert_eq!(snapshot.range(&blue, "c".."d").count(), 1);
    drop(snapshot);

    let metrics = database.metrics();
    let names: Vec<&str> = metrics.keyspaces.iter().map(|k| k.name.as_str()).collect();
    assert_eq!(names, ["red", "blue"], "what was not used is left out");
    let (red, blue) = (
        of(&metrics.keyspaces, "red"),
        of(&metrics.keyspaces, "blue"),
    );
    assert_eq!((red.puts, red.deletes, red.gets, red.scans), (3, 1, 2, 1));
    assert_eq!(
        (blue.puts, blue.deletes, blue.gets, blue.scans),
        (2, 1, 4, 1)
    );
    assert_eq!((red.scanned_records, blue.scanned_records), (2, 1));
    assert_eq!((red.user_bytes_written, blue.user_bytes_written), (11, 5));
    assert!(red.memtable_bytes > 0);
    let sum =
        |figure: fn(&KeyspaceMetrics) -> u64| -> u64 { metrics.keyspaces.iter().map(figure).sum() };
    assert_eq!(metrics.puts, sum(|k| k.puts));
    assert_eq!(metrics.deletes, sum(|k| k.deletes));
    assert_eq!(metrics.gets, sum(|k| k.gets));
    assert_eq!(metrics.scans, sum(|k| k.scans));
    assert_eq!(metrics.scanned_records, sum(|k| k.scanned_records));
    assert_eq!(metrics.user_bytes_written, sum(|k| k.user_bytes_written));

    let text = metrics.openmetrics();
    assert!(text.contains("terrapin_puts_total{keyspace=\"red\"} 3\n"));
    assert!(text.contains("terrapin_gets_total{keyspace=\"blue\"} 4\n"));
    database.close().unwrap();
}

#[test]
fn metrics_of_a_keyspace_end_with_it() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.keyspace("goes").unwrap();
    for i in 0..100 {
        keyspace.put(key(i), value(i, 50)).unwrap();
    }
    assert_eq!(database.metrics().keyspaces.len(), 1);
    database.drop_keyspace("goes").unwrap();
    let metrics = database.metrics();
    assert!(metrics.keyspaces.is_empty());
    assert_eq!(metrics.puts, 100);
    // A new keyspace of the same name has counts of its own.
    database.keyspace("goes").unwrap().put("a", "1").unwrap();
    assert_eq!(database.metrics().keyspaces[0].puts, 1);
    database.close().unwrap();
}

#[cfg(feature = "serde")]
#[test]
fn all_metrics_are_serialized_by_name() {
    let world = World::new(3);
    let database = world.open(&tiny());
    database.default_keyspace().put("a", "1").unwrap();
    let json = serde_json::to_value(database.metrics()).unwrap();
    assert_eq!(json["puts"], 1);
    assert_eq!(json["keyspaces"][0]["name"], "default");
    assert_eq!(json["keyspaces"][0]["puts"], 1);
    assert!(json["memory"]["limit_bytes"].is_u64());
    assert!(json["device_written"]["leaves"].is_u64());
    assert!(json["put_latency"]["buckets"].is_array());
    database.close().unwrap();
}
