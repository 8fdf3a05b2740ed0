//! Helpers of the disk's tests.
#![allow(dead_code)] // each test file uses what it needs

use std::sync::Arc;

use terrapin_base::Result;
use terrapin_disk::{AlignedBuf, File, Flight, OpenOptions, Show, SimDisk};

pub const READ: OpenOptions = OpenOptions {
    create_new: false,
    write: false,
    direct: false,
    cached: false,
    shared: false,
    at_once: false,
};
pub const WRITE: OpenOptions = OpenOptions {
    write: true,
    ..READ
};
pub const CREATE: OpenOptions = OpenOptions {
    create_new: true,
    ..WRITE
};

/// A file with durable name, size and content.
pub fn durable_file(medium: &SimDisk, name: &str, content: &[u8]) -> Arc<dyn File> {
    let disk = medium.handle();
    let file = disk.open(name, CREATE).unwrap();
    file.write_at(content, 0).unwrap();
    file.sync().unwrap();
    disk.sync_directory().unwrap();
    file
}

/// The whole content of a file.
pub fn content_of(file: &dyn File) -> Vec<u8> {
    let mut content = vec![0; file.bytes().unwrap() as usize];
    file.read_at(&mut content, 0).unwrap();
    content
}

/// A flight with room for `bytes`.
pub fn flight(bytes: usize) -> Flight {
    Flight::new(AlignedBuf::with_capacity(bytes))
}

/// The outcomes of all reads of a flight, in order.
pub fn shown(file: &dyn File, flight: &mut Flight, which: Show) -> Vec<Result<Vec<u8>>> {
    let mut shown = Vec::new();
    while !flight.is_empty() {
        let before = shown.len();
        file.show(flight, which, &mut |number, bytes| {
            shown.push((number, bytes.map(<[u8]>::to_vec)));
        })
        .unwrap();
        assert!(shown.len() > before, "nothing was shown");
        assert!(which == Show::Some || shown.len() == before + 1);
    }
    assert!(which == Show::Some || shown.is_sorted_by_key(|(number, _)| *number));
    shown.sort_by_key(|(number, _)| *number);
    assert!(shown.windows(2).all(|w| w[0].0 + 1 == w[1].0), "each once");
    shown.into_iter().map(|(_, bytes)| bytes).collect()
}
