//! `terrapin merge`: one operand.

use std::ffi::OsString;

use clap::Args;
use terrapin_base::{Error, Result};

use crate::bytes;
use crate::database::{KeyspaceArgs, WriterArgs};

/// Arguments of `merge`.
#[derive(Args)]
pub struct Merge {
    #[command(flatten)]
    database: WriterArgs,
    /// Key; put -- before it if it begins with a dash and is not a number
    key: OsString,
    /// Operand. For the operators that add it is a whole number, such as 1 or -5
    operand: OsString,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Key and operand are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Merge {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let key = bytes::argument(&self.key, self.hex)?;
        let database = self.database.open()?;
        let keyspace = self.keyspace.find(&database)?;
        let operator = keyspace.options()?.merge_operator;
        if operator.is_none() {
            let message = "the keyspace has no merge operator: create one that has \
                           (keyspace create DB NAME --merge-operator OPERATOR)";
            return Err(Error::invalid(message).with("keyspace", keyspace.name()));
        }
        let adds = operator.is_some_and(|name| is_number(name.as_str()));
        let operand = match adds && !self.hex {
            true => number(&self.operand)?,
            false => bytes::argument(&self.operand, self.hex)?,
        };
        keyspace.merge(key, operand)?;
        crate::database::close(&database)
    }
}

/// Whether values and operands of an operator are numbers: i64, little-endian.
pub fn is_number(operator: &str) -> bool {
    matches!(
        operator,
        "add-i64" | "saturating-add-i64" | "checked-add-i64"
    )
}

fn number(text: &OsString) -> Result<Vec<u8>> {
    let number = text.to_str().and_then(|text| text.parse::<i64>().ok());
    match number {
        Some(number) => Ok(number.to_le_bytes().to_vec()),
        None => Err(Error::invalid(
            "the keyspace's merge operator adds: the operand is a whole number of 64 bits",
        )
        .with("operand", text.display())),
    }
}
