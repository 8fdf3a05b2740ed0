//! The engine on a low or full disk (D10): when it looks at the room, and what a change of state
//! does. [`DiskState`] has the states and the decisions; [`Measure`] has the figures.
//!
//! | change | what the engine does |
//! | --- | --- |
//! | ample → low | the log gives spare files up; memtables become small, larger ones are sealed |
//! | low → ample | memtables may grow again, and the log keeps spare files |
//! | any → full | puts are refused, and changes of keyspaces that need room in the log; backups end |
//! | full → low | puts are accepted |
//!
//! Writers look when memtables are sealed and as the log grows, and the coordinator looks after
//! each checkpoint. Only the coordinator, or a put that is about to be refused, looks whether a
//! full disk has room again. On a full disk deletes, clears and drops pass. Their merges make room
//! (`checkpoint::gather`), and the log goes on in the files that it has
//! (`let_the_log_be_trimmed`). If another program takes the room that the engine kept for merges, a
//! merge finds no space. It then takes the reserve (`checkpoint::job`).

use terrapin_base::{Error, ErrorKind, mutant};

use super::measure::{Measure, in_file_bytes};
use crate::engine::compactions::STRETCH_GROUPS;
use crate::engine::core::Core;
use crate::engine::state::KeyspaceState;
use crate::planning::disk_state::{DiskState, Need, Refusal, with_an_eighth};

/// What a compaction of a stretch takes at most before it frees anything, in stretches: its leaves,
/// what buffers hold for them and for the other leaves of the flushed pivots, and its nodes.
const STRETCH_ROOM: u64 = 4;

/// Bytes that can still be allocated on the disk and in the data file. A system call.
pub(crate) fn room_bytes(core: &Core) -> u64 {
    Measure::new(core).room().bytes
}

/// Whether the memtables that have begun fit at their usual size, with their merges and the log. A
/// system call.
pub(crate) fn has_room(core: &Core) -> bool {
    let measure = Measure::new(core);
    measure.room().fits(measure.needed_bytes(Need::BegunAmple))
}

/// Whether there is room to compact a stretch of a tree beside what full memtables will need. A
/// compaction, which no caller asked for, must not cause refused puts. A system call.
pub(crate) fn has_room_for_stretch(core: &Core) -> bool {
    let measure = Measure::new(core);
    let needed = measure.needed_bytes(Need::LastingAmple);
    let stretch = STRETCH_GROUPS * core.settings.merge.group_bytes;
    measure.room().bytes >= needed.saturating_add(STRETCH_ROOM * stretch)
        || mutant::active("compaction-ignores-room")
}

/// Whether an ingest may take a group's room: the memtables that have begun still fit, at least
/// small ones, and puts are accepted. A system call.
pub(crate) fn has_room_for_ingest(core: &Core) -> bool {
    let measure = Measure::new(core);
    let needed = measure.needed_bytes(Need::BegunSmall);
    let group = core.settings.merge.group_bytes;
    !core.schedule.disk_is_full() && measure.room().fits(needed.saturating_add(2 * group))
}

/// Looks at the room, unless the disk is full already. Called when memtables are sealed and as the
/// log grows. One or two system calls.
pub(crate) fn watch(core: &Core) {
    let state = core.schedule.disk();
    if core.log.is_none() || state == DiskState::Full {
        return;
    }
    let mut measure = Measure::new(core);
    let mut next = state.next(measure.room(), |need| measure.needed_bytes(need));
    if next != DiskState::Ample && revoke_readers(core) {
        measure = Measure::new(core);
        next = state.next(measure.room(), |need| measure.needed_bytes(need));
    }
    match (state, next) {
        (DiskState::Ample, DiskState::Low) => make_memtables_small(core),
        (DiskState::Low, DiskState::Ample) => make_memtables_ample(core),
        (DiskState::Low, DiskState::Full) => refuse_puts(core, &measure),
        _ => {}
    }
}

/// Revokes the readers in other processes, since space is short. Returns whether there were any.
pub(crate) fn revoke_readers(core: &Core) -> bool {
    !mutant::active("short-disk-keeps-readers")
        && core
            .readers
            .revoke(&core.store, "the disk is short of space", false)
}

/// Looks whether a full disk has room again. A system call if the disk is full.
pub(crate) fn see_whether_room_is_back(core: &Core) {
    if !core.schedule.disk_is_full() {
        return;
    }
    let measure = Measure::new(core);
    let next = DiskState::Full.next(measure.room(), |need| measure.needed_bytes(need));
    if next == DiskState::Low && core.schedule.change_disk(DiskState::Full, next) {
        core.refusal.lock().is_quota = false;
        core.plan_memory(&core.install.lock());
        // There may be room for large memtables, too.
        watch(core);
    }
}

