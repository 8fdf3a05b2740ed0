//! A long scan reads the blocks that it needs before it reaches them. It waits for hardly any
//! single read.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{World, key, tiny, value};
use terrapin::{CheckpointDistance, Database, Options};
use terrapin_base::Result;
use terrapin_disk::{File, FileThrough, FilesThrough};

const RECORDS: u64 = 60_000;
const VALUE_BYTES: usize = 400;
/// Records after which the scan reads everything ahead.
const LONG: u64 = 15_000;

/// Groups at least as long as one level's read-ahead, and some nodes with buffers.
fn options() -> Options {
    tiny()
        .group_bytes(512 << 10)
        .fanout(8)
        .memory(64 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .log_bytes_max(16 << 20)
}

/// Counts the reads that a thread waits for one by one.
struct CountingFile {
    file: Arc<dyn File>,
    alone: Arc<AtomicU64>,
}

impl FileThrough for CountingFile {
    const FLIES: bool = true;

    fn behind(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.alone.fetch_add(1, Ordering::Relaxed);
        self.file.read_at(buffer, offset)
    }
}

fn open(world: &World, alone: &Arc<AtomicU64>) -> Database {
    let alone = alone.clone();
    let wrap = move |file| -> Arc<dyn File> {
        let alone = alone.clone();
        Arc::new(CountingFile { file, alone })
    };
    let disk = FilesThrough::new(world.disk.handle(), wrap);
    options()
        .open_on(world.env.clone(), Arc::new(disk))
        .unwrap()
}

#[test]
fn a_long_scan_waits_for_no_single_read_of_an_index() {
    for backward in [false, true] {
        let (world, alone) = (World::new(1), Arc::new(AtomicU64::new(0)));
        let database = open(&world, &alone);
        let keyspace = database.default_keyspace();
        for i in 0..RECORDS {
            keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
        }
        database.close().unwrap();

        let database = open(&world, &alone);
        let tree = &database.stat().unwrap().keyspaces[0].tree;
        let nodes = tree.figure("nodes").unwrap();
        assert!(tree.figure("height") >= Some(2) && tree.buffered_records > RECORDS / 10);
        let mut range = database.default_keyspace().iter();
        let mut before = 0;
        for i in 0..RECORDS {
            if i == LONG {
                before = alone.load(Ordering::Relaxed);
            }
            let record = if backward {
                range.next_back_ref()
            } else {
                range.next_ref()
            };
            assert!(record.unwrap().is_some());
        }
        drop(range);
        let waited = alone.load(Ordering::Relaxed) - before;
        // These reads are of nodes.
        assert!(waited <= nodes + 2, "{waited} reads alone, {nodes} nodes");
        database.close().unwrap();
    }
}
