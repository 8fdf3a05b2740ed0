//! Creates and opens the data file. A database exists once one superblock slot is valid. Creation
//! takes over a file without a valid slot only if an interrupted creation can have left the file. A
//! mark file exists during a creation, since a power cut may leave any bytes in the data file. The
//! mark tells such a file from a file of that name that is not Terrapin's.

use terrapin_base::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, OnceLock};
use terrapin_base::{EXTENT_ALIGNMENT, Error, ErrorKind, Generation, Incarnation, Result};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions};

use super::outlines::Outlines;
use super::{DATA_FILE, PageStore, Roots, StoreOptions, UNFINISHED_FILE};
use crate::cache::Cache;
use crate::metrics::{Counters, ReadFor, WriteOf};
use crate::space::Space;
use crate::superblock::{self, FORMAT_VERSION, PAGES_START, SLOT_BYTES, SLOTS, Slot, Superblock};

/// Smallest unit in bytes: the smallest logical block of any device.
const UNIT_BYTES_MIN: u32 = 512;

/// Whether a directory holds a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The directory has no data file. [`PageStore::create`] makes one.
    Absent,
    /// The creation of the file was interrupted before the file held data. [`PageStore::create`]
    /// takes the file over.
    Unfinished,
    /// The file holds data. [`PageStore::open`] checks whether it is a database.
    Present,
}

impl PageStore {
    /// Looks for a data file. Writes nothing and takes no lock.
    pub fn presence(disk: &Arc<dyn Disk>) -> Result<Presence> {
        if !disk.list()?.iter().any(|name| name == DATA_FILE) {
            return Ok(Presence::Absent);
        }
        let file = disk.open(
            DATA_FILE,
            OpenOptions {
                direct: true,
                ..OpenOptions::default()
            },
        )?;
        Ok(if is_unfinished(&**disk, &*file)? {
            Presence::Unfinished
        } else {
            Presence::Present
        })
    }

