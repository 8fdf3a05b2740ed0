//! How many rings of io_uring a process keeps open. One test, in a process of its own: other tests' rings would be counted, too.

#![cfg(target_os = "linux")]

mod common;

use std::path::PathBuf;
use std::sync::{Barrier, mpsc};

use common::{CREATE, flight};
use terrapin_base::Env;
use terrapin_disk::{Disk, File, Flight, OpenOptions, RealDisk, Show};

/// Threads, and flights of each at once.
const THREADS: usize = 20;
const FLIGHTS: usize = 8;
/// Rings that may wait for flights.
const KEPT_MAX: usize = 32;

/// The rings that this process has.
fn open_rings() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.to_str() == Some("anon_inode:[io_uring]"))
        .count()
}

/// Flights of two reads each, all under way.
fn started(file: &dyn File) -> Vec<Flight> {
    let start = |_| {
        let mut flight = flight(2 * 4096);
        for offset in [0, 3 * 4096] {
            flight.push(offset, 4096).unwrap();
        }
        file.start(&mut flight).unwrap();
        flight
    };
    (0..FLIGHTS).map(start).collect()
}

/// Looks at all that they read, and lets them go; how many were read rightly.
fn finish(file: &dyn File, flights: Vec<Flight>) -> usize {
    let read_of = |mut flight: Flight| common::shown(file, &mut flight, Show::Some);
    let reads = flights.into_iter().flat_map(read_of);
    reads
        .filter(|read| matches!(read, Ok(bytes) if *bytes == [5; 4096]))
        .count()
}

#[test]
fn rings_that_wait_for_flights_are_bounded_in_the_process() {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("rings-{}", std::process::id()));
    let disk = RealDisk::open(Env::threads(), &path, true).unwrap();
    let options = OpenOptions {
        direct: true,
        ..CREATE
    };
    let file = disk.open("f", options).unwrap();
    file.write_at(&[5; 4 * 4096], 0).unwrap();

    let flights = started(&*file);
    let made = open_rings();
    assert_eq!(finish(&*file, flights), 2 * FLIGHTS);
    if made == 0 {
        eprintln!("skipped: this system gives no ring of io_uring");
        std::fs::remove_dir_all(path).unwrap();
        return;
    }

    let (together, end) = (Barrier::new(THREADS), Barrier::new(THREADS + 1));
    let (over, overs) = mpsc::channel();
    let (read, kept) = std::thread::scope(|scope| {
        let (file, together, end) = (&*file, &together, &end);
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let over = over.clone();
            threads.push(scope.spawn(move || {
                let mut read = finish(file, started(file));
                over.send(()).unwrap();
                // One after the other until here, then all at once.
                together.wait();
                let flights = started(file);
                together.wait();
                read += finish(file, flights);
                over.send(()).unwrap();
                end.wait();
                read
            }));
            overs.recv().unwrap();
        }
        (0..THREADS).for_each(|_| overs.recv().unwrap());
        // While all of them live.
        let kept = open_rings();
        end.wait();
        let read = threads.into_iter().map(|thread| thread.join().unwrap());
        (read.sum::<usize>(), kept)
    });
    assert_eq!(read, THREADS * FLIGHTS * 2 * 2);
    assert!(
        kept <= KEPT_MAX,
        "{kept} rings wait beside {THREADS} threads"
    );
    drop(file);
    std::fs::remove_dir_all(path).unwrap();
}
