//! Rot: a store that is at rest is damaged in one place, verified, opened and read.

use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, SECTOR_BYTES};
use terrapin_model::{Operation, Oracle, Random, Subject, Survives};

use super::store::{Plan, Seen, Tally, go_on, is_of_medium_error, look};
use crate::Find;

/// Places that are damaged in each of a unit's stores.
const PLACES: usize = 40;
/// Sectors that are tried before one that holds nothing is taken.
const TRIES: usize = 12;
/// The superblock's two slots lie before this in the data file.
const SLOTS_BYTES: u64 = 8192;

/// How the store came to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
    PowerCut,
}

/// What becomes of a place.
#[derive(Clone, Copy, Debug)]
enum Rot {
    Bit,
    Byte,
    /// A sector of zeros.
    Zeros,
    /// A sector of noise.
    Noise,
    /// What lies elsewhere in the file.
    Foreign,
    /// What lay there in the middle of the workload.
    Old,
}

const ROTS: [Rot; 6] = [
    Rot::Bit,
    Rot::Byte,
    Rot::Zeros,
    Rot::Noise,
    Rot::Foreign,
    Rot::Old,
];

/// A store at rest.
struct Resting {
    end: End,
    disk: SimDisk,
    /// The disk in the middle of the workload.
    earlier: SimDisk,
    /// What a sound open finds.
    oracle: Oracle,
    /// What the oracle knew before.
    before: Oracle,
}

/// A store with one place damaged.
struct Damage {
    disk: SimDisk,
    /// In the data file, not in the log.
    in_data: bool,
    /// In a superblock slot, and not by an earlier state of it.
    in_slot: bool,
    text: String,
}

/// Damages stores of a plan that came to rest in every way.
pub(super) fn damage(plan: &Plan, tally: &mut Tally) -> Result<(), Find> {
    let mut random = Random::new(plan.seed ^ 0x0072_6573);
    for end in [End::Closed, End::Killed, End::PowerCut] {
        let resting = rest(plan, end)?;
        let files: Vec<String> = resting.disk.handle().list()?;
        for _ in 0..PLACES {
            let mut random = random.fork();
            let Some(damage) = resting.spoilt(&files, &mut random) else {
                continue;
            };
            let fault = format!("store {end:?}, {}", damage.text);
            tally.attempt(&fault, || resting.examine(plan, &damage, &mut random));
        }
    }
    Ok(())
}

fn rest(plan: &Plan, end: End) -> Result<Resting, Find> {
    let disk = SimDisk::new(plan.seed);
    let (mut subject, mut oracle) = plan.store(&disk);
    subject.open()?;
    let mut earlier = None;
    for (index, operation) in plan.operations.iter().enumerate() {
        if index == plan.operations.len() / 2 {
            earlier = Some(disk.fork());
        }
        Plan::apply(&mut subject, &mut oracle, operation)?;
    }
    match end {
        End::Closed => {
            subject.database()?.close()?;
            oracle.apply(&Operation::Flush);
            subject.let_go();
        }
        End::Killed => subject.crash(None),
        End::PowerCut => subject.crash(Some(CrashMode::LoseUnsynced)),
    }
    let before = oracle.clone();
    let survives = match end {
        End::PowerCut => Survives::Durable,
        End::Closed | End::Killed => Survives::Acknowledged,
    };
    let (mut sound, _) = plan.store(&disk.fork());
    sound.open()?;
    oracle.recovered(&sound.state()?, survives).map_err(Find)?;
    Ok(Resting {
        end,
        earlier: earlier.unwrap_or_else(|| disk.fork()),
        disk,
        oracle,
        before,
    })
}

impl Resting {
    /// A copy with one place damaged; none if that changed nothing.
    fn spoilt(&self, files: &[String], random: &mut Random) -> Option<Damage> {
        let data = files.iter().find(|name| *name == "data");
        let name = match data {
            Some(data) if random.below(5) < 3 => data,
            _ => random.pick(files),
        };
        let content = self.disk.content(name)?;
        let sectors = content.len() as u64 / SECTOR_BYTES;
        let sector = |offset: u64| {
            let from = (offset * SECTOR_BYTES) as usize;
            content.get(from..from + SECTOR_BYTES as usize)
        };
        let mut at = random.below(sectors);
        for _ in 0..TRIES {
            if sector(at)?.iter().any(|byte| *byte != 0) {
                break;
            }
            at = random.below(sectors);
        }
        let old = sector(at)?;
        let rot = *random.pick(&ROTS);
        let mut new = old.to_vec();
        match rot {
            Rot::Bit => new[random.index(old.len())] ^= 1 << random.below(8),
            Rot::Byte => new[random.index(old.len())] ^= random.between(1..256) as u8,
            Rot::Zeros => new.fill(0),
            Rot::Noise => new.fill_with(|| random.bits() as u8),
            Rot::Foreign => new.copy_from_slice(sector(random.below(sectors))?),
            Rot::Old => {
                let earlier = self.earlier.content(name)?;
                let from = (at * SECTOR_BYTES) as usize;
                new.copy_from_slice(earlier.get(from..from + old.len())?);
            }
        }
        if new == old {
            return None;
        }
        let disk = self.disk.fork();
        for (index, (new, old)) in new.iter().zip(old).enumerate() {
            if new != old {
                disk.corrupt(name, at * SECTOR_BYTES + index as u64, new ^ old);
            }
        }
        let in_data = name == "data";
        Some(Damage {
            disk,
            in_data,
            in_slot: in_data && at < SLOTS_BYTES / SECTOR_BYTES && !matches!(rot, Rot::Old),
            text: format!("{rot:?} in sector {at} of {name} ({sectors} sectors)"),
        })
    }

    /// Verifies, opens and reads; whether the damage was met.
    fn examine(&self, plan: &Plan, damage: &Damage, random: &mut Random) -> Result<bool, String> {
        let (mut subject, _) = plan.store(&damage.disk);
        let findings = match subject.verify() {
            Ok(findings) => findings,
            Err(error) => return Err(format!("verify: {error}")),
        };
        let noticed = !findings.is_empty();
        if let Err(error) = subject.open() {
            is_of_medium_error(&error).map_err(|m| format!("open: {m}"))?;
            if damage.in_slot {
                return Err(format!("one bad slot, and the open says {error}"));
            }
            return match noticed {
                true => Ok(true),
                false => Err(format!("verify finds nothing, and the open says {error}")),
            };
        }
        let mut expected = self.oracle.clone();
        let mut cut = false;
        // Who was killed between the two slots left the older one without what is not logged: it is what the damaged one gives way to.
        let older_slot = damage.in_slot && matches!(self.end, End::Killed);
        if (!damage.in_data || older_slot)
            && let Ok(state) = subject.state()
        {
            // A damaged end of the log may look like a torn one.
            let survives = match self.end {
                End::Closed => Survives::Acknowledged,
                End::Killed if older_slot => Survives::Acknowledged,
                End::Killed => Survives::Durable,
                End::PowerCut => Survives::Marked,
            };
            cut = state != *expected.state();
            expected = self.before.clone();
            expected.recovered(&state, survives)?;
        }
        let seen = look(&mut subject, expected.state(), random)?;
        if seen == Seen::InPart && damage.in_slot {
            return Err("one bad slot, and reads fail".to_owned());
        }
        if seen == Seen::InPart && !noticed {
            return Err("verify finds nothing, and reads fail".to_owned());
        }
        go_on(&mut subject, &mut expected, random, noticed)?;
        Ok(noticed || cut)
    }
}