/// Whether puts are accepted again, for a put that is about to be refused. The put need not wait
/// for the coordinator's next look. If the disk reports the same room as when it last refused
/// space, only the coordinator tries again. Puts would otherwise cause one failing checkpoint after
/// the other. One to three system calls.
pub(crate) fn room_came_back(core: &Core) -> bool {
    let refused_bytes = core.refusal.lock().room_bytes;
    if room_bytes(core) <= with_an_eighth(refused_bytes) {
        return false;
    }
    see_whether_room_is_back(core);
    let is_back = !core.schedule.disk_is_full();
    if is_back {
        // A checkpoint that failed for lack of room rests for up to ten seconds. Memtable memory
        // may not last so long.
        core.schedule.end_rest();
    }
    is_back
}

/// Notes that an allocation found the disk full or met a quota. The engine refuses puts until there
/// is room.
pub(crate) fn run_short(core: &Core, cause: &Error) {
    core.refusal.lock().is_quota = cause.is_quota();
    note_refusal(core, &Measure::new(core));
    core.schedule.fill_disk();
    core.backups.give_up();
    apply_state(core);
}

/// The disk becomes low: seals the memtables that are large for it, and then looks whether small
/// ones fit.
fn make_memtables_small(core: &Core) {
    if !core.schedule.change_disk(DiskState::Ample, DiskState::Low) {
        return;
    }
    tell_log(core);
    {
        let mut install = core.install.lock();
        core.plan_memory(&install);
        core.seal(&mut install, KeyspaceState::is_due);
    }
    let measure = Measure::new(core);
    let next = DiskState::low_or_full(measure.room(), |need| measure.needed_bytes(need));
    if next == DiskState::Full {
        refuse_puts(core, &measure);
    }
}

/// The disk has room for memtables of the usual size.
fn make_memtables_ample(core: &Core) {
    if core.schedule.change_disk(DiskState::Low, DiskState::Ample) {
        apply_state(core);
        // A writer may wait with a memtable that was full at one unit.
        core.schedule.released();
    }
}

/// The low disk becomes full.
fn refuse_puts(core: &Core, measure: &Measure) {
    note_refusal(core, measure);
    if core.schedule.change_disk(DiskState::Low, DiskState::Full) {
        tracing::warn!("the disk is nearly full: puts are refused until there is room");
        core.backups.give_up();
        apply_state(core);
    }
}

/// Notes what was written and free when puts were refused.
fn note_refusal(core: &Core, measure: &Measure) {
    let mut refusal = core.refusal.lock();
    *refusal = Refusal {
        memtable_bytes: measure.small_memtables_bytes(),
        room_bytes: measure.room().bytes,
        ..*refusal
    };
}

/// Applies the state in force to the log and to the limits of memtables.
fn apply_state(core: &Core) {
    tell_log(core);
    core.plan_memory(&core.install.lock());
}

/// Tells the log whether to keep spare files. Reads the state in force, which another thread may
/// have changed again.
fn tell_log(core: &Core) {
    if let Some(log) = &core.log {
        log.set_space_is_scarce(core.schedule.disk() != DiskState::Ample);
    }
}

/// What is full, for the text of an error.
pub(crate) fn what_is_full(core: &Core) -> &'static str {
    match core.refusal.lock().is_quota {
        true => "a quota of the file system is met",
        false => "the disk is full",
    }
}

/// Why a put is refused.
pub(crate) fn no_room(core: &Core) -> Error {
    if core.refusal.lock().is_quota {
        // The free space of the disk says nothing then. Only the system knows what the quota
        // leaves.
        let log = core.log.as_ref().map_or(0, |log| log.metrics().disk_bytes);
        return Error::new(
            ErrorKind::NoSpace,
            "a quota of the file system is met: raise it, or delete records; deletes are still accepted",
        )
        .with("bytes of the data file", core.store.allocated_bytes().unwrap_or(0))
        .with("bytes of the log", log)
        .with("bytes free in the data file", in_file_bytes(core));
    }
    let measure = Measure::new(core);
    let room = measure.room();
    let needed = with_an_eighth(measure.needed_bytes(Need::LastingSmall));
    let error = Error::new(
        ErrorKind::NoSpace,
        "the disk is full; deletes are still accepted",
    )
    .with("bytes free", room.bytes)
    .with("bytes needed", needed);
    match room.can_log_grow {
        true => error,
        false => error.with("bytes of a log file", core.settings.segment_bytes),
    }
}
