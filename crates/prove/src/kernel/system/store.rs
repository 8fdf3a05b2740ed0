//! A store that one thread of this process writes: a seed's story, judged like that of a child.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use terrapin::{Database, ErrorKind, Options, Result};
use terrapin_base::Error;
use terrapin_model::Configuration;

use crate::Find;
use crate::kernel::child::{Handles, pause};
use crate::kernel::judge::{Content, Survives, judge};
use crate::kernel::life::copy;
use crate::kernel::plan::Story;
use crate::kernel::report::{Acknowledged, Record};
use crate::place::names_a_place;

/// The thread of the story that is played.
const WRITER: usize = 1;

/// An open store and its acknowledgements.
pub struct Store {
    directory: PathBuf,
    database: Database,
    handles: Handles,
    tale: Tale,
}

/// What was written and acknowledged.
#[derive(Clone)]
pub struct Tale {
    seed: u64,
    acknowledged: Acknowledged,
}

/// The smallest sizes, so that few records make many files.
#[must_use]
pub fn small() -> Configuration {
    Configuration {
        segment_bytes: 16 << 10,
        sync_interval_ms: 3_600_000,
        ..Configuration::small()
    }
}

impl Store {
    /// Creates one.
    pub fn new(directory: &Path, configuration: &Configuration, seed: u64) -> Result<Self> {
        Store::open(directory, &configuration.options(), Tale::of(seed, 0))
    }

    /// Opens one whose story so far is known.
    pub fn open(directory: &Path, options: &Options, tale: Tale) -> Result<Self> {
        let database = options.open(directory)?;
        Ok(Store {
            directory: directory.to_path_buf(),
            handles: Handles::new(&database)?,
            database,
            tale,
        })
    }

    /// Opens it again after it was closed.
    pub fn reopened(self, options: &Options) -> Result<Self> {
        let Store {
            directory,
            database,
            handles,
            tale,
        } = self;
        drop((handles, database));
        Store::open(&directory, options, tale)
    }

    /// Continues by this many steps.
    pub fn write(&mut self, steps: u32) -> Result<()> {
        for _ in 0..steps {
            let index = self.steps();
            let story = Story::new(self.tale.seed);
            self.handles.step(&story.step(0, WRITER, index))?;
            self.tale.take(index);
        }
        Ok(())
    }

    /// How many steps were acknowledged.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.tale.acknowledged.steps[WRITER].len() as u32
    }

    /// The open database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Copies the files once nothing changes them, as if the process had been killed then.
    pub fn copy_at_rest(&self, to: &Path) -> std::result::Result<(), Find> {
        let attempt = || -> std::io::Result<bool> {
            let before = listing(&self.directory)?;
            pause(20_000_000);
            if before != listing(&self.directory)? {
                return Ok(false);
            }
            let _ = fs::remove_dir_all(to);
            copy(&self.directory, to)?;
            Ok(before == listing(&self.directory)?)
        };
        for _ in 0..200 {
            match attempt() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // A file disappeared between two checks.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Find("an idle database keeps changing its files".to_owned()))
    }

    /// What was written so far.
    #[must_use]
    pub fn tale(&self) -> Tale {
        self.tale.clone()
    }
}

impl Tale {
    /// The first steps of a seed's story.
    #[must_use]
    pub fn of(seed: u64, steps: u32) -> Self {
        let mut acknowledged = Acknowledged::default();
        acknowledged.take(Record::Opened);
        let mut tale = Tale { seed, acknowledged };
        (0..steps).for_each(|index| tale.take(index));
        tale
    }

    fn take(&mut self, index: u32) {
        let began = 2 * u64::from(index);
        self.acknowledged.take(Record::Done {
            thread: WRITER as u8,
            index,
            began,
            ended: began + 1,
        });
    }

    /// Whether the content is right: everything written, or with [`Survives::Synced`] a prefix with
    /// everything synced.
    pub fn check(&self, found: &Content, survives: Survives) -> std::result::Result<(), Find> {
        let story = Story::new(self.seed);
        let nothing = Content::default();
        judge(&story, 0, &nothing, &self.acknowledged, found, survives)
    }
}

/// Names, lengths and times of the last changes.
fn listing(directory: &Path) -> std::io::Result<BTreeMap<OsString, (u64, SystemTime)>> {
    fs::read_dir(directory)?
        .map(|entry| {
            let entry = entry?;
            let metadata = entry.metadata()?;
            Ok((entry.file_name(), (metadata.len(), metadata.modified()?)))
        })
        .collect()
}

/// Whether an error says that the files are damaged, and where, or that one is missing.
#[must_use]
pub fn refuses_files(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Corrupt => names_a_place(&error.to_string()),
        ErrorKind::NotFound
        | ErrorKind::DatabaseNotFound
        | ErrorKind::NotADatabase
        | ErrorKind::NewerFormat => true,
        _ => false,
    }
}
