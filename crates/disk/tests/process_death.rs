//! A killed process leaves its ring stores and its writes, and no lock.

use std::path::PathBuf;
use std::process::Command;

use terrapin_base::Env;
use terrapin_disk::{Disk, OpenOptions, RealDisk, RingOptions};

const CHILD: &str = "TERRAPIN_DISK_DYING_CHILD";

#[test]
fn a_killed_process_leaves_its_ring_stores_and_no_lock() {
    if let Some(path) = std::env::var_os(CHILD) {
        let disk = RealDisk::open(Env::threads(), path, true).unwrap();
        let options = RingOptions {
            bytes: 1 << 16,
            create: true,
        };
        let ring = disk.open_ring("ring", options).unwrap();
        let (mut writer, _reader, _) = ring.split(65_000);
        writer.write(65_000, &[7; 2000]);
        let options = OpenOptions {
            create_new: true,
            write: true,
            direct: true,
            ..OpenOptions::default()
        };
        let file = disk.open("f", options).unwrap();
        file.write_at(&[8; 4096], 0).unwrap();
        std::process::abort();
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("process-death-{}", std::process::id()));
    let status = Command::new(std::env::current_exe().unwrap())
        .env(CHILD, &path)
        .output()
        .unwrap()
        .status;
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(6), "the child got to its end");

    let disk = RealDisk::open(Env::threads(), &path, false).unwrap();
    let options = RingOptions {
        bytes: 0,
        create: false,
    };
    let ring = disk.open_ring("ring", options).unwrap();
    let mut out = [0; 2000];
    ring.read(65_000, &mut out);
    assert_eq!(out, [7; 2000]);
    let options = OpenOptions {
        write: true,
        direct: true,
        ..OpenOptions::default()
    };
    let file = disk.open("f", options).unwrap();
    let mut out = [0; 4096];
    file.read_at(&mut out, 0).unwrap();
    assert_eq!(out, [8; 4096]);
    drop((file, ring));
    std::fs::remove_dir_all(path).unwrap();
}
