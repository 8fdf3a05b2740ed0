//! Memory: the process stays within the promise for its budget, also with very long records. The
//! measure is the system's peak resident memory of a separate process (this binary).

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use terrapin::Options;
use terrapin_model::Random;

use crate::Find;

/// The first argument of a child; the directory and the form of the keys follow.
const MEASURED: &str = "--kernel-measured";
const BUDGET_BYTES: u64 = 64 << 20;
/// The promise (README, *Limits*).
const PROMISED_BYTES: u64 = BUDGET_BYTES + BUDGET_BYTES / 10 + (64 << 20);
const OPERATIONS: u64 = 4000;
const KEYS: u64 = 6000;

/// Keys of 50 to 65 KB that differ in their first bytes, and in bytes behind 50 KB that all share.
pub fn long_keys(scratch: &Path) -> Result<u64, Find> {
    for form in ["early", "late"] {
        let directory = scratch.join("measured");
        let output = Command::new(std::env::current_exe()?)
            .arg(MEASURED)
            .arg(&directory)
            .arg(form)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(Find(format!("the child, {}: {said}", output.status)));
        }
        let peak: u64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
        if peak > PROMISED_BYTES {
            return Err(Find(format!(
                "keys that differ {form}: {peak} bytes at the peak, where {PROMISED_BYTES} are promised"
            )));
        }
        fs::remove_dir_all(&directory)?;
    }
    Ok(2)
}

/// Does a child's work, if the arguments ask for it. The peak in bytes goes to standard output.
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, role, directory, form] = arguments else {
        return None;
    };
    if role != MEASURED {
        return None;
    }
    Some(match work(Path::new(directory), form == "late") {
        Ok(peak) => {
            println!("{peak}");
            ExitCode::SUCCESS
        }
        Err(find) => {
            eprintln!("{find}");
            ExitCode::FAILURE
        }
    })
}

fn key(number: u64, late: bool) -> Vec<u8> {
    let mut random = Random::new(number);
    let (mark, bytes) = (random.bits().to_be_bytes(), 50_000 + random.below(15_000));
    let mut key = vec![b'k'; bytes as usize];
    let at = if late { 49_000 } else { 0 };
    key[at..at + mark.len()].copy_from_slice(&mark);
    key
}

/// Two threads put, delete, get, and read ranges.
fn work(directory: &Path, late: bool) -> Result<u64, Find> {
    let database = Options::new().memory(BUDGET_BYTES).open(directory)?;
    let keyspace = database.default_keyspace();
    let thread = |seed: u64| -> terrapin::Result<()> {
        let mut random = Random::new(seed);
        for _ in 0..OPERATIONS / 2 {
            let key = key(random.below(KEYS), late);
            match random.below(20) {
                0..11 => keyspace.put(&key, vec![7; random.below(4000) as usize])?,
                11..15 => keyspace.delete(&key)?,
                15..18 => drop(keyspace.get(&key)?),
                _ => keyspace
                    .range(&key..)
                    .take(20)
                    .try_for_each(|r| r.map(drop))?,
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| thread(2));
        let own = thread(1);
        let other = other.join();
        own.and(other.unwrap_or_else(|_| Err(terrapin::Error::internal("a thread panicked"))))
    })?;
    database.close()?;
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = kib.unwrap_or_default().parse()?;
    Ok(kib << 10)
}
