//! The bytes of a backup's manifest: the file `backup`, which names the set of files that counts.
//! `docs/FORMAT.md` describes them.

use terrapin_base::checksum::crc32c;
use terrapin_base::codec::Reader;
use terrapin_base::{Error, ErrorKind, Generation, Result};

/// Name of the manifest.
pub(super) const MANIFEST: &str = "backup";
/// Name of a manifest before it takes the place of the last one.
pub(super) const MANIFEST_NEW: &str = "backup-new";
/// Name of the file that a backup locks.
pub(super) const LOCK: &str = "backup-lock";
/// Version of the manifest that this build writes and reads.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"TERRABAK";
/// Bytes of a manifest.
pub(super) const MANIFEST_BYTES: usize = 40;
/// Digits of a set's number in the names of its files.
const DIGITS: usize = 16;

/// The content of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Number of the set of files.
    pub set: u64,
    /// Id of the database.
    pub database_id: u64,
    /// The generation of the database that the set has.
    pub generation: Generation,
}

impl Manifest {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        for field in [self.set, self.database_id, self.generation.0] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a manifest. [`ErrorKind::NewerFormat`] names both versions.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        let mut reader = Reader::new("manifest of a backup", bytes);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return Err(reader.corrupt("the file is not the manifest of a backup"));
        }
        let summed = &bytes[..bytes.len().min(MANIFEST_BYTES - 4)];
        let checksum = &bytes[summed.len()..];
        if Reader::new("manifest of a backup", checksum).u32()? != crc32c(summed) {
            return Err(reader.corrupt("the manifest does not match its checksum"));
        }
        let version = reader.u32()?;
        if version != VERSION {
            let message = "a newer Terrapin made this backup";
            return Err(Error::new(ErrorKind::NewerFormat, message)
                .with("its version", version)
                .with("version known here", VERSION));
        }
        Ok(Manifest {
            set: reader.u64()?,
            database_id: reader.u64()?,
            generation: Generation(reader.u64()?),
        })
    }
}

/// What the names of a set's files begin with.
pub(super) fn set_prefix(set: u64) -> String {
    format!("{set:016x}-")
}

/// The set to which a file belongs, by its name.
pub(super) fn set_of(name: &str) -> Option<u64> {
    let digits = name.get(..DIGITS)?;
    let is_plain = digits
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let is_set = is_plain && name.as_bytes().get(DIGITS) == Some(&b'-');
    is_set.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_as_the_format_says_and_no_flipped_bit_passes() {
        let manifest = Manifest {
            set: 3,
            database_id: 0x1122_3344_5566_7788,
            generation: Generation(258),
        };
        let bytes = manifest.encode();
        assert_eq!(bytes.len(), MANIFEST_BYTES);
        assert_eq!(bytes[..12], *b"TERRABAK\x01\0\0\0");
        assert_eq!(bytes[12..20], 3_u64.to_le_bytes());
        assert_eq!(bytes[20..28], 0x1122_3344_5566_7788_u64.to_le_bytes());
        assert_eq!(bytes[28..36], 258_u64.to_le_bytes());
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&damaged).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn files_of_sets_are_told_by_their_names() {
        assert_eq!(set_of(&format!("{}data", set_prefix(17))), Some(17));
        for name in [
            "data",
            "backup",
            "000000000000001-data",
            "000000000000001G-data",
        ] {
            assert_eq!(set_of(name), None, "{name}");
        }
    }
}
