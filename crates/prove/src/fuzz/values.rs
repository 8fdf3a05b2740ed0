//! Targets for separated values: handles in the tree, value pages, and the value table.
//!
//! Each replaces parts of the template `separated`, and opens the whole database over them.

use terrapin_base::PageId;
use terrapin_pages::block::Compression;
use terrapin_valuelog::Handle;
use terrapin_valuelog::page::{
    Directory, Footer, PageBuilder, PageOptions, check_page, copy_live, record_at,
};

use super::exercise::check_error;
use super::repair::{self, u32_at, u64_at};
use super::targets::{SMALL, measured, parts, split, whole};
use super::template;

/// The template of these targets.
const TEMPLATE: &str = "separated";
/// Places of footers: no unit is smaller in the templates.
const UNIT: usize = 512;

/// A page group or value page of a data file: where it starts, and its bytes.
pub(super) type Place = (usize, usize);

/// The places that end in a footer of this magic, whose length lies at byte 24.
pub(super) fn places(data: &[u8], magic: &[u8], footer_bytes: usize) -> Vec<Place> {
    (2..=data.len() / UNIT)
        .map(|unit| unit * UNIT)
        .filter_map(|end| {
            let footer = end.checked_sub(footer_bytes)?;
            if !data[footer..].starts_with(magic) {
                return None;
            }
            let bytes = usize::try_from(u64_at(data, footer + 24)?).ok()?;
            Some((end.checked_sub(bytes)?, bytes))
        })
        .collect()
}

/// The value pages of a data file.
#[must_use]
pub fn value_pages(data: &[u8]) -> Vec<Place> {
    places(data, b"TPVALUE1", 96)
}

/// The page groups of a data file.
#[must_use]
pub fn groups(data: &[u8]) -> Vec<Place> {
    places(data, b"TPGROUP3", 128)
}

/// Opens the template with a changed data file.
fn opened(change: impl FnOnce(&mut Vec<u8>) -> usize) -> bool {
    let mut files = template::files(TEMPLATE);
    let mut inflated = 0;
    if let Some(data) = files.iter_mut().find(|file| file.name() == "data") {
        inflated = change(&mut data.content);
    }
    whole(&files, inflated)
}

/// Puts bytes over those of a place, cut to its length.
pub(super) fn replace(data: &mut [u8], place: Place, bytes: &[u8]) {
    let (start, room) = place;
    let count = bytes.len().min(room);
    data[start..start + count].copy_from_slice(&bytes[..count]);
}

/// Page groups whose records are handles. Input: a part for each group of the template. Handles in
/// each part are also decoded on their own.
pub fn handle(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    for part in parts(input) {
        for start in (0..part.len()).step_by(7) {
            let bytes = &part[start..part.len().min(start + Handle::BYTES_MAX)];
            let Ok(handle) = Handle::decode(bytes) else {
                continue;
            };
            let mut again = Vec::new();
            handle.encode(&mut again);
            assert_eq!(Handle::decode(&again).ok(), Some(handle));
        }
    }
    opened(|data| {
        let mut inflated = 0;
        for (place, part) in groups(data).into_iter().zip(parts(input)) {
            replace(data, place, part);
            if repaired {
                let group = &mut data[place.0..place.0 + place.1];
                inflated += repair::group(group).unwrap_or(0);
            }
        }
        inflated
    })
}

/// A value page: records, directory and footer. Input: a part for each value page of the template.
pub fn value(input: &[u8]) -> bool {
    let (repaired, input) = split(input);
    let mut sound = true;
    let opened = opened(|data| {
        let mut inflated = 0;
        for (place, part) in value_pages(data).into_iter().zip(parts(input)) {
            replace(data, place, part);
            let image = &mut data[place.0..place.0 + place.1];
            if repaired {
                inflated += repair::value_page(image);
            }
            sound &= measured(image.len() + inflated, SMALL, || page(image));
        }
        inflated
    });
    opened && sound
}

/// Checks a value page, reads each record by its handle, and copies all of them into another page.
fn page(image: &[u8]) -> bool {
    let checked = match check_page(image, &mut |_, _| false) {
        Ok(checked) => checked,
        Err(error) => {
            check_error(&error);
            // What a read finds without the check.
            if let Ok(footer) = Footer::decode(image) {
                let directory = image
                    .get(footer.record_bytes as usize..)
                    .and_then(|rest| rest.get(..footer.directory_bytes as usize));
                let directory = directory.map(|bytes| Directory::decode(bytes, footer.id));
                directory.and_then(Result::err).iter().for_each(check_error);
            }
            return false;
        }
    };
    let records = &image[..checked.footer.record_bytes as usize];
    for part in checked.directory.parts() {
        for &(place, position) in part.records() {
            let at = position as usize * terrapin_valuelog::PLACE_BYTES;
            let key_bytes = usize::from(u32_at(records, at + 24).unwrap_or(0) as u16);
            let key = records
                .get(at + 28..)
                .and_then(|rest| rest.get(..key_bytes));
            let handle = Handle {
                birth: part.birth,
                place,
                value_bytes: u32_at(records, at + 20).unwrap_or(0),
            };
            // Only decompression may fail behind a check.
            let read = record_at(
                &records[at..],
                part.born_in,
                handle,
                key.unwrap_or_default(),
            );
            if let Err(error) = read {
                check_error(&error);
            }
            let other = record_at(&records[at..], PageId(1), handle, key.unwrap_or_default());
            assert!(other.is_err(), "a record answers for another page");
        }
        let mut builder = PageBuilder::new(PageOptions {
            target_bytes: 1 << 10,
            unit: UNIT as u32,
            compression: Compression::None,
        });
        match copy_live(records, part, &mut |_, _| false, &mut builder) {
            Ok(copied) => assert_eq!(copied as usize, part.records().len()),
            Err(error) => panic!("a sound page is not copied: {error}"),
        }
    }
    true
}

/// The value table. Input: contents of the template's roots of tables, then of their leaves.
pub fn table(input: &[u8]) -> bool {
    let (_, input) = split(input);
    opened(|data| {
        for (page, part) in table_pages(data).iter().zip(parts(input)) {
            page.replace(data, part);
        }
        0
    })
}

/// The roots of value tables in a data file, then their leaves, the newest first.
#[must_use]
pub fn table_pages(data: &[u8]) -> Vec<template::Page> {
    let mut pages = template::pages(data, 4);
    pages.extend(template::pages(data, 5));
    pages
}
