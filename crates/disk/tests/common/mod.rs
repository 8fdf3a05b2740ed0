//! What the tests of the simulated disk share.
#![allow(dead_code)] // each test file uses what it needs

use std::sync::Arc;

use terrapin_disk::{File, OpenOptions, SimDisk};

pub const READ: OpenOptions = OpenOptions {
    create_new: false,
    write: false,
    direct: false,
    shared: false,
};
pub const WRITE: OpenOptions = OpenOptions {
    write: true,
    ..READ
};
pub const CREATE: OpenOptions = OpenOptions {
    create_new: true,
    ..WRITE
};

/// A file whose name, size and content are durable.
pub fn durable_file(medium: &SimDisk, name: &str, content: &[u8]) -> Arc<dyn File> {
    let disk = medium.handle();
    let file = disk.open(name, CREATE).unwrap();
    file.write_at(content, 0).unwrap();
    file.sync().unwrap();
    disk.sync_directory().unwrap();
    file
}
