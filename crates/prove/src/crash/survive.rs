//! The checks after a death: [`survive`].

use terrapin_disk::sim::CrashMode;
use terrapin_model::{Life, Oracle, Random, Survives};

use super::places::Death;
use super::walk::ROOMY_BYTES;
use super::workload::Course;
use crate::Find;
use crate::protocol::Protocol;

/// Operations that the store must do after a recovery before it dies again.
const OPERATIONS: usize = 100;
/// Operations in which it then dies.
const LAST: usize = 30;
/// After one in this many deaths, the order of the writes is checked too.
const WATCHED_ONE_IN: u64 = 8;

/// What is true where a process died.
pub(super) struct Scene<'a> {
    pub course: &'a Course,
    /// The operation under way.
    pub line: String,
    /// The allowed content of the store.
    pub oracle: Oracle,
    /// What earlier deaths of the same recovery may have taken.
    pub survives: Survives,
    /// Whether its creation was acknowledged.
    pub created: bool,
}

/// Checks a store after a death. The files verify clean. The store opens and holds a prefix of the
/// commits, with everything that had to survive. Another death changes nothing. A hundred
/// operations give the right answers, and a death after those is survived too.
pub(super) fn survive(death: Death, scene: &Scene<'_>) -> Result<(), Find> {
    let mut random = Random::new(death.seed);
    let watched = death.seed.is_multiple_of(WATCHED_ONE_IN);
    let protocol = watched.then(|| Protocol::watch(&death.disk));
    let mut life = begin(death, scene);
    life.verify(scene.created)?;
    let state = life.recover()?;
    life.recover_again(&state, second(&mut random))?;
    go_on(&mut life, &mut random)?;
    let checked = protocol.map_or(Ok(0), |protocol| protocol.check());
    checked
        .map(drop)
        .map_err(|breach| life.failure(breach.0).into())
}

/// The life after the death, not yet recovered.
pub(super) fn begin(death: Death, scene: &Scene<'_>) -> Life {
    let name = format!(
        "workload {}, line {:?}, died {}",
        scene.course.name, scene.line, death.name
    );
    let mut life = Life::after_death(
        name,
        death.seed,
        &scene.course.configuration,
        death.disk,
        scene.oracle.clone(),
        scene.survives,
    );
    life.die(death.power);
    life
}

/// Continues from a recovered store: a hundred operations, and a death in or after some more.
pub(super) fn go_on(life: &mut Life, random: &mut Random) -> Result<(), Find> {
    life.subject().disk().set_capacity(ROOMY_BYTES);
    life.operate(OPERATIONS)?;
    if random.one_in(2) {
        life.dies_at_call(random.scaled(40));
    } else {
        life.dies_at_ring_write(random.scaled(20));
    }
    life.operate(LAST)?;
    life.die(second(random));
    life.verify(true)?;
    life.recover()?;
    if random.one_in(8) {
        life.finish()?;
    }
    Ok(())
}

/// A kill, or a power cut in any mode.
pub(super) fn second(random: &mut Random) -> Option<CrashMode> {
    random.one_in(2).then(|| *random.pick(&CrashMode::ALL))
}
