//! The examples run, and each checks its own result.

#[path = "../examples/paged_scan.rs"]
mod paged_scan;
#[path = "../examples/secondary_index.rs"]
mod secondary_index;
#[path = "../examples/work_queue.rs"]
mod work_queue;

#[test]
fn pages_of_a_prefix() {
    paged_scan::main().unwrap();
}

#[test]
fn a_secondary_index() {
    secondary_index::main().unwrap();
}

#[test]
fn a_queue_of_work() {
    work_queue::main().unwrap();
}
