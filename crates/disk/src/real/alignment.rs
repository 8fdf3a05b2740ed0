//! The alignment that a file system needs for direct I/O. If it is larger than Terrapin's own, or
//! if there is no direct I/O, files use the kernel's page cache.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, openat, statx};
use rustix::io::{Errno, pread, pwrite};
use terrapin_base::sync::OnceLock;
use terrapin_base::{Error, Result};

use crate::AlignedBuf;

/// The alignment in bytes that nearly every device supports. Terrapin accepts no larger one, since
/// extents and the log's blocks are aligned to this.
const SAFE: u32 = 4096;
/// The smallest alignment in bytes that Terrapin uses.
const LEAST: u32 = 512;

/// Turns direct I/O on. Returns `false` if the file system refuses it.
///
/// Uses the open descriptor: a refusal of `O_DIRECT` by `open` comes only after the file was
/// created.
pub(super) fn set_direct(descriptor: &OwnedFd, describe: &dyn Fn() -> String) -> Result<bool> {
    let flags = fcntl_getfl(descriptor);
    match flags.and_then(|flags| fcntl_setfl(descriptor, flags | OFlags::DIRECT)) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => {
            tracing::debug!(
                file = describe(),
                "no direct I/O here, using the page cache"
            );
            Ok(false)
        }
        Err(e) => {
            let error = Error::io("cannot turn direct I/O on", e.into());
            Err(error.with("file", describe()))
        }
    }
}

/// The alignment in bytes of offsets, lengths and memory.
///
/// The sources, in this order: what the disk learnt before, the kernel, a trial read (only of
/// offsets and lengths), and 4096. Without direct I/O any alignment works, and there is no trial.
pub(super) fn of(
    known: &OnceLock<u32>,
    directory: &OwnedFd,
    file: &OwnedFd,
    direct: bool,
    may_write: bool,
) -> u32 {
    if let Some(&known) = known.get() {
        return known;
    }
    let found = said(file).or_else(|| {
        if !direct {
            return None;
        }
        tried_on(file).or_else(|| tried_on(&may_write.then(|| scratch(directory))??))
    });
    match found {
        Some(alignment) => *known.get_or_init(|| alignment),
        None => SAFE,
    }
}

/// Decides whether a file uses direct I/O, and with which alignment.
///
/// Turns direct I/O off if `alignment` is larger than Terrapin supports. `direct` says whether it
/// is on.
pub(super) fn within_ours(
    descriptor: &OwnedFd,
    direct: bool,
    alignment: u32,
    describe: &dyn Fn() -> String,
) -> Result<(bool, u32)> {
    if alignment <= SAFE {
        return Ok((direct, alignment));
    }
    if direct {
        tracing::debug!(
            file = describe(),
            alignment,
            "direct I/O needs a larger alignment than Terrapin supports, using the page cache"
        );
        let flags = fcntl_getfl(descriptor);
        let turned =
            flags.and_then(|flags| fcntl_setfl(descriptor, flags.difference(OFlags::DIRECT)));
        turned.map_err(|e| {
            Error::io("cannot turn direct I/O off", e.into()).with("file", describe())
        })?;
    }
    Ok((false, SAFE))
}

/// The alignment according to the kernel (since 6.1).
fn said(file: &OwnedFd) -> Option<u32> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
        return None;
    }
    let said = stat.stx_dio_offset_align.max(stat.stx_dio_mem_align);
    (said <= 1 << 20).then(|| said.max(LEAST).next_power_of_two())
}

/// The alignment according to a trial read of 512 bytes. `None` if the file is too short.
fn tried_on(file: &OwnedFd) -> Option<u32> {
    let mut buffer = AlignedBuf::zeroed(LEAST as usize);
    match pread(file, &mut buffer[..], u64::from(LEAST)) {
        Ok(count) if count == LEAST as usize => Some(LEAST),
        Err(Errno::INVAL) => Some(SAFE),
        _ => None,
    }
}

/// A nameless file of one page, opened for direct I/O.
fn scratch(directory: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = openat(directory, ".", flags, Mode::from_raw_mode(0o600)).ok()?;
    let count = pwrite(&file, &AlignedBuf::zeroed(SAFE as usize), 0).ok()?;
    (count == SAFE as usize).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_agrees_with_the_kernel() {
        let path = std::env::temp_dir();
        let directory = OwnedFd::from(std::fs::File::open(path).expect("the temporary directory"));
        let Some(file) = scratch(&directory) else {
            return; // a file system without nameless files or direct I/O
        };
        let tried = tried_on(&file).expect("a page can be read");
        assert!(tried == LEAST || tried == SAFE);
        if let Some(said) = said(&file) {
            assert!(said <= tried, "said {said}, tried {tried}");
        }
    }

    #[test]
    fn direct_io_is_turned_off_for_a_too_large_alignment() {
        let path = std::env::temp_dir();
        let path = path.join(format!("terrapin-alignment-{}", std::process::id()));
        let file = OwnedFd::from(std::fs::File::create(&path).expect("a file can be made"));
        std::fs::remove_file(&path).expect("and its name taken away");
        let describe = || "file".to_owned();
        let is_on = || fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        let direct = set_direct(&file, &describe).expect("an answer");
        assert_eq!(is_on(), direct);
        for alignment in [LEAST, SAFE] {
            let settled = within_ours(&file, direct, alignment, &describe).expect("an answer");
            assert_eq!(settled, (direct, alignment));
            assert_eq!(is_on(), direct);
        }
        let settled = within_ours(&file, direct, 4 * SAFE, &describe).expect("an answer");
        assert_eq!(settled, (false, SAFE));
        assert!(!is_on());
    }
}
