//! Reads through the system's page cache, for a database that uses it: gets and ranges read through
//! it, merges bypass it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{World, key, tiny, value};
use terrapin::{Database, Options};
use terrapin_base::Result;
use terrapin_disk::{Disk, DiskThrough, File, FileThrough, OpenOptions};

const RECORDS: u64 = 4_000;

/// What the test saw of the data file.
#[derive(Default)]
struct Seen {
    /// How often the file was opened for reads through the page cache, and for others.
    opened: [AtomicU64; 2],
    /// Reads that may use the page cache, and others.
    cached: AtomicU64,
    direct: AtomicU64,
}

struct Watching {
    disk: Arc<dyn Disk>,
    seen: Arc<Seen>,
}

impl DiskThrough for Watching {
    fn behind(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        let file = self.disk.open(name, options)?;
        if name != "data" {
            assert!(!options.cached, "the log is read once");
            return Ok(file);
        }
        assert!(options.direct);
        self.seen.opened[usize::from(options.cached)].fetch_add(1, Ordering::Relaxed);
        let seen = self.seen.clone();
        Ok(Arc::new(WatchedFile { file, seen }))
    }
}

struct WatchedFile {
    file: Arc<dyn File>,
    seen: Arc<Seen>,
}

impl FileThrough for WatchedFile {
    const FLIES: bool = false;

    fn behind(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.seen.direct.fetch_add(1, Ordering::Relaxed);
        self.file.read_at(buffer, offset)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.seen.cached.fetch_add(1, Ordering::Relaxed);
        self.file.read_cached_at(buffer, offset)
    }
}

fn open(world: &World, options: &Options, seen: &Arc<Seen>) -> Database {
    let disk = Watching {
        disk: world.disk.handle(),
        seen: seen.clone(),
    };
    let disk = Arc::new(disk);
    options.open_on(world.env.clone(), disk).unwrap()
}

#[test]
fn gets_and_ranges_use_the_page_cache_and_merges_bypass_it() {
    let world = World::new(1);
    let seen = Arc::new(Seen::default());
    let database = open(&world, &tiny().system_cache(true), &seen);
    let keyspace = database.default_keyspace();
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.close().unwrap();
    drop(database);

    let database = open(&world, &tiny().system_cache(true), &seen);
    let keyspace = database.default_keyspace();
    let cached = || seen.cached.load(Ordering::Relaxed);
    let mut before = cached();
    let mut reads_more = |what: &str| {
        let now = cached();
        assert!(now > before, "{what}");
        before = now;
    };
    let direct = seen.direct.load(Ordering::Relaxed);
    keyspace.get(key(1)).unwrap().unwrap();
    reads_more("a get");
    let keys: Vec<_> = (100..140).map(key).collect();
    assert!(
        keyspace
            .multi_get(&keys)
            .unwrap()
            .iter()
            .all(Option::is_some)
    );
    reads_more("gets at once");
    assert_eq!(
        keyspace
            .range(key(2)..)
            .take(50)
            .filter(Result::is_ok)
            .count(),
        50
    );
    reads_more("a short range");
    assert_eq!(
        keyspace.iter().filter(Result::is_ok).count() as u64,
        RECORDS
    );
    reads_more("a long one");
    assert_eq!(seen.direct.load(Ordering::Relaxed), direct);

    for i in 0..RECORDS {
        keyspace.put(key(i), value(i + 1, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    assert!(seen.direct.load(Ordering::Relaxed) > direct, "merges");
    database.close().unwrap();
    let [past, through] = seen.opened.each_ref().map(|o| o.load(Ordering::Relaxed));
    assert!(
        through == 2 && past > 0,
        "{through}, and {past} looks at what is there"
    );
}

#[test]
fn an_explicit_memory_budget_disables_the_page_cache_by_default() {
    // The least memory that the default ring fits into.
    let memory = 8 << 20;
    for (options, expected) in [
        (Options::new(), true),
        (Options::new().memory(memory), false),
        (Options::new().memory(memory).system_cache(true), true),
        (Options::new().system_cache(true).memory(memory), true),
        (Options::new().system_cache(false), false),
    ] {
        let world = World::new(1);
        let seen = Arc::new(Seen::default());
        let database = open(&world, &options, &seen);
        database.close().unwrap();
        let database = open(&world, &options.read_only(true), &seen);
        database.close().unwrap();
        let through = seen.opened[1].load(Ordering::Relaxed);
        assert_eq!(through, if expected { 2 } else { 0 });
    }
}
