//! Commands whose engines take turns in this process, each in an empty directory.

use std::path::{Path, PathBuf};

use clap::Args;
use terrapin_base::{Error, Result};

/// Arguments of such a command.
#[derive(Args)]
pub struct Turns {
    /// Turns; in each, every engine runs once
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: u32,
    /// Directory for the engines' files, on the device to be measured; files left there are removed
    #[arg(long, value_name = "DIR", default_value = "compare-scratch")]
    scratch: PathBuf,
}

impl Turns {
    /// Runs all turns. `run` gets an engine and its directory, which is removed afterwards.
    pub fn each<E>(
        &self,
        engines: &[(&str, E)],
        mut run: impl FnMut(&str, &E, &Path) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..self.repeats {
            for (name, engine) in engines {
                let place = self.scratch.join(name);
                let _ = std::fs::remove_dir_all(&place);
                std::fs::create_dir_all(&place)
                    .map_err(|e| Error::io("cannot make a directory", e))?;
                run(name, engine, &place)?;
                let _ = std::fs::remove_dir_all(&place);
            }
        }
        let _ = std::fs::remove_dir(&self.scratch);
        Ok(())
    }
}

/// Prints a line.
pub fn say(line: &str) -> Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout().lock(), "{line}")
        .map_err(|error| Error::io("cannot print the figures", error))
}
