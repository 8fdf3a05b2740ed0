//! The number of io_uring rings that a process keeps open. The tests run one at a time in a process
//! of their own, since rings of other tests would count too.

#![cfg(target_os = "linux")]

mod common;

use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};

use common::{CREATE, flight};
use terrapin_base::Env;
use terrapin_disk::{Disk, File, Flight, OpenOptions, RealDisk, Show};

/// Number of threads, and of flights of each at once.
const THREADS: usize = 20;
const FLIGHTS: usize = 8;
/// Most idle rings.
const KEPT_MAX: usize = 32;
/// Most rings.
const RINGS_MAX: usize = 64;
/// Number of paused flights.
const PAUSED: usize = 200;

/// The running test holds this lock.
static ALONE: Mutex<()> = Mutex::new(());

/// A file of four blocks in its own directory.
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

/// Number of rings that this process has open.
fn open_rings() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.to_str() == Some("anon_inode:[io_uring]"))
        .count()
}

/// Does two reads in one flight.
fn start(file: &dyn File, flight: &mut Flight) {
    for offset in [0, 3 * 4096] {
        flight.push(offset, 4096).unwrap();
    }
    file.start(flight).unwrap();
}

/// Flights of two reads each, all in flight.
fn started(file: &dyn File, flights: usize) -> Vec<Flight> {
    let started = |_| {
        let mut flight = flight(2 * 4096);
        start(file, &mut flight);
        flight
    };
    (0..flights).map(started).collect()
}

/// Shows all reads of flights, and returns how many were right.
fn look(file: &dyn File, flights: &mut [Flight]) -> usize {
    let read_of = |flight: &mut Flight| common::shown(file, flight, Show::Some);
    let reads = flights.iter_mut().flat_map(read_of);
    reads
        .filter(|read| matches!(read, Ok(bytes) if *bytes == [5; 4096]))
        .count()
}

/// Does the same as [`look`], and drops the flights.
fn finish(file: &dyn File, mut flights: Vec<Flight>) -> usize {
    look(file, &mut flights)
}

#[test]
fn idle_rings_of_a_process_are_bounded() {
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
                // One after the other so far, now all at once.
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
fn rings_of_paused_flights_are_bounded_and_later_free_for_others() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (path, file) = blocks("paused");
    let mut flights = started(&*file, PAUSED);
    let open = open_rings();
    assert!(open <= RINGS_MAX, "{open} rings for {PAUSED} flights");
    assert_eq!(look(&*file, &mut flights), 2 * PAUSED);
    // The first flights are dropped, and they had all rings.
    let mut others = flights.split_off(PAUSED / 2);
    drop(flights);
    let kept = open_rings();
    assert!(kept <= KEPT_MAX, "{kept} rings wait");
    others.iter_mut().for_each(|flight| start(&*file, flight));
    assert_eq!(look(&*file, &mut others), PAUSED);
    // A system that grants few rings grants none to a flight that it refused.
    if open == RINGS_MAX {
        assert_eq!(open_rings(), RINGS_MAX, "they were asked for once only");
    } else {
        eprintln!("skipped: this system gives no more than {open} rings of io_uring");
    }
    drop((others, file));
    std::fs::remove_dir_all(path).unwrap();
}
