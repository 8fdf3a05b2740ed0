//! The large values that the log of an open names (decision 0074).
//!
//! A record counts at or above the applied LSN of its keyspace, if the catalog has the keyspace or
//! the log creates it. The pages of such records are in use, whether trees have them or not.
//!
//! Above what is known to be synced, a record may be on the disk without its value. The first such
//! record ends the log. Below, an incomplete value is corruption. What is readable need not be
//! durable: before the log's recovery calls any record synced, the open writes the values again
//! that no sync covers, and syncs the data file.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, Generation, Lsn, PageId, Result, mutant};
use terrapin_disk::Disk;
use terrapin_pages::{HeldPage, PageStore, PageUse};
use terrapin_valuelog::large::{LargeRef, check_large};
use terrapin_wal::{Record, Recovery};

use crate::keyspaces::catalog::Catalog;
use crate::keyspaces::catalog::format::Stored;
use crate::log_record::{Change, Operations};
use crate::open::base::Base;

/// Who looks for the large values of a log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    /// An open, or a verification.
    Open,
    /// A reader beside a writer, which goes on with the log. Its values are whole.
    Beside,
    /// A salvage, which passes over damage of what was synced, and over what cannot be read.
    Salvage,
}

impl Sought {
    /// An open, beside a writer or alone.
    pub fn of_open(is_beside: bool) -> Self {
        if is_beside {
            Sought::Beside
        } else {
            Sought::Open
        }
    }
}

/// Large pages of the log's records.
#[derive(Default)]
pub(crate) struct LoggedLarge {
    /// All that count.
    pub pages: Vec<PageUse>,
    /// Those of records that are not known to be synced.
    unsynced: Vec<PageUse>,
    /// Values of synced records, of which only the footers were checked, and their keys.
    synced: Vec<(LargeRef, Box<[u8]>)>,
}

