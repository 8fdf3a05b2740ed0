//! `terrapin put`: one record.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use terrapin_base::{
    Error, ErrorKind, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MAX, Result, VALUE_BYTES_MAX,
};

use crate::arguments::time;
use crate::database::{KeyspaceArgs, WriterArgs};
use crate::input::InputFile;
use crate::temporary::Temporary;
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
    /// Read the value from a file, byte for byte, up to 1 GiB; - is stdin. A pipe of more than
    /// 256 KiB goes to a temporary file beside the database first
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
        let value = match self.content()? {
            Content::Value(value) => value,
            Content::Large(large) => return self.put_large(&key, large),
        };
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

    /// The value, or where a large one is.
    fn content(&self) -> Result<Content> {
        let Some(path) = &self.file else {
            let value = bytes::argument(self.value.as_deref().unwrap_or_default(), self.hex)?;
            return Ok(Content::Value(value));
        };
        let input = InputFile::open(path)?;
        let name = path.display().to_string();
        own_files::refuse_open(self.database.path(), "input", input.file(), &name)?;
        if let Some(length) = input.bytes.filter(|&bytes| bytes > VALUE_BYTES_MAX as u64)
            && !self.hex
        {
            Self::check_length(length, path)?;
            let file = input.file().try_clone().map_err(|e| failed(e, path))?;
            return Ok(Content::Large(Large {
                file,
                length,
                _spooled: None,
            }));
        }
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
            .map_err(|e| failed(e, path))?;
        if !self.hex {
            return match text.len() == read_max {
                true => self.spooled(&text, input.file(), path).map(Content::Large),
                false => Ok(Content::Value(text)),
            };
        }
        let digits = text.trim_ascii_end();
        if text.len() == read_max || digits.len() > text_bytes_max {
            return Err(too_large("value", VALUE_BYTES_MAX).with("file", path.display()));
        }
        let mut value = Vec::new();
        if !bytes::decode_hex(digits, &mut value) {
            return Err(
                Error::invalid("with --hex, the file holds pairs of hexadecimal digits")
                    .with("file", path.display()),
            );
        }
        Ok(Content::Value(value))
    }

    /// A pipe's bytes in a file, since the length of a value comes before its bytes.
    fn spooled(&self, begun: &[u8], mut rest: &File, path: &Path) -> Result<Large> {
        Self::check_length(begun.len() as u64, path)?;
        let place = self.database.path().parent();
        let place = place.filter(|place| !place.as_os_str().is_empty());
        let spooled = Temporary::within(Some(place.unwrap_or(Path::new("."))), "value")?;
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true);
        let mut spool = || {
            let mut file = options.open(spooled.path().join("value"))?;
            file.write_all(begun)?;
            let most = LARGE_VALUE_BYTES_MAX + 1 - begun.len() as u64;
            let more = io::copy(&mut (&mut rest).take(most), &mut file)?;
            file.rewind()?;
            Ok((file, begun.len() as u64 + more))
        };
        let (file, length) = spool().map_err(|e| failed(e, path))?;
        Self::check_length(length, path)?;
        Ok(Large {
            file,
            length,
            _spooled: Some(spooled),
        })
    }

    fn check_length(length: u64, path: &Path) -> Result<()> {
        if length > LARGE_VALUE_BYTES_MAX {
            let error = too_large("value", LARGE_VALUE_BYTES_MAX as usize).with("bytes", length);
            return Err(error.with("file", path.display()));
        }
        Ok(())
    }

    /// Puts a large value piece by piece.
    fn put_large(&self, key: &[u8], mut large: Large) -> Result<()> {
        check_size("key", key.len(), KEY_BYTES_MAX)?;
        let database = self.database.open_or_create()?;
        let keyspace = self.keyspace.find_or_create(&database)?;
        let mut writer = keyspace.writer(key, large.length)?;
        let mut piece = vec![0; PIECE_BYTES];
        while writer.missing() > 0 {
            let count = large.file.read(&mut piece);
            match count.map_err(|e| Error::io("cannot read the value", e))? {
                0 => return Err(Error::invalid("the file became shorter while it was read")),
                count => {
                    let count = count.min(usize::try_from(writer.missing()).unwrap_or(count));
                    writer.append(&piece[..count])?;
                }
            }
        }
        match self.ttl {
            Some(ttl) => writer.finish_with_ttl(ttl)?,
            None => writer.finish()?,
        }
        crate::database::close(&database)
    }
}

/// What to put.
enum Content {
    Value(Vec<u8>),
    Large(Large),
}

/// A large value in a file.
struct Large {
    file: File,
    length: u64,
    /// The directory of a file that the command made.
    _spooled: Option<Temporary>,
}

fn failed(error: io::Error, path: &Path) -> Error {
    Error::io("cannot read the value", error).with("file", path.display())
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
