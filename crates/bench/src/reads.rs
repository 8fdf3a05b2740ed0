//! Reads beside the device: many cold keys at once, and a scan of everything. Each stands beside
//! raw reads of the same kind, by the same calls, from the same file.
//!
//! The store is opened again for each measurement, so nothing is cached. Uniform keys and a small
//! budget keep it so. Everything runs on one thread, like one user call.

use std::path::Path;
use std::time::{Duration, Instant};

use terrapin::{Database, DeviceReads, Durability, Options};
use terrapin_base::{Env, Error, Result};
use terrapin_disk::{AlignedBuf, Disk, File, Flight, OpenOptions, RealDisk, Show};

use crate::figures::Figures;
use crate::generator::{Distribution, Random};
use crate::record::Records;
use crate::run::{Config, Driver, Phase, Progress};
use crate::store::TerrapinStore;
use crate::system::{Usage, thread_cpu_seconds};
use crate::workload::Workload;

/// The file that holds the trees.
const DATA_FILE: &str = "data";
/// Bytes of a random read of the device: a block's.
const RANDOM_BYTES: usize = 4096;
/// Reads between two checks of the clock.
const RANDOM_READS: usize = 2048;
/// Reads in flight.
const RANDOM_DEPTH: usize = 32;
/// Seconds of random reads of the device and of keys before the other takes its turn.
const SLICE_SECONDS: f64 = 0.05;
/// Bytes of a sequential read.
const SEQUENTIAL_BYTES: usize = 256 << 10;
/// Reads submitted together; as many are in flight as the disk keeps.
const SEQUENTIAL_READS: usize = 128;

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct ReadsBench {
    /// Records to load.
    pub records: u64,
    /// The shape of the records.
    pub shape: Records,
    /// The memory budget.
    pub memory_bytes: u64,
    /// Keys of one call.
    pub keys_at_once: usize,
    /// Duration of each measurement of random reads.
    pub time: Duration,
    /// Seed of all choices.
    pub seed: u64,
}

/// The figures of one turn.
#[derive(Clone, Copy, Debug)]
pub struct ReadsTurn {
    /// Random block reads per second of the device.
    pub device_reads_per_second: f64,
    /// CPU per such read, in microseconds.
    pub device_cpu_us: f64,
    /// Random reads per second of the device in bursts: as many reads as a call has keys start
    /// together, and all end before the next burst. That is the limit for calls one after the
    /// other.
    pub burst_reads_per_second: f64,
    /// Keys per second found by `multi_get`.
    pub keys_per_second: f64,
    /// Device reads per second of those.
    pub key_reads_per_second: f64,
    /// CPU per key, in microseconds.
    pub key_cpu_us: f64,
    /// Bytes per second of large sequential reads of the device.
    pub device_bytes_per_second: f64,
    /// Bytes per second that the full scan read from the device.
    pub scan_bytes_per_second: f64,
    /// Key and value bytes per second that it returned.
    pub scan_record_bytes_per_second: f64,
    /// CPU per record of it, in microseconds.
    pub scan_cpu_us: f64,
}

impl ReadsBench {
    fn open(&self, directory: &Path) -> Result<Database> {
        Options::new().memory(self.memory_bytes).open(directory)
    }

    /// Loads the records into an empty directory.
    pub fn load(&self, directory: &Path, progress: &Progress) -> Result<()> {
        let database = self.open(directory)?;
        let config = Config {
            records: self.records,
            loaded: false,
            shape: self.shape,
            threads: 1,
            scan_records_max: crate::SCAN_RECORDS_MAX,
            seed: self.seed,
        };
        let store = TerrapinStore::new(database.clone(), Durability::Process, self.memory_bytes);
        let driver = Driver::new(&config, &store, directory, progress)?;
        driver.phase(Phase {
            workload: Workload::Load,
            distribution: Distribution::Uniform,
            operations: self.records,
            time: None,
        })?;
        driver.settle()?;
        database.close().map(drop)
    }

    /// Measures everything once; `turn` numbers the repetition.
    pub fn turn(&self, directory: &Path, turn: u64) -> Result<ReadsTurn> {
        let file = data_file(directory)?;
        let mut random = Random::new(self.seed ^ turn << 32);
        let (device, bursts, keys) = self.random_reads(directory, &*file, &mut random)?;
        let device_bytes_per_second = device_sequential(&*file)?;
        let (scan_bytes, scan_seconds, scan_cpu) = self.scan(directory)?;
        Ok(ReadsTurn {
            device_reads_per_second: device.reads as f64 / device.seconds,
            device_cpu_us: device.cpu_seconds * 1e6 / device.reads as f64,
            burst_reads_per_second: bursts.reads as f64 / bursts.seconds,
            keys_per_second: keys.keys as f64 / keys.seconds,
            key_reads_per_second: keys.reads as f64 / keys.seconds,
            key_cpu_us: keys.cpu_seconds * 1e6 / keys.keys as f64,
            device_bytes_per_second,
            scan_bytes_per_second: scan_bytes as f64 / scan_seconds,
            scan_record_bytes_per_second: (self.records * self.shape.bytes()) as f64 / scan_seconds,
            scan_cpu_us: scan_cpu * 1e6 / self.records as f64,
        })
    }

