//! The root of a version with separated values.
//!
//! ```text
//! magic: u8 = 0xf5, form: u8 = 1, inner root and root of dead places, each with its length as a
//! varint in front; next birth: varint; 1 and the reference of the value table, or 0
//! ```

use terrapin_base::Result;
use terrapin_base::codec::{Reader, put_prefixed, put_varint};

use crate::table::TableRef;

/// First byte of every root. No root of a structure begins with it.
const MAGIC: u8 = 0xf5;
const FORM: u8 = 1;

/// A decoded root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeparatedRoot {
    pub(super) inner: Vec<u8>,
    pub(super) dead: Vec<u8>,
    /// The number of the next birth. All births of the table are below.
    pub(super) next_birth: u64,
    pub(super) table: Option<TableRef>,
}

impl SeparatedRoot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![MAGIC, FORM];
        put_prefixed(&mut out, &self.inner);
        put_prefixed(&mut out, &self.dead);
        put_varint(&mut out, self.next_birth);
        out.push(u8::from(self.table.is_some()));
        if let Some(table) = &self.table {
            table.encode(&mut out);
        }
        out
    }

    /// `None` if these bytes are the root of another structure.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<SeparatedRoot>> {
        if bytes.first() != Some(&MAGIC) {
            return Ok(None);
        }
        let mut reader = Reader::new("root with separated values", bytes);
        reader.u8()?;
        if reader.u8()? != FORM {
            return Err(reader.corrupt("unknown form"));
        }
        let (inner, dead) = (reader.prefixed()?.to_vec(), reader.prefixed()?.to_vec());
        let next_birth = reader.varint()?;
        let table = match reader.u8()? {
            0 => None,
            1 => Some(TableRef::decode(&mut reader)?),
            _ => return Err(reader.corrupt("unknown form of a table")),
        };
        match reader.remaining() {
            0 => Ok(Some(SeparatedRoot {
                inner,
                dead,
                next_birth,
                table,
            })),
            _ => Err(reader.corrupt("bytes behind the root")),
        }
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::PageId;
    use terrapin_pages::PageRef;

    use super::*;

    #[test]
    fn roots_round_trip_and_other_bytes_are_refused() {
        let table = TableRef {
            page: PageRef {
                id: PageId(3),
                offset: 4096,
                bytes: 512,
            },
            leaves: 1,
            parts: 2,
            records: 30,
            bytes: 4000,
            dead_bytes: 70,
            hole_bytes: 8192,
        };
        for table in [None, Some(table)] {
            let root = SeparatedRoot {
                inner: vec![1, 2, 3],
                dead: vec![0],
                next_birth: 300,
                table,
            };
            let bytes = root.encode();
            assert_eq!(SeparatedRoot::decode(&bytes).unwrap(), Some(root));
            for end in 1..bytes.len() {
                assert!(SeparatedRoot::decode(&bytes[..end]).is_err(), "{end}");
            }
            assert!(SeparatedRoot::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        assert_eq!(SeparatedRoot::decode(&[]).unwrap(), None);
        assert_eq!(SeparatedRoot::decode(&[0xf1, 0]).unwrap(), None);
        assert!(SeparatedRoot::decode(&[MAGIC, 2]).is_err());
    }
}
