//! `terrapin put`: one record.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use terrapin_base::{
    Error, ErrorKind, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MAX, Result, VALUE_BYTES_MAX,
};

use crate::arguments::time;
use crate::database::{KeyspaceArgs, WriterArgs};
use crate::input::InputFile;
use crate::{bytes, own_files};

/// Bytes of a large value that are in memory.
const PIECE_BYTES: usize = 256 << 10;

/// Arguments of `put`.
#[derive(Args)]
pub struct Put {
    #[command(flatten)]
    database: WriterArgs,
    /// Key; put -- before it if it begins with a dash and is not a number
    key: OsString,
    /// Value; or give --file
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    value: Option<OsString>,
    /// Read the value from a file, byte for byte, up to 1 GiB; - is stdin, up to 256 KiB of a pipe
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The time from now on after which the value expires, in seconds, such as 60 or 0.5
    #[arg(long, value_name = "SECONDS", value_parser = time)]
    ttl: Option<Duration>,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Key and value are hexadecimal digits
    #[arg(long)]
    hex: bool,
}

impl Put {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let key = bytes::argument(&self.key, self.hex)?;
        if let Some(large) = self.large()? {
            return self.put_large(&key, large);
        }
        let value = self.value()?;
        // Before anything is opened or created.
        check_size("key", key.len(), KEY_BYTES_MAX)?;
        check_size("value", value.len(), VALUE_BYTES_MAX)?;
        let database = self.database.open_or_create()?;
        let keyspace = self.keyspace.find_or_create(&database)?;
        match self.ttl {
            Some(ttl) => keyspace.put_with_ttl(key, value, ttl)?,
            None => keyspace.put(key, value)?,
        }
        crate::database::close(&database)
    }

    /// The file, if its bytes are a large value, and how many there are.
    fn large(&self) -> Result<Option<(InputFile, u64)>> {
        let Some(path) = self.file.as_ref().filter(|_| !self.hex) else {
            return Ok(None);
        };
        let input = InputFile::open(path)?;
        let Some(length) = input.bytes.filter(|&bytes| bytes > VALUE_BYTES_MAX as u64) else {
            return Ok(None);
        };
        let name = path.display().to_string();
        own_files::refuse_open(self.database.path(), "input", input.file(), &name)?;
        let limit = match self.ttl {
            Some(_) => VALUE_BYTES_MAX as u64,
            None => LARGE_VALUE_BYTES_MAX,
        };
        if length > limit {
            let error = too_large("value", limit as usize).with("bytes", length);
            return Err(error.with("file", path.display()));
        }
        Ok(Some((input, length)))
    }

    /// Puts a large value piece by piece.
    fn put_large(&self, key: &[u8], (input, length): (InputFile, u64)) -> Result<()> {
        check_size("key", key.len(), KEY_BYTES_MAX)?;
        let database = self.database.open_or_create()?;
        let keyspace = self.keyspace.find_or_create(&database)?;
        let mut writer = keyspace.writer(key, length)?;
        let mut piece = vec![0; PIECE_BYTES];
        while writer.missing() > 0 {
            let count = input.file().read(&mut piece);
            match count.map_err(|e| Error::io("cannot read the value", e))? {
                0 => return Err(Error::invalid("the file became shorter while it was read")),
                count => {
                    let count = count.min(usize::try_from(writer.missing()).unwrap_or(count));
                    writer.append(&piece[..count])?;
                }
            }
        }
        writer.finish()?;
        crate::database::close(&database)
    }

    fn value(&self) -> Result<Vec<u8>> {
        let Some(path) = &self.file else {
            return bytes::argument(self.value.as_deref().unwrap_or_default(), self.hex);
        };
        let failed = |e| Error::io("cannot read the value", e).with("file", path.display());
        let input = InputFile::open(path)?;
        let name = path.display().to_string();
        own_files::refuse_open(self.database.path(), "input", input.file(), &name)?;
        // Reading a little more than the largest value, with a line end behind digits, is enough to
        // know that it is too large.
        let (text_bytes_max, line_end) = if self.hex {
            (2 * VALUE_BYTES_MAX, b"\r\n".len())
        } else {
            (VALUE_BYTES_MAX, 0)
        };
        let read_max = text_bytes_max + line_end + 1;
        let mut text = Vec::new();
        input
            .file()
            .take(read_max as u64)
            .read_to_end(&mut text)
            .map_err(failed)?;
        let digits = text.trim_ascii_end();
        if text.len() == read_max || self.hex && digits.len() > text_bytes_max {
            return Err(too_large("value", VALUE_BYTES_MAX).with("file", path.display()));
        }
        if !self.hex {
            return Ok(text);
        }
        let mut value = Vec::new();
        if !bytes::decode_hex(digits, &mut value) {
            return Err(
                Error::invalid("with --hex, the file holds pairs of hexadecimal digits")
                    .with("file", path.display()),
            );
        }
        Ok(value)
    }
}

fn check_size(what: &str, bytes: usize, limit: usize) -> Result<()> {
    if bytes > limit {
        return Err(too_large(what, limit).with("bytes", bytes));
    }
    Ok(())
}

fn too_large(what: &str, limit: usize) -> Error {
    let message = format!("the {what} has more bytes than the limit");
    Error::new(ErrorKind::TooLarge, message).with("limit", limit)
}
