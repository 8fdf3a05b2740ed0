//! `compare ingest`: records in key order into an empty store, by Terrapin's sorted ingest and by
//! RocksDB's files of sorted records. The time runs from the first record until all records are
//! durable and visible, so the building of RocksDB's files counts.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::Usage;

use crate::turns::{Turns, say};

/// Arguments of `ingest`.
#[derive(Args)]
pub struct Ingest {
    /// Records of each turn
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    records: u64,
    /// Bytes of a value; a key has 8
    #[arg(long, value_name = "N", default_value_t = 120)]
    value_bytes: usize,
    /// Memory of each engine, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    memory_mib: u64,
    #[command(flatten)]
    turns: Turns,
}

/// Gives the records of a turn to an engine, in order.
struct Source {
    records: u64,
    key: [u8; 8],
    value: Vec<u8>,
}

impl Source {
    fn each(&mut self, mut take: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        for number in 0..self.records {
            self.key = (number * 7).to_be_bytes();
            // Bytes that do not compress.
            let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for part in self.value.chunks_mut(8) {
                bits ^= bits >> 29;
                bits = bits.wrapping_mul(0xbf58_476d_1ce4_e5b9);
                part.copy_from_slice(&bits.to_le_bytes()[..part.len()]);
            }
            take(&self.key, &self.value)?;
        }
        Ok(())
    }
}

/// An engine's ingest of a source into an empty directory. The number is its memory in bytes.
type Engine = fn(&mut Source, u64, &Path) -> Result<()>;

const ENGINES: &[(&str, Engine)] = &[
    ("terrapin", terrapin),
    #[cfg(feature = "rocksdb")]
    ("rocksdb", rocks::ingest),
];

impl Ingest {
    /// Runs all turns, and prints a line for each engine in each turn.
    pub fn run(&self) -> Result<()> {
        say(&format!(
            "{:>10}{:>12}{:>14}{:>8}",
            "engine", "records", "records/s", "WA"
        ))?;
        self.turns.each(ENGINES, |name, ingest, place| {
            let mut source = Source {
                records: self.records,
                key: [0; 8],
                value: vec![0; self.value_bytes],
            };
            let (before, start) = (Usage::now(), Instant::now());
            ingest(&mut source, self.memory_mib << 20, place)?;
            let seconds = start.elapsed().as_secs_f64();
            let written = Usage::now().device_bytes_written - before.device_bytes_written;
            let bytes = self.records * (8 + self.value_bytes as u64);
            say(&format!(
                "{name:>10}{:>12}{:>14.0}{:>8.3}",
                self.records,
                self.records as f64 / seconds,
                written as f64 / bytes as f64
            ))
        })
    }
}

fn terrapin(source: &mut Source, memory: u64, place: &Path) -> Result<()> {
    let database = terrapin::Options::new().memory(memory).open(place)?;
    let keyspace = database.default_keyspace();
    let mut ingest = keyspace.begin_ingest()?;
    source.each(|key, value| ingest.add(key, value))?;
    ingest.finish()?;
    database.close().map(drop)
}

#[cfg(feature = "rocksdb")]
mod rocks {
    use std::path::{Path, PathBuf};

    use rocksdb::{
        BlockBasedOptions, DB, DBCompressionType, IngestExternalFileOptions, Options, SstFileWriter,
    };
    use terrapin_base::Result;

    use super::Source;
    use crate::engines::foreign;

    /// Bytes of records of one file, as RocksDB's own files have at most in the other cells.
    const FILE_BYTES: usize = 64 << 20;

    pub(super) fn ingest(source: &mut Source, memory: u64, place: &Path) -> Result<()> {
        let mut table = BlockBasedOptions::default();
        table.set_bloom_filter(10.0, false);
        table.set_block_cache(&rocksdb::Cache::new_lru_cache(memory as usize));
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::None);
        options.set_use_direct_reads(true);
        options.set_use_direct_io_for_flush_and_compaction(true);
        let db = DB::open(&options, place.join("db")).map_err(foreign)?;
        let mut files: Vec<PathBuf> = Vec::new();
        let mut writer: Option<SstFileWriter<'_>> = None;
        let mut bytes = 0;
        source.each(|key, value| {
            let writer = match &mut writer {
                Some(open) if bytes < FILE_BYTES => open,
                full => {
                    if let Some(full) = full {
                        full.finish().map_err(foreign)?;
                    }
                    let file = place.join(format!("{}.sst", files.len()));
                    let next = SstFileWriter::create(&options);
                    next.open(&file).map_err(foreign)?;
                    files.push(file);
                    bytes = 0;
                    full.insert(next)
                }
            };
            bytes += key.len() + value.len();
            writer.put(key, value).map_err(foreign)
        })?;
        if let Some(mut last) = writer {
            last.finish().map_err(foreign)?;
        }
        let mut how = IngestExternalFileOptions::default();
        how.set_move_files(true);
        db.ingest_external_file_opts(&how, files).map_err(foreign)
    }
}