impl LoggedLarge {
    /// Looks at all records of a scanned log, and ends the log at the first whose value is not
    /// whole.
    ///
    /// # Errors
    ///
    /// Those of reads; `Corrupt` for a damaged value that was synced; `Overtaken` if the writer
    /// took the space of a value.
    pub fn find(
        found: &mut Recovery,
        base: &Base,
        store: &PageStore,
        sought: Sought,
    ) -> Result<LoggedLarge> {
        let synced = found.synced();
        let mut all: BTreeMap<PageId, (LargeRef, Box<[u8]>, bool)> = BTreeMap::new();
        found.end_at(&mut |record| {
            let is_synced = record.lsn < synced;
            for (large, key) in larges((&base.catalog, &base.stored), &record) {
                let known = all.get(&large.page.id);
                if known.is_some_and(|(own, of, _)| *own == large && **of == *key) {
                    continue;
                }
                let is_corrupt = |error: &Error| error.kind() == ErrorKind::Corrupt;
                let mut checked = check_large(store, &large, key, !is_synced);
                if !is_synced && checked.as_ref().is_err_and(is_corrupt) {
                    // A read may go wrong once. Only what is damaged ends the log.
                    checked = check_large(store, &large, key, true);
                }
                match checked {
                    Err(_) if mutant::active("large-values-unchecked-at-open") => {}
                    Ok(()) => {}
                    Err(error) if error.is_of_data() && sought == Sought::Beside => {
                        let message = "the writer took the space of a large value: try again";
                        return Err(Error::new(ErrorKind::Overtaken, message).with("cause", error));
                    }
                    // What the device does not read now may be whole.
                    Err(error) if is_corrupt(&error) && !is_synced => {
                        tracing::warn!(%error, lsn = record.lsn.0, "the log ends at a large value that is not whole");
                        return Ok(ControlFlow::Break(()));
                    }
                    Err(error) if error.is_of_data() && sought == Sought::Salvage => {}
                    Err(error) => return Err(error.with("record at LSN", record.lsn)),
                }
                let key = Box::<[u8]>::from(key);
                all.entry(large.page.id).or_insert((large, key, is_synced));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let unsynced = all.values().filter(|(_, _, is_synced)| !is_synced);
        let unsynced = unsynced.map(|(large, ..)| large.page).collect();
        let mut pages: Vec<_> = all.values().map(|(large, ..)| large.page).collect();
        if mutant::active("large-pages-of-the-log-are-free") {
            pages.clear();
        }
        let synced = all.into_values().filter(|(_, _, is_synced)| *is_synced);
        let synced = synced.map(|(large, key, _)| (large, key)).collect();
        Ok(LoggedLarge {
            pages,
            unsynced,
            synced,
        })
    }

    /// Checks all pieces of the values of which an open reads the footers alone. `damage` takes
    /// what is wrong.
    ///
    /// # Errors
    ///
    /// Those of `damage`.
    pub fn check_pieces(
        &self,
        store: &PageStore,
        damage: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        for (large, key) in &self.synced {
            if let Err(error) = check_large(store, large, key, true) {
                damage(error)?;
            }
        }
        Ok(())
    }

    /// Checks, for a reader beside a writer, that the writer made no checkpoint since generation
    /// `at`: only then the reader's slot keeps the pages.
    ///
    /// # Errors
    ///
    /// `Overtaken`: try again.
    pub fn check_still_newest(&self, disk: &Arc<dyn Disk>, at: Generation) -> Result<()> {
        if self.pages.is_empty() {
            return Ok(());
        }
        let newest = PageStore::superblocks(disk)?.map(|found| found.generation);
        match newest.max() {
            Some(newest) if newest > at => {
                let message = "the writer made a checkpoint meanwhile: try again";
                Err(Error::new(ErrorKind::Overtaken, message).with("generation", newest))
            }
            _ => Ok(()),
        }
    }

    /// Makes the values durable that no sync is known to cover, before the log's recovery says that
    /// their records are. A sync alone does not: one that failed in an earlier life made their
    /// bytes clean without storing them.
    pub fn make_durable(&self, store: &PageStore) -> Result<()> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        if !mutant::active("recovery-claims-large-values") {
            for page in &self.unsynced {
                store.write_again(page)?;
            }
        }
        match mutant::active("rewritten-large-values-unsynced") {
            true => Ok(()),
            false => store.sync(),
        }
    }
}

/// The pages of the large values that a log names, kept for a backup.
///
/// # Errors
///
/// Those of reads; `Overtaken` if the space of one was freed already.
pub(crate) fn hold_logged(
    found: &mut Recovery,
    base: (&Catalog, &[Stored]),
    store: &Arc<PageStore>,
) -> Result<Vec<HeldPage>> {
    let mut held = Vec::new();
    found.end_at(&mut |record| {
        for (large, _) in larges(base, &record) {
            let page = store.hold_page(large.page.id).ok_or_else(|| {
                let message = "checkpoints freed a large value while the backup began: try again";
                Error::new(ErrorKind::Overtaken, message).with("page", large.page.id)
            })?;
            held.push(page);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(held)
}

/// The large values of a record that counts, and their keys. The replay reports records that are
/// damaged.
fn larges<'a>(
    (catalog, stored): (&Catalog, &[Stored]),
    record: &Record<'a>,
) -> Vec<(LargeRef, &'a [u8])> {
    let Some(operations) = Operations::decode(record.kind, record.payload) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for operation in operations.map_while(Result::ok) {
        let Change::Large(key, bytes) = operation.change else {
            continue;
        };
        let is_stored = stored.iter().any(|stored| stored.id == operation.keyspace);
        let applied = match is_stored {
            true => catalog
                .applied_of(operation.keyspace)
                .unwrap_or(catalog.applied),
            false if operation.keyspace.0 >= catalog.next_id => Lsn(0),
            // It was dropped before the checkpoint.
            false => continue,
        };
        let counts = record.lsn >= applied || mutant::active("applied-records-name-large-pages");
        if counts && let Ok((large, _)) = LargeRef::decode(bytes) {
            found.push((large, key));
        }
    }
    found
}
