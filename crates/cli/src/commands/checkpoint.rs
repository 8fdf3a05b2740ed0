//! `terrapin checkpoint`: merges everything into the trees.

use clap::Args;
use terrapin_base::Result;

use crate::database::WriterArgs;

/// Arguments of `checkpoint`.
#[derive(Args)]
pub struct Checkpoint {
    #[command(flatten)]
    database: WriterArgs,
}

impl Checkpoint {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let database = self.database.open()?;
        database.checkpoint()?;
        crate::database::close(&database)
    }
}