    /// Random reads of the device, continuous and in bursts, and of keys. They take turns in slices
    /// of time, so that all meet the same machine.
    fn random_reads(
        &self,
        directory: &Path,
        file: &dyn File,
        random: &mut Random,
    ) -> Result<(Sum, Sum, Sum)> {
        let room = 4 * RANDOM_DEPTH.max(self.keys_at_once) * RANDOM_BYTES;
        let mut flight = Flight::new(AlignedBuf::zeroed(room));
        let database = self.open(directory)?;
        let (mut device, mut bursts, mut keys) = (Sum::default(), Sum::default(), Sum::default());
        // Nodes, indexes and filters should be cached, blocks should not.
        let mut warm = Sum::default();
        while warm.keys < self.records / 20 {
            self.multi_get(&database, random, &mut warm)?;
        }
        while keys.seconds < self.time.as_secs_f64() {
            let end = device.seconds + SLICE_SECONDS;
            while device.seconds < end {
                device_random(file, &mut flight, random, &mut device, RANDOM_READS)?;
            }
            let end = bursts.seconds + SLICE_SECONDS;
            while bursts.seconds < end {
                device_random(file, &mut flight, random, &mut bursts, self.keys_at_once)?;
            }
            let (end, before) = (keys.seconds + SLICE_SECONDS, reads_of(&database));
            while keys.seconds < end {
                self.multi_get(&database, random, &mut keys)?;
            }
            keys.reads += reads_of(&database) - before;
        }
        database.close()?;
        Ok((device, bursts, keys))
    }

    /// One call for many keys. Checking the answers is not measured.
    fn multi_get(&self, database: &Database, random: &mut Random, sum: &mut Sum) -> Result<()> {
        let mut keys = vec![Vec::new(); self.keys_at_once];
        for key in &mut keys {
            self.shape.key(random.below(self.records), key);
        }
        let keyspace = database.default_keyspace();
        let values = sum.measure(|| keyspace.multi_get(&keys))?;
        for (key, value) in keys.iter().zip(&values) {
            let Some(value) = value else {
                return Err(
                    Error::corrupt("a record is missing").with("key", format!("{key:02x?}"))
                );
            };
            self.shape.check(key, value)?;
        }
        sum.keys += keys.len() as u64;
        Ok(())
    }

    /// Device bytes of a full scan, with its seconds and CPU seconds.
    fn scan(&self, directory: &Path) -> Result<(u64, f64, f64)> {
        let database = self.open(directory)?;
        let (used, start) = (Usage::now(), Instant::now());
        let (mut count, mut bytes) = (0u64, 0u64);
        let mut range = database.default_keyspace().iter();
        while let Some((key, value)) = range.next_ref()? {
            count += 1;
            bytes += (key.len() + value.len()) as u64;
        }
        let seconds = start.elapsed().as_secs_f64();
        let cpu = Usage::now().cpu_seconds - used.cpu_seconds;
        drop(range);
        if (count, bytes) != (self.records, self.records * self.shape.bytes()) {
            return Err(Error::corrupt("a full scan found another record")
                .with("records", count)
                .with("expected", self.records)
                .with("bytes", bytes));
        }
        let read = database.metrics().device_reads;
        database.close()?;
        Ok((read.scan_bytes + read.meta_bytes, seconds, cpu))
    }
}

/// Totals of the measured calls.
#[derive(Default)]
struct Sum {
    keys: u64,
    reads: u64,
    seconds: f64,
    /// CPU of the calling thread.
    cpu_seconds: f64,
}

impl Sum {
    fn measure<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (used, start) = (thread_cpu_seconds(), Instant::now());
        let result = call();
        self.seconds += start.elapsed().as_secs_f64();
        self.cpu_seconds += thread_cpu_seconds() - used;
        result
    }
}

/// Random reads of the device. All are in flight at once if they are fewer than [`RANDOM_READS`].
fn device_random(
    file: &dyn File,
    flight: &mut Flight,
    random: &mut Random,
    sum: &mut Sum,
    reads: usize,
) -> Result<()> {
    let depth = if reads < RANDOM_READS {
        reads
    } else {
        RANDOM_DEPTH
    };
    let places = file.bytes()? / RANDOM_BYTES as u64;
    sum.reads += sum.measure(|| {
        let (mut begun, mut done) = (0, 0);
        while done < reads {
            while begun < reads && begun - done < depth {
                let offset = random.below(places) * RANDOM_BYTES as u64;
                if flight.push(offset, RANDOM_BYTES).is_none() {
                    break;
                }
                begun += 1;
            }
            done += (show_some(file, flight)? / RANDOM_BYTES as u64) as usize;
        }
        Ok(done as u64)
    })?;
    Ok(())
}

