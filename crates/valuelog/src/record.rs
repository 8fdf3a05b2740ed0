//! The bytes of a value's record.
//!
//! ```text
//! at  bytes
//!  0   4     CRC32C of bytes 4 to the end of the stored value
//!  4   8 + 4 identity: id of the page that the record was born in, and its place there
//! 16   4 + 4 bytes of the value as stored, bytes of the value
//! 24   2     bytes of the key
//! 26   1     compression
//! 27   1     0
//! 28         key, value as stored, zeros up to the next multiple of 32
//! ```
//!
//! Invariant: a move copies a record verbatim. Identity and checksum never change, so damage never
//! becomes sound.

use terrapin_base::checksum::crc32c;
use terrapin_base::codec::Reader;
use terrapin_base::{Error, KEY_BYTES_MAX, PageId, Result, Slice, VALUE_BYTES_MAX};
use terrapin_disk::AlignedBuf;
use terrapin_pages::block::{Compression, Compressor, decompress};

use crate::PLACE_BYTES;

/// Bytes in front of the key.
pub(crate) const HEADER_BYTES: usize = 28;
/// A value is stored compressed if that saves at least one part in this many.
const SAVING: usize = 8;

/// What makes a record unique: page ids are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) born_in: PageId,
    pub(crate) place: u32,
}

/// Bytes of a record with padding.
pub(crate) fn record_bytes(key_bytes: usize, stored_bytes: usize) -> usize {
    (HEADER_BYTES + key_bytes + stored_bytes).next_multiple_of(PLACE_BYTES)
}

/// Appends a record without identity and checksum, compressed if that saves enough.
pub(crate) fn append(
    key: &[u8],
    value: &[u8],
    compressor: &mut Compressor,
    scratch: &mut Vec<u8>,
    out: &mut AlignedBuf,
) {
    let compressed = compressor
        .compress(value, scratch)
        .filter(|_| scratch.len() + value.len() / SAVING <= value.len());
    let (stored, compression) = match compressed {
        Some(compression) => (&scratch[..], compression),
        None => (value, Compression::None),
    };
    let mut header = [0; HEADER_BYTES];
    header[16..20].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    header[20..24].copy_from_slice(&(value.len() as u32).to_le_bytes());
    header[24..26].copy_from_slice(&(key.len() as u16).to_le_bytes());
    header[26] = compression.number();
    let start = out.len();
    out.extend_from_slice(&header);
    out.extend_from_slice(key);
    out.extend_from_slice(stored);
    out.resize(start + record_bytes(key.len(), stored.len()), 0);
}

/// Writes identity and checksum into the record at the start of `record`.
pub(crate) fn seal(record: &mut [u8], identity: Identity) {
    record[4..12].copy_from_slice(&identity.born_in.0.to_le_bytes());
    record[12..16].copy_from_slice(&identity.place.to_le_bytes());
    let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
    let key_bytes = u16::from_le_bytes([record[24], record[25]]);
    let end = HEADER_BYTES + usize::from(key_bytes) + word(16) as usize;
    let crc = crc32c(&record[4..end]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// A sound record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) identity: Identity,
    pub(crate) key: &'a [u8],
    pub(crate) value_bytes: u32,
    pub(crate) stored: &'a [u8],
    compression: Compression,
    /// Bytes with padding.
    pub(crate) bytes: usize,
}

impl<'a> Record<'a> {
    /// Decodes the record at the start of `bytes` and checks it. What follows it is ignored.
    ///
    /// # Errors
    ///
    /// Corrupt if there is no sound record.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Record<'a>> {
        let mut reader = Reader::new("value record", bytes);
        let crc = reader.u32()?;
        let identity = Identity {
            born_in: PageId(reader.u64()?),
            place: reader.u32()?,
        };
        let stored_bytes = reader.u32()? as usize;
        let value_bytes = reader.u32()?;
        let key_bytes = usize::from(reader.u16()?);
        let compression = reader.u8()?;
        let reserved = reader.u8()?;
        let key = reader.bytes(key_bytes)?;
        let stored = reader.bytes(stored_bytes)?;
        if crc32c(&bytes[4..HEADER_BYTES + key_bytes + stored_bytes]) != crc {
            return Err(reader.corrupt("checksum"));
        }
        let compression = Compression::from_number(compression)
            .ok_or_else(|| reader.corrupt("unknown compression"))?;
        let fits = match compression {
            Compression::None => stored_bytes == value_bytes as usize,
            _ => stored_bytes < value_bytes as usize,
        };
        let is_possible = fits
            && value_bytes as usize <= VALUE_BYTES_MAX
            && key_bytes <= KEY_BYTES_MAX
            && reserved == 0;
        if !is_possible {
            return Err(reader.corrupt("impossible fields"));
        }
        Ok(Record {
            identity,
            key,
            value_bytes,
            stored,
            compression,
            bytes: record_bytes(key_bytes, stored_bytes),
        })
    }

    /// The value, decompressed.
    ///
    /// # Errors
    ///
    /// Corrupt if it does not decompress; Unsupported if this build cannot decompress it.
    pub(crate) fn value(&self) -> Result<Slice> {
        match self.compression {
            Compression::None => Ok(Slice::copy(self.stored)),
            compression => {
                let mut value = vec![0; self.value_bytes as usize];
                decompress(compression, self.stored, &mut value)?;
                Ok(Slice::from_vec(value))
            }
        }
    }
}

/// The error for a record that is sound and another one.
pub(crate) fn another(found: Identity) -> Error {
    Error::corrupt("another value's record lies here")
        .with("born in", found.born_in)
        .with("place", found.place)
}
