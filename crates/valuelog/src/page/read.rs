//! Reads records of value pages, and checks whole pages.

use terrapin_base::{Error, PageId, Result, Slice, mutant};

use super::build::PageBuilder;
use super::directory::{Directory, PartEntry};
use super::footer::{FOOTER_BYTES, Footer};
use crate::PLACE_BYTES;
use crate::handle::Handle;
use crate::record::{self, Identity, Record};

/// The value of the record at the start of `bytes`, which must be the record that a handle names.
/// `born_in` is the page that the handle's birth was written to at first. Linear in the record.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] if the record is damaged, or is another version, another
/// key, or of another length. [`terrapin_base::ErrorKind::Unsupported`] if this build cannot
/// decompress it.
pub fn record_at(bytes: &[u8], born_in: PageId, handle: Handle, key: &[u8]) -> Result<Slice> {
    let record = Record::decode(bytes)?;
    if record.identity
        != (Identity {
            born_in,
            place: handle.place,
        })
    {
        return Err(record::another(record.identity));
    }
    if record.key != key || record.value_bytes != handle.value_bytes {
        return Err(
            Error::corrupt("a handle and its record contradict each other")
                .with("birth", handle.birth)
                .with("place", handle.place),
        );
    }
    record.value()
}

/// The value of the record at the start of `bytes`, if it is the key's. Linear in the record.
///
/// # Errors
///
/// As for [`record_at`], without a handle to contradict.
pub(crate) fn value_of_key(bytes: &[u8], key: &[u8]) -> Result<Option<Slice>> {
    let record = Record::decode(bytes)?;
    match record.key == key || mutant::active("located-keys-are-not-compared") {
        true => record.value().map(Some),
        false => Ok(None),
    }
}

/// Counts of a sound page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPage {
    /// The footer.
    pub footer: Footer,
    /// The directory.
    pub directory: Directory,
    /// Records that were not checked because they are dead.
    pub dead: u32,
}

/// Checks a whole value page. `image` is the page. `is_dead` says whether nothing refers to a
/// record of a birth and a place any more: such records may be holes and are not checked.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] for the first fault, with its position.
pub fn check_page(image: &[u8], is_dead: &mut dyn FnMut(u64, u32) -> bool) -> Result<CheckedPage> {
    let footer = Footer::decode(image)?;
    if footer.bytes != image.len() as u64 {
        return Err(Error::corrupt(
            "a value page is not as long as its footer says",
        ));
    }
    let (records, rest) = image.split_at(footer.record_bytes as usize);
    let (directory, rest) = rest.split_at(footer.directory_bytes as usize);
    let directory = Directory::decode(directory, footer.id)?;
    if rest[..rest.len() - FOOTER_BYTES]
        .iter()
        .any(|&byte| byte != 0)
    {
        return Err(Error::corrupt("padding of a value page is not zero"));
    }
    let (mut dead, mut count, mut logical_bytes) = (0, 0, 0);
    for part in directory.parts() {
        for &(place, position) in part.records() {
            count += 1;
            if is_dead(part.birth, place) {
                dead += 1;
                continue;
            }
            let record = sound_record(records, part, place, position)?;
            logical_bytes += record.key.len() as u64 + u64::from(record.value_bytes);
        }
    }
    let counts_agree = count == footer.records
        && directory.parts().len() as u64 == u64::from(footer.parts)
        && (logical_bytes == footer.logical_bytes || dead > 0);
    match counts_agree {
        true => Ok(CheckedPage {
            footer,
            directory,
            dead,
        }),
        false => {
            Err(Error::corrupt("the counts of a value page are wrong").with("page", footer.id))
        }
    }
}

/// Copies the live records of a part into a builder of collected pages. The part stays in one page:
/// before the call, finish the builder's page if it is full. Returns the number of records. Linear
/// in their bytes.
///
/// `records` are the bytes of the page that the part is in, as far as its records go. `is_dead` as
/// for [`check_page`].
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] for the first record that is damaged. Nothing is copied
/// then: the part must stay where it is.
pub fn copy_live(
    records: &[u8],
    part: &PartEntry,
    is_dead: &mut dyn FnMut(u64, u32) -> bool,
    builder: &mut PageBuilder,
) -> Result<u32> {
    let mut live = Vec::with_capacity(part.records().len());
    for &(place, position) in part.records() {
        if is_dead(part.birth, place) {
            continue;
        }
        let record = sound_record(records, part, place, position)?;
        live.push((position, record));
    }
    if mutant::active("copy-leaves-a-live-record-out") && live.len() > 1 {
        live.pop();
    }
    for (position, record) in &live {
        builder.add_copy(
            part.birth,
            &records[*position as usize * PLACE_BYTES..],
            record,
        );
    }
    Ok(live.len() as u32)
}

/// A record that a directory names, checked.
fn sound_record<'a>(
    records: &'a [u8],
    part: &PartEntry,
    place: u32,
    position: u32,
) -> Result<Record<'a>> {
    let named = |error: Error| error.with("birth", part.birth).with("place", place);
    let bytes = records
        .get(position as usize * PLACE_BYTES..)
        .ok_or_else(|| named(Error::corrupt("a value's record lies outside of its page")))?;
    let record = Record::decode(bytes).map_err(named)?;
    match record.identity
        == (Identity {
            born_in: part.born_in,
            place,
        }) {
        true => Ok(record),
        false => Err(named(record::another(record.identity))),
    }
}
