//! Checks values: every page, every table, and every handle of the tree.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrapin_base::Result;
use terrapin_base::checksum::hash64;
use terrapin_pages::ReadFor;
use terrapin_structure::{Direction, Finding, Found};

use super::version::{DeadPlaces, SeparatedVersion, dead_key};
use crate::handle::{Handle, dangling};
use crate::large::{check_key, check_listed};
use crate::page::check_page;
use crate::table::PartRef;

pub(super) fn verify(version: &SeparatedVersion, found: &mut dyn FnMut(Finding)) -> Result<()> {
    let mut pages: BTreeMap<_, Vec<PartRef>> = BTreeMap::new();
    let mut births_below = true;
    version.table.parts(&mut |part| {
        births_below &= part.birth < version.next_birth || part.is_large();
        pages.entry(part.page.id).or_default().push(*part);
        Ok(())
    })?;
    if !births_below {
        found(Finding::new(
            "value table",
            "a birth is not below the next one",
        ));
    }
    for parts in pages.values() {
        check(version, parts, found)?;
    }
    check_handles(version, found)
}

/// Checks a value page against the table and the dead places.
fn check(
    version: &SeparatedVersion,
    parts: &[PartRef],
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    let Some(first) = parts.first() else {
        return Ok(());
    };
    let place = format!("value page {}", first.page.id);
    let mut finding = |message: String| found(Finding::new(place.clone(), message));
    if first.is_large() {
        let store = version.table.store();
        if let Err(error) = check_listed(store, &first.page, first.value_bytes) {
            finding(error.to_string());
        }
        return Ok(());
    }
    let dead = DeadPlaces::of(version, parts)?;
    for part in parts {
        let places = dead.of_birth(part.birth).unwrap_or_default();
        if places.len() != part.dead_records as usize {
            finding(format!(
                "birth {}: {} dead places, but the table has {}",
                part.birth,
                places.len(),
                part.dead_records
            ));
        }
    }
    let mut is_dead = |birth, place| dead.is_dead(birth, place);
    let store = version.table.store();
    let checked = store.read_piece(&first.page, 0..first.page.bytes, ReadFor::Verify, |image| {
        check_page(image, &mut is_dead)
    });
    let page = match checked {
        Ok(page) => page,
        Err(error) => {
            finding(error.to_string());
            return Ok(());
        }
    };
    if page.footer.id != first.page.id || page.footer.offset != first.page.offset {
        finding("another page lies here".to_owned());
    }
    for part in parts {
        let records = page
            .directory
            .part(part.birth)
            .map(|entry| (entry.born_in, entry.records().len() as u32));
        if records != Some((part.born_in, part.records)) {
            finding(format!(
                "birth {}: table and page contradict each other",
                part.birth
            ));
        }
    }
    Ok(())
}

/// Checks that each handle that readers see leads to its key's value, and is not dead.
fn check_handles(version: &SeparatedVersion, found: &mut dyn FnMut(Finding)) -> Result<()> {
    let Some(ordered) = version.inner.ordered() else {
        return Ok(());
    };
    let mut scan = ordered.scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)?;
    loop {
        // Damage below the inner version was reported by its own check.
        let Ok(Some((key, value))) = scan.next() else {
            return Ok(());
        };
        if !value.is_empty() {
            continue;
        }
        let (key, hash) = (key.to_vec(), hash64(key));
        let Ok(Found::Handle(handle)) = version.inner.get(&key, hash) else {
            continue;
        };
        let checked = Handle::decode(&handle).and_then(|handle| {
            if handle.is_large() {
                let listed = version.table.part(handle.birth)?;
                let length = u64::from(handle.value_bytes);
                let listed = listed.filter(|part| part.value_bytes == length);
                let part = listed.ok_or_else(|| dangling(handle))?;
                // The table's check has read the value.
                return check_key(version.table.store(), &part.page, length, &key).map(|()| false);
            }
            let dead = dead_key(handle.birth, handle.place);
            let is_dead = version.dead.get(&dead, hash64(&dead))? != Found::Nothing;
            version
                .table
                .get(handle, &key, ReadFor::Verify)
                .map(|_| is_dead)
        });
        let place = || format!("key {}", key.escape_ascii());
        match checked {
            Ok(false) => {}
            Ok(true) => found(Finding::new(place(), "its value is among the dead")),
            Err(error) => found(Finding::new(place(), error.to_string())),
        }
    }
}
