use super::*;
use crate::real::RealDisk;
use crate::{Disk, SimDisk};
use terrapin_base::ErrorKind;

#[test]
fn a_failed_allocation_by_writing_is_tried_again_completely() {
    let disk = SimDisk::new(1);
    let options = OpenOptions {
        create_new: true,
        write: true,
        direct: true,
        ..OpenOptions::default()
    };
    let file = disk.handle().open("file", options).unwrap();
    file.write_at(&AlignedBuf::zeroed(4096), 0).unwrap();
    let end = (4 << 20) + 100;
    disk.set_capacity(3 << 20);
    for _ in 0..2 {
        let error = allocate_by_writing(&*file, end).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(file.bytes().unwrap(), 4096);
    }
    disk.set_capacity(8 << 20);
    allocate_by_writing(&*file, end).unwrap();
    assert_eq!(file.bytes().unwrap(), end);
    assert!(file.allocated_bytes().unwrap() >= 4 << 20);
    allocate_by_writing(&*file, 1 << 20).unwrap();
    assert_eq!(file.bytes().unwrap(), end);
}

const CREATE: OpenOptions = OpenOptions {
    create_new: true,
    write: true,
    direct: false,
    cached: false,
    shared: false,
    at_once: false,
};

/// A new directory for one test.
fn directory(test: &str) -> (std::path::PathBuf, RealDisk) {
    let name = format!("terrapin-{test}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let disk = RealDisk::open(Env::simulated(1).0, &path, true).unwrap();
    (path, disk)
}

/// ext3 punches holes and cannot fill them again, also under ext4's driver. A reserve made of
/// holes let a full disk refuse a write.
#[test]
fn a_file_system_that_cannot_allocate_keeps_its_allocated_space() {
    let (path, disk) = directory("holes");
    let file = disk.open_file("file", CREATE).unwrap();
    let content = vec![7; 64 << 10];
    file.write_at(&content, 0).unwrap();
    let refused = |offset, end| {
        let before = file.bytes().unwrap();
        file.allocated(Err(Errno::OPNOTSUPP), offset, end, before)
    };
    refused(0, 64 << 10).unwrap();
    refused(64 << 10, 96 << 10).unwrap();
    assert_eq!(file.bytes().unwrap(), 96 << 10);
    file.punch_hole(0, 64 << 10).unwrap();
    let mut read = vec![0; 64 << 10];
    file.read_at(&mut read, 0).unwrap();
    assert!(read == content, "a hole");
    file.set_bytes(4096).unwrap();
    assert_eq!(file.bytes().unwrap(), 4096, "the end still goes");
    drop(file);
    disk.remove("file").unwrap();
    std::fs::remove_dir(&path).unwrap();
}

/// Terrapin once refused to open a database on such a device, even for reading.
#[test]
fn a_device_with_larger_blocks_uses_the_page_cache() {
    let (path, disk) = directory("blocks");
    disk.alignment.set(64 << 10).unwrap();
    let options = OpenOptions {
        direct: true,
        ..CREATE
    };
    let file = disk.open_file("file", options).unwrap();
    assert!(!file.direct);
    assert_eq!(file.alignment(), 4096);
    let content = vec![7; 8192];
    file.write_at(&content, 4096).unwrap();
    file.sync().unwrap();
    drop(file);
    let options = OpenOptions {
        direct: true,
        ..OpenOptions::default()
    };
    let file = disk.open_file("file", options).unwrap();
    assert_eq!(file.alignment(), 4096);
    let mut read = vec![0; 8192];
    file.read_at(&mut read, 4096).unwrap();
    assert!(read == content);
    drop(file);
    disk.remove("file").unwrap();
    std::fs::remove_dir(&path).unwrap();
}

#[test]
fn a_full_disk_or_quota_does_not_refuse_allocated_space() {
    let (path, disk) = directory("quota");
    let file = disk.open_file("file", CREATE).unwrap();
    file.allocate(0, 64 << 10).unwrap();
    for refusal in [Errno::NOSPC, Errno::DQUOT] {
        let before = file.bytes().unwrap();
        assert_eq!(before, 64 << 10);
        let refused = |offset, end| file.allocated(Err(refusal), offset, end, before);
        refused(4 << 10, before).unwrap();
        // The system may leave the file longer, with part of the space allocated.
        file.set_bytes(before + 4096).unwrap();
        let error = refused(0, before + 8192).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }
    file.set_bytes(1 << 20).unwrap();
    for refusal in [Errno::NOSPC, Errno::DQUOT] {
        let error = file.allocated(Err(refusal), 0, 1 << 20, 1 << 20);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace, "a hole");
    }
    drop(file);
    disk.remove("file").unwrap();
    std::fs::remove_dir(&path).unwrap();
}
