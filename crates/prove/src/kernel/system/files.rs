//! Every file of a database truncated, emptied, removed, or swapped with another of its kind, on a
//! closed store and on a killed one. The open or the read reports it by a typed error, or the data
//! is sound; it is never wrong (D3, D8). The other files are the database's own, those of an older
//! copy, of another database, and of a *sibling*: a copy that went on separately.
//!
//! Sound means all data of a closed store. Of a killed store it means a prefix of the commits with
//! everything synced: records in the ring alone do not outlive the ring, and another database's
//! ring looks empty.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use terrapin::Options;
use terrapin::verify::{VerifyOptions, verify};

use super::store::{Store, Tale, refuses_files, small};
use crate::Find;
use crate::kernel::judge::{Content, Survives};
use crate::kernel::life::copy;

/// Steps before the older copy is taken, and in all.
const OLDER_STEPS: u32 = 300;
const STEPS: u32 = 700;

/// Mutilations are divided among this many units for each store.
pub const SHARES: u64 = 4;

/// A store's files, an older copy of them, a sibling of that copy, and another database's files.
struct Stage {
    now: PathBuf,
    older: PathBuf,
    sibling: PathBuf,
    other: PathBuf,
    tale: Tale,
    survives: Survives,
    /// The directory in which mutilated copies are opened.
    work: PathBuf,
    /// Every [`SHARES`]-th mutilation from that one on.
    share: u64,
}

/// Files of a properly closed store.
pub fn of_a_closed_store(scratch: &Path, share: u64) -> Result<u64, Find> {
    let close = |store: &Store| store.database().close().map(drop);
    Stage::set(scratch, share, close, Survives::Acknowledged)?.mutilate()
}

/// Files of a killed process: those of an open, idle database.
pub fn of_a_killed_store(scratch: &Path, share: u64) -> Result<u64, Find> {
    Stage::set(scratch, share, |_| Ok(()), Survives::Synced)?.mutilate()
}

impl Stage {
    fn set(
        scratch: &Path,
        share: u64,
        end: impl Fn(&Store) -> terrapin::Result<()>,
        survives: Survives,
    ) -> Result<Self, Find> {
        let place = |name: &str| scratch.join(name);
        let live = place("live");
        let mut store = Store::new(&live, &small(), 1)?;
        store.write(OLDER_STEPS)?;
        end(&store)?;
        store.copy_at_rest(&place("older"))?;
        if survives == Survives::Acknowledged {
            store = store.reopened(&small().options())?;
        }
        store.write(STEPS - OLDER_STEPS)?;
        end(&store)?;
        store.copy_at_rest(&place("now"))?;
        // A different story from there on.
        copy(&place("older"), &place("apart"))?;
        let apart = Tale::of(3, OLDER_STEPS);
        let mut sibling = Store::open(&place("apart"), &small().options(), apart)?;
        sibling.write(STEPS - OLDER_STEPS)?;
        end(&sibling)?;
        sibling.copy_at_rest(&place("sibling"))?;
        let mut other = Store::new(&place("another"), &small(), 2)?;
        other.write(STEPS)?;
        end(&other)?;
        other.copy_at_rest(&place("other"))?;
        Ok(Stage {
            now: place("now"),
            older: place("older"),
            sibling: place("sibling"),
            other: place("other"),
            tale: store.tale(),
            survives,
            work: place("work"),
            share,
        })
    }

