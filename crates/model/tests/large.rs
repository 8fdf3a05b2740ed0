//! A store of over ten times its memory budget, in a tree of height 3 or more with full buffers,
//! beside the oracle.

use terrapin_model::{Configuration, Oracle, Script, Simulated, Subject};

/// Three rounds of writes over one set of keys, in different orders, with reads between.
const ROUNDS: &str = "
for 0..14000 shuffled 1 put k{} ~{}@900
range from k007000 to k007100 -> 100 records
for 0..14000 by 2 shuffled 2 put k{} ~{}@700
for 1..14000 by 6 shuffled 3 delete k{}
get k000001 -> none
get k000002 -> ~2@700
get k000003 -> ~3@900
for 0..14000 by 97 range from k{} limit 20
for 0..14000 by 101 range to k{} reverse limit 20
for 0..14000 by 89 multi k{} k000001 k000002
";

#[test]
fn ten_times_the_memory_and_three_levels() {
    let configuration = Configuration {
        group_bytes: 4 << 10,
        block_bytes: 1024,
        chi: Some(4),
        ..Configuration::small()
    };
    let memory_bytes = configuration.memory_bytes;
    let mut subject = Simulated::new("large", 3, configuration).expect("a new database");
    let mut oracle = Oracle::new();
    let script = Script::parse("rounds", ROUNDS).expect("a script");
    for step in &script.steps {
        let (answer, expected) = (
            subject.apply(&step.operation),
            oracle.apply(&step.operation),
        );
        assert!(
            answer.agrees(&expected),
            "{}: {}",
            step.operation,
            answer.difference(&expected)
        );
    }
    let stat = subject.database().and_then(|d| d.stat()).expect("figures");
    let tree = &stat.keyspaces[0].tree;
    assert!(
        stat.data_live_bytes > 10 * memory_bytes,
        "only {} bytes",
        stat.data_live_bytes
    );
    assert!(tree.figure("height") >= Some(3), "{tree:?}");
    assert!(
        tree.buffered_bytes > tree.leaf_bytes / 20,
        "buffers hold {} bytes only",
        tree.buffered_bytes
    );
    assert!(
        stat.memory.total_bytes() <= memory_bytes / 10 * 11,
        "{:?}",
        stat.memory
    );
    assert_eq!(subject.state().expect("a scan"), *oracle.state());
}
