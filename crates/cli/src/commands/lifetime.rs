//! `terrapin ttl`, `touch` and `persist`: how long the value of a key lasts.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use terrapin::Lifetime;
use terrapin_base::{Error, ErrorKind, Result};

use crate::arguments::time;
use crate::database::{DatabaseArgs, KeyspaceArgs, WriterArgs};
use crate::{bytes, output};

/// Arguments of `ttl`.
#[derive(Args)]
pub struct Ttl {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Key; put -- before it if it begins with a dash and is not a number
    key: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The key is hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Ttl {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open_to_read()?;
        match self.keyspace.find(&database)?.ttl(&key)? {
            Lifetime::Absent => return Ok(missing(&key)),
            Lifetime::Unlimited => output::say("unlimited")?,
            Lifetime::Left(left) => output::say(format_args!("{:.3}", left.as_secs_f64()))?,
        }
        crate::database::close(&database)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `touch`.
#[derive(Args)]
pub struct Touch {
    #[command(flatten)]
    database: WriterArgs,
    /// Key; put -- before it if it begins with a dash and is not a number
    key: OsString,
    /// The time from now on for which the value lasts, in seconds, such as 60 or 0.5; 0 deletes the
    /// key
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    ttl: Duration,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The key is hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Touch {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open()?;
        let is_there = self.keyspace.find(&database)?.touch(&key, self.ttl)?;
        crate::database::close(&database)?;
        Ok(done(is_there, &key))
    }
}

/// Arguments of `persist`.
#[derive(Args)]
pub struct Persist {
    #[command(flatten)]
    database: WriterArgs,
    /// Key; put -- before it if it begins with a dash and is not a number
    key: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// The key is hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Persist {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open()?;
        let is_there = self.keyspace.find(&database)?.persist(&key)?;
        crate::database::close(&database)?;
        Ok(done(is_there, &key))
    }
}

fn done(is_there: bool, key: &[u8]) -> ExitCode {
    match is_there {
        true => ExitCode::SUCCESS,
        false => missing(key),
    }
}

fn missing(key: &[u8]) -> ExitCode {
    let missing = Error::new(ErrorKind::NotFound, "there is no such key");
    output::complain(&missing.with("key", bytes::show(key)));
    ExitCode::from(output::NO)
}
