//! Cache lines that two readers write. Two threads read the same keys by turns, under valgrind's
//! tool lackey, which says each store. A line that is written in the turns of both is one that they
//! would take from each other, if they ran at once.
//!
//! The store is small, because lackey writes a line of text for each access to memory. Each reader
//! has some turns before that are not watched, so that what a thread makes once does not count, nor
//! how often a cached record was used, which is counted up to a small number.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::{env, fs, io, thread};

use terrapin::{CheckpointDistance, Keyspace, KeyspaceOptions, Options, StructureKind};
use terrapin_base::{Env, Error, Result};

use crate::callgrind::valgrind;
use crate::disk::SteadyDisk;
use crate::records::{key, value};

/// The first argument of a child.
pub const RUN: &str = "lines";

/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;
/// Records in the tree, and in each of the memtables that brought them.
const RECORDS: u64 = 6_000;
const MEMTABLE_RECORDS: u64 = 500;
/// Where the numbers of keys in the memtable and of absent keys begin.
const MEMTABLE: u64 = 1 << 32;
const ABSENT: u64 = 2 << 32;
/// Turns of each reader before the one that is watched.
const UNWATCHED: u32 = 8;
/// Keys of a turn.
const KEYS: u64 = 40;
/// Records of a range.
const SHORT: usize = 50;
/// The directory of the stores.
const STORE: &str = "lines-store";

/// A reading call that is watched.
struct Reading {
    name: &'static str,
    /// Whether records are cached beside blocks.
    caches_records: bool,
    /// Whether readers may write no line of each other. Cached blocks have a lock for each shard of
    /// the cache, and counts of references.
    shares_nothing: bool,
    /// Does the call for one number.
    read: fn(&Keyspace, u64) -> Result<bool>,
}

const READINGS: [Reading; 5] = [
    Reading {
        name: "get memtable hit",
        caches_records: true,
        shares_nothing: true,
        read: |keyspace, number| get(keyspace, MEMTABLE + number),
    },
    Reading {
        name: "get record hit",
        caches_records: true,
        shares_nothing: true,
        read: get,
    },
    Reading {
        name: "get block hit",
        caches_records: false,
        shares_nothing: false,
        read: get,
    },
    Reading {
        name: "get miss",
        caches_records: false,
        shares_nothing: false,
        read: |keyspace, number| Ok(!get(keyspace, ABSENT + number)?),
    },
    Reading {
        name: "scan of 50",
        caches_records: false,
        shares_nothing: false,
        read: |keyspace, number| {
            let mut range = keyspace.range(key(number)..);
            for _ in 0..SHORT {
                if black_box(range.next_ref()?).is_none() {
                    break;
                }
            }
            Ok(true)
        },
    },
];

fn get(keyspace: &Keyspace, number: u64) -> Result<bool> {
    Ok(black_box(keyspace.get(black_box(key(number)))?).is_some())
}

/// Where stores say whose turn it is: each place has a line of its own.
#[repr(align(128))]
struct Marks([Mark; 3]);

#[repr(align(128))]
struct Mark(AtomicU8);

const END: usize = 2;
static MARKS: Marks = Marks([const { Mark(AtomicU8::new(0)) }; 3]);

impl Marks {
    fn write(&self, at: usize) {
        self.0[at].0.fetch_add(1, Ordering::SeqCst);
    }

    fn address(&self, at: usize) -> u64 {
        (&raw const self.0[at].0) as usize as u64
    }
}

fn options(caches_records: bool) -> Options {
    Options::new()
        .memory(16 << 20)
        .group_bytes(16 << 10)
        .ring_bytes(1 << 20)
        .log_segment_bytes(1 << 20)
        .fanout(4)
        .record_cache(caches_records)
        .checkpoint_distance(CheckpointDistance::Fixed(8))
        .background_threads(1)
}

