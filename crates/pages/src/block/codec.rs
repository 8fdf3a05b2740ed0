//! Compression of a block's payload. Each block says how it is compressed, so the option can change
//! at any time.

use terrapin_base::{Error, ErrorKind, Result};

use super::format::LZ4;

/// How new blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// LZ4 (block format): cheap to compress and to decompress.
    Lz4,
    /// Zstandard at level 3: smaller blocks, at several times the CPU. Needs the feature `zstd`.
    Zstd,
}

impl Compression {
    /// Whether this build supports the compression.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for [`Compression::Zstd`] without the feature `zstd`.
    pub fn check(self) -> Result<()> {
        if self == Compression::Zstd && cfg!(not(feature = "zstd")) {
            return Err(no_zstd());
        }
        Ok(())
    }

    /// The number of the compression on disk.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Lz4 => LZ4,
            Compression::Zstd => 2,
        }
    }

    /// The compression of a number on disk; `None` if this version knows none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Compression::None, Compression::Lz4, Compression::Zstd]
            .into_iter()
            .find(|c| c.number() == number)
    }
}

fn no_zstd() -> Error {
    let message = "this build lacks Zstandard: build it with the feature `zstd`";
    Error::new(ErrorKind::Unsupported, message)
}

/// A compressor and its memory, used for one payload after the other.
///
/// ```
/// use terrapin_pages::block::{Compression, Compressor, decompress};
/// let (mut out, payload) = (Vec::new(), [7; 1000]);
/// let compression = Compressor::new(Compression::Lz4).compress(&payload, &mut out).unwrap();
/// let mut back = [0; 1000];
/// decompress(compression, &out, &mut back)?;
/// assert_eq!(back, payload);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
pub struct Compressor(Algorithm);

enum Algorithm {
    None,
    Lz4(Box<lz4_flex::block::CompressTable>),
    #[cfg(feature = "zstd")]
    Zstd(Box<zstd::bulk::Compressor<'static>>),
}

impl Compressor {
    /// The compressor of an option. If this build lacks it, payloads stay uncompressed.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Compressor(match compression {
            Compression::None => Algorithm::None,
            Compression::Lz4 => Algorithm::Lz4(Box::default()),
            #[cfg(feature = "zstd")]
            Compression::Zstd => zstd::bulk::Compressor::new(3)
                .map_or(Algorithm::None, |c| Algorithm::Zstd(Box::new(c))),
            #[cfg(not(feature = "zstd"))]
            Compression::Zstd => Algorithm::None,
        })
    }

    /// Puts the compressed payload into `out` and returns its compression. `None` if that is
    /// impossible or does not make the payload smaller. Linear in the payload.
    pub fn compress(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Option<Compression> {
        let (bytes, compression) = match &mut self.0 {
            Algorithm::None => return None,
            Algorithm::Lz4(table) => {
                out.resize(lz4_flex::block::get_maximum_output_size(payload.len()), 0);
                let bytes = lz4_flex::block::compress_into_with_table(payload, out, table).ok()?;
                (bytes, Compression::Lz4)
            }
            #[cfg(feature = "zstd")]
            Algorithm::Zstd(compressor) => {
                out.resize(zstd::zstd_safe::compress_bound(payload.len()), 0);
                let bytes = compressor.compress_to_buffer(payload, &mut out[..]).ok()?;
                (bytes, Compression::Zstd)
            }
        };
        out.truncate(bytes);
        (bytes < payload.len()).then_some(compression)
    }
}

/// Puts a stored payload into `out`, which has the payload's length. Without compression, `stored`
/// has that length too. Linear in the payload.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] if `stored` is no such payload. [`ErrorKind::Unsupported`] if this build
/// lacks the compression.
pub fn decompress(compression: Compression, stored: &[u8], out: &mut [u8]) -> Result<()> {
    let bytes = match compression {
        Compression::None if stored.len() != out.len() => None,
        Compression::None => {
            out.copy_from_slice(stored);
            Some(out.len())
        }
        Compression::Lz4 => lz4_flex::block::decompress_into(stored, out).ok(),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::bulk::decompress_to_buffer(stored, out).ok(),
        #[cfg(not(feature = "zstd"))]
        Compression::Zstd => return Err(no_zstd()),
    };
    match bytes {
        Some(bytes) if bytes == out.len() => Ok(()),
        _ => Err(Error::corrupt("payload does not decompress")),
    }
}
