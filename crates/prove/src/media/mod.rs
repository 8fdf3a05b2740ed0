//! Layer `media`: faults of the medium are noticed and never change an answer (D8). It counts
//! faults that were injected and met: by `verify`, by a read, or by the disk's own account.
//!
//! The table lists what each fault may cause. Always true: no panic and no hang. An answer is
//! right, or an error of kind `Corrupt` or `Io` that names a file, a page or an LSN. It is never
//! "not there" for a record that is there, and a range that ends early says so. If `verify` finds
//! nothing, everything reads right.
//!
//! | fault | while the store runs | at the next open |
//! | --- | --- | --- |
//! | rot at rest: bits, bytes, zeroed and foreign sectors, old versions, in the data file | | opens or is refused with `Corrupt`; reads of damaged places fail, all others are right; a damaged superblock slot is harmless |
//! | the same in the log or its ring, closed store | | refused with `Corrupt`, or nothing is lost |
//! | the same in the log or its ring, killed process | | refused with `Corrupt`, or at least everything synced is there, and a prefix of the rest: damage above the last mark looks like a torn tail |
//! | the same in the log, after an idle time and a power cut | | the same: the last sync's mark is durable (decision 0030) |
//! | the same in the log, after a power cut during writes | | refused with `Corrupt`, or a prefix is there that lacks at most the last sync: without the ring it looks like a torn tail |
//! | rot in a large page that the log names | | as rot in the log: it ends there, if unsynced |
//! | a block of zeros, or an older copy of a whole file of the log | | as other rot there; older copies only after kills and closes, since a power cut takes the ring that would show them |
//! | a lost, torn, misdirected, flipped or reverted write | as rot; merges that meet it are given up and reported, and writers may wait for them | as rot |
//! | a stale read, a flipped read, a short read, `EIO` once | that operation fails, or succeeds by a retry | nothing is lost; the open may be refused as long as it lasts |
//! | a bad sector, in the data file or the log: `EIO` from then on | reads of that sector fail, all others are right | the same; refused if the open needs it |
//! | a sync that fails once, and then lies | `Poisoned` until reopened; refused writes are not there, unless they were to be synced; reads go on | earlier acknowledged writes are there |
//! | files and blocks of another copy of the store, which went on separately | | files but the ring: refused with `Corrupt`; blocks: as rot; the ring: as an empty one |
//! | a copy made while the store is open | | refused with `Corrupt`, or a prefix of which every record reads right |
//! | any, then a salvage | | a certain record is right; a missing one is in a reported range |
//! | a full disk | `NoSpace`, and refused writes are not there; writes resume with space | nothing is lost |

mod copies;
mod rest;
mod running;
mod salvage;
mod store;

use std::path::Path;

use crate::{Find, Layer, Units};

/// The layers of this module.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![Layer {
        name: "media",
        counts: "media faults met",
        ci: 5_000,
        full: 20_000,
        units: Units::Seeds,
        alone: false,
        unit,
    }]
}

/// Damages a small store at rest in many ways, runs it with one fault at a time, then makes and
/// mixes copies of one.
fn unit(seed: u64, _scratch: &Path) -> Result<u64, Find> {
    let plan = store::Plan::of(seed);
    let mut tally = store::Tally::default();
    rest::damage(&plan, &mut tally)?;
    running::strike(&plan, &mut tally)?;
    copies::copies(&plan, &mut tally)?;
    tally.outcome()
}