/// Builds the store: tiered buffers of several runs, over leaves.
fn build(path: &Path) -> Result<()> {
    let (env, _sim) = Env::simulated(1);
    let database = options(true).open_on(env.clone(), SteadyDisk::open(&env, path)?)?;
    let stored = KeyspaceOptions::new().structure(StructureKind::Tiered);
    let keyspace = database.create_keyspace("k", stored)?;
    for number in 0..RECORDS {
        let key = key(number);
        keyspace.put(key, value(&key))?;
        if number % MEMTABLE_RECORDS == 0 {
            database.checkpoint()?;
        }
    }
    database.close().map(drop)
}

/// Watches every reading. Returns whether no line is written by both readers.
pub fn watch_all(scratch: &Path) -> std::result::Result<bool, String> {
    build(&scratch.join(STORE)).map_err(|e| format!("building the store: {e}"))?;
    let mut holds = true;
    println!("{:18} {:>14} {:>12}", "", "lines written", "by both");
    for reading in &READINGS {
        let turns = watch(reading, scratch)?;
        let both: Vec<_> = turns.both().collect();
        println!(
            "{:18} {:14} {:12}",
            reading.name,
            turns.lines.len(),
            both.len()
        );
        let mut places: Vec<[u64; 2]> = both.iter().map(|(_, writers)| *writers).collect();
        places.sort_unstable();
        places.dedup();
        for writers in &places {
            println!("    by instructions {writers:x?}");
        }
        holds &= both.is_empty() || !reading.shares_nothing;
    }
    Ok(holds)
}

/// The lines that each of two readers wrote, and the instructions that wrote them.
#[derive(Default)]
struct Turns {
    marks: Option<[u64; 3]>,
    /// Whose turn it is.
    reader: Option<usize>,
    begun: [usize; 2],
    instruction: u64,
    lines: BTreeMap<u64, [Option<u64>; 2]>,
}

impl Turns {
    /// Takes a line of lackey's output.
    fn take(&mut self, text: &[u8]) -> Option<()> {
        let (kind, rest) = text.split_at_checked(3)?;
        let address = rest.split(|byte| *byte == b',').next()?;
        let address = || u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok();
        match kind {
            b"I  " if self.reader.is_some() => self.instruction = address()?,
            b" S " | b" M " => {
                let address = address()?;
                let marks = self.marks?;
                if let Some(mark) = marks.iter().position(|mark| *mark == address) {
                    self.reader = (mark != END).then_some(mark);
                    if let Some(reader) = self.reader {
                        self.begun[reader] += 1;
                    }
                } else if let Some(reader) = self.reader {
                    let line = self.lines.entry(address / LINE_BYTES * LINE_BYTES);
                    line.or_default()[reader].get_or_insert(self.instruction);
                }
            }
            _ => {}
        }
        Some(())
    }

    fn both(&self) -> impl Iterator<Item = (u64, [u64; 2])> {
        (self.lines.iter()).filter_map(|(line, writers)| match *writers {
            [Some(first), Some(second)] => Some((*line, [first, second])),
            _ => None,
        })
    }
}

