//! What writes to spare slots would cost beside the rewriting of segments (decision 0059).
//!
//! `cargo run --release -p terrapin-inplace --example slot_writes -- DIRECTORY`
//!
//! An update of a 4-KB record in a spare slot is one write of 4 KiB at a random place. Without
//! slots it costs some bytes in long writes: 3.5 times its own in segments, 3.3 times in the page
//! groups of a leveled tree. For each form this prints the time for an update, by threads, with
//! direct writes to a file of half a gigabyte, synced at the end.
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use terrapin_base::{Env, Error, Result};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions, RealDisk};

const FILE_BYTES: u64 = 512 << 20;
const UPDATES: u64 = 24_000;
const NAME: &str = "slot-writes";

struct Form {
    name: &'static str,
    write_bytes: u64,
    /// Bytes written for an update.
    update_bytes: u64,
}

const FORMS: [Form; 4] = [
    Form {
        name: "slots: one write of 4 KiB for each",
        write_bytes: 4 << 10,
        update_bytes: 4 << 10,
    },
    Form {
        name: "slots: two neighbours in one write",
        write_bytes: 8 << 10,
        update_bytes: 4 << 10,
    },
    Form {
        name: "segments of 64 KiB, 3.5 bytes for each",
        write_bytes: 64 << 10,
        update_bytes: 14_336,
    },
    Form {
        name: "groups of 1 MiB, 3.3 bytes for each",
        write_bytes: 1 << 20,
        update_bytes: 13_516,
    },
];

fn main() -> Result<()> {
    let Some(directory) = std::env::args().nth(1) else {
        return Err(Error::invalid("usage: slot_writes DIRECTORY"));
    };
    let disk = RealDisk::open(Env::threads(), Path::new(&directory), true)?;
    let options = OpenOptions {
        create_new: true,
        write: true,
        direct: true,
        ..OpenOptions::default()
    };
    let file = disk.open(NAME, options)?;
    let measured = measure(&file);
    drop(file);
    disk.remove(NAME)?;
    measured
}

fn measure(file: &Arc<dyn File>) -> Result<()> {
    let block = AlignedBuf::zeroed(1 << 20);
    for offset in (0..FILE_BYTES).step_by(block.len()) {
        file.write_at(&block, offset)?;
    }
    file.sync()?;
    println!("| form | threads | µs for an update |\n| --- | --- | --- |");
    for form in &FORMS {
        for threads in [1, 2, 8] {
            let began = Instant::now();
            let written: Result<Vec<()>> = std::thread::scope(|scope| {
                let writer = |seed| scope.spawn(move || write(file, form, threads, seed));
                let writers: Vec<_> = (1..=threads).map(writer).collect();
                let ended = writers.into_iter().map(|writer| {
                    let panicked = |_| Err(Error::internal("a writer panicked"));
                    writer.join().unwrap_or_else(panicked)
                });
                ended.collect()
            });
            written?;
            file.sync()?;
            let micros = began.elapsed().as_secs_f64() * 1e6 / UPDATES as f64;
            println!("| {} | {threads} | {micros:.1} |", form.name);
        }
    }
    Ok(())
}

/// A thread's share of the writes.
fn write(file: &Arc<dyn File>, form: &Form, threads: u64, seed: u64) -> Result<()> {
    let block = AlignedBuf::zeroed(form.write_bytes as usize);
    let places = FILE_BYTES / form.write_bytes;
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..UPDATES * form.update_bytes / form.write_bytes / threads {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        file.write_at(&block, (random >> 20) % places * form.write_bytes)?;
    }
    Ok(())
}
