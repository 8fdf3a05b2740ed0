//! Power cuts of real file systems: under a writing, opening or recovering child the file system is
//! shut down without flushing its journal, which drops what was buffered or stored through
//! mappings; it is mounted again, which replays the journal, and the store must hold a prefix of
//! what was committed, with all that was acknowledged as synced (D2, D3, D6, D7).
//!
//! A sync that is under way while XFS is shut down may succeed and be lost all the same (a loop of
//! one write and one `fdatasync` on a file showed it in 10 of 400 shutdowns of Linux 6.18, always
//! of the last sync; ext4 in none of 250). So on XFS only what was acknowledged before the shutdown
//! began has to be there.
//!
//! Direct writes into extents that were written before go to the device at once and survive; losing
//! those is for the simulated disk.

use std::path::Path;

use terrapin_model::Random;

use crate::Find;
use crate::kernel::file_system::{FileSystem, Kind};
use crate::kernel::judge::{Content, Survives};
use crate::kernel::kills::Death;
use crate::kernel::life::{Moment, live};
use crate::kernel::plan::Story;

/// One ext4 through four cuts.
pub fn ext4(unit: u64, scratch: &Path) -> Result<u64, Find> {
    cuts(Kind::Ext4, "power-ext4", 4, 64 << 20, unit, scratch)
}

/// One XFS through two cuts.
pub fn xfs(unit: u64, scratch: &Path) -> Result<u64, Find> {
    cuts(Kind::Xfs, "power-xfs", 2, 320 << 20, unit, scratch)
}

fn cuts(
    kind: Kind,
    layer: &str,
    cuts: u64,
    bytes: u64,
    unit: u64,
    scratch: &Path,
) -> Result<u64, Find> {
    let mut random = Random::new(unit ^ 0x0070_6f77_6572 ^ bytes);
    let story = Story::new(unit.wrapping_add(bytes << 16));
    let mut system = FileSystem::new(kind, scratch, bytes)?;
    let directory = system.path().join("database");
    let mut content = Content::default();
    for life in 0..cuts {
        let moment = Moment::random(&mut random);
        let stderr = scratch.join("stderr");
        let mut acknowledged = live(&directory, story.seed(), life, moment, &stderr, || {
            system.cut()
        })
        .map_err(|find| Find(format!("life {life}, {moment:?}: {find}")))?;
        if kind == Kind::Ext4 {
            acknowledged.settled = None;
        }
        system.unmount()?;
        system.mount("rw")?;
        let death = Death {
            layer,
            unit,
            life,
            moment,
            acknowledged,
            survives: Survives::Synced,
        };
        content = death.outlived(&story, &directory, scratch, &content, &mut random)?;
    }
    Ok(cuts)
}