fn watch(reading: &Reading, scratch: &Path) -> std::result::Result<Turns, String> {
    let program = env::current_exe().map_err(|e| e.to_string())?;
    let directory = scratch.join("lines-run");
    let fail = |e: io::Error| format!("{}: {e}", directory.display());
    fs::create_dir_all(directory.join(STORE)).map_err(fail)?;
    for entry in fs::read_dir(scratch.join(STORE)).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        fs::copy(entry.path(), directory.join(STORE).join(entry.file_name())).map_err(fail)?;
    }
    let mut child = valgrind()
        .args(["--tool=lackey", "--trace-mem=yes", "--vgdb=no"])
        .arg(program)
        .args([RUN, reading.name])
        .current_dir(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("valgrind does not run: {e}"))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err("a child lacks its pipes".into());
    };
    let mut turns = Turns::default();
    let (known, marks) = mpsc::channel();
    let outcome = thread::scope(|scope| {
        // The child says where its marks are, and goes on once that is known here.
        scope.spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let places = line.split_whitespace().map(str::parse);
            let places: Vec<u64> = places.map_while(std::result::Result::ok).collect();
            let _ = known.send(<[u64; 3]>::try_from(places).ok());
            let _ = stdin.write_all(b"\n");
        });
        let (mut reader, mut line) = (BufReader::with_capacity(1 << 20, stderr), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 {
            if turns.marks.is_none() {
                turns.marks = marks.try_recv().ok().flatten();
            }
            turns.take(line.trim_ascii_end());
            line.clear();
        }
        Ok(())
    });
    outcome.map_err(fail)?;
    let status = child.wait().map_err(fail)?;
    fs::remove_dir_all(&directory).map_err(fail)?;
    match status.success() && turns.begun == [1, 1] {
        true => Ok(turns),
        false => Err(format!(
            "{}: {status}, turns {:?}",
            reading.name, turns.begun
        )),
    }
}

/// A child: two readers by turns.
pub fn run(name: &str) -> Result<()> {
    let reading = (READINGS.iter()).find(|reading| reading.name == name);
    let reading = reading.ok_or_else(|| Error::invalid("there is no such reading"))?;
    let (env, sim) = Env::simulated(2);
    let disk = SteadyDisk::open(&env, Path::new(STORE))?;
    let database = ManuallyDrop::new(options(reading.caches_records).open_on(env, disk)?);
    sim.set_breathing(false);
    let keyspace = ManuallyDrop::new(database.keyspace("k")?);
    for number in 0..KEYS {
        let key = key(MEMTABLE + number);
        keyspace.put(key, value(&key))?;
    }
    let places = [0, 1, END].map(|at| MARKS.address(at).to_string());
    println!("{}", places.join(" "));
    let said = io::stdout()
        .flush()
        .and_then(|()| io::stdin().read_line(&mut String::new()));
    said.map_err(|e| Error::io("the parent does not answer", e))?;
    let turn = |reader: usize, is_watched: bool| -> Result<()> {
        if is_watched {
            MARKS.write(reader);
        }
        for number in 0..KEYS {
            if !(reading.read)(&keyspace, number)? {
                return Err(Error::internal(
                    "a read found what is not there, or the reverse",
                ));
            }
        }
        if is_watched {
            MARKS.write(END);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let readers = [0, 1].map(|reader| {
            let (begin, begins) = mpsc::channel::<bool>();
            let (done, dones) = mpsc::channel();
            let turn = &turn;
            scope.spawn(move || {
                for is_watched in begins {
                    let _ = done.send(turn(reader, is_watched));
                }
            });
            (begin, dones)
        });
        for turn in 0..=UNWATCHED {
            let is_watched = turn == UNWATCHED;
            for (begin, dones) in &readers {
                let gone = |_| Error::internal("a reader is gone");
                begin.send(is_watched).map_err(|_| gone(mpsc::RecvError))?;
                dones.recv().map_err(gone)??;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_both_readers_write_are_found() {
        let mut turns = Turns {
            marks: Some([0x1000, 0x2000, 0x3000]),
            ..Turns::default()
        };
        let trace = "\
            ==1== Lackey\n S 5000,8\n M 1000,1\nI  400100,4\n S 5000,8\n L 5040,8\n S 6010,4\n \
             M 3000,1\n S 6010,4\n M 2000,1\nI  400200,3\n M 6000,8\n S 7000,8\n S 3000,1\n";
        for line in trace.lines() {
            let line = match line.trim_start() {
                trimmed if trimmed.len() < line.len() => format!(" {trimmed}"),
                trimmed => trimmed.to_owned(),
            };
            turns.take(line.as_bytes());
        }
        assert_eq!(turns.begun, [1, 1]);
        assert_eq!(turns.lines.len(), 3);
        assert!(turns.both().eq([(0x6000, [0x40_0100, 0x40_0200])]));
    }
}
