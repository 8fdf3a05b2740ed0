//! Several files in one input, for targets that take directories or logs. Long runs of zeros are
//! left out, so allocated files stay small. Any bytes are an archive: parts that a count promises
//! and the input lacks are missing.
//!
//! A file: name u8 (a place in `NAMES`), number u8, bytes u32, pieces u16, then the pieces: offset
//! u32, length u16, bytes.

use terrapin_base::codec::Reader;

/// Longest file of an archive.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Most files.
const FILES_MAX: usize = 12;
/// Shorter runs of zeros stay in their piece.
const ZEROS_MIN: usize = 64;

/// A file of a database's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Which kind of file.
    pub name: u8,
    /// Its number, for kinds that have one.
    pub number: u8,
    /// Its content.
    pub content: Vec<u8>,
}

/// The kinds of files by their number in an archive.
const NAMES: [&str; 4] = ["data", "ring", "log-", "spare-"];

impl File {
    /// A file of a directory, if archives support its name.
    #[must_use]
    pub fn of(name: &str, content: Vec<u8>) -> Option<File> {
        let kind = NAMES.iter().position(|known| name.starts_with(known))?;
        let digits = &name[NAMES[kind].len()..];
        let number = if digits.is_empty() {
            0
        } else {
            u8::from_str_radix(digits, 16).ok()?
        };
        Some(File {
            name: kind as u8,
            number,
            content,
        })
    }

    /// Its name in the directory.
    #[must_use]
    pub fn name(&self) -> String {
        let kind = usize::from(self.name) % NAMES.len();
        match kind {
            0 | 1 => NAMES[kind].to_owned(),
            _ => format!("{}{:016x}", NAMES[kind], self.number),
        }
    }

    /// Whether it is a segment of the log.
    #[must_use]
    pub fn is_segment(&self) -> bool {
        self.name().starts_with("log-")
    }
}

/// The files of an input.
#[must_use]
pub fn unpack(input: &[u8]) -> Vec<File> {
    let mut reader = Reader::new("archive", input);
    let mut files = Vec::new();
    while files.len() < FILES_MAX {
        let Some(file) = unpack_file(&mut reader) else {
            break;
        };
        files.push(file);
    }
    files
}

fn unpack_file(reader: &mut Reader<'_>) -> Option<File> {
    let name = reader.u8().ok()?;
    let number = reader.u8().ok()?;
    let bytes = (reader.u32().ok()? as usize).min(FILE_BYTES_MAX);
    let pieces = reader.u16().ok()?;
    let mut content = vec![0; bytes];
    for _ in 0..pieces {
        let (Ok(offset), Ok(length)) = (reader.u32(), reader.u16()) else {
            break;
        };
        let length = usize::from(length).min(reader.remaining());
        let piece = reader.bytes(length).ok()?;
        let rest = content.get_mut(offset as usize..).unwrap_or_default();
        let there = rest.len().min(length);
        rest[..there].copy_from_slice(&piece[..there]);
    }
    Some(File {
        name,
        number,
        content,
    })
}

/// Files as an input.
#[must_use]
pub fn pack(files: &[File]) -> Vec<u8> {
    let mut out = Vec::new();
    for file in files {
        let pieces = pieces(&file.content);
        out.extend([file.name, file.number]);
        out.extend((file.content.len() as u32).to_le_bytes());
        out.extend((pieces.len().min(0xffff) as u16).to_le_bytes());
        for &(start, end) in pieces.iter().take(0xffff) {
            out.extend((start as u32).to_le_bytes());
            out.extend(((end - start) as u16).to_le_bytes());
            out.extend_from_slice(&file.content[start..end]);
        }
    }
    out
}

/// The places of the bytes outside long runs of zeros.
fn pieces(content: &[u8]) -> Vec<(usize, usize)> {
    let mut pieces: Vec<(usize, usize)> = Vec::new();
    for (at, _) in content.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        match pieces.last_mut() {
            Some((start, end)) if at - *end < ZEROS_MIN && at + 1 - *start <= 0xffff => {
                *end = at + 1;
            }
            _ => pieces.push((at, at + 1)),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_round_trip_and_zeros_are_free() {
        let mut content = vec![0; 100_000];
        content[5..2000].fill(7);
        content[70_000] = 1;
        let files = [
            File::of("data", content).unwrap(),
            File::of("log-000000000000002a", vec![0; 4096]).unwrap(),
            File::of("ring", vec![3; 70_000]).unwrap(),
        ];
        let packed = pack(&files);
        assert_eq!(unpack(&packed), files);
        assert!(packed.len() < 70_000 + 2000 + 200, "{}", packed.len());
        assert_eq!(files[1].name(), "log-000000000000002a");
        assert!(File::of("notes", Vec::new()).is_none());
        for cut in 0..packed.len().min(3000) {
            let _ = unpack(&packed[..cut]);
        }
    }
}
