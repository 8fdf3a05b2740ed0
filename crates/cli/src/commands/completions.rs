//! `terrapin completions`: a script that completes commands and options in a shell.

use std::io::Write;

use clap::Args;
use clap_complete::Shell;
use terrapin_base::Result;

use crate::{output, usage};

/// Arguments of `completions`.
#[derive(Args)]
pub struct Completions {
    /// Shell to complete in
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        // The generator would panic on a closed pipe.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut usage::command(), "terrapin", &mut script);
        let mut out = output::stdout();
        out.write_all(&script)
            .and_then(|()| out.flush())
            .map_err(output::stdout_failed)
    }
}
