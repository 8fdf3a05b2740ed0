//! The frame that all footers of pages share: a magic number and the page id first, a checksum
//! last. It identifies a page by its last bytes.

use terrapin_base::checksum::crc32c_append;
use terrapin_base::codec::Reader;
use terrapin_base::{Error, PageId, Result, mutant};

use crate::block::part_seed;

/// A kind of footer of `N` bytes. Bytes between its fields and its checksum are 0.
///
/// ```
/// use terrapin_base::PageId;
/// use terrapin_pages::FooterFrame;
/// let frame = FooterFrame::<32> { name: "footer", magic: *b"EXAMPLE1", part: 7 };
/// let bytes = frame.encode(PageId(5), &[1, 2]);
/// let (id, mut fields) = frame.decode(&bytes)?;
/// assert_eq!((id, fields.u8()?, fields.remaining()), (PageId(5), 1, 32 - 8 - 8 - 1 - 4));
/// assert!(frame.end(fields).is_err(), "there is a second field");
/// assert!(frame.decode(&bytes[1..]).is_err());
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FooterFrame<const N: usize> {
    /// What errors call it.
    pub name: &'static str,
    /// Its first bytes.
    pub magic: [u8; 8],
    /// Its part number, for [`part_seed`].
    pub part: u32,
}

impl<const N: usize> FooterFrame<N> {
    /// The bytes of a footer with these fields behind the page id. Panics if they do not fit.
    #[must_use]
    pub fn encode(&self, id: PageId, fields: &[u8]) -> [u8; N] {
        let mut bytes = [0; N];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..16].copy_from_slice(&id.0.to_le_bytes());
        bytes[16..N - 4][..fields.len()].copy_from_slice(fields);
        let crc = self.checksum(&bytes, id);
        bytes[N - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The page id of the footer that ends `bytes`, and its fields with the zeros behind them.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes are too few, damaged or no such footer.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Result<(PageId, Reader<'a>)> {
        let bytes = bytes
            .last_chunk::<N>()
            .ok_or_else(|| Error::corrupt("too short for a footer").with("in", self.name))?;
        let mut reader = Reader::new(self.name, &bytes[..N - 4]);
        if reader.bytes(8)? != self.magic {
            return Err(reader.corrupt("no footer"));
        }
        let id = PageId(reader.u64()?);
        if bytes[N - 4..] != self.checksum(bytes, id).to_le_bytes()
            && !mutant::active("group-checksum-ignored")
        {
            return Err(reader.corrupt("checksum"));
        }
        Ok((id, reader))
    }

    /// Refuses bytes behind the fields that are not 0.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`].
    pub fn end(&self, mut fields: Reader<'_>) -> Result<()> {
        match fields
            .bytes(fields.remaining())?
            .iter()
            .all(|&byte| byte == 0)
        {
            true => Ok(()),
            false => Err(fields.corrupt("impossible fields")),
        }
    }

    fn checksum(&self, bytes: &[u8; N], id: PageId) -> u32 {
        crc32c_append(part_seed(id, self.part), &bytes[..N - 4])
    }
}
