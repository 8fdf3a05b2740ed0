//! `terrapin put`: one record.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use terrapin_base::{Error, Result, VALUE_BYTES_MAX};

use crate::bytes;
use crate::database::{DatabaseArgs, KeyspaceArgs};

/// Arguments of `put`.
#[derive(Args)]
pub struct Put {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Key; -- before it lets it begin with a dash
    key: OsString,
    /// Value; or give --file
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    value: Option<OsString>,
    /// Take the value from a file, as it is; - is stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Key and value are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Put {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        let key = bytes::argument(&self.key, self.hex)?;
        let value = self.value()?;
        let database = self.database.open_or_create()?;
        self.keyspace.find_or_create(&database)?.put(key, value)?;
        database.close()
    }

    fn value(&self) -> Result<Vec<u8>> {
        let Some(path) = &self.file else {
            return bytes::argument(self.value.as_deref().unwrap_or_default(), self.hex);
        };
        let failed = |e| Error::io("cannot read the value", e).with("file", path.display());
        let mut input: Box<dyn Read> = if path.as_os_str() == "-" {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(std::fs::File::open(path).map_err(failed)?)
        };
        // One byte more than could be stored tells that it is too large, however large it is.
        let limit = VALUE_BYTES_MAX as u64 * 2 + 1;
        let mut text = Vec::new();
        input
            .by_ref()
            .take(limit)
            .read_to_end(&mut text)
            .map_err(failed)?;
        if !self.hex {
            return Ok(text);
        }
        let mut value = Vec::new();
        if !bytes::decode_hex(text.trim_ascii_end(), &mut value) {
            return Err(
                Error::invalid("with --hex, the file holds pairs of hexadecimal digits")
                    .with("file", path.display()),
            );
        }
        Ok(value)
    }
}
