//! The text of a key or a value that is being read. Memory holds a short text. A long value goes to
//! a temporary file, since its length is known at its end only, and a put wants it first.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use terrapin_base::{Error, ErrorKind, LARGE_VALUE_BYTES_MAX, Result, VALUE_BYTES_MAX};

use crate::temporary::Temporary;

/// The most bytes kept in memory of one key, value or line, for each byte of the longest value in
/// memory: twice what it takes as hexadecimal digits. Every such record fits, and no input makes
/// the reader grow.
const TEXT_PER_BYTE: usize = 4;
/// The most bytes of a value in memory if longer ones go to a file.
pub const SPOOLED_FROM_BYTES: usize = TEXT_PER_BYTE * VALUE_BYTES_MAX;

/// Where long values go, and what is kept in memory.
pub(super) struct Spool {
    /// None if long values are refused.
    pub directory: Option<PathBuf>,
    /// Bytes of the longest value in memory.
    pub value_bytes_max: usize,
    /// Values are hexadecimal digits.
    pub hex: bool,
    /// Empty files for the next long values.
    files: Vec<File>,
}

impl Spool {
    /// Without files.
    pub fn new() -> Self {
        Spool {
            directory: None,
            value_bytes_max: VALUE_BYTES_MAX,
            hex: false,
            files: Vec::new(),
        }
    }

    /// Begins a long value, if these are taken.
    fn begin(&mut self) -> Result<Option<Long>> {
        let Some(directory) = &self.directory else {
            return Ok(None);
        };
        let file = match self.files.pop() {
            Some(file) => file,
            None => created(directory)?,
        };
        Ok(Some(Long {
            file: BufWriter::with_capacity(64 << 10, file),
            bytes: 0,
            digits: self.hex.then(Digits::default),
            utf8: Utf8::default(),
        }))
    }

    /// Takes the file of a long value for the next one.
    fn take_back(&mut self, long: Long) -> Result<()> {
        let (mut file, _) = long.file.into_parts();
        file.set_len(0)
            .and_then(|()| file.rewind())
            .map_err(failed)?;
        self.files.push(file);
        Ok(())
    }
}

/// A file without a name: the system removes it, however the process ends.
fn created(directory: &Path) -> Result<File> {
    let place = Temporary::within(Some(directory), "value")?;
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    options.open(place.path().join("value")).map_err(failed)
}

fn failed(error: io::Error) -> Error {
    Error::io("cannot keep a long value in a temporary file", error)
}

/// Takes the bytes of a text.
pub(super) trait Out {
    /// Appends bytes.
    fn add(&mut self, bytes: &[u8], spool: &mut Spool) -> Result<()>;
    /// Forgets all bytes.
    fn empty(&mut self, spool: &mut Spool) -> Result<()>;
    /// The number of bytes.
    fn length(&self) -> u64;
    /// Whether the bytes are UTF-8.
    fn is_utf8(&self) -> bool;
}

/// Keys and names are in memory.
impl Out for Vec<u8> {
    fn add(&mut self, bytes: &[u8], _: &mut Spool) -> Result<()> {
        self.extend_from_slice(bytes);
        check_memory(self.len(), VALUE_BYTES_MAX)
    }

    fn empty(&mut self, _: &mut Spool) -> Result<()> {
        self.clear();
        Ok(())
    }

    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn is_utf8(&self) -> bool {
        std::str::from_utf8(self).is_ok()
    }
}

/// The text of a value.
#[derive(Default)]
pub(super) struct Text {
    bytes: Vec<u8>,
    long: Option<Long>,
}

impl Text {
    /// The bytes in memory, or the long value, which is at its end.
    pub fn ended(&mut self) -> Result<(&[u8], Option<&Long>)> {
        if let Some(long) = &mut self.long {
            long.end()?;
        }
        Ok((&self.bytes, self.long.as_ref()))
    }
}

impl Out for Text {
    fn add(&mut self, bytes: &[u8], spool: &mut Spool) -> Result<()> {
        Part {
            bytes: &mut self.bytes,
            start: 0,
            long: &mut self.long,
        }
        .add(bytes, spool)
    }

    fn empty(&mut self, spool: &mut Spool) -> Result<()> {
        self.bytes.clear();
        self.long
            .take()
            .map_or(Ok(()), |long| spool.take_back(long))
    }

    fn length(&self) -> u64 {
        self.bytes.len() as u64 + self.long.as_ref().map_or(0, |long| long.bytes)
    }

    fn is_utf8(&self) -> bool {
        let long = self.long.as_ref();
        long.map_or_else(|| self.bytes.is_utf8(), |long| long.utf8.is_whole())
    }
}

/// A text behind others in one memory.
pub(super) struct Part<'a> {
    pub bytes: &'a mut Vec<u8>,
    /// Where it begins.
    pub start: usize,
    /// The text once it is long. Memory has nothing of it then.
    pub long: &'a mut Option<Long>,
}

impl Part<'_> {
    /// Appends bytes.
    pub fn add(&mut self, bytes: &[u8], spool: &mut Spool) -> Result<()> {
        if let Some(long) = self.long {
            return long.add(bytes);
        }
        let own = self.bytes.len() - self.start;
        if own + bytes.len() > SPOOLED_FROM_BYTES
            && let Some(mut long) = spool.begin()?
        {
            long.add(&self.bytes[self.start..])?;
            long.add(bytes)?;
            self.bytes.truncate(self.start);
            *self.long = Some(long);
            return Ok(());
        }
        self.bytes.extend_from_slice(bytes);
        check_memory(self.bytes.len(), spool.value_bytes_max)
    }
}

