//! A forked child changes nothing of its parent's files, and reads with rings of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use terrapin_base::{Env, ErrorKind};
use terrapin_disk::{
    AlignedBuf, Disk, File, Flight, Forked, LogRing, OpenOptions, RealDisk, RingOptions, Show,
};

const WRITE: OpenOptions = OpenOptions {
    create_new: false,
    write: true,
    direct: true,
    cached: false,
    shared: false,
    at_once: false,
};
const CREATE: OpenOptions = OpenOptions {
    create_new: true,
    ..WRITE
};

fn directory(name: &str) -> PathBuf {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Whether another process could lock the file for writing now.
fn is_free(path: &Path) -> bool {
    let file = std::fs::File::options().read(true).open(path).unwrap();
    file.try_lock().is_ok()
}

/// The exit code of a child for a condition.
fn code(holds: bool) -> u8 {
    u8::from(!holds)
}

/// Log files are closed, renamed and opened again. A child that did nothing once kept them locked
/// by its copies of the descriptors.
#[test]
fn a_closed_file_is_unlocked_although_a_child_has_its_descriptor() {
    let path = directory("idle");
    let disk = RealDisk::open(Env::simulated(1).0, &path, false).unwrap();
    let file = disk.open("f", CREATE).unwrap();
    let child = Forked::idle().unwrap();
    assert!(!is_free(&path.join("f")));
    drop(file);
    assert!(is_free(&path.join("f")));
    disk.rename("f", "g").unwrap();
    drop(disk.open("g", WRITE).unwrap());
    let shared = OpenOptions {
        shared: true,
        ..OpenOptions::default()
    };
    let reader = disk.open("g", shared).unwrap();
    let second = Forked::idle().unwrap();
    drop(reader);
    assert!(is_free(&path.join("g")));
    drop((child, second));
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_child_that_drops_files_and_rings_does_not_affect_its_parent() {
    let path = directory("drops");
    let disk = RealDisk::open(Env::simulated(1).0, &path, false).unwrap();
    let options = RingOptions {
        bytes: 1 << 16,
        create: true,
    };
    // The parent keeps its own values: only the child takes the content.
    let files: Mutex<Option<(Arc<dyn File>, LogRing)>> = Mutex::new(None);
    *files.lock().unwrap() = Some((
        disk.open("f", CREATE).unwrap(),
        disk.open_ring("ring", options).unwrap(),
    ));
    let child = Forked::run(|| {
        drop(files.lock().unwrap().take());
        0
    });
    assert_eq!(child.unwrap().ended().unwrap(), Some(0));
    assert!(!is_free(&path.join("f")) && !is_free(&path.join("ring")));
    let (_, ring) = files.lock().unwrap().take().unwrap();
    let mut out = [1; 64];
    ring.read(0, &mut out);
    assert_eq!(out, [0; 64]);
    drop(ring);
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_child_changes_nothing_through_its_parents_handles() {
    let path = directory("changes");
    let disk = RealDisk::open(Env::simulated(1).0, &path, false).unwrap();
    let file = disk.open("f", CREATE).unwrap();
    file.write_at(&AlignedBuf::zeroed(8192), 0).unwrap();
    let child = Forked::run(|| {
        let mut ones = AlignedBuf::zeroed(4096);
        ones.fill(1);
        let refused = [
            file.write_at(&ones, 0),
            file.sync(),
            file.set_bytes(0),
            file.allocate(0, 1 << 20),
            file.punch_hole(0, 4096).map(drop),
            disk.remove("f"),
            disk.rename("f", "g"),
            disk.open("h", CREATE).map(drop),
        ];
        let closed = |outcome: &terrapin_base::Result<()>| {
            outcome
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::Closed)
        };
        code(refused.iter().all(closed))
    });
    assert_eq!(child.unwrap().ended().unwrap(), Some(0));
    assert_eq!(disk.list().unwrap(), ["f"]);
    let mut read = vec![1; 8192];
    file.read_at(&mut read, 0).unwrap();
    assert!(read.iter().all(|&byte| byte == 0));
    std::fs::remove_dir_all(path).unwrap();
}

/// Reads in parallel, with a ring where the system has them.
fn reads(disk: &RealDisk, flight: &mut Flight) -> bool {
    let file = disk
        .open(
            "f",
            OpenOptions {
                write: false,
                ..WRITE
            },
        )
        .unwrap();
    for block in 0..8 {
        flight.push(block * 4096, 4096).unwrap();
    }
    file.start(flight).unwrap();
    let mut sum = 0;
    while !flight.is_empty() {
        file.show(flight, Show::Some, &mut |_, bytes| {
            sum += bytes.unwrap().iter().map(|&b| u64::from(b)).sum::<u64>();
        })
        .unwrap();
    }
    sum == 8 * 4096 * 7
}

fn flight() -> Flight {
    Flight::new(AlignedBuf::with_capacity(8 * 4096))
}

/// A child once died of SIGSEGV, since it does not have the memory of its parent's rings.
#[test]
fn a_child_reads_with_its_own_rings() {
    let path = directory("rings");
    let disk = RealDisk::open(Env::threads(), &path, false).unwrap();
    let file = disk.open("f", CREATE).unwrap();
    let mut sevens = AlignedBuf::zeroed(8 * 4096);
    sevens.fill(7);
    file.write_at(&sevens, 0).unwrap();
    drop(file);
    assert!(reads(&disk, &mut flight()));
    let started = Mutex::new(flight());
    let file = disk
        .open(
            "f",
            OpenOptions {
                write: false,
                ..WRITE
            },
        )
        .unwrap();
    for block in 0..4 {
        started.lock().unwrap().push(block * 4096, 4096).unwrap();
    }
    file.start(&mut started.lock().unwrap()).unwrap();
    let child = Forked::run(|| {
        let here = RealDisk::open(Env::threads(), &path, false).unwrap();
        let own = reads(&here, &mut flight());
        // A flight of the parent's with a read in it.
        drop(std::mem::take(&mut *started.lock().unwrap()));
        code(own && reads(&here, &mut flight()))
    });
    assert_eq!(child.unwrap().ended().unwrap(), Some(0));
    drop(started);
    assert!(reads(&disk, &mut flight()));
    std::fs::remove_dir_all(path).unwrap();
}
