//! The subcommands, one per file.

mod backup;
mod bench;
mod checkpoint;
mod completions;
mod count;
mod delete;
mod demo;
mod export;
mod get;
mod help;
mod import;
mod keyspace;
mod keyspace_options;
mod lifetime;
mod merge;
mod put;
mod restore;
mod salvage;
mod scan;
mod set;
mod stat;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;
use terrapin_base::Result;

/// The command to run.
#[derive(Subcommand)]
pub enum Command {
    /// Store a value under a key; creates database and keyspace where they are missing
    ///
    /// On a terminal stderr tells of what was created.
    Put(put::Put),
    /// Print the value of a key as it is; exit 1 if there is no such key
    ///
    /// Bytes are exact; only on a terminal control characters other than line ends and tabs, and
    /// what is not UTF-8, are shown as \xNN.
    Get(get::Get),
    /// Apply an operand to a value by the keyspace's merge operator
    ///
    /// keyspace create NAME --merge-operator chooses the operator. With one that adds, the operand
    /// is a whole number.
    Merge(merge::Merge),
    /// Print the seconds until the value of a key expires, or unlimited; exit 1 if there is no such
    /// key
    Ttl(lifetime::Ttl),
    /// Let the value of a key last for a time from now on; exit 1 if there is no such key
    Touch(lifetime::Touch),
    /// Let the value of a key last without a deadline; exit 1 if there is no such key
    Persist(lifetime::Persist),
    /// Remove a key, a range of keys, or a prefix; exit 0 also if nothing was there
    Delete(delete::Delete),
    /// Print records in key order, one a line: key, tab, value
    ///
    /// Bytes are exact, so that tabs and newlines within keys and values look like those between
    /// them: --hex, or export --format jsonl, is unambiguous. Only on a terminal control
    /// characters, and what is not UTF-8, are shown as \t, \n, \r or \xNN. Records of a hashed
    /// keyspace come in no order, and ranges of it are refused.
    Scan(scan::Scan),
    /// Print how many records there are: reads them all, unless --approximate
    Count(count::Count),
    /// Read records from a file or stdin into a keyspace, in order; of equal keys the last wins
    Import(import::Import),
    /// Write the records of a keyspace to a file or stdout, in key order
    Export(export::Export),
    /// Show what a database holds and takes
    Stat(stat::Stat),
    /// Check every byte of a database without writing: exit 0 sound, 1 damaged, 2 could not be
    /// checked
    Verify(verify::Verify),
    /// Merge everything written so far into the trees, durably
    Checkpoint(checkpoint::Checkpoint),
    /// Copy a database into a directory; a later backup there reads only what changed since
    ///
    /// The last backup counts until the new one is whole. Where another process has the database
    /// open for writing, this copies what that process had written just now. A program that has
    /// it open calls Database::backup.
    Backup(backup::Backup),
    /// Make a database from a backup
    Restore(restore::Restore),
    /// Copy what a damaged database still holds into a new one: exit 1 if something is lost
    ///
    /// Records that may be out of date go to keyspaces NAME.uncertain. stdout names each range of
    /// keys of which records may be lost.
    Salvage(salvage::Salvage),
    /// Change a setting, durably
    Set(set::Set),
    /// List, create, drop or clear keyspaces
    Keyspace(keyspace::Keyspace),
    /// Print a script that completes commands and options in a shell
    Completions(completions::Completions),
    /// Measure speed, latency, device bytes and memory with the workloads of YCSB
    Bench(bench::Bench),
    /// Show the store at work: import or generate records, query them, turn the dial while it runs
    Demo(demo::Demo),
    /// Print this message or the help of a command
    Help(help::Help),
}

impl Command {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        match self {
            Command::Put(command) => command.run(),
            Command::Get(command) => return command.run(),
            Command::Merge(command) => command.run(),
            Command::Ttl(command) => return command.run(),
            Command::Touch(command) => return command.run(),
            Command::Persist(command) => return command.run(),
            Command::Delete(command) => command.run(),
            Command::Scan(command) => command.run(),
            Command::Count(command) => command.run(),
            Command::Import(command) => command.run(),
            Command::Export(command) => command.run(),
            Command::Stat(command) => command.run(),
            Command::Verify(command) => return Ok(command.run()),
            Command::Checkpoint(command) => command.run(),
            Command::Backup(command) => command.run(),
            Command::Restore(command) => command.run(),
            Command::Salvage(command) => return command.run(),
            Command::Set(command) => command.run(),
            Command::Keyspace(command) => return command.run(),
            Command::Completions(command) => command.run(),
            Command::Bench(command) => return command.run(),
            Command::Demo(command) => command.run(),
            Command::Help(command) => return command.run(&[]),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}
