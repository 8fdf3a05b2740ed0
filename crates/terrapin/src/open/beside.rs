//! Opening a reader beside a writer of another process.
//!
//! 1. The reader tries the shared lock of the data file. With it, no writer is there, and the
//!    reader says in the table which generation the superblock holds. Without it, the writer says
//!    that.
//! 2. It takes a slot for that generation ([`ReaderTable`]), and reads the superblock of that
//!    generation, the catalog, the trees' nodes, and the log.
//! 3. It says that it has copied the log, and gives up the shared lock.
//!
//! Any step may find that the writer went on. Then all begin again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrapin_base::{Condition, Env, Error, ErrorKind, Generation, Result};
use terrapin_disk::{Disk, File, OpenOptions, ReaderSlot, ReaderTable};
use terrapin_pages::{DATA_FILE, PageStore, Presence};

use crate::api::database::Database;
use crate::engine::gate::Gate;
use crate::engine::readers::READERS_FILE;
use crate::open::directory::open_directory;
use crate::open::files::absent;
use crate::types::options::Options;

/// How long a reader tries to open beside a writer that goes on, in nanoseconds.
const TRY_NS: u64 = 5_000_000_000;
/// Time before the second try, in nanoseconds. Each later try waits twice as long.
const RETRY_NS: u64 = 2_000_000;
/// Number of tries that may find damage. The writer changes names of log files while a reader
/// lists them, which looks like damage once.
const DAMAGE_MAX: u32 = 4;

/// # Reading beside a writer
impl Options {
    /// Opens the database for reading, while another process may write it.
    ///
    /// The reader sees one moment: all writes that were acknowledged before this call, apart from
    /// those of [`Durability::None`](crate::Durability::None) that no checkpoint has merged. Later
    /// writes come with [`Database::refresh`]. The reader replays the log into memory, which must
    /// hold it.
    ///
    /// The writer keeps the space of what the reader sees. It takes that space away when the disk
    /// is short of space, and when the reader is older than [`Options::reader_age_max`] of the
    /// writer. A read of the device then fails with [`ErrorKind::Overtaken`]. A writer that opens
    /// the database takes the space of readers of an earlier writer, too.
    ///
    /// At most 64 handles read beside a writer. Without write access to the directory, on a network
    /// file system, and beyond 64, this call works as [`Options::read_only`] does: readers exclude
    /// writers.
    ///
    /// # Errors
    ///
    /// As [`Options::open`]. [`ErrorKind::Overtaken`] if the writer is opening, or makes a new
    /// checkpoint faster than the reader opens, for 5 s.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-open-reader-{}", std::process::id()));
    /// let writer = terrapin::Database::open(&directory)?;
    /// writer.default_keyspace().put("apple", "sweet")?;
    /// // In another process, as a rule:
    /// let reader = terrapin::Options::new().open_reader(&directory)?;
    /// assert_eq!(reader.default_keyspace().get("apple")?.as_deref(), Some(&b"sweet"[..]));
    /// writer.default_keyspace().put("apple", "sour")?;
    /// let reader = reader.refresh()?;
    /// assert_eq!(reader.default_keyspace().get("apple")?.as_deref(), Some(&b"sour"[..]));
    /// # reader.close()?;
    /// # writer.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn open_reader(&self, path: impl AsRef<Path>) -> Result<Database> {
        self.open_reader_as(path.as_ref(), Alone::LetsWritersIn)
    }

    /// Opens the database for a command that reads: as [`Options::read_only`] does if no process
    /// writes, else as [`Options::open_reader`] does.
    #[doc(hidden)]
    pub fn open_to_read(&self, path: impl AsRef<Path>) -> Result<Database> {
        self.open_reader_as(path.as_ref(), Alone::ExcludesWriters)
    }

    /// Opens a reader on a disk of the caller. For tests.
    #[doc(hidden)]
    pub fn open_reader_on(&self, env: Env, disk: Arc<dyn Disk>) -> Result<Database> {
        open_reader(&Reader {
            options: self.clone().read_only(true),
            env,
            disk,
            path: None,
            alone: Alone::LetsWritersIn,
        })
    }

    fn open_reader_as(&self, path: &Path, alone: Alone) -> Result<Database> {
        let env = Env::threads();
        let disk = open_directory(&env, path, false)?;
        open_reader(&Reader {
            options: self.clone().read_only(true),
            env,
            disk,
            path: Some(path.to_path_buf()),
            alone,
        })
    }
}

impl Database {
    /// Opens the newest state of a database that [`Options::open_reader`] opened. This handle, and
    /// all that comes from it, goes on to see what it saw. Drop it soon: it keeps space.
    ///
    /// The call costs as much as an open, and the caches of the new handle are empty. For other
    /// databases it returns a clone.
    ///
    /// # Errors
    ///
    /// As [`Options::open_reader`], and `Closed`.
    pub fn refresh(&self) -> Result<Database> {
        self.core().health.check_open()?;
        match self.owner.reopen.get() {
            Some(reopen) => Ok(Database { owner: reopen()? }),
            None => Ok(self.clone()),
        }
    }

    /// Whether the database is read beside a writer, which may take the space of what it sees.
    #[must_use]
    pub fn is_beside_writer(&self) -> bool {
        self.owner.reopen.get().is_some()
    }
}

