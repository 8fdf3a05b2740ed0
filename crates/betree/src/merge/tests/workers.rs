//! A merge with several workers, and the work that they can do in parallel.

use std::sync::{Mutex, OnceLock, Weak};

use super::watched::Watched;
use super::*;

/// `count` records, of which thirty fill a leaf of 2 KiB.
fn small_records(count: u32) -> Map {
    let record = |i: u32| (i.to_be_bytes().to_vec(), Some(vec![7; 60]));
    (0..count).map(record).collect()
}

/// Three workers run a merge.
fn together(merge: &dyn Merge) {
    let work = || {
        loop {
            match merge.step().unwrap() {
                MergeStep::Again => {}
                MergeStep::Pending(condition) => {
                    while !condition.holds() {
                        std::thread::yield_now();
                    }
                }
                MergeStep::Done => break,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(work);
        }
    });
}

#[test]
fn several_workers_make_the_same_tree_as_one() {
    let mut random = Random(10);
    let mut tree = Tree::new(2048, 8, Some(130));
    for round in 0..40 {
        let kind = if round % 7 == 6 {
            Kind::DeleteRange
        } else {
            Kind::Uniform
        };
        let messages = memtable(&mut random, kind, 16 << 10, &tree);
        let merge = tree.begin(&messages);
        together(&*merge);
        tree.take(&messages, &*merge);
        tree.check();
    }
}

#[test]
fn a_worker_without_a_task_waits_until_there_is_one() {
    let mut tree = Tree::new(2048, 8, None);
    let messages = small_records(600);
    // The only task is in progress while its memtable's cursor moves. So a worker that comes then
    // has nothing to do.
    let second: Arc<OnceLock<Weak<dyn Merge>>> = Arc::default();
    let waiting = Arc::new(Mutex::new(None));
    let (merge_of_second, told) = (second.clone(), waiting.clone());
    let input = Arc::new(Watched {
        input: Input::new(&messages),
        before_step: Arc::new(move || {
            let merge = merge_of_second.get().and_then(Weak::upgrade).unwrap();
            let MergeStep::Pending(condition) = merge.step().unwrap() else {
                panic!("a second worker found the first one's task");
            };
            assert!(!condition.holds());
            *told.lock().unwrap() = Some(condition);
        }),
    });
    let begun = tree
        .structure
        .begin_merge(&tree.version, input, &tree.options);
    let merge = begun.unwrap();
    second.set(Arc::downgrade(&merge)).unwrap();
    let mut waits = 0;
    while !matches!(merge.step().unwrap(), MergeStep::Done) {
        if let Some(condition) = waiting.lock().unwrap().take() {
            assert!(condition.holds(), "there is something to do, or it is done");
            waits += 1;
        }
    }
    assert!(waits > 0);
    tree.take(&messages, &*merge);
    tree.check();
}

#[test]
fn a_large_memtable_for_an_empty_tree_is_written_in_parallel_parts() {
    let mut tree = Tree::new(2048, 8, None);
    let tasks = |count: u32, space_is_short: bool| {
        let merge = tree.tree_merge(&small_records(count), Root::Empty, space_is_short);
        let count = merge.0.graph.lock().ready.len();
        merge.abandon();
        count
    };
    assert_eq!(tasks(600, false), 1, "twenty leaves");
    assert_eq!(tasks(1200, false), 2);
    assert_eq!(tasks(5000, false), 8);
    assert_eq!(tasks(5000, true), 1);
    tree.merge(&small_records(5000));
    // Deletes everything in some of the parts.
    let mut tree = Tree::new(2048, 8, None);
    let mut deletes = small_records(5000);
    for (number, value) in deletes.values_mut().enumerate() {
        if number / 700 % 2 == 0 {
            *value = None;
        }
    }
    tree.merge(&deletes);
    tree.verify();
    let mut tree = Tree::new(2048, 8, None);
    deletes.values_mut().for_each(|value| *value = None);
    tree.merge(&deletes);
}

#[test]
fn a_large_level_is_written_in_parallel_parts() {
    let group_bytes = 16 << 10;
    let records = |step: u32, count: u32, byte: u8| -> Map {
        let record = |i: u32| ((i * step).to_be_bytes().to_vec(), Some(vec![byte; 100]));
        (0..count).map(record).collect()
    };
    let mut tree = Tree::new(group_bytes, 64, None);
    tree.merge(&records(100, 6000, 1));
    // Too little for any leaf, and much for the node.
    let memtable = records(101, 5000, 2);
    let merge = tree.tree_merge(&memtable, tree.root(), false);
    assert!(matches!(merge.step(), Ok(MergeStep::Again)));
    let is_part = |(task, _): &&(Task, Credit)| matches!(task, Task::Level(_));
    let parts = merge.0.graph.lock().ready.iter().filter(is_part).count();
    assert!((6..=8).contains(&parts), "{parts}");
    together(&*merge);
    tree.take(&memtable, &*merge);
    tree.check();
    tree.verify();
    for round in 0..4 {
        tree.merge(&records(97 + round, 5000, 3));
    }
    tree.verify();
}
