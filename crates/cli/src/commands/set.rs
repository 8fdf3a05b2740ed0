//! `terrapin set`: settings that a database keeps.

use clap::{Args, ValueEnum};
use terrapin_base::{Error, Result};

use crate::arguments::{self, Own};
use crate::database::WriterArgs;

/// Arguments of `set`.
#[derive(Args)]
pub struct Set {
    #[command(flatten)]
    database: WriterArgs,
    /// The setting
    #[arg(value_enum)]
    name: Setting,
    /// Its value
    value: String,
    /// Keyspace to set it for [default: all]
    #[arg(long, short, value_name = "NAME", value_parser = arguments::keyspace_name)]
    keyspace: Option<String>,
}

/// A setting.
#[derive(Clone, Copy, ValueEnum)]
enum Setting {
    /// Checkpoint distance: a number from 1, auto, or default (the database's own). A larger one
    /// writes less to the disk, and takes more memory for it
    Chi,
}

impl Set {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        match self.name {
            Setting::Chi => {
                let Own(distance) = arguments::own_distance(&self.value).map_err(Error::invalid)?;
                let database = self.database.open()?;
                match &self.keyspace {
                    Some(name) => database
                        .open_keyspace(name)?
                        .set_checkpoint_distance(distance)?,
                    None => database.set_checkpoint_distance(distance)?,
                }
                crate::database::close(&database)
            }
        }
    }
}
