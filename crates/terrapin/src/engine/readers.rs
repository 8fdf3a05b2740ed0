//! The writer's side of readers in other processes ([`ReaderTable`]): which generations they read,
//! and the pins that keep these.
//!
//! A commit announces its generation, and then takes each slot as a pin, before it frees anything.
//! The job that returns space looks at the slots again while there are pins. The writer revokes
//! slots that are too old, and all slots when space is short (D10).
//!
//! Without a table the writer works as ever, and readers are locked out. That is so on network file
//! systems, and where the disk had no room for the table.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::sync::Mutex;
use terrapin_base::{ErrorKind, Generation, mutant};
use terrapin_disk::{Disk, ReaderTable, Taken};
use terrapin_pages::{PageStore, Pin};

/// Name of the table of readers.
pub(crate) const READERS_FILE: &str = "readers";

/// A reader that the writer knows.
struct Reader {
    taken: Taken,
    /// Keeps what the reader sees.
    _pin: Option<Pin>,
    /// When the writer first saw the reader.
    since_ns: u64,
}

struct Table {
    table: ReaderTable,
    readers: BTreeMap<usize, Reader>,
    /// The generation that was announced last.
    announced: Generation,
}

/// The readers beside this writer.
#[derive(Default)]
pub(crate) struct Readers(Mutex<Option<Table>>);

impl Readers {
    /// Opens the table, and makes it if it is missing. From here on no reader can take a slot,
    /// until [`Readers::admit`]. Readers of the generation `found` stay, and all others are
    /// revoked. Call this with the lock of the data file, before any file is changed.
    pub fn begin(disk: &Arc<dyn Disk>, database_id: u64, found: Generation) -> Readers {
        let table = match disk.open_readers(READERS_FILE, true) {
            Ok(table) => table,
            Err(error) => {
                // A creation that failed may have left a part.
                if error.kind() == ErrorKind::NoSpace {
                    let _ = disk.remove(READERS_FILE);
                }
                tracing::info!(%error, "no process can read beside this one");
                return Readers::default();
            }
        };
        let kept = table.begin(database_id, found.0).into_iter();
        let reader = |taken| Reader {
            taken,
            _pin: None,
            since_ns: 0,
        };
        Readers(Mutex::new(Some(Table {
            readers: kept.map(|(slot, taken)| (slot, reader(taken))).collect(),
            table,
            announced: found,
        })))
    }

    /// Lets readers in, at the generation with which this life begins. Its trees are those that
    /// the open found. The log's new life is durable.
    pub fn admit(&self, store: &Arc<PageStore>, generation: Generation, now_ns: u64) {
        let mut locked = self.0.lock();
        let Some(table) = &mut *locked else {
            return;
        };
        for reader in table.readers.values_mut() {
            reader._pin = Some(store.pin(generation));
            reader.since_ns = now_ns;
        }
        table.announced = generation;
        table.table.announce(generation.0);
    }

    /// Announces a generation that both superblock slots durably hold, and pins what readers see.
    /// The pages that the checkpoint replaced may be freed afterwards.
    pub fn committed(
        &self,
        store: &Arc<PageStore>,
        generation: Generation,
        now_ns: u64,
        age_ns_max: u64,
    ) {
        if let Some(table) = &mut *self.0.lock() {
            table.table.announce(generation.0);
            table.look(store, generation, now_ns, age_ns_max);
            table.announced = generation;
        }
    }

    /// Looks at the slots again: ends the pins of readers that left, and revokes old ones. Returns
    /// whether readers are left.
    pub fn look(&self, store: &Arc<PageStore>, now_ns: u64, age_ns_max: u64) -> bool {
        let mut locked = self.0.lock();
        let Some(table) = locked.as_mut().filter(|table| !table.readers.is_empty()) else {
            return false;
        };
        table.look(store, table.announced, now_ns, age_ns_max);
        !table.readers.is_empty()
    }

    /// Whether the writer knows of a reader. It learns of readers when it commits.
    pub fn is_any(&self) -> bool {
        self.0
            .lock()
            .as_ref()
            .is_some_and(|table| !table.readers.is_empty())
    }

    /// Whether a reader copies the log, which must not be trimmed then.
    pub fn copy_log(&self) -> bool {
        let locked = self.0.lock();
        let mut readers = locked.iter().flat_map(|table| table.readers.values());
        readers.any(|reader| reader.taken.copies_log())
    }

    /// Revokes all readers, or those that copy the log. Returns whether there were any.
    pub fn revoke(&self, store: &PageStore, why: &'static str, copy_log: bool) -> bool {
        let revoked = match &mut *self.0.lock() {
            Some(table) => table.revoke(why, |reader| !copy_log || reader.taken.copies_log()),
            None => return false,
        };
        if revoked {
            store.free_unpinned();
        }
        revoked
    }

    /// Releases the table, when the database is closed.
    pub fn close(&self) {
        drop(self.0.lock().take());
    }
}

impl Table {
    /// Takes the slots as they are now. A reader that this writer never admitted is revoked.
    fn look(&mut self, store: &Arc<PageStore>, newest: Generation, now_ns: u64, age_ns_max: u64) {
        let mut known = std::mem::take(&mut self.readers);
        for (slot, taken) in self.table.taken() {
            if mutant::active("commit-ignores-readers") {
                continue;
            }
            let before = known
                .remove(&slot)
                .filter(|reader| reader.taken.is_of(&taken));
            let reader = match before {
                Some(reader) => Reader { taken, ..reader },
                None => {
                    let generation = Generation(taken.generation());
                    if generation != self.announced && generation != newest {
                        self.table.revoke(slot, taken);
                        continue;
                    }
                    Reader {
                        taken,
                        _pin: Some(store.pin(generation)),
                        since_ns: now_ns,
                    }
                }
            };
            self.readers.insert(slot, reader);
        }
        drop(known);
        let is_old = |reader: &Reader| {
            let age_ns = now_ns.saturating_sub(reader.since_ns);
            reader.taken.generation() != newest.0 && age_ns > age_ns_max
        };
        self.revoke("it is older than the limit", is_old);
    }

    fn revoke(&mut self, why: &'static str, which: impl Fn(&Reader) -> bool) -> bool {
        let all = std::mem::take(&mut self.readers);
        let (gone, left): (BTreeMap<_, _>, _) = all.into_iter().partition(|(_, r)| which(r));
        self.readers = left;
        for (slot, reader) in &gone {
            let (process, generation) = (reader.taken.process, reader.taken.generation());
            tracing::info!(
                process,
                generation,
                why,
                "a reader beside this writer is revoked"
            );
            // A reader may say meanwhile that it has copied the log. Nobody else changes the word
            // of this stay.
            if !self.table.revoke(*slot, reader.taken) {
                let now = self
                    .table
                    .taken()
                    .into_iter()
                    .find(|(other, _)| other == slot);
                if let Some((_, taken)) = now.filter(|(_, taken)| taken.is_of(&reader.taken)) {
                    self.table.revoke(*slot, taken);
                }
            }
        }
        !gone.is_empty()
    }
}