/// What a reader does if no process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    /// It takes a slot, so that a writer can come.
    LetsWritersIn,
    /// It keeps the shared lock, and writes nothing (D11).
    ExcludesWriters,
}

/// How to open a reader.
#[derive(Clone)]
struct Reader {
    options: Options,
    env: Env,
    disk: Arc<dyn Disk>,
    path: Option<PathBuf>,
    alone: Alone,
}

fn open_reader(reader: &Reader) -> Result<Database> {
    let Reader {
        options,
        env,
        disk,
        path,
        alone,
    } = reader;
    options.settle()?;
    let mut tries = Tries::new(env);
    loop {
        let tried = match enter(disk, *alone) {
            Ok(Entered::Alone) => {
                return super::open(options, env.clone(), disk.clone(), path.clone());
            }
            Ok(Entered::Beside(place)) => {
                let gate = Gate::beside(disk.clone(), place.slot.clone());
                let at = Some(place.generation());
                let opened = super::open_at(options, env.clone(), gate, path.clone(), at);
                // What a revoked reader met is no damage.
                let opened = place.slot.check().and(opened);
                opened.and_then(|opened| place.slot.log_is_copied().map(|()| opened))
            }
            Err(error) => Err(error),
        };
        match tried {
            Ok(opened) => {
                let again = reader.clone();
                let reopen = move || open_reader(&again).map(|opened| opened.owner);
                let _ = opened.owner.reopen.set(Box::new(reopen));
                return Ok(opened);
            }
            Err(error) => tries.again(env, error)?,
        }
    }
}

/// The tries of a reader that the writer overtakes.
pub(crate) struct Tries {
    until_ns: u64,
    wait_ns: u64,
    damaged: u32,
}

impl Tries {
    pub(crate) fn new(env: &Env) -> Self {
        Tries {
            until_ns: env.now_ns().saturating_add(TRY_NS),
            wait_ns: RETRY_NS,
            damaged: 0,
        }
    }

    /// Waits before the next try. Returns the error if there is none.
    pub(crate) fn again(&mut self, env: &Env, error: Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Overtaken => {}
            ErrorKind::Corrupt | ErrorKind::NotFound if self.damaged < DAMAGE_MAX => {
                self.damaged += 1;
            }
            _ => return Err(error),
        }
        let now_ns = env.now_ns();
        if now_ns >= self.until_ns {
            return Err(error);
        }
        env.wait(&Condition::delay_until(now_ns + self.wait_ns))?;
        self.wait_ns *= 2;
        Ok(())
    }
}

/// A reader's place beside a writer.
pub(crate) struct Place {
    pub(crate) slot: Arc<ReaderSlot>,
    /// The shared lock, if no writer was there: none comes until the log is copied.
    _alone: Option<Arc<dyn File>>,
}

impl Place {
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.slot.generation())
    }
}

pub(crate) enum Entered {
    /// Open as every read-only open does.
    Alone,
    Beside(Place),
}

/// Takes a slot, if there is a writer or one shall be able to come.
pub(crate) fn enter(disk: &Arc<dyn Disk>, alone: Alone) -> Result<Entered> {
    match PageStore::presence(disk)? {
        Presence::Present => {}
        _ => return Err(absent(disk)?),
    }
    let options = OpenOptions {
        shared: true,
        at_once: true,
        ..OpenOptions::default()
    };
    let lock = match disk.open(DATA_FILE, options) {
        Ok(_) if alone == Alone::ExcludesWriters => return Ok(Entered::Alone),
        Ok(file) => Some(file),
        Err(error) if error.kind() == ErrorKind::Locked => None,
        Err(error) => return Err(error),
    };
    let table = match disk.open_readers(READERS_FILE, false) {
        Ok(table) => table,
        Err(error) if is_refusal(&error) => {
            tracing::info!(%error, "cannot read beside a writer");
            return Ok(Entered::Alone);
        }
        Err(error) => return Err(error),
    };
    let superblocks: Vec<_> = PageStore::superblocks(disk)?.collect();
    let Some(newest) = superblocks.iter().max_by_key(|found| found.generation) else {
        return Ok(Entered::Alone); // which says what is wrong
    };
    if !table.is_of(newest.database_id) {
        // No writer has opened this copy, or none could make the table.
        return Ok(Entered::Alone);
    }
    if lock.is_some() && table.current() != Some(newest.generation.0) {
        table.announce(newest.generation.0);
    }
    let slot = match current(&table).and_then(|generation| table.take(generation)) {
        Ok(slot) => Arc::new(slot),
        Err(error) if is_refusal(&error) => {
            tracing::info!(%error, "cannot read beside a writer");
            return Ok(Entered::Alone);
        }
        Err(error) => return Err(error),
    };
    Ok(Entered::Beside(Place { slot, _alone: lock }))
}

/// The generation that the writer announces.
fn current(table: &ReaderTable) -> Result<u64> {
    table.current().ok_or_else(|| {
        let message = "another process is opening the database for writing; try again";
        Error::new(ErrorKind::Overtaken, message)
    })
}

/// Whether this process, or this file system, cannot have slots.
fn is_refusal(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Io, Locked, NotFound, PermissionDenied, Unsupported};
    matches!(
        error.kind(),
        Corrupt | Io | Locked | NotFound | PermissionDenied | Unsupported
    )
}
