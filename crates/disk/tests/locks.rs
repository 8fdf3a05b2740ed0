//! Locks of files: an open waits for another process, and fails at once within its own.

use std::path::{Path, PathBuf};

use terrapin_base::{Env, ErrorKind};
use terrapin_disk::{Disk, OpenOptions, RealDisk};

const WRITE: OpenOptions = OpenOptions {
    create_new: false,
    write: true,
    direct: false,
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
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Takes the file's `flock` without the registry, as another process would.
fn hold(path: &Path) -> std::fs::File {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    file.lock().unwrap();
    file
}

#[test]
fn an_open_waits_five_seconds_for_another_process_and_then_fails() {
    let path = directory("waits");
    let (env, _) = Env::simulated(1);
    let disk = RealDisk::open(env.clone(), &path, false).unwrap();
    drop(disk.open("f", CREATE).unwrap());
    let other = hold(&path.join("f"));
    let before = env.now_ns();
    let Err(error) = disk.open("f", WRITE) else {
        panic!("another process holds it")
    };
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(
        error.to_string().contains("waits") && error.to_string().contains("/f"),
        "{error}"
    );
    assert!(env.now_ns() - before >= 5_000_000_000);
    drop(disk.open("f", OpenOptions::default()).unwrap());
    drop(other);
    drop(disk.open("f", WRITE).unwrap());
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn sharing_readers_and_writers_of_two_processes_wait_for_each_other() {
    let path = directory("shares");
    let (env, _) = Env::simulated(1);
    let disk = RealDisk::open(env.clone(), &path, false).unwrap();
    drop(disk.open("f", CREATE).unwrap());
    let shared = OpenOptions {
        shared: true,
        at_once: false,
        ..OpenOptions::default()
    };
    let refused = |options: OpenOptions| {
        let before = env.now_ns();
        let Err(error) = disk.open("f", options) else {
            panic!("another process holds it")
        };
        assert_eq!(error.kind(), ErrorKind::Locked);
        assert!(env.now_ns() - before >= 5_000_000_000);
    };
    let other = hold(&path.join("f"));
    refused(shared);
    other.unlock().unwrap();
    other.lock_shared().unwrap();
    let reader = disk.open("f", shared).unwrap();
    drop(reader);
    refused(WRITE);
    drop(other);
    // A refused open leaves no lock.
    drop(disk.open("f", WRITE).unwrap());
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn an_open_succeeds_when_the_other_process_closes_in_time() {
    let path = directory("follows");
    let disk = RealDisk::open(Env::threads(), &path, false).unwrap();
    drop(disk.open("f", CREATE).unwrap());
    let other = hold(&path.join("f"));
    let (_sender, receiver) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = receiver.recv_timeout(std::time::Duration::from_millis(60));
            drop(other);
        });
        drop(disk.open("f", WRITE).unwrap());
    });
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_file_that_was_replaced_during_the_wait_is_not_opened() {
    let path = directory("replaced");
    let disk = RealDisk::open(Env::threads(), &path, false).unwrap();
    drop(disk.open("f", CREATE).unwrap());
    std::fs::write(path.join("g"), b"new").unwrap();
    let other = hold(&path.join("f"));
    let (_sender, receiver) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let path = &path;
        scope.spawn(move || {
            let _ = receiver.recv_timeout(std::time::Duration::from_millis(60));
            std::fs::rename(path.join("g"), path.join("f")).unwrap();
            drop(other);
        });
        let file = disk.open("f", WRITE).unwrap();
        let mut content = [0; 3];
        file.read_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"new");
    });
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_second_writer_in_this_process_fails_at_once_for_any_path() {
    let path = directory("registry");
    let link = path.with_extension("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let (env, _) = Env::simulated(1);
    let first = RealDisk::open(env.clone(), &path, false).unwrap();
    let second = RealDisk::open(env.clone(), link.join("."), false).unwrap();
    let file = first.open("a", CREATE).unwrap();
    let before = env.now_ns();
    for (name, options) in [("a", WRITE), ("b", CREATE)] {
        let Err(error) = second.open(name, options) else {
            panic!("the first disk writes here")
        };
        assert_eq!(error.kind(), ErrorKind::Locked);
    }
    assert!(env.now_ns() - before < 1_000_000);
    assert_eq!(second.list().unwrap(), ["a"], "nothing was created");
    drop(file);
    let theirs = second.open("b", CREATE).unwrap();
    assert!(first.open("a", WRITE).is_err());
    drop(theirs);
    std::fs::remove_file(link).unwrap();
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_missing_or_irregular_file_is_reported() {
    let path = directory("odd");
    let missing = RealDisk::open(Env::threads(), path.join("x"), false);
    assert_eq!(missing.map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::create_dir(path.join("directory")).unwrap();
    std::fs::write(path.join("file"), b"").unwrap();
    assert!(RealDisk::open(Env::threads(), path.join("file"), true).is_err());
    // Made by a system call. A child process would hold copies of other tests' descriptors and
    // locks until its `exec`.
    let (pipe, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, path.join("pipe"), pipe, mode, 0).unwrap();
    let disk = RealDisk::open(Env::threads(), &path, true).unwrap();
    for name in ["directory", "pipe"] {
        for options in [WRITE, OpenOptions::default()] {
            let Err(error) = disk.open(name, options) else {
                panic!("{name} is no file")
            };
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
    assert!(!disk.list().unwrap().contains(&"directory".to_owned()));
    std::fs::remove_dir_all(path).unwrap();
}

// A process that was killed before the sync leaves a directory whose name a power cut could still
// remove, together with synced files in it.
#[test]
fn an_existing_directory_is_made_durable_in_its_parent() {
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

    let path = directory("parent");
    let database = path.join("database");
    std::fs::create_dir(&database).unwrap();
    // Whether the parent itself was opened, which its sync needs.
    let opens = |directory: &Path, create: bool| {
        let watch = init(CreateFlags::NONBLOCK).unwrap();
        add_watch(&watch, &path, WatchFlags::OPEN).unwrap();
        let opened = RealDisk::open(Env::threads(), directory, create);
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&watch, &mut buffer);
        let mut seen = false;
        while let Ok(event) = events.next() {
            seen |= event.file_name().is_none();
        }
        opened.map(|_| seen).unwrap()
    };
    assert!(opens(&database, true));
    assert!(!opens(&database, false));
    assert!(opens(&database.join("deeper"), true));
    std::fs::remove_dir_all(path).unwrap();
}
