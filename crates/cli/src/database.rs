//! How commands open a database and find a keyspace in it.

use std::path::{Path, PathBuf};

use clap::Args;
use terrapin::{CheckpointDistance, Database, Keyspace, Options};
use terrapin_base::{Error, ErrorKind, Result};

use crate::arguments::{self, CompressionName};
use crate::{output, own_files};

/// The keyspace that every database has.
const KEYSPACE_DEFAULT: &str = "default";

/// The database that a command works on; one that it writes to has [`WriterArgs`].
#[derive(Args, Clone)]
pub struct DatabaseArgs {
    /// Directory of the database
    #[arg(value_name = "DB")]
    pub path: PathBuf,
    /// Memory budget, 8MiB or more; the system's page cache comes on top
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = arguments::size)]
    pub memory: u64,
}

impl DatabaseArgs {
    fn options(&self) -> Options {
        // A command is over soon: what the next one reads again, the system has.
        Options::new().memory(self.memory).system_cache(true)
    }

    /// Opens what is there for reading only: nothing is written, the log is replayed in memory.
    pub fn open_to_read(&self) -> Result<Database> {
        own_files::refuse_std(&self.path)?;
        self.options().read_only(true).open(&self.path)
    }
}

/// Closes a database, and warns where the next open has something to do that this close could not.
pub fn close(database: &Database) -> Result<()> {
    let closed = database.close()?;
    if let Some(cause) = closed.cause {
        output::warn(format_args!(
            "closed, and nothing is lost, but the next open replays {} bytes of log: {cause}",
            closed.replay_bytes
        ));
    }
    Ok(())
}

/// The database that a command writes to. Whatever it writes itself, it may find a log whose
/// records are merged, too.
#[derive(Args, Clone)]
pub struct WriterArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Compression of the blocks that this command writes. Blocks that are there stay as they are
    /// until a merge rewrites them, and are read as they are. The database does not remember it:
    /// name it with each command that writes
    #[arg(long, value_enum, default_value = "none")]
    compression: CompressionName,
}

impl WriterArgs {
    fn options(&self) -> Options {
        let options = self.database.options();
        options.compression(self.compression.into())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.database.path
    }

    /// Opens what is there.
    pub fn open(&self) -> Result<Database> {
        own_files::refuse_std(self.path())?;
        let options = self.options().create_if_missing(false);
        options.open(&self.database.path)
    }

    /// Opens what is there, or creates it, and says so: a mistyped path shows.
    pub fn open_or_create(&self) -> Result<Database> {
        match unless_missing(self.open())? {
            Some(found) => Ok(found),
            None => self.create(self.options()),
        }
    }

    /// The same for a new keyspace of that name and χ: where a new database would have it already,
    /// or χ does not fit, nothing is created.
    pub fn open_or_create_for(
        &self,
        name: &str,
        chi: Option<CheckpointDistance>,
    ) -> Result<Database> {
        if let Some(found) = unless_missing(self.open())? {
            return Ok(found);
        }
        if name == KEYSPACE_DEFAULT {
            return Err(Error::invalid(
                "there is no database, and a new one would have that keyspace already: put or import creates both",
            )
            .with("keyspace", name)
            .with("directory", self.database.path.display()));
        }
        let options = self.options();
        self.create(match chi {
            Some(chi) => options.checkpoint_distance(chi),
            None => options,
        })
    }

    fn create(&self, options: Options) -> Result<Database> {
        let path = &self.database.path;
        let database = options.create_if_missing(true).open(path)?;
        output::notice(format_args!("created the database {}", path.display()));
        Ok(database)
    }
}

/// What was found; none where it is not there.
fn unless_missing<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DatabaseNotFound | ErrorKind::KeyspaceNotFound
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The keyspace that a command of `keyspace` is about.
#[derive(Args, Clone)]
pub struct NamedKeyspaceArgs {
    /// Keyspace
    #[arg(value_name = "NAME", value_parser = arguments::keyspace_name)]
    pub name: String,
}

/// The keyspace that a command works on.
#[derive(Args, Clone)]
pub struct KeyspaceArgs {
    /// Keyspace; a database always has one named default
    #[arg(
        long = "keyspace",
        short = 'k',
        value_name = "NAME",
        default_value = KEYSPACE_DEFAULT,
        value_parser = arguments::keyspace_name
    )]
    pub name: String,
}

impl KeyspaceArgs {
    /// The option that names the keyspace, after a space; empty for the default keyspace.
    #[must_use]
    pub fn option(&self) -> String {
        match self.name == KEYSPACE_DEFAULT {
            true => String::new(),
            false => format!(" -k {}", self.name),
        }
    }

    /// The keyspace, which must be there.
    pub fn find(&self, database: &Database) -> Result<Keyspace> {
        database.open_keyspace(&self.name)
    }

    /// The keyspace, created if it is not there, which is said.
    pub fn find_or_create(&self, database: &Database) -> Result<Keyspace> {
        if let Some(found) = unless_missing(self.find(database))? {
            return Ok(found);
        }
        let keyspace = database.keyspace(&self.name)?;
        output::notice(format_args!("created the keyspace {}", self.name));
        Ok(keyspace)
    }
}