/// Gives the file of a long value back.
pub(super) fn give_back(long: Long, spool: &mut Spool) -> Result<()> {
    spool.take_back(long)
}

/// Refuses text longer than anything that can be stored.
fn check_memory(bytes: usize, value_bytes_max: usize) -> Result<()> {
    if bytes <= value_bytes_max.saturating_mul(TEXT_PER_BYTE) {
        return Ok(());
    }
    let message = "a record is far larger than the limit";
    Err(Error::new(ErrorKind::TooLarge, message).with("value limit", value_bytes_max))
}

/// A long value in a file.
pub struct Long {
    file: BufWriter<File>,
    /// Of the value, not of its digits.
    bytes: u64,
    digits: Option<Digits>,
    utf8: Utf8,
}

impl Long {
    /// Bytes of the value.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether its text was pairs of hexadecimal digits, if such are wanted.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let digits = self.digits.as_ref();
        digits.is_none_or(|digits| !digits.is_bad && digits.half.is_none())
    }

    /// Its bytes, from the first on.
    pub fn reader(&self) -> Result<&File> {
        let mut file = self.file.get_ref();
        file.rewind().map_err(failed)?;
        Ok(file)
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.utf8.add(bytes);
        let decoded;
        let bytes = match &mut self.digits {
            None => bytes,
            Some(digits) => {
                decoded = digits.decoded(bytes);
                &decoded
            }
        };
        self.bytes += bytes.len() as u64;
        if self.bytes > LARGE_VALUE_BYTES_MAX {
            let message = "a value is longer than the limit: split it over several keys";
            let error = Error::new(ErrorKind::TooLarge, message);
            return Err(error.with("limit", LARGE_VALUE_BYTES_MAX));
        }
        self.file.write_all(bytes).map_err(failed)
    }

    /// Makes all bytes readable.
    pub(super) fn end(&mut self) -> Result<()> {
        self.file.flush().map_err(failed)
    }
}

/// Decodes hexadecimal digits that come in pieces.
#[derive(Default)]
struct Digits {
    half: Option<u8>,
    is_bad: bool,
}

impl Digits {
    fn decoded(&mut self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() / 2 + 1);
        for &byte in text {
            let Some(digit) = char::from(byte).to_digit(16) else {
                self.is_bad = true;
                continue;
            };
            match self.half.take() {
                None => self.half = Some(digit as u8),
                Some(high) => out.push(high << 4 | digit as u8),
            }
        }
        out
    }
}

/// Checks text that comes in pieces.
#[derive(Default)]
pub(super) struct Utf8 {
    /// The beginning of a character.
    begun: Vec<u8>,
    is_bad: bool,
}

impl Utf8 {
    /// Takes the next piece.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !self.begun.is_empty()
            && let Some((&first, rest)) = bytes.split_first()
        {
            self.begun.push(first);
            bytes = rest;
            match std::str::from_utf8(&self.begun) {
                Err(error) if error.error_len().is_none() => {}
                checked => {
                    self.is_bad |= checked.is_err();
                    self.begun.clear();
                }
            }
        }
        if let Err(error) = std::str::from_utf8(bytes) {
            match error.error_len() {
                None => self.begun = bytes[error.valid_up_to()..].to_vec(),
                Some(_) => self.is_bad = true,
            }
        }
    }

    /// Whether all pieces together are UTF-8.
    pub fn is_whole(&self) -> bool {
        !self.is_bad && self.begun.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_checked_and_decoded_as_the_whole(
            text in prop_oneof![any::<String>().prop_map(String::into_bytes), any::<Vec<u8>>()],
            cut in 1usize..5,
        ) {
            let mut utf8 = Utf8::default();
            text.chunks(cut).for_each(|piece| utf8.add(piece));
            prop_assert_eq!(utf8.is_whole(), std::str::from_utf8(&text).is_ok());
            let mut hex = Vec::new();
            crate::bytes::encode_hex(&text, &mut hex);
            let mut digits = Digits::default();
            let decoded: Vec<u8> = hex.chunks(cut).flat_map(|piece| digits.decoded(piece)).collect();
            prop_assert_eq!(&decoded, &text);
            prop_assert!(!digits.is_bad && digits.half.is_none());
        }
    }

    #[test]
    fn long_values_go_to_a_file_whose_name_is_gone() {
        let place = Temporary::new("text").unwrap();
        let mut spool = Spool {
            directory: Some(place.path().to_owned()),
            ..Spool::new()
        };
        let mut text = Text::default();
        for round in 1..4u8 {
            for _ in 0..3 {
                text.add(&vec![round; SPOOLED_FROM_BYTES / 2], &mut spool)
                    .unwrap();
            }
            let (bytes, long) = text.ended().unwrap();
            assert!(bytes.is_empty());
            let long = long.unwrap();
            let mut read = Vec::new();
            io::Read::read_to_end(&mut long.reader().unwrap(), &mut read).unwrap();
            assert!(read == vec![round; SPOOLED_FROM_BYTES / 2 * 3]);
            assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
            text.empty(&mut spool).unwrap();
            assert_eq!((text.length(), spool.files.len()), (0, 1));
        }
        spool.directory = None;
        let text = vec![1; SPOOLED_FROM_BYTES + 1];
        let error = Text::default().add(&text, &mut spool).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}
