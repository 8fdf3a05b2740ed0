//! The directory of a backup: its lock, its manifest, and its sets of files.
//!
//! A set has the files of one backup. The manifest names the set that counts, and one rename puts a
//! new manifest in place. So a backup that is killed leaves the old set or the new one. All other
//! sets are leftovers, which the next backup removes.

use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, Result, mutant};
use terrapin_disk::{Disk, File, LogRing, OpenOptions, ReaderTable, RingOptions};
use terrapin_pages::DATA_FILE;

use crate::backup::format::{
    LOCK, MANIFEST, MANIFEST_BYTES, MANIFEST_NEW, Manifest, set_of, set_prefix,
};

/// The directory of a backup, locked.
pub(super) struct Target {
    disk: Arc<dyn Disk>,
    /// The manifest in force.
    pub manifest: Option<Manifest>,
    _lock: Arc<dyn File>,
}

impl Target {
    /// Locks a directory for a backup, and removes what interrupted backups left.
    ///
    /// Fails with `NotADatabase` if the directory has files of another kind, and with
    /// `InvalidArgument` if it has the backup of another database.
    pub fn to_write(disk: &Arc<dyn Disk>, database_id: u64) -> Result<Target> {
        let names = disk.list()?;
        let is_ours = |name: &&String| {
            [MANIFEST, MANIFEST_NEW, LOCK, "lost+found"].contains(&name.as_str())
                || set_of(name).is_some()
                || name.starts_with('.')
        };
        if let Some(name) = names.iter().find(|name| !is_ours(name)) {
            let message =
                "the directory has files that are no backup; a backup needs a directory of its own";
            return Err(Error::new(ErrorKind::NotADatabase, message)
                .with("directory", disk.describe())
                .with("first of them", name));
        }
        let mut options = OpenOptions {
            create_new: false,
            write: true,
            ..OpenOptions::default()
        };
        let lock = match disk.open(LOCK, options) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                options.create_new = true;
                disk.open(LOCK, options)?
            }
            opened => opened?,
        };
        let manifest = read_manifest(disk)?;
        if let Some(found) = &manifest
            && found.database_id != database_id
        {
            let message = "the directory has the backup of another database";
            return Err(Error::invalid(message).with("directory", disk.describe()));
        }
        let target = Target {
            disk: disk.clone(),
            manifest,
            _lock: lock,
        };
        target.remove_others()?;
        Ok(target)
    }

    /// Locks the directory of a whole backup against a new one. Fails with `NotFound` if there is
    /// no whole backup.
    pub fn to_read(disk: &Arc<dyn Disk>) -> Result<Target> {
        let options = OpenOptions {
            shared: true,
            ..OpenOptions::default()
        };
        let none = || {
            let message = "there is no backup in the directory, or only a part of one";
            Error::new(ErrorKind::NotFound, message).with("directory", disk.describe())
        };
        let lock = disk
            .open(LOCK, options)
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => none(),
                _ => error,
            })?;
        let manifest = read_manifest(disk)?.ok_or_else(none)?;
        Ok(Target {
            disk: disk.clone(),
            manifest: Some(manifest),
            _lock: lock,
        })
    }

    /// The set in force, as the directory of a database.
    pub fn present(&self) -> Option<Arc<dyn Disk>> {
        let manifest = self.manifest?;
        Some(self.set(manifest.set))
    }

    /// A set of files, as the directory of a database.
    pub fn set(&self, set: u64) -> Arc<dyn Disk> {
        Arc::new(SetDisk {
            disk: self.disk.clone(),
            prefix: set_prefix(set),
        })
    }

    /// The number of the next set.
    pub fn next_set(&self) -> Result<u64> {
        let next = self.manifest.map_or(Some(1), |m| m.set.checked_add(1));
        next.ok_or_else(|| Error::corrupt("the manifest of a backup has no number left"))
    }

    /// Puts a set of files in force, whose content is durable, and removes the others.
    pub fn commit(&mut self, manifest: Manifest) -> Result<()> {
        // The names of the set are durable before a manifest leads to them.
        if !mutant::active("backup-names-not-durable") {
            self.disk.sync_directory()?;
        }
        let options = OpenOptions {
            create_new: true,
            write: true,
            ..OpenOptions::default()
        };
        let file = self.disk.open(MANIFEST_NEW, options)?;
        file.write_at(&manifest.encode(), 0)?;
        if !mutant::active("backup-manifest-not-durable") {
            file.sync()?;
        }
        drop(file);
        self.disk.rename(MANIFEST_NEW, MANIFEST)?;
        self.disk.sync_directory()?;
        self.manifest = Some(manifest);
        self.remove_others()
    }

    /// Removes all sets but the one in force.
    pub fn remove_others(&self) -> Result<()> {
        let present = self.manifest.map(|manifest| manifest.set);
        for name in self.disk.list()? {
            let is_left = set_of(&name).is_some_and(|set| Some(set) != present);
            if is_left || name == MANIFEST_NEW {
                self.disk.remove(&name)?;
            }
        }
        Ok(())
    }
}

fn read_manifest(disk: &Arc<dyn Disk>) -> Result<Option<Manifest>> {
    let file = match disk.open(MANIFEST, OpenOptions::default()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let place = |error: Error| error.with("file", file.describe());
    let bytes = file.bytes()?;
    if bytes < MANIFEST_BYTES as u64 {
        let error = Error::corrupt("the manifest of the backup is too short");
        return Err(place(error.with("bytes", bytes)));
    }
    let mut content = [0; MANIFEST_BYTES];
    file.read_at(&mut content, 0)?;
    Manifest::decode(&content).map(Some).map_err(place)
}

/// The files of one set, under the names that they have in a database.
struct SetDisk {
    disk: Arc<dyn Disk>,
    prefix: String,
}

impl SetDisk {
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Disk for SetDisk {
    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        self.disk.open(&self.name(name), options)
    }

    fn list(&self) -> Result<Vec<String>> {
        let names = self.disk.list()?;
        let own = names.iter().filter_map(|n| n.strip_prefix(&self.prefix));
        Ok(own.map(str::to_owned).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.disk.remove(&self.name(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.disk.rename(&self.name(from), &self.name(to))
    }

    fn sync_directory(&self) -> Result<()> {
        self.disk.sync_directory()
    }

    fn open_ring(&self, name: &str, ring: RingOptions) -> Result<LogRing> {
        self.disk.open_ring(&self.name(name), ring)
    }

    fn open_readers(&self, name: &str, create: bool) -> Result<ReaderTable> {
        self.disk.open_readers(&self.name(name), create)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.disk.free_bytes()
    }

    fn describe(&self) -> String {
        format!("{}/{}", self.disk.describe(), self.name(DATA_FILE))
    }
}
