//! `terrapin backup`: copies a database into a directory, and only what changed since the last
//! copy.

use std::path::PathBuf;

use clap::Args;
use terrapin::backup::BackupOptions;
use terrapin_base::Result;

use crate::bytes::{counted, human};
use crate::database::DatabaseArgs;
use crate::output;

/// Arguments of `backup`.
#[derive(Args)]
pub struct Backup {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Directory of the backup; created if it does not exist
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Check every byte of the new backup before it takes the place of the last one
    #[arg(long)]
    verify: bool,
}

impl Backup {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let database = self.database.open_to_read()?;
        let options = BackupOptions::new().verify(self.verify);
        let report = database.backup_with(&self.target, &options)?;
        output::notice(format_args!(
            "{}: {} copied, {} there already; {} of log",
            counted(report.pages, "page"),
            human(report.copied_bytes),
            human(report.kept_bytes),
            human(report.log_bytes),
        ));
        database.close().map(drop)
    }
}
