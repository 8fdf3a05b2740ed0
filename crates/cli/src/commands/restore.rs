//! `terrapin restore`: makes a database from a backup.

use std::path::PathBuf;

use clap::Args;
use terrapin::backup;
use terrapin_base::Result;

/// Arguments of `restore`.
#[derive(Args)]
pub struct Restore {
    /// Directory of the backup
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// Directory of the new database; empty, or created
    #[arg(value_name = "DB")]
    path: PathBuf,
}

impl Restore {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        backup::restore(&self.backup, &self.path)
    }
}
