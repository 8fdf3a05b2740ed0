//! A merge that panics half-way. The pages that it wrote are given back, no worker waits for it,
//! and another merge succeeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::watched::Watched;
use super::*;

#[test]
fn a_merge_that_panics_gives_its_pages_back_and_another_succeeds() {
    let mut random = Random(41);
    let mut tree = grown(&mut random, Some(130));
    let mut panicked = 0;
    for round in 0..24u64 {
        let messages = memtable(&mut random, Kind::Uniform, 6000, &tree);
        let (live, root) = (tree.store.live_bytes(), tree.version.root());
        // The cursor panics after this many records.
        let left = AtomicU64::new(1 + round * 3);
        let input = Arc::new(Watched {
            input: Input::new(&messages),
            before_step: Arc::new(move || {
                assert_ne!(left.fetch_sub(1, Ordering::Relaxed), 1, "on purpose")
            }),
        });
        let begun = tree
            .structure
            .begin_merge(&tree.version, input, &tree.options);
        let merge = begun.unwrap();
        let work = || {
            loop {
                match catch_unwind(AssertUnwindSafe(|| merge.step())) {
                    Err(_) => return 1,
                    Ok(Ok(MergeStep::Again)) => {}
                    Ok(Ok(MergeStep::Pending(condition))) => {
                        while !condition.holds() {
                            std::thread::yield_now();
                        }
                    }
                    Ok(Ok(MergeStep::Done)) => return 0,
                    Ok(Err(error)) => {
                        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
                        return 0;
                    }
                }
            }
        };
        panicked += std::thread::scope(|scope| {
            let count = if round % 2 == 0 { 1 } else { 3 };
            let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .sum::<u64>()
        });
        merge.abandon();
        assert!(merge.finish().is_err());
        drop(merge);
        assert_eq!(tree.budget.used(Purpose::Merge), 0);
        assert_eq!(tree.store.live_bytes(), live, "in round {round}");
        assert_eq!(tree.version.root(), root);
        tree.check();
        tree.merge(&messages);
    }
    assert!(panicked > 12, "{panicked} of 24");
}