/// Waits for some reads of a flight and returns their bytes.
fn show_some(file: &dyn File, flight: &mut Flight) -> Result<u64> {
    let mut done = Ok(0);
    file.show(
        flight,
        Show::Some,
        &mut |_, bytes| match (&mut done, bytes) {
            (Ok(sum), Ok(bytes)) => *sum += bytes.len() as u64,
            (Ok(_), Err(error)) => done = Err(error),
            (Err(_), _) => {}
        },
    )?;
    done
}

/// The store's data file, read past the kernel's cache.
fn data_file(directory: &Path) -> Result<std::sync::Arc<dyn File>> {
    let disk = RealDisk::open(Env::threads(), directory, false)?;
    let options = OpenOptions {
        direct: true,
        ..OpenOptions::default()
    };
    disk.open(DATA_FILE, options)
}

/// Bytes per second of the whole file in large reads.
fn device_sequential(file: &dyn File) -> Result<f64> {
    let places = file.bytes()? / SEQUENTIAL_BYTES as u64;
    let mut flight = Flight::new(AlignedBuf::zeroed(SEQUENTIAL_READS * SEQUENTIAL_BYTES));
    let (start, mut done) = (Instant::now(), 0u64);
    for first in (0..places).step_by(SEQUENTIAL_READS) {
        for place in (first..places).take(SEQUENTIAL_READS) {
            flight.push(place * SEQUENTIAL_BYTES as u64, SEQUENTIAL_BYTES);
        }
        while !flight.is_empty() {
            done += show_some(file, &mut flight)?;
        }
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

fn reads_of(database: &Database) -> u64 {
    let DeviceReads {
        get_reads,
        meta_reads,
        ..
    } = database.metrics().device_reads;
    get_reads + meta_reads
}

impl ReadsTurn {
    /// Device reads of `multi_get` per raw read of the device.
    #[must_use]
    pub fn key_share(&self) -> f64 {
        self.key_reads_per_second / self.device_reads_per_second
    }

    /// Device reads of `multi_get` per raw read in bursts.
    #[must_use]
    pub fn key_burst_share(&self) -> f64 {
        self.key_reads_per_second / self.burst_reads_per_second
    }

    /// Bytes of the scan per raw byte of the device.
    #[must_use]
    pub fn scan_share(&self) -> f64 {
        self.scan_bytes_per_second / self.device_bytes_per_second
    }
}

impl Figures for ReadsTurn {
    fn table_head() -> String {
        format!(
            "{:>15}{:>9}{:>11}{:>11}{:>12}{:>8}{:>10}{:>10}{:>15}{:>12}{:>14}{:>8}{:>13}",
            "device reads/s",
            "µs/read",
            "bursts/s",
            "keys/s",
            "key reads/s",
            "share",
            "of burst",
            "µs/key",
            "device MiB/s",
            "scan MiB/s",
            "records MiB/s",
            "share",
            "µs/record",
        )
    }

    fn table_line(&self) -> String {
        let mib = f64::from(1 << 20);
        format!(
            "{:>15.0}{:>9.2}{:>11.0}{:>11.0}{:>12.0}{:>8.2}{:>10.2}{:>10.2}{:>15.0}{:>12.0}{:>14.0}{:>8.2}{:>13.3}",
            self.device_reads_per_second,
            self.device_cpu_us,
            self.burst_reads_per_second,
            self.keys_per_second,
            self.key_reads_per_second,
            self.key_share(),
            self.key_burst_share(),
            self.key_cpu_us,
            self.device_bytes_per_second / mib,
            self.scan_bytes_per_second / mib,
            self.scan_record_bytes_per_second / mib,
            self.scan_share(),
            self.scan_cpu_us,
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"device_reads_per_second\":{:.1},\"device_cpu_us\":{:.3},\"burst_reads_per_second\":{:.1},\"key_burst_share\":{:.4},\"keys_per_second\":{:.1},\"key_reads_per_second\":{:.1},\"key_share\":{:.4},\
             \"key_cpu_us\":{:.3},\"device_bytes_per_second\":{:.1},\"scan_bytes_per_second\":{:.1},\
             \"scan_record_bytes_per_second\":{:.1},\"scan_share\":{:.4},\"scan_cpu_us\":{:.4}}}",
            self.device_reads_per_second,
            self.device_cpu_us,
            self.burst_reads_per_second,
            self.key_burst_share(),
            self.keys_per_second,
            self.key_reads_per_second,
            self.key_share(),
            self.key_cpu_us,
            self.device_bytes_per_second,
            self.scan_bytes_per_second,
            self.scan_record_bytes_per_second,
            self.scan_share(),
            self.scan_cpu_us,
        )
    }
}
