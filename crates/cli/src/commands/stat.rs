//! `terrapin stat`: what a database holds, how its trees stand, what space and memory it takes.

use clap::Args;
use serde_json::{Value, json};
use terrapin::{CheckpointDistance, DatabaseStat, KeyspaceStat, SpaceUse};
use terrapin_base::Result;

use crate::bytes::{human, thousands};
use crate::database::DatabaseArgs;
use crate::output;

/// Arguments of `stat`.
#[derive(Args)]
pub struct Stat {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Stat {
    /// See the head of this file.
    pub fn run(&self) -> Result<()> {
        let database = self.database.open_to_read()?;
        let stat = database.stat()?;
        let space_bytes = terrapin_bench::allocated_bytes(&self.database.path)?;
        if self.json {
            output::say(as_json(&stat, space_bytes))?;
        } else {
            output::say(as_text(&stat, space_bytes).trim_end())?;
        }
        crate::database::close(&database)
    }
}

fn distance(set: Option<CheckpointDistance>) -> Value {
    match set {
        None => Value::Null,
        Some(CheckpointDistance::Auto) => "auto".into(),
        Some(CheckpointDistance::Fixed(chi)) => chi.into(),
        Some(other) => format!("{other:?}").into(),
    }
}

/// Key and value bytes of a keyspace, on disk and in its windows; what a later write supersedes counts until it is merged.
fn data_bytes(keyspace: &KeyspaceStat) -> u64 {
    keyspace.tree.leaf_bytes + keyspace.tree.buffered_bytes + keyspace.window_bytes
}

fn keyspace_json(keyspace: &KeyspaceStat) -> Value {
    let tree = &keyspace.tree;
    json!({
        "name": keyspace.name,
        "id": keyspace.id.0,
        "structure": keyspace.structure,
        "records": keyspace.records,
        "bytes": data_bytes(keyspace),
        "height": tree.height,
        "nodes": tree.nodes,
        "groups": tree.groups,
        "leaf_records": tree.leaf_records,
        "leaf_bytes": tree.leaf_bytes,
        "buffered_records": tree.buffered_records,
        "buffered_bytes": tree.buffered_bytes,
        "buffer_level_bytes": tree.level_bytes,
        "page_bytes": tree.page_bytes,
        "superseded_bytes": tree.superseded_bytes,
        "window_bytes": keyspace.window_bytes,
        "window_bytes_max": keyspace.window_bytes_max,
        "window_memory_bytes": keyspace.window_memory_bytes,
        "chi": keyspace.checkpoint_distance,
        "chi_set": distance(keyspace.checkpoint_distance_set),
    })
}

fn space_json(space: &SpaceUse) -> Value {
    let pages = &space.pages;
    json!({
        "leaf_block_bytes": pages.leaf_blocks,
        "buffer_block_bytes": pages.buffer_blocks,
        "flushed_block_bytes": pages.flushed_blocks,
        "index_bytes": pages.indexes,
        "filter_bytes": pages.filters,
        "node_bytes": pages.nodes,
        "padding_bytes": pages.padding,
        "other_bytes": space.other,
        "retired_bytes": space.retired,
        "reserve_bytes": space.reserve,
        "free_bytes": space.free,
        "log_ring_bytes": space.log.ring_bytes,
        "log_segment_bytes": space.log.segment_bytes,
        "log_spare_bytes": space.log.spare_bytes,
    })
}

fn as_json(stat: &DatabaseStat, space_bytes: u64) -> Value {
    let memory = &stat.memory;
    json!({
        "keyspaces": stat.keyspaces.iter().map(keyspace_json).collect::<Vec<_>>(),
        "records": stat.keyspaces.iter().map(|k| k.records).sum::<u64>(),
        "bytes": stat.keyspaces.iter().map(data_bytes).sum::<u64>(),
        "group_bytes": stat.group_bytes,
        "space_bytes": space_bytes,
        "space_amplification": stat.space_amplification,
        "space": space_json(&stat.space),
        "data_live_bytes": stat.data_live_bytes,
        "data_free_bytes": stat.data_free_bytes,
        "log_kept_bytes": stat.log_kept_bytes,
        "generation": stat.generation,
        "views": stat.views,
        "memory": {
            "limit_bytes": memory.limit_bytes,
            "used_bytes": memory.total_bytes(),
            "window_bytes": memory.window_bytes,
            "block_bytes": memory.block_bytes,
            "metadata_bytes": memory.metadata_bytes,
            "record_bytes": memory.record_bytes,
            "merge_bytes": memory.merge_bytes,
            "log_bytes": memory.log_bytes,
        },
    })
}

fn as_text(stat: &DatabaseStat, space_bytes: u64) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        text.push_str(&format!("{name:<22}{value}\n"));
    };
    for keyspace in &stat.keyspaces {
        let tree = &keyspace.tree;
        let set = match keyspace.checkpoint_distance_set {
            None => "as the database".to_owned(),
            Some(CheckpointDistance::Auto) => "auto".to_owned(),
            Some(CheckpointDistance::Fixed(chi)) => format!("set to {chi}"),
            Some(other) => format!("set to {other:?}"),
        };
        line(
            "keyspace",
            format!(
                "{} (number {}, {})",
                keyspace.name, keyspace.id, keyspace.structure
            ),
        );
        line(
            "  records",
            format!("about {}", thousands(keyspace.records)),
        );
        line("  bytes", human(data_bytes(keyspace)));
        line(
            "  tree",
            format!(
                "height {}, {} nodes, {} page groups",
                tree.height,
                thousands(tree.nodes),
                thousands(tree.groups)
            ),
        );
        line(
            "  leaves",
            format!(
                "{} records, {}",
                thousands(tree.leaf_records),
                human(tree.leaf_bytes)
            ),
        );
        line(
            "  buffers",
            format!(
                "{} messages, {}, of it about {} superseding leaves",
                thousands(tree.buffered_records),
                human(tree.buffered_bytes),
                human(tree.superseded_bytes)
            ),
        );
        for (level, &bytes) in tree.level_bytes.iter().enumerate() {
            line(&format!("    level {level}"), human(bytes));
        }
        line(
            "  window",
            format!(
                "{} of {}",
                human(keyspace.window_bytes),
                human(keyspace.window_bytes_max)
            ),
        );
        line("  χ", format!("{} ({set})", keyspace.checkpoint_distance));
    }
    line("batch unit (L)", human(stat.group_bytes));
    line(
        "space amplification",
        format!("{:.2}", stat.space_amplification),
    );
    line("directory", human(space_bytes));
    let space = &stat.space;
    let pages = &space.pages;
    line(
        "  blocks",
        format!(
            "leaves {}, buffers {}, flushed and not yet rewritten {}",
            human(pages.leaf_blocks),
            human(pages.buffer_blocks),
            human(pages.flushed_blocks)
        ),
    );
    line(
        "  beside blocks",
        format!(
            "indexes {}, filters {}, nodes {}, padding {}",
            human(pages.indexes),
            human(pages.filters),
            human(pages.nodes),
            human(pages.padding)
        ),
    );
    line(
        "  other pages",
        format!(
            "superblocks and catalog {}, kept for views {}",
            human(space.other),
            human(space.retired)
        ),
    );
    line(
        "  no pages",
        format!(
            "reserve {}, free {}",
            human(space.reserve),
            human(space.free)
        ),
    );
    line(
        "  log",
        format!(
            "ring {}, segments {}, spares {}; {} of it needed",
            human(space.log.ring_bytes),
            human(space.log.segment_bytes),
            human(space.log.spare_bytes),
            human(stat.log_kept_bytes)
        ),
    );
    line("checkpoint", format!("number {}", stat.generation));
    let memory = &stat.memory;
    line(
        "memory",
        format!(
            "{} of {}",
            human(memory.total_bytes()),
            human(memory.limit_bytes)
        ),
    );
    line(
        "  of it",
        format!(
            "windows {}, blocks {}, metadata {}, records {}, merges {}, log {}",
            human(memory.window_bytes),
            human(memory.block_bytes),
            human(memory.metadata_bytes),
            human(memory.record_bytes),
            human(memory.merge_bytes),
            human(memory.log_bytes)
        ),
    );
    text
}
