//! How commands open a database and find a keyspace.

use std::path::{Path, PathBuf};

use clap::Args;
use terrapin::{CheckpointDistance, Database, Keyspace, KeyspaceOptions, Options};
use terrapin_base::{Error, ErrorKind, Result};

use crate::arguments::{self, CompressionName};
use crate::{output, own_files};

/// The keyspace that every database has.
const KEYSPACE_DEFAULT: &str = "default";

/// The database of a command; one that is written has [`WriterArgs`].
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
        // A command ends soon: the page cache keeps the blocks for the next one.
        Options::new().memory(self.memory).system_cache(true)
    }

    /// Opens an existing database read-only: nothing is written, and the log is replayed in memory.
    /// If another process writes the database, this one reads beside it, and says so on a terminal.
    pub fn open_to_read(&self) -> Result<Database> {
        own_files::refuse_std(&self.path)?;
        let database = self.options().open_to_read(&self.path)?;
        if database.is_beside_writer() {
            output::notice("another process writes the database; this is what it held just now");
        }
        Ok(database)
    }

    /// Opens an existing database for writing.
    pub fn open_to_write(&self) -> Result<Database> {
        self.open_existing(self.options())
    }

    fn open_existing(&self, options: Options) -> Result<Database> {
        own_files::refuse_std(&self.path)?;
        options.create_if_missing(false).open(&self.path)
    }

    /// Opens the database for a new keyspace with this name and χ, or creates the database and
    /// reports that. If a new database would already have the keyspace, or χ does not fit, nothing
    /// is created.
    pub fn open_or_create_for(
        &self,
        name: &str,
        chi: Option<CheckpointDistance>,
    ) -> Result<Database> {
        if let Some(found) = unless_missing(self.open_to_write())? {
            return Ok(found);
        }
        if name == KEYSPACE_DEFAULT {
            return Err(Error::invalid(
                "there is no database, and a new one already has that keyspace: put or import creates both",
            )
            .with("keyspace", name)
            .with("directory", self.path.display()));
        }
        let options = self.options();
        self.create(match chi {
            Some(chi) => options.checkpoint_distance(chi),
            None => options,
        })
    }

    fn create(&self, options: Options) -> Result<Database> {
        let database = options.create_if_missing(true).open(&self.path)?;
        let path = self.path.display();
        output::notice(format_args!("created the database {path}"));
        Ok(database)
    }
}

/// Closes a database, and warns if this close left work for the next open.
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

/// The database that a command writes to. Even a command that writes no record may merge records of
/// the log.
#[derive(Args, Clone)]
pub struct WriterArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Compression of the blocks that this command writes to keyspaces without a compression of
    /// their own (see keyspace set). Existing blocks stay as they are until a merge rewrites them.
    /// The database does not remember it: name it with each command that writes
    #[arg(long, value_enum, default_value = "none")]
    compression: CompressionName,
}

impl WriterArgs {
    fn options(&self) -> Options {
        let options = self.database.options();
        options.compression(self.compression.into())
    }

    /// The database's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.database.path
    }

    /// The memory budget in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.database.memory
    }

    /// Opens an existing database.
    pub fn open(&self) -> Result<Database> {
        self.database.open_existing(self.options())
    }

    /// Opens the database or creates it, and reports a creation, so that a mistyped path shows.
    pub fn open_or_create(&self) -> Result<Database> {
        match unless_missing(self.open())? {
            Some(found) => Ok(found),
            None => self.database.create(self.options()),
        }
    }
}

/// The result if it was found; none otherwise.
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

/// The keyspace of a command of `keyspace`.
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

    /// The keyspace, which must exist.
    pub fn find(&self, database: &Database) -> Result<Keyspace> {
        database.open_keyspace(&self.name)
    }

    /// The keyspace, created if it does not exist; a creation is reported.
    pub fn find_or_create(&self, database: &Database) -> Result<Keyspace> {
        self.find_or_create_with(database, KeyspaceOptions::new())
    }

    /// As [`KeyspaceArgs::find_or_create`]; a new keyspace gets these options.
    pub fn find_or_create_with(
        &self,
        database: &Database,
        options: KeyspaceOptions,
    ) -> Result<Keyspace> {
        if let Some(found) = unless_missing(self.find(database))? {
            return Ok(found);
        }
        let keyspace = database.create_keyspace(&self.name, options)?;
        output::notice(format_args!("created the keyspace {}", self.name));
        Ok(keyspace)
    }
}
