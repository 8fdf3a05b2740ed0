//! Rot: a store at rest is damaged in one place, verified, opened and read.

use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, SECTOR_BYTES};
use terrapin_model::{Operation, Oracle, Random, State, Subject, Survives};

use super::salvage;
use super::store::{Plan, Seen, Tally, go_on, is_of_medium_error, look};
use crate::Find;

/// Places damaged in each of a unit's stores.
const PLACES: usize = 24;
/// Sectors tried before an empty one is accepted.
const TRIES: usize = 12;
/// How long a store is idle before it is at rest.
const IDLE_MS: u64 = 3_000;
const BLOCK_BYTES: u64 = 4096;
/// The superblock's two slots are before this offset in the data file.
const SLOTS_BYTES: u64 = 8192;

/// How the store came to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
    /// Flushed, and killed at once.
    FlushedKilled,
    PowerCut,
    /// Flushed, idle for some seconds, and killed or cut off: the log's last mark is durable, so
    /// damage to flushed data does not look like a torn tail.
    IdleKilled,
    IdlePowerCut,
}

impl End {
    const ALL: [End; 6] = [
        End::Closed,
        End::Killed,
        End::FlushedKilled,
        End::PowerCut,
        End::IdleKilled,
        End::IdlePowerCut,
    ];

    fn is_power_cut(self) -> bool {
        matches!(self, End::PowerCut | End::IdlePowerCut)
    }
}

/// The damage of a place.
#[derive(Clone, Copy, Debug)]
enum Rot {
    Bit,
    Byte,
    /// A sector of zeros.
    Zeros,
    /// A sector of noise.
    Noise,
    /// The bytes of another place in the file.
    Foreign,
    /// The bytes that were there in the middle of the workload.
    Old,
    /// A block of zeros.
    Block,
    /// The whole file as it was in the middle of the workload.
    OldFile,
}

const ROTS: [Rot; 8] = [
    Rot::Bit,
    Rot::Byte,
    Rot::Zeros,
    Rot::Noise,
    Rot::Foreign,
    Rot::Old,
    Rot::Block,
    Rot::OldFile,
];

/// A store at rest.
struct Resting {
    end: End,
    disk: SimDisk,
    /// The disk in the middle of the workload.
    earlier: SimDisk,
    /// The content of a sound open.
    oracle: Oracle,
    /// The oracle's state before.
    before: Oracle,
}

/// A store with one place damaged.
struct Damage {
    disk: SimDisk,
    /// Whether it is in the data file, not in the log.
    in_data: bool,
    /// Whether it is in a superblock slot, and not an earlier state of it.
    in_slot: bool,
    text: String,
}

/// Damages stores of a plan that came to rest in every way.
pub(super) fn damage(plan: &Plan, tally: &mut Tally) -> Result<(), Find> {
    let mut random = Random::new(plan.seed ^ 0x0072_6573);
    for end in End::ALL {
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
        End::Killed => {}
        End::PowerCut => {}
        End::FlushedKilled => Plan::apply(&mut subject, &mut oracle, &Operation::Flush)?,
        End::IdleKilled | End::IdlePowerCut => {
            for operation in [Operation::Flush, Operation::Pass { ms: IDLE_MS }] {
                Plan::apply(&mut subject, &mut oracle, &operation)?;
            }
        }
    }
    let power = end.is_power_cut().then_some(CrashMode::LoseUnsynced);
    if end != End::Closed {
        subject.crash(power);
    }
    let before = oracle.clone();
    let survives = match end.is_power_cut() {
        true => Survives::Durable,
        false => Survives::Acknowledged,
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
        let rot = *random.pick(&ROTS);
        let in_data = name == "data";
        let text = format!("{rot:?} in sector {at} of {name} ({sectors} sectors)");
        let disk = self.disk.fork();
        if let Rot::OldFile = rot {
            // Without the ring, an older copy of the last log file cannot be detected. An older
            // data file is an older checkpoint.
            let earlier = self.earlier.content(name)?;
            if in_data || self.end.is_power_cut() || earlier == content {
                return None;
            }
            disk.plant(name, &earlier);
            return Some(Damage {
                disk,
                in_data,
                in_slot: false,
                text,
            });
        }
        let (from, bytes) = match rot {
            Rot::Block => (at * SECTOR_BYTES / BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES),
            _ => (at * SECTOR_BYTES, SECTOR_BYTES),
        };
        let old = content.get(from as usize..(from + bytes) as usize)?;
        let mut new = old.to_vec();
        match rot {
            Rot::Bit => new[random.index(old.len())] ^= 1 << random.below(8),
            Rot::Byte => new[random.index(old.len())] ^= random.between(1..256) as u8,
            Rot::Zeros | Rot::Block => new.fill(0),
            Rot::Noise => new.fill_with(|| random.bits() as u8),
            Rot::Foreign => new.copy_from_slice(sector(random.below(sectors))?),
            Rot::Old | Rot::OldFile => {
                let earlier = self.earlier.content(name)?;
                new.copy_from_slice(earlier.get(from as usize..from as usize + old.len())?);
            }
        }
        if new == old {
            return None;
        }
        for (offset, (new, old)) in (from..).zip(new.iter().zip(old)) {
            if new != old {
                disk.corrupt(name, offset, new ^ old);
            }
        }
        Some(Damage {
            disk,
            in_data,
            in_slot: in_data && from < SLOTS_BYTES && !matches!(rot, Rot::Old),
            text,
        })
    }

    /// Verifies, opens and reads. Returns whether the damage was met.
    fn examine(&self, plan: &Plan, damage: &Damage, random: &mut Random) -> Result<bool, String> {
        let (mut subject, _) = plan.store(&damage.disk);
        let findings = match subject.verify() {
            Ok(findings) => findings,
            Err(error) => return Err(format!("verify: {error}")),
        };
        let noticed = !findings.is_empty();
        let at_rest = damage.disk.fork();
        let salvaged =
            |state: &State| salvage::check(&plan.configuration, &at_rest, state, damage.in_data);
        if let Err(error) = subject.open() {
            is_of_medium_error(&error).map_err(|m| format!("open: {m}"))?;
            salvaged(self.oracle.state())?;
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
        // A kill between the two slots left the older one without unlogged writes. The damaged slot
        // gives way to it.
        let killed = !self.end.is_power_cut() && self.end != End::Closed;
        let older_slot = damage.in_slot && killed;
        let may_end_log = damage.in_data && plan.data_may_end_log();
        if (!damage.in_data || older_slot || may_end_log)
            && let Ok(state) = subject.state()
        {
            // A damaged end of the log may look torn.
            let survives = match self.end {
                End::Closed => Survives::Acknowledged,
                _ if older_slot => Survives::Acknowledged,
                End::PowerCut => Survives::Marked,
                _ => Survives::Durable,
            };
            cut = state != *expected.state();
            expected = self.before.clone();
            expected.recovered(&state, survives)?;
        }
        salvaged(expected.state())?;
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
