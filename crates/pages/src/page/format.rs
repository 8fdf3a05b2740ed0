//! The bytes of a page and of a reference to one.
//!
//! A page: a 24-byte header {magic, kind, id, content length, CRC32C}, the content, zeros up to the
//! unit. The checksum covers the header before it and the content, so a page that is stale,
//! misplaced or of another kind does not pass.

use terrapin_base::checksum::{crc32c, crc32c_append};
use terrapin_base::codec::Reader;
use terrapin_base::{Error, PageId, Result, mutant};

use super::{PageKind, PageRef};

/// First four bytes of every page.
pub(crate) const MAGIC: [u8; 4] = *b"TpPg";
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 24;
const CRC_AT: usize = 20;
const _: () = assert!(CRC_AT + size_of::<u32>() == HEADER_BYTES);
const _: () = assert!(4 + 1 + 3 + size_of::<u64>() + size_of::<u32>() == CRC_AT);

/// The header of a page.
pub(crate) fn header(kind: PageKind, id: PageId, content: &[u8]) -> Result<[u8; HEADER_BYTES]> {
    let length = u32::try_from(content.len())
        .map_err(|_| Error::internal("page content over 4 GiB").with("bytes", content.len()))?;
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4] = kind as u8;
    header[8..16].copy_from_slice(&id.0.to_le_bytes());
    header[16..20].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c_append(crc32c(&header[..CRC_AT]), content);
    header[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    Ok(header)
}

/// The content of a page's bytes, checked against what its reference says.
pub(crate) fn content(bytes: &[u8], kind: PageKind, id: PageId) -> Result<&[u8]> {
    let mut reader = Reader::new("page header", bytes);
    if reader.bytes(4)? != MAGIC {
        return Err(reader.corrupt("not a page"));
    }
    let found_kind = reader.u8()?;
    reader.bytes(3)?;
    let found_id = PageId(reader.u64()?);
    let length = reader.u32()?;
    let crc = reader.u32()?;
    let content = usize::try_from(length)
        .ok()
        .and_then(|length| bytes.get(HEADER_BYTES..)?.get(..length))
        .ok_or_else(|| {
            Error::corrupt("page longer than its reference says").with("content bytes", length)
        })?;
    if crc32c_append(crc32c(&bytes[..CRC_AT]), content) != crc
        && !mutant::active("page-checksum-ignored")
    {
        return Err(Error::corrupt("page checksum"));
    }
    if found_id != id {
        return Err(Error::corrupt("another page lies here").with("found", found_id));
    }
    if found_kind != kind as u8 {
        return Err(Error::corrupt("page of another kind")
            .with("found kind", PageKind::name_of(found_kind))
            .with("number", found_kind));
    }
    Ok(content)
}

impl PageRef {
    /// Bytes of an encoded reference.
    pub const BYTES: usize = 20;

    /// Appends the reference: id, offset, bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
    }

    /// Reads a reference. Whether it points anywhere sensible shows when it is followed.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(PageRef {
            id: PageId(reader.u64()?),
            offset: reader.u64()?,
            bytes: reader.u32()?,
        })
    }
}
const _: () = assert!(PageRef::BYTES == 2 * size_of::<u64>() + size_of::<u32>());

#[cfg(test)]
mod tests {
    use terrapin_base::{ErrorKind, Incarnation};

    use super::*;

    fn page(content: &[u8]) -> Vec<u8> {
        let id = PageId::new(Incarnation(3), 5);
        let mut bytes = header(PageKind::Node, id, content).unwrap().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        bytes
    }

    #[test]
    fn header_is_what_the_format_document_shows() {
        let hex: Vec<String> = page(b"abc").iter().map(|b| format!("{b:02x}")).collect();
        let golden = "54 70 50 67 01 00 00 00 05 00 00 00 00 03 00 00 03 00 00 00 ";
        assert!(hex.join(" ").starts_with(golden), "{}", hex.join(" "));
        assert_eq!(hex[20..27].join(" "), "f4 e5 82 06 61 62 63");
        assert!(hex[27..].iter().all(|b| b == "00"));
    }

    #[test]
    fn a_page_is_refused_when_any_used_byte_differs_or_its_name_does() {
        let id = PageId::new(Incarnation(3), 5);
        let good = page(b"hello");
        assert_eq!(content(&good, PageKind::Node, id).unwrap(), b"hello");
        for i in 0..HEADER_BYTES + 5 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[i] ^= 1 << bit;
                assert_eq!(
                    content(&bad, PageKind::Node, id).unwrap_err().kind(),
                    ErrorKind::Corrupt,
                    "byte {i}"
                );
            }
        }
        assert!(content(&good, PageKind::CatalogLeaf, id).is_err());
        assert!(content(&good, PageKind::Node, PageId(1)).is_err());
        for length in 0..HEADER_BYTES + 5 {
            assert!(content(&good[..length], PageKind::Node, id).is_err());
        }
    }

    #[test]
    fn kinds_of_pages_that_this_version_does_not_read_are_refused_by_name() {
        let id = PageId::new(Incarnation(3), 5);
        for (number, name) in [
            (0, "unknown"),
            (3, "catalog leaf"),
            (4, "value table root"),
            (5, "value table leaf"),
            (6, "map node"),
            (7, "runs page"),
            (8, "trie node"),
            (9, "maplet"),
            (10, "list of hashes"),
            (11, "unknown"),
        ] {
            let mut other = page(b"hello");
            other[4] = number;
            let crc = crc32c_append(crc32c(&other[..CRC_AT]), b"hello");
            other[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
            let error = content(&other, PageKind::Node, id).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let found = format!("(found kind {name}, number {number})");
            assert!(error.to_string().contains(&found), "{error}");
        }
    }

    #[test]
    fn references_round_trip() {
        let page = PageRef {
            id: PageId(7),
            offset: 1 << 40,
            bytes: 4096,
        };
        let mut out = Vec::new();
        page.encode(&mut out);
        assert_eq!(out.len(), PageRef::BYTES);
        assert_eq!(
            PageRef::decode(&mut Reader::new("test", &out)).unwrap(),
            page
        );
        assert!(PageRef::decode(&mut Reader::new("test", &out[..19])).is_err());
    }
}
