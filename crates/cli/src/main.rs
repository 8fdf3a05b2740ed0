//! The `terrapin` command: a Terrapin database from the shell. Each subcommand is a file under
//! `commands`; the text formats are under `formats`.
//!
//! The first argument is always a database. `-k NAME` names the keyspace; the commands of
//! `keyspace` take its name after the database.
//!
//! Exit codes follow `grep`: 0 for done, 1 for the answer no (`get` finds no key, `verify` finds
//! damage), 2 for a failure or a wrong command line. A failure is one line on stderr that begins
//! with `terrapin: `; the engine's events (`events.rs`) come before it. When the reader of stdout
//! goes away, a command ends quietly with 0; an import continues to its end.
#![forbid(unsafe_code)]

mod arguments;
mod bytes;
mod commands;
mod database;
mod events;
mod formats;
mod input;
mod interrupt;
mod output;
mod own_files;
mod progress;
mod table;
mod temporary;
mod usage;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;

/// An embedded, durable, ordered key-value store with a dial between reading and writing.
#[derive(Parser)]
#[command(
    name = "terrapin",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
#[command(
    after_help = "A database is a directory, and always the first argument (DB). -k NAME is the keyspace that records are in; without it, commands use the one named default.\n\
    Sizes are bytes, or end in KiB, MiB, GiB (1024) or KB, MB, GB (1000).\n\
    Exit codes: 0, done; 1, the answer is no (get: no such key; verify: damaged, or a file is missing); 2, it failed, or the command line makes no sense.\n\
    When the reader of stdout goes away, a command ends quietly with 0; an import goes on to its end.\n\
    TERRAPIN_LOG=info (or off, error, warn, debug, trace) has events of the engine told on stderr; a terminal gets warnings without it.\n\
    Try `terrapin demo` first."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match usage::read(&arguments) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match events::tell().and_then(|()| cli.command.run()) {
        Ok(code) => code,
        Err(error) if output::is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            interrupt::end(&error).unwrap_or_else(|| ExitCode::from(output::FAILED))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_memory_in_the_help_is_the_librarys_minimum() {
        let verify = terrapin::verify::VerifyOptions::default();
        for (name, bytes) in [
            ("get", terrapin::MEMORY_BYTES_DEFAULT),
            ("verify", verify.memory),
        ] {
            let mut cli = Cli::command();
            let command = cli.find_subcommand_mut(name).unwrap();
            let memory = command.get_arguments().find(|a| a.get_id() == "memory");
            let told = memory.unwrap().get_default_values()[0].to_str().unwrap();
            assert_eq!(arguments::size(told), Ok(bytes), "{name}");
            let help = command.render_long_help().to_string();
            assert_eq!(
                help.matches("[default: 256MiB]").count(),
                usize::from(name == "get")
            );
        }
    }
}
