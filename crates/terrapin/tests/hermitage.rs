//! Anomalies of transactions, by the names of Adya and of the Hermitage list: each is a test for
//! each isolation. A test spells out an interleaving of transactions T1, T2, T3.

mod common;

use common::{World, tiny};
use terrapin::{Database, Isolation, Keyspace, Transaction, TransactionOptions};

/// A database with the records 1 = 10 and 2 = 20.
struct Table {
    isolation: Isolation,
    database: Database,
    keyspace: Keyspace,
    _world: World,
}

impl Table {
    fn new(isolation: Isolation) -> Self {
        let world = World::new(1);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        keyspace.put([1], [10]).unwrap();
        keyspace.put([2], [20]).unwrap();
        Table {
            isolation,
            database,
            keyspace,
            _world: world,
        }
    }

    fn begin(&self) -> Transaction {
        let options = TransactionOptions::new().isolation(self.isolation);
        self.database.transaction_with(&options).unwrap()
    }

    fn get(&self, tx: &Transaction, key: u8) -> u8 {
        tx.get(&self.keyspace, [key])
            .unwrap()
            .map_or(0, |value| value[0])
    }

    fn put(&self, tx: &mut Transaction, key: u8, value: u8) {
        tx.put(&self.keyspace, [key], [value]).unwrap();
    }

    /// The keys of the records whose values satisfy a predicate.
    fn find(&self, tx: &Transaction, is: impl Fn(u8) -> bool) -> Vec<u8> {
        let records = tx.range(&self.keyspace, ..).map(Result::unwrap);
        let found = records.filter(|(_, value)| is(value[0]));
        found.map(|(key, _)| key[0]).collect()
    }

    fn values(&self) -> Vec<u8> {
        let values = self.keyspace.iter().values();
        values.map(|value| value.unwrap()[0]).collect()
    }

    fn is_serializable(&self) -> bool {
        self.isolation == Isolation::Serializable
    }
}

fn commits(tx: Transaction) -> bool {
    tx.commit().unwrap().is_ok()
}

/// A test for each isolation.
macro_rules! anomaly {
    ($(#[$doc:meta])* $name:ident, $table:ident, $body:block) => {
        $(#[$doc])*
        mod $name {
            use super::*;

            fn run($table: &Table) $body

            #[test]
            fn serializable() {
                run(&Table::new(Isolation::Serializable));
            }

            #[test]
            fn snapshot() {
                run(&Table::new(Isolation::Snapshot));
            }
        }
    };
}

anomaly!(
    /// Writes of two transactions do not interleave.
    g0_write_cycles, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    t.put(&mut t1, 1, 11);
    t.put(&mut t2, 1, 12);
    t.put(&mut t1, 2, 21);
    assert!(commits(t1));
    assert_eq!(t.values(), [11, 21]);
    t.put(&mut t2, 2, 22);
    assert!(!commits(t2));
    assert_eq!(t.values(), [11, 21]);
});

anomaly!(
    /// Nobody reads what is never committed.
    g1a_aborted_reads, t, {
    let (mut t1, t2) = (t.begin(), t.begin());
    t.put(&mut t1, 1, 101);
    assert_eq!(t.get(&t2, 1), 10);
    drop(t1);
    assert_eq!(t.find(&t2, |_| true), [1, 2]);
    assert_eq!(t.get(&t2, 1), 10);
    assert!(commits(t2));
    assert_eq!(t.values(), [10, 20]);
});

anomaly!(
    /// Nobody reads a value that its transaction replaced.
    g1b_intermediate_reads, t, {
    let (mut t1, t2) = (t.begin(), t.begin());
    t.put(&mut t1, 1, 101);
    assert_eq!(t.get(&t2, 1), 10);
    t.put(&mut t1, 1, 11);
    assert!(commits(t1));
    assert_eq!(t.get(&t2, 1), 10);
    assert!(commits(t2));
    assert_eq!(t.get(&t.begin(), 1), 11);
});

anomaly!(
    /// No two transactions read each other's writes.
    g1c_circular_information_flow, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    t.put(&mut t1, 1, 11);
    t.put(&mut t2, 2, 22);
    assert_eq!((t.get(&t1, 2), t.get(&t2, 1)), (20, 10));
    assert!(commits(t1));
    // Neither saw the other one: that is a write skew, which a snapshot allows.
    assert_eq!(commits(t2), !t.is_serializable());
});

anomaly!(
    /// What one transaction wrote is seen whole until another one replaces it whole.
    otv_observed_transaction_vanishes, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    t.put(&mut t1, 1, 11);
    t.put(&mut t1, 2, 19);
    t.put(&mut t2, 1, 12);
    assert!(commits(t1));
    let t3 = t.begin();
    assert_eq!(t.get(&t3, 1), 11);
    t.put(&mut t2, 2, 18);
    assert_eq!(t.get(&t3, 2), 19);
    assert!(!commits(t2));
    assert_eq!((t.get(&t3, 2), t.get(&t3, 1)), (19, 11));
    assert!(commits(t3));
    assert_eq!(t.values(), [11, 19]);
});

