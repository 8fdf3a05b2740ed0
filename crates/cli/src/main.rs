//! The `terrapin` command: a Terrapin database from the shell. Each subcommand is a file under `commands`; what text formats
//! are read and written is under `formats`.
//!
//! Whatever goes wrong is one line on stderr that begins with `terrapin: `, and a non-zero exit: 2 for a command line that makes
//! no sense (and for `verify`, a database that cannot be opened), else 1. A closed pipe behind stdout ends the command quietly.
#![forbid(unsafe_code)]

mod arguments;
mod bytes;
mod commands;
mod database;
mod formats;
mod output;
mod progress;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;

/// An embedded, durable, ordered key-value store with a dial between reading and writing.
#[derive(Parser)]
#[command(
    name = "terrapin",
    version,
    about,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "A database is a directory. Sizes are bytes, or end in KiB, MiB, GiB (1024) or KB, MB, GB (1000).\n\
    Try `terrapin demo` first."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    match cli.command.run() {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}
