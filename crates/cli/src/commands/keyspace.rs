//! `terrapin keyspace`: the named maps of a database.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use terrapin::KeyspaceOptions;
use terrapin_base::{Error, Result};

use super::help::Help;
use super::keyspace_options::{self, OptionArgs};
use crate::database::{DatabaseArgs, NamedKeyspaceArgs, WriterArgs};
use crate::output;

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
        /// Print a keyspace's options, too, between tabs; default for one that follows the
        /// database
        #[arg(long, short, conflicts_with = "json")]
        long: bool,
        /// Print a JSON object with each keyspace's options; null for one that follows the database
        #[arg(long)]
        json: bool,
    },
    /// Create a keyspace, and the database if it does not exist
    Create {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        keyspace: NamedKeyspaceArgs,
        #[command(flatten)]
        options: OptionArgs,
    },
    /// Set options of a keyspace; default has one follow the database again
    ///
    /// The database stores the options. A checkpoint distance counts at once, other options from
    /// the next checkpoint on, for what merges write then. Options that are not named stay.
    Set {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        keyspace: NamedKeyspaceArgs,
        #[command(flatten)]
        options: OptionArgs,
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
            Action::List {
                database,
                long,
                json,
            } => list(database, *long, *json),
            Action::Create {
                database,
                keyspace,
                options,
            } => {
                let options = options.apply(KeyspaceOptions::new());
                let chi = options.checkpoint_distance;
                let database = database.open_or_create_for(&keyspace.name, chi)?;
                database.create_keyspace(&keyspace.name, options)?;
                crate::database::close(&database)
            }
            Action::Set { options, .. } if options.is_empty() => Err(Error::invalid(
                "name an option to set, such as --filter-bits 8 (see keyspace set --help)",
            )),
            Action::Set {
                database,
                keyspace,
                options,
            } => {
                let database = database.open_to_write()?;
                let keyspace = database.open_keyspace(&keyspace.name)?;
                keyspace.set_options(options.apply(keyspace.options()?))?;
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

fn list(database: &DatabaseArgs, long: bool, json: bool) -> Result<()> {
    let database = database.open_to_read()?;
    let keyspaces = database.keyspaces()?;
    if json {
        let described = keyspaces.iter().map(|keyspace| {
            json!({
                "name": keyspace.name,
                "id": keyspace.id.0,
                "structure": keyspace.structure,
                "options": keyspace_options::as_json(&keyspace.options),
            })
        });
        output::say(json!({ "keyspaces": described.collect::<Vec<_>>() }))?;
    } else {
        for keyspace in keyspaces {
            let mut line = keyspace.name;
            if long {
                for (name, value) in keyspace_options::as_text(&keyspace.options) {
                    line.push_str(&format!("\t{name} {value}"));
                }
            }
            output::say(line)?;
        }
    }
    crate::database::close(&database)
}