anomaly!(
    /// Two reads of a predicate in one transaction agree.
    pmp_predicate_many_preceders, t, {
    let (t1, mut t2) = (t.begin(), t.begin());
    assert!(t.find(&t1, |value| value == 30).is_empty());
    t.put(&mut t2, 3, 30);
    assert!(commits(t2));
    assert!(t.find(&t1, |value| value % 3 == 0).is_empty());
    assert!(commits(t1));
});

anomaly!(
    /// The same with a delete by the predicate: the later transaction deletes what it does not see.
    pmp_for_writes, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    t.put(&mut t1, 1, 20);
    t.put(&mut t1, 2, 30);
    let found = t.find(&t2, |value| value == 20);
    assert_eq!(found, [2]);
    assert!(commits(t1));
    t2.delete(&t.keyspace, [found[0]]).unwrap();
    assert!(!commits(t2));
    assert_eq!(t.values(), [20, 30]);
});

anomaly!(
    /// No update is lost.
    p4_lost_update, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    assert_eq!((t.get(&t1, 1), t.get(&t2, 1)), (10, 10));
    t.put(&mut t1, 1, 11);
    t.put(&mut t2, 1, 11);
    assert!(commits(t1));
    assert!(!commits(t2));
});

anomaly!(
    /// A transaction reads one moment.
    g_single_read_skew, t, {
    let (t1, mut t2) = (t.begin(), t.begin());
    assert_eq!(t.get(&t1, 1), 10);
    assert_eq!((t.get(&t2, 1), t.get(&t2, 2)), (10, 20));
    t.put(&mut t2, 1, 12);
    t.put(&mut t2, 2, 18);
    assert!(commits(t2));
    assert_eq!(t.get(&t1, 2), 20);
    assert!(commits(t1));
});

anomaly!(
    /// It reads one moment by predicates, too.
    g_single_by_predicate, t, {
    let (t1, mut t2) = (t.begin(), t.begin());
    assert_eq!(t.find(&t1, |value| value % 5 == 0), [1, 2]);
    t.put(&mut t2, 1, 12);
    assert!(commits(t2));
    assert!(t.find(&t1, |value| value % 3 == 0).is_empty());
    assert!(commits(t1));
});

anomaly!(
    /// What it wrote after a read skew does not happen.
    g_single_for_writes, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    assert_eq!(t.get(&t1, 1), 10);
    t.put(&mut t2, 1, 12);
    t.put(&mut t2, 2, 18);
    assert!(commits(t2));
    t1.delete(&t.keyspace, [2]).unwrap();
    assert!(!commits(t1));
    assert_eq!(t.values(), [12, 18]);
});

anomaly!(
    /// Write skew: each reads both records, and writes another one. A snapshot allows it.
    g2_item_write_skew, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    for tx in [&t1, &t2] {
        assert_eq!((t.get(tx, 1), t.get(tx, 2)), (10, 20));
    }
    t.put(&mut t1, 1, 11);
    t.put(&mut t2, 2, 21);
    assert!(commits(t1));
    assert_eq!(commits(t2), !t.is_serializable());
    assert_eq!(t.values(), [11, if t.is_serializable() { 20 } else { 21 }]);
});

anomaly!(
    /// `get_for_update` prevents write skew in every isolation.
    g2_item_with_get_for_update, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    for tx in [&t1, &t2] {
        tx.get_for_update(&t.keyspace, [1]).unwrap();
        tx.get_for_update(&t.keyspace, [2]).unwrap();
    }
    t.put(&mut t1, 1, 11);
    t.put(&mut t2, 2, 21);
    assert!(commits(t1));
    assert!(!commits(t2));
    assert_eq!(t.values(), [11, 20]);
});

anomaly!(
    /// Phantoms: each looks for what the other one inserts. A snapshot allows it.
    g2_phantoms, t, {
    let (mut t1, mut t2) = (t.begin(), t.begin());
    for tx in [&t1, &t2] {
        assert!(t.find(tx, |value| value % 3 == 0).is_empty());
    }
    t.put(&mut t1, 3, 30);
    t.put(&mut t2, 4, 42);
    assert!(commits(t1));
    assert_eq!(commits(t2), !t.is_serializable());
});

anomaly!(
    /// A transaction that only reads orders two writers (Fekete). A snapshot allows it.
    g2_two_edges, t, {
    let mut t1 = t.begin();
    assert_eq!(t.find(&t1, |value| value < 30), [1, 2]);
    let mut t2 = t.begin();
    let raised = t.get(&t2, 2) + 5;
    t.put(&mut t2, 2, raised);
    assert!(commits(t2));
    let t3 = t.begin();
    assert_eq!((t.get(&t3, 1), t.get(&t3, 2)), (10, 25));
    assert!(commits(t3));
    t.put(&mut t1, 1, 0);
    assert_eq!(commits(t1), !t.is_serializable());
});
