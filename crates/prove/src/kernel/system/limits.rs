//! Limits of a process: too few descriptors (`EMFILE`), files that may not grow (`EFBIG`). The
//! error is clear, reads go on, writes resume without the limit, and every acknowledged write is
//! there (D10).
//!
//! A child process (this binary) lives under the limit and checks its own answers; this process
//! judges what it leaves.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use terrapin::{Error, ErrorKind, Options};

use super::store::{Store, Tale, small};
use crate::Find;
use crate::kernel::child::pause;
use crate::kernel::file_system::run;
use crate::kernel::judge::{Content, Survives, sound};
use crate::kernel::life::copy;

/// The first argument of a limited child. Its task, the directory, and the number of existing steps
/// follow.
const LIMITED: &str = "--kernel-limited";
const SEED: u64 = 5;
/// Steps before a limit comes, and after it is gone.
const STEPS: u32 = 150;
/// Steps that meet any limit early.
const STEPS_MAX: u32 = 8_000;
/// How often writes are retried, each tenth of a second.
const TRIES: u32 = 100;
/// Descriptors of a child: too few to start a program, up to the most that an opening database
/// needs.
const DESCRIPTORS: std::ops::Range<u32> = 4..11;
/// Descriptors of a child that uses up those its database leaves.
const DESCRIPTORS_TO_USE_UP: u32 = 64;

/// The smallest sizes; a write waits no longer than this for a merge that cannot succeed.
fn options() -> Options {
    small().options().stall_limit(Duration::from_secs(1))
}

/// A limit, and the system's name of its breach.
struct Limit {
    /// The child's task.
    does: &'static str,
    /// The `prlimit` options the child starts with.
    from_the_start: String,
    breach: &'static str,
}

const NO_DESCRIPTORS: &str = "Too many open files";
const TOO_LARGE: &str = "File too large";

/// Opens with few descriptors, and databases that run out of them.
pub fn descriptors(scratch: &Path) -> Result<u64, Find> {
    let mut cases = 0;
    let few = DESCRIPTORS.map(|count| Limit {
        does: "open",
        from_the_start: format!("--nofile={count}"),
        breach: NO_DESCRIPTORS,
    });
    cases += opens(scratch, few)?;
    lives(
        scratch,
        &Limit {
            does: "use-up-descriptors",
            from_the_start: format!("--nofile={DESCRIPTORS_TO_USE_UP}"),
            breach: NO_DESCRIPTORS,
        },
    )?;
    Ok(cases + 1)
}

/// Opens whose files may not grow, and databases whose files may not continue to grow.
pub fn file_size(scratch: &Path) -> Result<u64, Find> {
    let sizes = [0, 4, 16, 40, 65, 200].map(|kib| Limit {
        does: "open",
        from_the_start: format!("--fsize={}", kib << 10),
        breach: TOO_LARGE,
    });
    let mut cases = opens(scratch, sizes)?;
    for does in ["stop-the-data", "stop-all-files"] {
        lives(
            scratch,
            &Limit {
                does,
                from_the_start: "--fsize=unlimited".to_owned(),
                breach: TOO_LARGE,
            },
        )?;
        cases += 1;
    }
    Ok(cases)
}

/// A closed store, a killed one, and none, opened under each limit.
fn opens(scratch: &Path, limits: impl IntoIterator<Item = Limit>) -> Result<u64, Find> {
    let place = |name: &str| scratch.join(name);
    let mut store = Store::open(&place("live"), &options(), Tale::of(SEED, 0))?;
    store.write(STEPS)?;
    store.copy_at_rest(&place("killed"))?;
    store.database().close()?;
    store.copy_at_rest(&place("closed"))?;
    drop(store);
    fs::create_dir_all(place("none"))?;
    let work = place("work");
    let mut cases = 0;
    for limit in limits {
        for (from, steps) in [("closed", STEPS), ("killed", STEPS), ("none", 0)] {
            let _ = fs::remove_dir_all(&work);
            copy(&place(from), &work)?;
            let outcome = limit
                .run(&work, steps)
                .and_then(|steps| left(&work, steps, from == "none"));
            let option = &limit.from_the_start;
            outcome.map_err(|find| Find(format!("{from} opened with {option}: {find}")))?;
            cases += 1;
        }
    }
    fs::remove_dir_all(place("live"))?;
    Ok(cases)
}

/// A database meets the limit while it writes.
fn lives(scratch: &Path, limit: &Limit) -> Result<(), Find> {
    let directory = scratch.join("live");
    limit
        .run(&directory, 0)
        .and_then(|steps| left(&directory, steps, false))
        .map_err(|find| Find(format!("{}: {find}", limit.does)))?;
    fs::remove_dir_all(&directory)?;
    Ok(())
}

/// Without a limit, the child's store holds its steps and takes more.
fn left(directory: &Path, steps: u32, may_be_nothing: bool) -> Result<(), Find> {
    sound(directory, "afterwards", may_be_nothing)?;
    let mut store = Store::open(directory, &options(), Tale::of(SEED, steps))
        .map_err(|error| Find(format!("the open afterwards: {error}")))?;
    agrees(&store, "afterwards")?;
    store.write(20)?;
    agrees(&store, "after more steps")
}

