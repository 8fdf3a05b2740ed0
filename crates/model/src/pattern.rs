//! Bytes in the notation of scripts: short to read however many they are.
//!
//! | notation | bytes |
//! | --- | --- |
//! | `apple` | a bare word of letters, digits and `_ . / : + -` |
//! | `"two words\x00"` | a quoted one, with `\\ \" \n \t \xNN` |
//! | `ab@5` | repeated or cut to a length: `ababa` |
//! | `~7@300` | 300 incompressible bytes of seed 7 |

use std::fmt;

use crate::random::Random;

/// Bytes, by the rule that generates them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// These bytes.
    Literal(Vec<u8>),
    /// A unit repeated and cut at a length.
    Repeated(Vec<u8>, usize),
    /// Incompressible bytes of a seed, of this length.
    Noise(u64, usize),
}

impl Pattern {
    /// These bytes.
    #[must_use]
    pub fn literal(bytes: impl AsRef<[u8]>) -> Self {
        Pattern::Literal(bytes.as_ref().to_vec())
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Pattern::Literal(bytes) => bytes.clone(),
            Pattern::Repeated(unit, bytes) => unit.iter().copied().cycle().take(*bytes).collect(),
            Pattern::Noise(seed, bytes) => {
                let mut random = Random::new(*seed);
                let mut out = Vec::with_capacity(bytes + 8);
                while out.len() < *bytes {
                    out.extend_from_slice(&random.bits().to_le_bytes());
                }
                out.truncate(*bytes);
                out
            }
        }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Pattern::Literal(bytes) => bytes.len(),
            Pattern::Repeated(unit, _) if unit.is_empty() => 0,
            Pattern::Repeated(_, bytes) | Pattern::Noise(_, bytes) => *bytes,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether a byte may occur in a bare word.
pub(crate) fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_./:+-".contains(&byte)
}

/// Shows bytes in the notation of scripts.
pub(crate) struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && self.0.iter().all(|&b| is_bare(b)) && !self.0.starts_with(b"->") {
            return f.write_str(&String::from_utf8_lossy(self.0));
        }
        f.write_str("\"")?;
        for &byte in self.0 {
            match byte {
                b'"' => f.write_str("\\\"")?,
                b'\\' => f.write_str("\\\\")?,
                b'\n' => f.write_str("\\n")?,
                b'\t' => f.write_str("\\t")?,
                b'{' | b'}' => write!(f, "\\x{byte:02x}")?,
                0x20..0x7f => write!(f, "{}", byte as char)?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        f.write_str("\"")
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Literal(bytes) => Shown(bytes).fmt(f),
            Pattern::Repeated(unit, bytes) => write!(f, "{}@{bytes}", Shown(unit)),
            Pattern::Noise(seed, bytes) => write!(f, "~{seed}@{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_their_stated_length() {
        for pattern in [
            Pattern::literal(b"abc"),
            Pattern::Repeated(b"ab".to_vec(), 5),
            Pattern::Repeated(b"abc".to_vec(), 2),
            Pattern::Repeated(Vec::new(), 9),
            Pattern::Noise(3, 21),
        ] {
            assert_eq!(pattern.bytes().len(), pattern.len(), "{pattern}");
        }
        assert_eq!(Pattern::Repeated(b"ab".to_vec(), 5).bytes(), b"ababa");
        assert_ne!(Pattern::Noise(3, 16).bytes(), Pattern::Noise(4, 16).bytes());
    }
}
