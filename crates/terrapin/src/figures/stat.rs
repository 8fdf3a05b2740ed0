//! Figures for people, keyspace by keyspace: [`DatabaseStat`].

use terrapin_base::sync::Ordering;
use terrapin_base::{Error, KeyspaceId, Result};
use terrapin_structure::{PageParts, StructureStats};

use crate::disk_space::usage::SpaceUse;
use crate::engine::core::Core;
use crate::figures::metrics::metrics;
use crate::metrics::MemoryUse;
use crate::types::options::KeyspaceOptions;

/// Figures of one keyspace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyspaceStat {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: KeyspaceId,
    /// The structure that has its records.
    pub structure: &'static str,
    /// Estimated number of records; see [`crate::Keyspace::approximate_count`].
    pub records: u64,
    /// About how many thousandths of the tree's records have expired ([`Keyspace::put_with_ttl`]).
    /// A job compacts the tree from 250 on, while the disk has room.
    ///
    /// [`Keyspace::put_with_ttl`]: crate::Keyspace::put_with_ttl
    pub expired_permille: u64,
    /// The tree.
    pub tree: StructureStats,
    /// Live bytes in the active and the sealed memtable.
    pub memtable_bytes: u64,
    /// Memory of both memtables.
    pub memtable_memory_bytes: u64,
    /// Live bytes at which the memtable is sealed: χ·L.
    pub memtable_bytes_max: u64,
    /// χ in force.
    pub checkpoint_distance: u32,
    /// The options that were set for the keyspace.
    pub options: KeyspaceOptions,
}

/// Figures of a database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatabaseStat {
    /// Every keyspace.
    pub keyspaces: Vec<KeyspaceStat>,
    /// L: bytes of a page group, the unit of χ.
    pub group_bytes: u64,
    /// Bytes on disk, by kind.
    pub space: SpaceUse,
    /// Bytes on disk of live pages.
    pub data_live_bytes: u64,
    /// Free bytes in the data file, including those that were returned to the file system.
    pub data_free_bytes: u64,
    /// Bytes of log that a recovery would read. After a close, some KiB without records.
    pub log_kept_bytes: u64,
    /// Bytes of live pages for each key and value byte that readers see in the trees. Hidden
    /// records and deletes do not count as such bytes. 0 if the trees are empty.
    pub space_amplification: f64,
    /// Memory, by purpose.
    pub memory: MemoryUse,
    /// The generation of the checkpoint that both superblocks name.
    pub generation: u64,
    /// Registered views: snapshots and iterators.
    pub views: u64,
}
/// Collects the statistics. Reads every node of the trees that is not cached. Errors are of these
/// reads, or `Closed`.
pub(crate) fn stat(core: &Core) -> Result<DatabaseStat> {
    let observed = core.observe()?;
    core.health.check_open()?; // or the state may be the one that a close left
    let mut keyspaces = Vec::new();
    for keyspace in observed.state.keyspaces.iter() {
        let named = |error: Error| error.with("keyspace", &keyspace.shared.name);
        let tree = keyspace.version.stats().map_err(named)?;
        let expired = keyspace.structure.compacts().map_or(Ok(0), |compacts| {
            compacts.expired_permille(&keyspace.version, observed.now_ms)
        });
        let memtables = keyspace.memtables();
        keyspaces.push(KeyspaceStat {
            name: keyspace.shared.name.to_string(),
            id: keyspace.id,
            structure: keyspace.structure.name(),
            records: crate::read::estimate::count(keyspace, observed.before).map_err(named)?,
            expired_permille: expired.map_err(named)?,
            tree,
            memtable_bytes: memtables.clone().map(|w| w.memtable.live_bytes()).sum(),
            memtable_memory_bytes: memtables.map(|w| w.memtable.arena_bytes()).sum(),
            memtable_bytes_max: keyspace.shared.memtable_bytes.load(Ordering::Relaxed),
            checkpoint_distance: core.distance_in_force(&keyspace.shared),
            options: keyspace.options,
        });
    }
    let metrics = metrics(core);
    let mut pages = PageParts::default();
    for keyspace in &keyspaces {
        pages.add(&keyspace.tree.parts);
    }
    Ok(DatabaseStat {
        keyspaces,
        space: SpaceUse::of(core, pages)?,
        group_bytes: core.settings.merge.group_bytes,
        data_live_bytes: metrics.data_live_bytes,
        data_free_bytes: metrics.data_free_bytes,
        log_kept_bytes: metrics.log_kept_bytes,
        space_amplification: metrics.space_amplification,
        memory: metrics.memory,
        generation: observed.state.generation.0,
        views: metrics.views,
    })
}