fn agrees(store: &Store, when: &str) -> Result<(), Find> {
    let content =
        Content::read(store.database()).map_err(|find| Find(format!("reads {when}: {find}")))?;
    store
        .tale()
        .check(&content, Survives::Acknowledged)
        .map_err(|find| Find(format!("{when}: {find}")))
}

impl Limit {
    /// Runs a child. Returns how many steps its store then has.
    fn run(&self, directory: &Path, steps: u32) -> Result<u32, Find> {
        // A process that ignores the signal gets the error instead. Only a shell can ignore it for
        // the program that replaces the shell.
        let script = "trap '' XFSZ && exec prlimit \"$@\"";
        let output = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&self.from_the_start)
            .arg(std::env::current_exe()?)
            .args([LIMITED, self.does])
            .arg(directory)
            .args([steps.to_string(), self.breach.to_owned()])
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let status = output.status;
            return Err(Find(format!("the child, {status}: {}", text.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
    }
}

/// Does a child's work, if the arguments ask for it. The number of its store's steps goes to
/// standard output.
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, role, does, directory, steps, breach] = arguments else {
        return None;
    };
    if role != LIMITED {
        return None;
    }
    let work = || -> Result<u32, Find> {
        let under = Under {
            directory: Path::new(directory),
            breach,
        };
        match does.as_str() {
            "open" => under.open(steps.parse()?),
            "use-up-descriptors" => under.live(
                || Ok(use_up_descriptors()),
                |files| {
                    drop(files);
                    Ok(())
                },
            ),
            // More than a log segment has, less than the data needs.
            "stop-the-data" => under.live(|| allow("65536"), |()| allow("unlimited")),
            "stop-all-files" => under.live(|| allow("8192"), |()| allow("unlimited")),
            _ => Err(Find(format!("nothing is called {does}"))),
        }
    };
    Some(match work() {
        Ok(steps) => {
            println!("{steps}");
            ExitCode::SUCCESS
        }
        Err(find) => {
            eprintln!("{find}");
            ExitCode::FAILURE
        }
    })
}

/// Opens files until there are no descriptors left.
fn use_up_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Lets this process's files grow up to this size.
fn allow(bytes: &str) -> Result<(), Find> {
    let id = std::process::id().to_string();
    run(Command::new("prlimit").args(["--pid", &id, &format!("--fsize={bytes}:")]))
}

/// A child's database, and the system's name for the breach of its limit.
struct Under<'a> {
    directory: &'a Path,
    breach: &'a str,
}

impl Under<'_> {
    /// An error caused by the limit names it. A log that failed for another reason than descriptors
    /// takes no more writes; a data file that fails delays writes.
    fn clear(&self, error: &Error, what: &str) -> Result<(), Find> {
        let kind = match error.kind() {
            ErrorKind::Io => true,
            ErrorKind::Poisoned | ErrorKind::Stalled => self.breach != NO_DESCRIPTORS,
            _ => false,
        };
        if kind && error.to_string().contains(self.breach) {
            return Ok(());
        }
        Err(Find(format!("{what}: {error}")))
    }

    /// Opens under the limit, reads, and writes until a refusal.
    fn open(&self, steps: u32) -> Result<u32, Find> {
        let tale = Tale::of(SEED, steps);
        let mut store = match Store::open(self.directory, &options(), tale) {
            Ok(store) => store,
            Err(error) => return self.clear(&error, "the open").map(|()| steps),
        };
        agrees(&store, "under the limit")?;
        if let Err(error) = store.write(STEPS) {
            self.clear(&error, "a write")?;
            agrees(&store, "after an error")?;
        }
        Ok(store.steps())
    }

    /// Writes, meets the limit, reads, and continues without it.
    fn live<T>(
        &self,
        limit: impl FnOnce() -> Result<T, Find>,
        lift: impl FnOnce(T) -> Result<(), Find>,
    ) -> Result<u32, Find> {
        let mut store = Store::open(self.directory, &options(), Tale::of(SEED, 0))?;
        store.write(STEPS)?;
        let limited = limit()?;
        match store.write(STEPS_MAX) {
            Ok(()) => return Err(Find("the limit is not met".to_owned())),
            Err(error) => self.clear(&error, "a write")?,
        }
        agrees(&store, "under the limit")?;
        lift(limited)?;
        // A write that needs a merge fails at once until the merge was retried. Writes to the other
        // keyspace pass.
        let (mut tries, mut written) = (0, 0);
        while written < STEPS {
            let Err(error) = store.write(1) else {
                written += 1;
                continue;
            };
            self.clear(&error, "a write without the limit")?;
            if error.kind() == ErrorKind::Poisoned {
                store = store.reopened(&options())?;
            }
            tries += 1;
            if tries == TRIES {
                return Err(Find(format!("writes do not resume: {error}")));
            }
            pause(100_000_000);
        }
        agrees(&store, "without the limit")?;
        Ok(store.steps())
    }
}
