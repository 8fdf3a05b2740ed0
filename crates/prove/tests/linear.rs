//! The judge of histories knows right from wrong, and the layer's units run as in CI, child
//! processes included.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use prove::linear::{History, Kind, Operation, judge};

const KEYS: usize = 6;

fn scratch(name: &str) -> PathBuf {
    static FRESH: OnceLock<PathBuf> = OnceLock::new();
    let root = FRESH.get_or_init(|| {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("linear");
        let _ = fs::remove_dir_all(&root);
        root
    });
    let directory = root.join(name);
    fs::create_dir_all(&directory).expect("a directory for the test's files");
    directory
}

/// Client, call, answer, kind, values.
type Event = (usize, u64, u64, Kind, &'static [(usize, u64)]);

fn verdict(name: &str, events: &[Event]) -> Result<(), String> {
    let mut history = History::new(vec![0; KEYS]);
    for &(client, call, answer, kind, values) in events {
        history.operations.push(Operation {
            client,
            call,
            answer,
            kind,
            values: values.to_vec(),
            saw: Vec::new(),
        });
    }
    verdict_of(name, &history)
}

fn verdict_of(name: &str, history: &History) -> Result<(), String> {
    judge(history, &scratch(name)).map_err(|find| {
        let path = find.0.rsplit("The whole history is in ").next();
        if let Some(path) = path.map(str::trim) {
            let _ = fs::remove_file(path);
        }
        find.0
    })
}

#[test]
fn histories_that_a_map_could_have_are_accepted() {
    use Kind::{Perhaps, Read, Write};
    let cases: [(&str, &[Event]); 4] = [
        (
            "a write that is under way is seen by one reader and not yet by another before it",
            &[
                (0, 1, 8, Write, &[(0, 1)]),
                (1, 2, 3, Read, &[(0, 0)]),
                (2, 4, 5, Read, &[(0, 1)]),
            ],
        ),
        (
            "two concurrent batches in either order",
            &[
                (0, 1, 4, Write, &[(0, 1), (5, 1)]),
                (1, 2, 3, Write, &[(0, 2), (5, 2)]),
                (2, 5, 6, Read, &[(0, 1), (5, 1)]),
            ],
        ),
        (
            "a write whose process died, done",
            &[(0, 1, 3, Perhaps, &[(0, 1)]), (1, 4, 5, Read, &[(0, 1)])],
        ),
        (
            "a write whose process died, not done",
            &[(0, 1, 3, Perhaps, &[(0, 1)]), (1, 4, 5, Read, &[(0, 0)])],
        ),
    ];
    for (number, (what, events)) in cases.iter().enumerate() {
        let verdict = verdict(&format!("accepted-{number}"), events);
        assert_eq!(verdict, Ok(()), "{what}");
    }
}

#[test]
fn histories_that_no_map_could_have_are_refused() {
    use Kind::{Perhaps, Read, Write};
    let cases: [(&str, &[Event]); 7] = [
        (
            "a lost update",
            &[
                (0, 1, 2, Write, &[(0, 1)]),
                (1, 3, 4, Write, &[(0, 2)]),
                (0, 5, 6, Read, &[(0, 1)]),
            ],
        ),
        (
            "a stale read after a newer one",
            &[
                (0, 1, 8, Write, &[(0, 1)]),
                (1, 2, 3, Read, &[(0, 1)]),
                (2, 4, 5, Read, &[(0, 0)]),
            ],
        ),
        (
            "a torn batch",
            &[
                (0, 1, 2, Write, &[(0, 1), (3, 1)]),
                (0, 3, 6, Write, &[(0, 2), (3, 2)]),
                (1, 4, 5, Read, &[(0, 2), (3, 1)]),
            ],
        ),
        (
            "two readers who see two batches in different orders",
            &[
                (0, 1, 10, Write, &[(0, 1)]),
                (1, 2, 10, Write, &[(3, 1)]),
                (2, 3, 4, Read, &[(0, 1), (3, 0)]),
                (3, 5, 6, Read, &[(0, 0), (3, 1)]),
            ],
        ),
        (
            "an acknowledged write that a kill took away",
            &[(0, 1, 2, Write, &[(2, 7)]), (1, 4, 5, Read, &[(2, 0)])],
        ),
        (
            "a write of a dead process that appears after it was missing",
            &[
                (0, 1, 3, Perhaps, &[(0, 1)]),
                (1, 4, 5, Read, &[(0, 0)]),
                (1, 6, 7, Read, &[(0, 1)]),
            ],
        ),
        (
            "a deleted value that came back",
            &[
                (0, 1, 2, Write, &[(4, 3)]),
                (0, 3, 4, Write, &[(4, 0)]),
                (1, 5, 6, Read, &[(4, 3)]),
            ],
        ),
    ];
    for (number, (what, events)) in cases.iter().enumerate() {
        let text = verdict(&format!("refused-{number}"), events).expect_err(what);
        assert!(text.contains("not linearizable"), "{what}: {text}");
    }
}

/// Two conditional writes that saw one value cannot both have happened, except if a write between
/// them brought the value back.
#[test]
fn of_two_conditional_writes_over_one_value_one_happens() {
    let swap = |client: usize, saw: u64, new: u64| Operation {
        client,
        call: 1 + client as u64,
        answer: 10 + client as u64,
        kind: Kind::Write,
        values: vec![(0, new)],
        saw: vec![(0, saw)],
    };
    let mut history = History::new(vec![0; KEYS]);
    history.operations = vec![swap(0, 0, 1), swap(1, 1, 2)];
    assert_eq!(verdict_of("swaps", &history), Ok(()));
    history.operations = vec![swap(0, 0, 1), swap(1, 0, 2)];
    let text = verdict_of("swaps-refused", &history).expect_err("both saw 0");
    assert!(text.contains("not linearizable"), "{text}");
    history.operations.push(swap(2, 1, 0));
    assert_eq!(verdict_of("swaps-back", &history), Ok(()));
    // One of a dead process happened only if what it saw was there.
    history.operations.truncate(2);
    history.operations[1].kind = Kind::Perhaps;
    assert_eq!(verdict_of("swaps-dead", &history), Ok(()));
    history.operations.push(Operation {
        client: 3,
        call: 20,
        answer: 21,
        kind: Kind::Read,
        values: vec![(0, 2)],
        saw: vec![],
    });
    let text = verdict_of("swaps-dead-refused", &history).expect_err("it saw 0");
    assert!(text.contains("not linearizable"), "{text}");
}

#[test]
fn the_shortest_wrong_part_is_shown() {
    use Kind::{Read, Write};
    let mut events: Vec<Event> = (0..40)
        .map(|at| (0, 1 + 2 * at, 2 + 2 * at, Read, &[(1, 0)][..]))
        .collect();
    events.push((0, 101, 102, Write, &[(0, 9)]));
    events.push((1, 103, 104, Read, &[(0, 8)]));
    events.push((1, 105, 106, Read, &[(0, 7)]));
    let text = verdict("shortest", &events).expect_err("no write of 8");
    assert!(text.contains("the shortest part 2;"), "{text}");
    assert!(text.contains("k0=8") && !text.contains("k0=7"), "{text}");
}

#[test]
fn units_of_every_kind_find_nothing() {
    for unit in ["0", "1", "2"] {
        let output = Command::new(env!("CARGO_BIN_EXE_prove"))
            .args(["--layer", "histories", "--unit", unit, "--scratch"])
            .arg(scratch(&format!("unit-{unit}")))
            .output()
            .expect("prove runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "unit {unit}: {text}");
        assert!(text.contains(" 0 finds"), "unit {unit}: {text}");
    }
}
