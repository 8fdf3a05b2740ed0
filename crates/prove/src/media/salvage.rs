//! Salvage of a damaged store: no record is certain that the store does not have, so no deleted one
//! returns; and what is missing has a place among the reported damage.

use std::collections::BTreeMap;

use terrapin::salvage::{SalvageReport, UNCERTAIN, salvage_on};
use terrapin::{Database, StructureKind};
use terrapin_base::Env;
use terrapin_disk::SimDisk;
use terrapin_model::{Configuration, State};

use super::store::is_of_medium_error;

/// Bytes of the handle of a value that is not in its tree, about.
const HANDLE_BYTES: usize = 16;
/// Most key and value bytes that one damaged block may cost, in blocks: blocks are compressed, and
/// a record may be longer than a block.
const LOST_BLOCKS: usize = 16;

/// The wall clock of the salvage, in milliseconds since 1970: behind deadlines that have come, and
/// before those that never come.
const LATER_MS: u64 = 2_500_000_000_000;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// What came out of a damaged store.
pub(super) struct Salvaged {
    pub report: SalvageReport,
    database: Database,
}

/// Salvages a store that is not open, and changes nothing on its disk. `None` if the damage refuses
/// it.
pub(super) fn salvaged(
    configuration: &Configuration,
    disk: &SimDisk,
) -> Result<Option<Salvaged>, String> {
    let (env, sim) = Env::simulated(1);
    sim.set_breathing(false);
    sim.set_wall_ms(LATER_MS);
    let options = configuration.options();
    let opened = options.open_on(env.clone(), SimDisk::new(1).handle());
    let database = opened.map_err(|error| format!("a new database: {error}"))?;
    let old = disk.fork();
    let written = old.stats_total().written_bytes;
    let report = match salvage_on(&env, &old.handle(), &options, &database) {
        Ok(report) => report,
        Err(error) => {
            is_of_medium_error(&error).map_err(|error| format!("salvage: {error}"))?;
            return Ok(None);
        }
    };
    if old.stats_total().written_bytes != written {
        return Err("salvage writes into the damaged store".to_owned());
    }
    Ok(Some(Salvaged { report, database }))
}

/// Salvages a store of which a sound copy holds `expected`. `in_data` says that the damage is in
/// one block of the data file.
pub(super) fn check(
    configuration: &Configuration,
    disk: &SimDisk,
    expected: &State,
    in_data: bool,
) -> Result<(), String> {
    match salvaged(configuration, disk)? {
        Some(salvaged) => salvaged.judge(configuration, expected, in_data),
        None => Ok(()),
    }
}

impl Salvaged {
    fn judge(
        &self,
        configuration: &Configuration,
        expected: &State,
        in_data: bool,
    ) -> Result<(), String> {
        // A damaged large page ends the log, perhaps below what a checkpoint relies on.
        let may_end_log = configuration.large_above.is_some();
        let in_data = in_data && !(may_end_log && self.report.log.is_some());
        if in_data && let Some(log) = &self.report.log {
            return Err(format!("the log is sound, and salvage says {log}"));
        }
        let infos = self.database.keyspaces();
        let infos = infos.map_err(|error| format!("keyspaces: {error}"))?;
        for name in infos.iter().map(|info| info.name.as_str()) {
            if name.ends_with(UNCERTAIN) || expected.keyspaces().contains_key(name) {
                continue;
            }
            if !self.records(name)?.is_empty() && self.report.log.is_none() {
                return Err(format!("keyspace {name} was dropped, and has records"));
            }
        }
        let is_there = |name: &String| infos.iter().any(|info| info.name == *name);
        for (name, truth) in expected.keyspaces() {
            if !is_there(name) {
                match self.report.log {
                    Some(_) => continue,
                    None => return Err(format!("salvage lacks keyspace {name}")),
                }
            }
            let (certain, uncertain) = (
                self.records(name)?,
                self.records(&format!("{name}{UNCERTAIN}"))?,
            );
            let truth = truth.iter().map(|(k, v)| (k.clone(), v.to_vec()));
            let truth: Records = truth.collect();
            for (key, value) in &certain {
                if truth.get(key) != Some(value) {
                    let there = truth.get(key).map(|value| value.len());
                    return Err(format!(
                        "salvage of {name}: {key:02x?} has {} bytes, in the store {there:?}",
                        value.len()
                    ));
                }
                if uncertain.contains_key(key) {
                    return Err(format!("salvage of {name}: {key:02x?} is certain and not"));
                }
            }
            let found = (&truth, &certain, &uncertain);
            self.judge_missing(name, found, configuration, in_data)?;
        }
        Ok(())
    }

