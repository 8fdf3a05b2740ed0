//! How many rings of io_uring a process keeps open. In a process of its own, one test at a time:
//! other tests' rings would be counted, too.

#![cfg(target_os = "linux")]

mod common;

use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};

use common::{CREATE, flight};
use terrapin_base::Env;
use terrapin_disk::{Disk, File, Flight, OpenOptions, RealDisk, Show};

/// Threads, and flights of each at once.
const THREADS: usize = 20;
const FLIGHTS: usize = 8;
/// Rings that may wait for flights.
const KEPT_MAX: usize = 32;
/// Rings that there may be.
const RINGS_MAX: usize = 64;
/// Flights that nobody goes on with.
const PAUSED: usize = 200;

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

/// A file of four blocks in a directory of its own.
fn blocks(name: &str) -> (PathBuf, Arc<dyn File>) {
    let name = format!("{name}-{}", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let disk = RealDisk::open(Env::threads(), &path, true).unwrap();
    let options = OpenOptions {
        direct: true,
        ..CREATE
    };
    let file = disk.open("f", options).unwrap();
    file.write_at(&[5; 4 * 4096], 0).unwrap();
    (path, file)
}

/// The rings that this process has.
fn open_rings() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.to_str() == Some("anon_inode:[io_uring]"))
        .count()
}

/// Has a flight read twice.
fn start(file: &dyn File, flight: &mut Flight) {
    for offset in [0, 3 * 4096] {
        flight.push(offset, 4096).unwrap();
    }
    file.start(flight).unwrap();
}

/// So many flights of two reads each, all under way.
fn started(file: &dyn File, flights: usize) -> Vec<Flight> {
    let started = |_| {
        let mut flight = flight(2 * 4096);
        start(file, &mut flight);
        flight
    };
    (0..flights).map(started).collect()
}

/// Looks at all that they read; how many were read rightly.
fn look(file: &dyn File, flights: &mut [Flight]) -> usize {
    let read_of = |flight: &mut Flight| common::shown(file, flight, Show::Some);
    let reads = flights.iter_mut().flat_map(read_of);
    reads
        .filter(|read| matches!(read, Ok(bytes) if *bytes == [5; 4096]))
        .count()
}

/// As [`look`], and lets them go.
fn finish(file: &dyn File, mut flights: Vec<Flight>) -> usize {
    look(file, &mut flights)
}

#[test]
fn rings_that_wait_for_flights_are_bounded_in_the_process() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (path, file) = blocks("rings");
    let flights = started(&*file, FLIGHTS);
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
                let mut read = finish(file, started(file, FLIGHTS));
                over.send(()).unwrap();
                // One after the other until here, then all at once.
                together.wait();
                let flights = started(file, FLIGHTS);
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

#[test]
fn rings_of_flights_that_nobody_goes_on_with_are_bounded_too_and_others_get_them_later() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (path, file) = blocks("paused");
    let mut flights = started(&*file, PAUSED);
    let open = open_rings();
    assert!(open <= RINGS_MAX, "{open} rings for {PAUSED} flights");
    assert_eq!(look(&*file, &mut flights), 2 * PAUSED);
    // Those that came first go, and all rings were theirs.
    let mut others = flights.split_off(PAUSED / 2);
    drop(flights);
    let kept = open_rings();
    assert!(kept <= KEPT_MAX, "{kept} rings wait");
    others.iter_mut().for_each(|flight| start(&*file, flight));
    assert_eq!(look(&*file, &mut others), PAUSED);
    // A system that gives few gives none to who was refused by it.
    if open == RINGS_MAX {
        assert_eq!(open_rings(), RINGS_MAX, "they were asked for once only");
    } else {
        eprintln!("skipped: this system gives no more than {open} rings of io_uring");
    }
    drop((others, file));
    std::fs::remove_dir_all(path).unwrap();
}
