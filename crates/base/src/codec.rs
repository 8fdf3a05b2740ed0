//! Little-endian encoding with bounds checks. [`Reader`] never panics on hostile bytes (D8). The
//! writers append to a `Vec`.

use crate::{Error, Result};

/// Reads little-endian fields from bytes that may be hostile. A read past the end is
/// [`crate::ErrorKind::Corrupt`].
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`. Errors contain `what` as the name of the bytes.
    #[must_use]
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Reader { bytes, what }
    }

    /// Number of bytes that are not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// An error about these bytes, of kind [`crate::ErrorKind::Corrupt`].
    pub fn corrupt(&self, message: &'static str) -> Error {
        Error::corrupt(message).with("in", self.what)
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.bytes.split_at_checked(count) else {
            return Err(self.corrupt("ends too early"));
        };
        self.bytes = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A LEB128 varint of at most 64 bits.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.corrupt("varint too long"))
    }

    /// Bytes that follow a varint with their length.
    pub fn prefixed(&mut self) -> Result<&'a [u8]> {
        let count = self.varint()?;
        let count = usize::try_from(count).map_err(|_| self.corrupt("length too large"))?;
        self.bytes(count)
    }
}

/// Appends a LEB128 varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Number of bytes that [`put_varint`] appends for `value`.
#[must_use]
pub fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends the length of `bytes` as a varint, then `bytes`.
pub fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_reject_overlong_input() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), varint_bytes(value));
            let mut reader = Reader::new("test", &out);
            assert_eq!(reader.varint().unwrap(), value);
            assert_eq!(reader.remaining(), 0);
        }
        assert!(Reader::new("test", &[0xff; 11]).varint().is_err());
        assert!(Reader::new("test", &[0xff; 3]).varint().is_err());
        assert!(Reader::new("test", &[200, 1, 2]).prefixed().is_err());
    }
}
