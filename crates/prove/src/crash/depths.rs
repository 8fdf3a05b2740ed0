//! Crashes in the recovery from a crash, and in the recovery from that one (D6).

use terrapin_model::{Life, Random, State, Survives};

use super::places::{Death, Taking};
use super::survive::{Scene, begin, go_on, second};
use crate::Find;
use crate::protocol::Protocol;

/// How many deaths are tried in one recovery.
const DEATHS: usize = 6;

/// The outcome of an undisturbed recovery, and whether it is determined: after a power cut or
/// another kill it is.
struct Outcome {
    state: State,
    power: bool,
}

/// Dies, dies again in the recovery, and `levels` times in the recovery from that. Counts the
/// deaths in recoveries; each must be survived.
pub(super) fn descend(
    death: Death,
    scene: &Scene<'_>,
    levels: u32,
    random: &mut Random,
) -> Result<u64, Find> {
    let mut tried = 0;
    deeper(death, scene, None, levels, random, &mut tried)?;
    Ok(tried)
}

fn deeper(
    death: Death,
    scene: &Scene<'_>,
    above: Option<&Outcome>,
    levels: u32,
    random: &mut Random,
    tried: &mut u64,
) -> Result<(), Find> {
    let power = death.power.is_some();
    let name = death.name.clone();
    let seed = death.seed;
    let mut life = begin(death, scene);
    let protocol = Protocol::watch(life.subject().disk());
    let taking = Taking::begin(life.subject().disk(), seed, 1);
    let state = life.recover()?;
    protocol
        .check()
        .map_err(|find| Find::from(life.failure(find.0)))?;
    drop(protocol);
    let mut places = taking.take();
    drop(taking);
    if let Some(above) = above {
        agree(&life, above, power, &state)?;
        *tried += 1;
    }
    if levels == 0 || places.is_empty() {
        return finish(&mut life, &state, random);
    }
    let outcome = Outcome {
        state,
        power: power || above.is_some_and(|above| above.power),
    };
    for _ in 0..DEATHS.min(places.len()) {
        let place = places.swap_remove(random.index(places.len()));
        let mut deaths = place.deaths();
        let mut next = deaths.swap_remove(random.index(deaths.len()));
        next.name = format!("{name}; and in that recovery {}", next.name);
        let scene = Scene {
            course: scene.course,
            line: scene.line.clone(),
            oracle: scene.oracle.clone(),
            survives: if outcome.power {
                Survives::Durable
            } else {
                Survives::Acknowledged
            },
            created: scene.created,
        };
        let levels = if random.one_in(2) { levels - 1 } else { 0 };
        deeper(next, &scene, Some(&outcome), levels, random, tried)?;
    }
    Ok(())
}

/// A recovery that is interrupted and started again has the same outcome, unless the first power
/// cut came in between.
fn agree(life: &Life, above: &Outcome, power: bool, state: &State) -> Result<(), Find> {
    if (power && !above.power) || *state == above.state {
        return Ok(());
    }
    Err(life
        .failure(format!(
            "an interrupted recovery had another outcome: {}",
            state.difference(&above.state)
        ))
        .into())
}

fn finish(life: &mut Life, state: &State, random: &mut Random) -> Result<(), Find> {
    life.recover_again(state, second(random))?;
    go_on(life, random)
}