    /// Creates the data file. The call first makes the mark file durable. It then writes and syncs
    /// both superblock slots (generations 0 and 1, no catalog), syncs the directory, and removes
    /// the mark. The returned store has no pages. It takes writes after [`PageStore::begin_life`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] when there is a data file that is not [`Presence::Unfinished`].
    pub fn create(
        disk: &Arc<dyn Disk>,
        options: StoreOptions,
        database_id: u64,
    ) -> Result<Arc<Self>> {
        let mode = OpenOptions {
            create_new: true,
            write: true,
            direct: true,
            cached: options.system_cache,
            ..OpenOptions::default()
        };
        if Self::presence(disk)? != Presence::Present {
            mark_unfinished(&**disk)?;
        }
        let file = match disk.open(DATA_FILE, mode) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let file = disk.open(
                    DATA_FILE,
                    OpenOptions {
                        create_new: false,
                        ..mode
                    },
                )?;
                if !is_unfinished(&**disk, &*file)? {
                    forget_unfinished(&**disk);
                    return Err(error);
                }
                file
            }
            Err(error) => {
                if error.kind() != ErrorKind::Locked {
                    // No data file exists, and a later file of that name may not be Terrapin's.
                    forget_unfinished(&**disk);
                }
                return Err(error);
            }
        };
        let unit = file.alignment().max(UNIT_BYTES_MIN);
        let superblock = Superblock {
            format_version: FORMAT_VERSION,
            database_id,
            generation: Generation(SLOTS as u64 - 1),
            incarnation: Incarnation(0),
            unit,
            catalog: None,
            branch: 0,
            log_branch: 0,
            home: file.identity()?,
            closed: false,
        };
        let store = Self::with_file(file, PAGES_START, options, superblock, None, None, false)?;
        let begin = || {
            store.file.allocate(0, PAGES_START)?;
            for slot in 0..SLOTS {
                let generation = Generation(slot as u64);
                store.write_slot(
                    slot,
                    &Superblock {
                        generation,
                        ..superblock
                    },
                )?;
            }
            store.file.sync()?;
            disk.sync_directory()
        };
        begin().map_err(|e| store.place(e))?;
        forget_unfinished(&**disk);
        store.rebuild(&mut std::iter::empty(), superblock.generation)?;
        Ok(store)
    }

    /// Opens the data file and returns the newest valid superblock. One damaged slot is harmless.
    /// The call does not write to the data file. Call [`PageStore::rebuild`] and
    /// [`PageStore::begin_life`] before the first write.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] without a file; [`ErrorKind::NotADatabase`],
    /// [`ErrorKind::NewerFormat`] or [`ErrorKind::Unsupported`] (an older format; both name both
    /// versions) or [`ErrorKind::Corrupt`] (both slots damaged) as the file is;
    /// [`ErrorKind::Locked`] when the file is already open for writing.
    pub fn open(
        disk: &Arc<dyn Disk>,
        options: StoreOptions,
        read_only: bool,
    ) -> Result<(Arc<Self>, Superblock)> {
        Self::open_as(disk, options, read_only, None)
    }

    /// Opens the data file to read one generation beside a writer, which keeps the pages of that
    /// generation. Otherwise like [`PageStore::open`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Overtaken`] if no slot holds that generation: ask for the newest one again.
    pub fn open_beside_writer(
        disk: &Arc<dyn Disk>,
        options: StoreOptions,
        generation: Generation,
    ) -> Result<(Arc<Self>, Superblock)> {
        Self::open_as(disk, options, true, Some(generation))
    }

    /// The superblocks in the slots of the data file, whoever has it open. Takes no lock. A slot
    /// that is being written may be missing.
    pub fn superblocks(disk: &Arc<dyn Disk>) -> Result<impl Iterator<Item = Superblock>> {
        let options = OpenOptions {
            direct: true,
            ..OpenOptions::default()
        };
        let file = disk.open(DATA_FILE, options)?;
        let file_bytes = file.bytes()?;
        let mut found = [None; SLOTS];
        for (number, found) in found.iter_mut().enumerate() {
            if let Slot::Valid(superblock) = read_slot(&*file, number, file_bytes)? {
                *found = Some(superblock);
            }
        }
        Ok(found.into_iter().flatten())
    }

    fn open_as(
        disk: &Arc<dyn Disk>,
        options: StoreOptions,
        read_only: bool,
        beside: Option<Generation>,
    ) -> Result<(Arc<Self>, Superblock)> {
        let file = disk.open(
            DATA_FILE,
            OpenOptions {
                write: !read_only,
                direct: true,
                cached: options.system_cache,
                // A reader cannot read trees that a writer changes.
                shared: read_only && beside.is_none(),
                ..OpenOptions::default()
            },
        )?;
        let name = file.describe();
        let file_bytes = file.bytes()?;
        let mut slots = [Slot::Damaged; SLOTS];
        let mut failed = None;
        for (number, slot) in slots.iter_mut().enumerate() {
            match read_slot(&*file, number, file_bytes) {
                Ok(found) => *slot = found,
                Err(error) => failed = Some(error),
            }
        }
        let (number, superblock) = match (superblock::choose(slots), &failed) {
            (Ok(chosen), _) => match beside {
                Some(generation) => Self::slot_of(&slots, generation, &name)?,
                None => chosen,
            },
            (Err(_), Some(error)) => return Err(error.clone().with("reading", "superblock")),
            (Err(error), None) => return Err(error.with("file", name)),
        };
        let other = (number + 1) % SLOTS;
        // A writer may be writing the other slot.
        let is_judged = beside.is_none();
        let damaged = (is_judged && !matches!(slots[other], Slot::Valid(_))).then(|| {
            let damage = || Error::corrupt("damaged").with("file", &name);
            (other, failed.unwrap_or_else(damage))
        });
        if let Some((slot, error)) = &damaged {
            tracing::warn!(file = name, slot, %error, "a superblock slot does not count; the other is used");
        }
        let store = Self::with_file(
            file,
            file_bytes,
            options,
            superblock,
            Some(other),
            damaged,
            read_only,
        )?;
        store
            .counters
            .read(ReadFor::Meta, SLOTS as u64, SLOTS as u64 * SLOT_BYTES);
        if !read_only && disk.list()?.iter().any(|name| name == UNFINISHED_FILE) {
            forget_unfinished(&**disk);
        }
        Ok((store, superblock))
    }

    /// The slot that holds a generation, and its number.
    fn slot_of(
        slots: &[Slot; SLOTS],
        wanted: Generation,
        name: &str,
    ) -> Result<(usize, Superblock)> {
        let found = slots
            .iter()
            .enumerate()
            .find_map(|(number, slot)| match slot {
                Slot::Valid(found) if found.generation == wanted => Some((number, *found)),
                _ => None,
            });
        found.ok_or_else(|| {
            let message =
                "overtaken: the writer replaced the superblock that this reader looked for";
            Error::new(ErrorKind::Overtaken, message)
                .with("file", name)
                .with("generation", wanted)
        })
    }

    fn with_file(
        file: Arc<dyn File>,
        file_bytes: u64,
        options: StoreOptions,
        newest: Superblock,
        unsettled: Option<usize>,
        damaged: Option<(usize, Error)>,
        read_only: bool,
    ) -> Result<Arc<Self>> {
        let write_alignment = file.alignment().max(newest.unit);
        if u64::from(write_alignment) > EXTENT_ALIGNMENT {
            return Err(
                Error::new(ErrorKind::Unsupported, "the device's blocks are too large")
                    .with("bytes", write_alignment)
                    .with("largest", EXTENT_ALIGNMENT)
                    .with("file", file.describe()),
            );
        }
        let home = file.identity()?;
        Ok(Arc::new(PageStore {
            space: Space::new(file.clone(), file_bytes, options.reserve_bytes),
            file,
            cache: Cache::new(options.budget),
            counters: Counters::default(),
            unit: newest.unit,
            write_alignment,
            read_only,
            damaged,
            life: AtomicU32::new(0),
            first_page: AtomicU64::new(0),
            next_page: AtomicU64::new(0),
            home,
            rebuilt: AtomicBool::new(false),
            poison: OnceLock::new(),
            roots: Mutex::new(Roots { newest, unsettled }),
            outlines: Outlines::default(),
            large: Default::default(),
            streams: Arc::default(),
        }))
    }

    /// Writes one slot, without a sync.
    pub(super) fn write_slot(&self, slot: usize, superblock: &Superblock) -> Result<()> {
        let mut bytes = AlignedBuf::with_capacity(SLOT_BYTES as usize);
        bytes.extend_from_slice(&superblock.encode());
        bytes.resize(SLOT_BYTES as usize, 0);
        self.file.write_at(&bytes, slot as u64 * SLOT_BYTES)?;
        self.counters.written(WriteOf::Superblock, SLOT_BYTES);
        Ok(())
    }
}