    /// What is missing or uncertain is in a damaged range, and one block of a tree costs no more
    /// than it held.
    fn judge_missing(
        &self,
        name: &str,
        (truth, certain, uncertain): (&Records, &Records, &Records),
        configuration: &Configuration,
        in_data: bool,
    ) -> Result<(), String> {
        let (structure, has_operands) = self.options(name)?;
        let (mut lost_bytes, mut longest) = (0, 0);
        for (key, value) in truth.iter().filter(|(key, _)| !certain.contains_key(*key)) {
            let is_uncertain = uncertain.contains_key(key);
            if !(self.may_be_lost(name, key, structure) || is_uncertain && has_operands) {
                return Err(format!(
                    "salvage of {name}: {key:02x?} is missing without a reason"
                ));
            }
            if !is_uncertain {
                // Of a large or a separated value, a block has the handle.
                let bytes = value.len() as u64;
                let is_large = configuration
                    .large_above
                    .is_some_and(|above| bytes > above.into());
                let is_separated = configuration
                    .separate_from
                    .is_some_and(|from| bytes >= from.into());
                let in_block = if is_large || is_separated {
                    HANDLE_BYTES
                } else {
                    value.len()
                };
                lost_bytes += key.len() + in_block;
                longest = longest.max(key.len() + in_block);
            }
        }
        let is_tree = matches!(structure, StructureKind::Leveled | StructureKind::Tiered);
        let of_node = |cause: &str| cause.contains("node") || cause.contains("value table");
        let damaged = &self.report.damaged;
        let has_lost_node = damaged.iter().any(|range| of_node(&range.cause));
        let most = LOST_BLOCKS * 4096.max(configuration.block_bytes as usize) + longest;
        if is_tree && in_data && !has_lost_node && lost_bytes > most {
            return Err(format!(
                "salvage of {name}: {lost_bytes} bytes are lost with one block: {damaged:?}"
            ));
        }
        Ok(())
    }

    fn may_be_lost(&self, name: &str, key: &[u8], structure: StructureKind) -> bool {
        let has = |from: &[u8], to: Option<&[u8]>| from <= key && to.is_none_or(|to| key < to);
        let mut damaged = self.report.damaged.iter().filter(|d| d.keyspace == name);
        // Ranges of hashed keyspaces are in the order of hashes.
        self.report.log.is_some()
            || damaged.any(|range| {
                structure == StructureKind::Hashed || has(&range.from, range.to.as_deref())
            })
    }

    /// The structure of a keyspace, and whether values may have operands.
    fn options(&self, name: &str) -> Result<(StructureKind, bool), String> {
        let keyspace = self.database.open_keyspace(name);
        let options = keyspace.and_then(|keyspace| keyspace.options());
        let options = options.map_err(|error| format!("options of {name}: {error}"))?;
        Ok((options.structure, options.merge_operator.is_some()))
    }

    /// The records of a keyspace; none without it.
    pub(super) fn records(&self, name: &str) -> Result<Records, String> {
        let Ok(keyspace) = self.database.open_keyspace(name) else {
            return Ok(Records::new());
        };
        let mut records = Records::new();
        let mut all = keyspace.unordered();
        loop {
            match all.next_ref() {
                Ok(Some((key, value))) => {
                    records.insert(key.to_vec(), value.to_vec());
                }
                Ok(None) => return Ok(records),
                Err(error) => return Err(format!("records of {name}: {error}")),
            }
        }
    }
}
