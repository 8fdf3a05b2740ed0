//! `terrapin keyspace`: the named maps of a database.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use terrapin::{CheckpointDistance, KeyspaceOptions};
use terrapin_base::Result;

use super::help::Help;
use super::stat::distance;
use crate::database::{DatabaseArgs, NamedKeyspaceArgs, WriterArgs};
use crate::{arguments, output};

/// Arguments of `keyspace`.
#[derive(Args)]
pub struct Keyspace {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the names of all keyspaces, one per line
    List {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Print a JSON object with each keyspace's settings
        #[arg(long)]
        json: bool,
    },
    /// Create a keyspace, and the database if it does not exist
    Create {
        #[command(flatten)]
        database: WriterArgs,
        #[command(flatten)]
        keyspace: NamedKeyspaceArgs,
        /// Its checkpoint distance [default: the database's]
        #[arg(long, value_name = "N|auto", value_parser = arguments::distance)]
        chi: Option<CheckpointDistance>,
    },
    /// Drop a keyspace and all its records
    Drop {
        #[command(flatten)]
        database: WriterArgs,
        #[command(flatten)]
        keyspace: NamedKeyspaceArgs,
    },
    /// Remove all records of a keyspace
    Clear {
        #[command(flatten)]
        database: WriterArgs,
        #[command(flatten)]
        keyspace: NamedKeyspaceArgs,
    },
    /// Print this message or the help of one of these commands
    Help(Help),
}

impl Keyspace {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        match &self.action {
            Action::List { database, json } => list(database, *json),
            Action::Create {
                database,
                keyspace,
                chi,
            } => {
                let options = KeyspaceOptions::new().checkpoint_distance(*chi);
                let database = database.open_or_create_for(&keyspace.name, *chi)?;
                database.create_keyspace(&keyspace.name, options)?;
                crate::database::close(&database)
            }
            Action::Drop { database, keyspace } => {
                let database = database.open()?;
                database.drop_keyspace(&keyspace.name)?;
                crate::database::close(&database)
            }
            Action::Clear { database, keyspace } => {
                let database = database.open()?;
                database.open_keyspace(&keyspace.name)?.clear()?;
                crate::database::close(&database)
            }
            Action::Help(help) => return help.run(&["keyspace"]),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

fn list(database: &DatabaseArgs, json: bool) -> Result<()> {
    let database = database.open_to_read()?;
    let keyspaces = database.keyspaces()?;
    if json {
        let described = keyspaces.iter().map(|keyspace| {
            json!({
                "name": keyspace.name,
                "id": keyspace.id.0,
                "chi_set": distance(keyspace.options.checkpoint_distance),
            })
        });
        output::say(json!({ "keyspaces": described.collect::<Vec<_>>() }))?;
    } else {
        for keyspace in keyspaces {
            output::say(keyspace.name)?;
        }
    }
    crate::database::close(&database)
}