/// The bytes of a slot. They are fewer than [`SLOT_BYTES`] if the file ends within the slot.
fn slot_bytes(file: &dyn File, slot: usize, file_bytes: u64) -> Result<AlignedBuf> {
    let offset = slot as u64 * SLOT_BYTES;
    let there = file_bytes.saturating_sub(offset).min(SLOT_BYTES) as usize;
    let mut bytes = AlignedBuf::zeroed(there);
    if there > 0 {
        file.read_at(&mut bytes, offset)?;
    }
    Ok(bytes)
}

fn read_slot(file: &dyn File, slot: usize, file_bytes: u64) -> Result<Slot> {
    slot_bytes(file, slot, file_bytes).map(|bytes| superblock::format::decode(&bytes))
}

/// Makes the mark of a creation durable, before the data file exists.
fn mark_unfinished(disk: &dyn Disk) -> Result<()> {
    let mark = disk.open(
        UNFINISHED_FILE,
        OpenOptions {
            create_new: true,
            write: true,
            ..OpenOptions::default()
        },
    );
    match mark {
        Ok(_) => disk.sync_directory(),
        // The mark is from an interrupted creation, or from one that still runs.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => disk.sync_directory(),
        Err(error) if error.kind() == ErrorKind::Locked => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the mark after a creation. If the removal fails, the next open for writing removes the
/// mark.
fn forget_unfinished(disk: &dyn Disk) {
    if let Err(error) = disk.remove(UNFINISHED_FILE)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::debug!(%error, "the mark of a creation stays");
    }
}

/// Whether a file holds only what an interrupted creation can leave: zeros, and slots that are torn
/// after their first bytes. A power cut can leave any bytes in the sectors being written, so other
/// content counts as unfinished only if the mark exists.
fn is_unfinished(disk: &dyn Disk, file: &dyn File) -> Result<bool> {
    let file_bytes = file.bytes()?;
    if file_bytes > PAGES_START {
        return Ok(false);
    }
    let mut is_ours = true;
    for slot in 0..SLOTS {
        let bytes = slot_bytes(file, slot, file_bytes)?;
        match superblock::format::decode(&bytes) {
            Slot::Valid(_) | Slot::Newer(_) | Slot::Older(_) => return Ok(false),
            Slot::Damaged => {}
            Slot::Foreign => is_ours &= bytes.iter().all(|&byte| byte == 0),
        }
    }
    Ok(is_ours || disk.list()?.iter().any(|name| name == UNFINISHED_FILE))
}
