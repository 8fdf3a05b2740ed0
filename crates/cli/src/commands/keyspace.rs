//! `terrapin keyspace`: the named maps of a database.

use clap::{Args, Subcommand};
use terrapin::{CheckpointDistance, KeyspaceOptions};
use terrapin_base::Result;

use crate::arguments;
use crate::database::{DatabaseArgs, WriterArgs};
use crate::output;

/// Arguments of `keyspace`.
#[derive(Args)]
pub struct Keyspace {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the names of all keyspaces, one a line
    List {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Create a keyspace, and the database where it is missing
    Create {
        #[command(flatten)]
        database: WriterArgs,
        /// Its name
        #[arg(value_parser = arguments::keyspace_name)]
        name: String,
        /// Its checkpoint distance [default: the database's]
        #[arg(long, value_name = "N|auto", value_parser = arguments::distance)]
        chi: Option<CheckpointDistance>,
    },
    /// Drop a keyspace and all its records
    Drop {
        #[command(flatten)]
        database: WriterArgs,
        /// Its name
        #[arg(value_parser = arguments::keyspace_name)]
        name: String,
    },
    /// Remove all records of a keyspace
    Clear {
        #[command(flatten)]
        database: WriterArgs,
        /// Its name
        #[arg(value_parser = arguments::keyspace_name)]
        name: String,
    },
}

impl Keyspace {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        match &self.action {
            Action::List { database } => {
                let database = database.open_to_read()?;
                for keyspace in database.keyspaces()? {
                    output::say(keyspace.name)?;
                }
                crate::database::close(&database)
            }
            Action::Create {
                database,
                name,
                chi,
            } => {
                let options = KeyspaceOptions::new().checkpoint_distance(*chi);
                let database = database.open_or_create_for(name, *chi)?;
                database.create_keyspace(name, options)?;
                crate::database::close(&database)
            }
            Action::Drop { database, name } => {
                let database = database.open()?;
                database.drop_keyspace(name)?;
                crate::database::close(&database)
            }
            Action::Clear { database, name } => {
                let database = database.open()?;
                database.open_keyspace(name)?.clear()?;
                crate::database::close(&database)
            }
        }
    }
}