    fn mutilate(&self) -> Result<u64, Find> {
        let mut tried = 0;
        let mut number = 0;
        let mut attempt = |what: &str, done: &dyn Fn() -> std::io::Result<()>| {
            number += 1;
            if number % SHARES == self.share {
                self.attempt(what, done)?;
                tried += 1;
            }
            Ok::<(), Find>(())
        };
        for name in names(&self.now)? {
            let file = self.work.join(&name);
            let bytes = fs::metadata(self.now.join(&name))?.len();
            let mut lengths = vec![0, 1, 511, 512, 4096, 5000, 8192, 12_288, bytes / 2];
            lengths.extend([4096, 1].map(|cut| bytes.saturating_sub(cut)));
            lengths.retain(|&length| length < bytes);
            lengths.sort_unstable();
            lengths.dedup();
            for length in lengths.into_iter().chain([bytes + 4096]) {
                attempt(
                    &format!("{name} of {bytes} bytes made {length} long"),
                    &|| OpenOptions::new().write(true).open(&file)?.set_len(length),
                )?;
            }
            attempt(&format!("{name} removed"), &|| fs::remove_file(&file))?;
            let donors = [
                (&self.now, "this"),
                (&self.older, "the older"),
                (&self.sibling, "the sibling"),
                (&self.other, "another"),
            ];
            for (donor, whose) in donors {
                for given in names(donor)?
                    .iter()
                    .filter(|given| kind(given) == kind(&name))
                {
                    if (donor, given) == (&self.now, &name) {
                        continue;
                    }
                    let what = format!("{name} replaced by {given} of {whose} database");
                    attempt(&what, &|| fs::copy(donor.join(given), &file).map(drop))?;
                }
            }
        }
        let both = [(&self.older, "the older"), (&self.sibling, "the sibling")];
        for (donor, whose) in both {
            for kinds in [&["log"][..], &["log", "ring"], &["data", "ring"]] {
                // The whole log from an earlier moment of the same life equals that moment, if no
                // checkpoint came since. No check can tell.
                let is_same_life = donor == &self.older && self.survives != Survives::Acknowledged;
                if is_same_life && kinds == ["log", "ring"] {
                    continue;
                }
                let what = format!("all files of {kinds:?} replaced by those of {whose} database");
                attempt(&what, &|| self.replace(kinds, donor))?;
            }
        }
        Ok(tried)
    }

    /// Replaces all files of some kinds by a donor's.
    fn replace(&self, kinds: &[&str], donor: &Path) -> std::io::Result<()> {
        let of_kinds = |name: &String| kinds.contains(&kind(name));
        let listed = |directory| names(directory).map_err(|find| std::io::Error::other(find.0));
        for name in listed(&self.work)?.iter().filter(|name| of_kinds(name)) {
            fs::remove_file(self.work.join(name))?;
        }
        for name in listed(donor)?.iter().filter(|name| of_kinds(name)) {
            fs::copy(donor.join(name), self.work.join(name))?;
        }
        Ok(())
    }

    /// Opens a mutilated copy.
    fn attempt(&self, what: &str, done: impl Fn() -> std::io::Result<()>) -> Result<(), Find> {
        let _ = fs::remove_dir_all(&self.work);
        copy(&self.now, &self.work)?;
        done().map_err(|error| Find(format!("{what}: {error}")))?;
        let told = |find: Find| Find(format!("{what}: {find}"));
        match verify(&self.work, &VerifyOptions::default()) {
            Ok(_) => {}
            // The other files stay for inspection: this is a find.
            Err(error) => return Err(told(Find(format!("verify: {error}")))),
        }
        for read_only in [true, false] {
            let options = small().options().read_only(read_only);
            self.open(&options).map_err(told)?;
        }
        Ok(())
    }

    fn open(&self, options: &Options) -> Result<(), Find> {
        let database = match options.open(&self.work) {
            Ok(database) => database,
            Err(error) if refuses_files(&error) => return Ok(()),
            Err(error) => return Err(Find(format!("the open: {error}"))),
        };
        match Content::try_read(&database)? {
            Ok(content) => self.tale.check(&content, self.survives),
            Err(error) if refuses_files(&error) => Ok(()),
            Err(error) => Err(Find(format!("a read: {error}"))),
        }
    }
}

/// The purpose of a file, which its name begins with.
fn kind(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}

fn names(directory: &Path) -> Result<Vec<String>, Find> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
