//! [`Stack`]: operands side by side, and what they apply to.
//!
//! ```text
//! base      u8: 0 what older messages say, 1 no value, 2 a value, 3 operands were given up,
//!           4 the handle of a value that is stored elsewhere, 5 a value with a deadline
//! value     for bases 2, 4 and 5: length varint, bytes
//! operands  until the end, oldest first: length varint, bytes
//! ```

use crate::codec::{Reader, put_prefixed};
use crate::{Result, VALUE_BYTES_MAX, expiry};

/// Most bytes of a stack. A key reaches them only if its operands neither combine nor apply.
pub const STACK_BYTES_MAX: usize = 8 << 20;

const OLDER: u8 = 0;
const NOTHING: u8 = 1;
const VALUE: u8 = 2;
const LOST: u8 = 3;
const HANDLE: u8 = 4;
const EXPIRING: u8 = 5;

/// What the oldest operand of a stack applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackBase<'a> {
    /// What older messages say. The stack does not know it.
    Older,
    /// No value.
    Nothing,
    /// This value.
    Value(&'a [u8]),
    /// The value of this handle ([`crate::Message::Separated`]).
    Handle(&'a [u8]),
    /// A value until its deadline, and no value from then on: the payload of a
    /// [`crate::Message::Expiring`].
    Expiring(&'a [u8]),
    /// The operands were longer than [`STACK_BYTES_MAX`], and the store gave them up. Reads fail
    /// until a put or a delete replaces the stack.
    Lost,
}

/// The content of a [`crate::Message::Stack`].
///
/// ```
/// use terrapin_base::{Stack, StackBase};
/// let mut bytes = Vec::new();
/// Stack::encode(StackBase::Value(b"7"), [&b"+1"[..], b"+2"], &mut bytes);
/// let stack = Stack::decode(&bytes)?;
/// assert_eq!(stack.base, StackBase::Value(b"7"));
/// assert_eq!(stack.operands().collect::<Vec<_>>(), [b"+1", b"+2"]);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack<'a> {
    /// What the oldest operand applies to.
    pub base: StackBase<'a>,
    operands: &'a [u8],
}

impl<'a> Stack<'a> {
    /// Appends the bytes of a stack with these operands, oldest first.
    pub fn encode<'b>(
        base: StackBase<'_>,
        operands: impl IntoIterator<Item = &'b [u8]>,
        out: &mut Vec<u8>,
    ) {
        out.push(match base {
            StackBase::Older => OLDER,
            StackBase::Nothing => NOTHING,
            StackBase::Value(_) => VALUE,
            StackBase::Handle(_) => HANDLE,
            StackBase::Expiring(_) => EXPIRING,
            StackBase::Lost => LOST,
        });
        if let StackBase::Value(value) | StackBase::Handle(value) | StackBase::Expiring(value) =
            base
        {
            put_prefixed(out, value);
        }
        for operand in operands {
            put_prefixed(out, operand);
        }
    }

    /// Decodes and checks all bytes. O(bytes).
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Corrupt`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new("operands", bytes);
        if bytes.len() > STACK_BYTES_MAX {
            return Err(reader.corrupt("too many bytes of operands"));
        }
        let base = match reader.u8()? {
            OLDER => StackBase::Older,
            NOTHING => StackBase::Nothing,
            VALUE => StackBase::Value(reader.prefixed()?),
            HANDLE => StackBase::Handle(reader.prefixed()?),
            EXPIRING => StackBase::Expiring(reader.prefixed()?),
            LOST => StackBase::Lost,
            _ => return Err(reader.corrupt("the base of operands is unknown")),
        };
        let too_long = |bytes: &[u8]| bytes.len() > VALUE_BYTES_MAX;
        if matches!(base, StackBase::Value(value) | StackBase::Handle(value) if too_long(value)) {
            return Err(reader.corrupt("the base of operands exceeds the limit"));
        }
        if let StackBase::Expiring(payload) = base {
            let (_, value) = expiry::split(payload)?;
            if too_long(value) {
                return Err(reader.corrupt("the base of operands exceeds the limit"));
            }
        }
        let operands = &bytes[bytes.len() - reader.remaining()..];
        let mut count = 0usize;
        while reader.remaining() > 0 {
            if too_long(reader.prefixed()?) {
                return Err(reader.corrupt("an operand exceeds the limit"));
            }
            count += 1;
        }
        if (count == 0) != (base == StackBase::Lost) {
            return Err(reader.corrupt("a wrong number of operands"));
        }
        Ok(Stack { base, operands })
    }

    /// The operands, oldest first.
    pub fn operands(self) -> impl Iterator<Item = &'a [u8]> {
        let mut reader = Reader::new("operands", self.operands);
        // `decode` checked the lengths.
        std::iter::from_fn(move || match reader.remaining() {
            0 => None,
            _ => reader.prefixed().ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_bytes_are_refused_and_sound_ones_round_trip() {
        let mut bytes = Vec::new();
        Stack::encode(StackBase::Value(b"base"), [&b"a"[..], b""], &mut bytes);
        assert_eq!(bytes, b"\x02\x04base\x01a\x00");
        assert!(Stack::decode(&bytes).is_ok());
        // Behind the first operand the bytes are a stack of one operand.
        for end in (0..bytes.len()).filter(|&end| end != bytes.len() - 1) {
            assert!(Stack::decode(&bytes[..end]).is_err(), "{end}");
        }
        for base in [StackBase::Older, StackBase::Nothing] {
            let mut bytes = Vec::new();
            Stack::encode(base, [&b"x"[..]], &mut bytes);
            let stack = Stack::decode(&bytes).unwrap();
            assert_eq!((stack.base, stack.operands().count()), (base, 1));
            assert!(Stack::decode(&bytes[..1]).is_err(), "no operand");
        }
        assert!(Stack::decode(&[LOST]).is_ok());
        assert!(Stack::decode(&[LOST, 0]).is_err() && Stack::decode(&[6, 0]).is_err());
        // The base is too short for a deadline, and long enough.
        assert!(Stack::decode(b"\x05\x05time!\x01a").is_err());
        let stack = Stack::decode(b"\x05\x06time!!\x01a").unwrap();
        assert_eq!(stack.base, StackBase::Expiring(b"time!!"));
        let mut long = Vec::new();
        Stack::encode(StackBase::Older, [&[0; VALUE_BYTES_MAX + 1][..]], &mut long);
        assert!(Stack::decode(&long).is_err());
    }
}
