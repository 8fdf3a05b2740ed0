//! Target `put-large`: records of large puts in the log, and the pages that they name.
//!
//! It replaces parts of the template `large`, a killed store: first the payloads of records that
//! put large values, alone or in a batch, then large pages. With repaired checksums, a record names
//! the checksum that its page has now, so the engine reads what the page says.

use terrapin_base::codec::Reader;
use terrapin_base::handle_deadline_ms;
use terrapin_valuelog::large::LargeRef;

use super::archive::File;
use super::exercise::check_error;
use super::repair;
use super::repair_log::{self, Payload};
use super::targets::{parts, split, whole};
use super::template;
use super::values::{Place, places, replace};

/// The template of the target.
const TEMPLATE: &str = "large";
/// The kind of a record of a batch. Each put of a large value is one, alone or among others.
const BATCH: u8 = 32;
/// The kind of a put of a large value in a batch.
const PUT_LARGE: u8 = 4;
const EXTENT_BYTES: u64 = 4096;
const FOOTER_BYTES: usize = 64;

/// The large pages of a data file.
#[must_use]
pub fn pages(data: &[u8]) -> Vec<Place> {
    places(data, b"TPLARGE1", FOOTER_BYTES)
}

/// The payloads of a log that may put large values, oldest first.
#[must_use]
pub fn payloads(files: &[File]) -> Vec<Payload> {
    let mut found = repair_log::payloads(files);
    found.retain(|payload| payload.kind == BATCH);
    found
}

/// The parts that the target replaces, as the template has them.
#[must_use]
pub fn template_parts() -> Vec<Vec<u8>> {
    let files = template::files(TEMPLATE);
    let mut parts: Vec<_> = payloads(&files).iter().map(|p| p.bytes(&files)).collect();
    if let Some(data) = files.iter().find(|file| file.name() == "data") {
        let bytes = |(start, bytes): Place| data.content[start..start + bytes].to_vec();
        parts.extend(pages(&data.content).into_iter().map(bytes));
    }
    parts
}

/// Records of large puts, and large pages. Input: a part for each of [`template_parts`]. What a
/// record says of a value is also decoded on its own.
pub fn put_large(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let mut files = template::files(TEMPLATE);
    let payloads = payloads(&files);
    let mut given = parts(input).into_iter();
    for (payload, part) in payloads.iter().zip(given.by_ref()) {
        references(part);
        payload.replace(&mut files, part);
    }
    let mut footers = Vec::new();
    if let Some(data) = files.iter_mut().find(|file| file.name() == "data") {
        for (place, part) in pages(&data.content).into_iter().zip(given) {
            replace(&mut data.content, place, part);
            let page = &mut data.content[place.0..place.0 + place.1];
            if repaired && let Some(checksum) = repair::large_page(page) {
                footers.push((place.0 as u64, checksum));
            }
        }
    }
    if repaired {
        for payload in &payloads {
            let mut bytes = payload.bytes(&files);
            if name_footer(&mut bytes, &footers).is_some() {
                payload.replace(&mut files, &bytes);
            }
        }
        repair_log::log(&mut files);
    }
    whole(&files, 0)
}

/// Writes the checksum of the page that the first operation of a batch names into the payload.
/// `None` if it names none.
fn name_footer(payload: &mut [u8], footers: &[(u64, u32)]) -> Option<()> {
    let mut reader = Reader::new("large put", payload);
    if reader.u8().ok()? != PUT_LARGE {
        return None;
    }
    reader.varint().ok()?;
    let key_bytes = usize::try_from(reader.varint().ok()?).ok()?;
    reader.bytes(key_bytes).ok()?;
    reader.varint().ok()?;
    let offset = reader.varint().ok()?.checked_mul(EXTENT_BYTES)?;
    reader.varint().ok()?;
    let at = payload.len() - reader.remaining();
    let (_, checksum) = footers.iter().find(|(start, _)| *start == offset)?;
    let place = payload.get_mut(at..at + 4)?;
    place.copy_from_slice(&checksum.to_le_bytes());
    Some(())
}

/// Decodes what a record may say of a large value, at each place of a payload.
fn references(payload: &[u8]) {
    for start in 0..payload.len().min(1 << 10) {
        match LargeRef::decode(&payload[start..]) {
            Ok((large, handle)) => {
                assert_eq!(handle_deadline_ms(handle), large.deadline_ms);
                let mut again = Vec::new();
                large.encode(&mut again);
                let decoded = LargeRef::decode(&again).map(|(again, _)| again);
                assert_eq!(decoded.ok(), Some(large));
                assert!(large.page.bytes >= large.length, "a page without its value");
            }
            Err(error) => check_error(&error),
        }
    }
}

/// A number that tells two templates apart.
#[cfg(test)]
fn fingerprint(files: &[File]) -> u64 {
    let hash = |file: &File| terrapin_base::checksum::hash64(&file.content);
    let all = files.iter().map(hash);
    all.fold(0, |sum, hash| sum.rotate_left(7) ^ hash)
}

#[cfg(test)]
mod tests {
    use super::super::repair::u64_at;
    use super::*;

    /// Alone, in a batch, with a deadline, in the log and in a tree.
    #[test]
    fn the_template_has_large_puts_whose_parts_change_nothing() {
        let files = template::files(TEMPLATE);
        let payloads = payloads(&files);
        let large = payloads.iter().map(|payload| payload.bytes(&files));
        let large = large
            .filter(|bytes| bytes.first() == Some(&PUT_LARGE))
            .count();
        assert!(large >= 4, "{large} puts");
        let data = files.iter().find(|file| file.name() == "data").unwrap();
        let pages = pages(&data.content);
        assert!(pages.len() >= 7, "{} pages", pages.len());
        let mut again = files.clone();
        for payload in &payloads {
            let bytes = payload.bytes(&files);
            payload.replace(&mut again, &bytes);
        }
        repair_log::log(&mut again);
        assert_eq!(fingerprint(&again), fingerprint(&files));
        let mut repaired = data.content.clone();
        for (start, bytes) in pages {
            let page = &mut repaired[start..start + bytes];
            let footer = page.len() - FOOTER_BYTES;
            assert_eq!(u64_at(page, footer + 24), Some(page.len() as u64));
            page[footer + 60..].fill(0);
            repair::large_page(page).unwrap();
        }
        assert!(repaired == data.content);
    }
}
