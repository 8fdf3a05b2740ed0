//! `terrapin stat`: a database's content and the space it takes. It shows nothing of its own
//! process, neither its memory nor the χ that it would choose.

use std::fmt::Write;

use clap::Args;
use serde_json::{Value, json};
use terrapin::{DatabaseStat, Figure, KeyspaceStat, SpaceUse};
use terrapin_base::{Error, ErrorKind, Result};

use super::keyspace_options;
use crate::bytes::{counted, human, thousands};
use crate::database::DatabaseArgs;
use crate::{arguments, output};

/// With fewer bytes of keys and values, the least size of a database outweighs them, and the ratio
/// means nothing.
const AMPLIFIED_BYTES_MIN: u64 = 1 << 20;

/// Arguments of `stat`.
#[derive(Args)]
pub struct Stat {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Only this keyspace [default: all]
    #[arg(long, short, value_name = "NAME", value_parser = arguments::keyspace_name)]
    keyspace: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Stat {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let database = self.database.open_to_read()?;
        let stat = database.stat()?;
        let space_bytes = terrapin_bench::allocated_bytes(&self.database.path)?;
        let keyspaces = self.chosen(&stat)?;
        if self.json {
            output::say(as_json(&stat, &keyspaces, space_bytes))?;
        } else {
            let mut text = Lines::default();
            let replayed_records = database.metrics().replayed_records;
            let path = self.database.path.display();
            text.database(&path, &stat, space_bytes, replayed_records);
            keyspaces
                .iter()
                .for_each(|keyspace| text.keyspace(keyspace));
            output::say(text.0.trim_end())?;
        }
        crate::database::close(&database)
    }

    fn chosen<'a>(&self, stat: &'a DatabaseStat) -> Result<Vec<&'a KeyspaceStat>> {
        let is_chosen = |k: &&KeyspaceStat| self.keyspace.as_ref().is_none_or(|n| *n == k.name);
        let chosen: Vec<_> = stat.keyspaces.iter().filter(is_chosen).collect();
        match &self.keyspace {
            Some(name) if chosen.is_empty() => {
                let error = Error::new(ErrorKind::NotFound, "there is no such keyspace");
                Err(error.with("keyspace", name))
            }
            _ => Ok(chosen),
        }
    }
}

/// Key and value bytes of a keyspace, in its tree and in the log. Overwritten records count until
/// they are merged.
fn data_bytes(keyspace: &KeyspaceStat) -> u64 {
    keyspace.tree.leaf_bytes + keyspace.tree.buffered_bytes + keyspace.memtable_bytes
}

/// Bytes of pages per byte of keys and values in the trees, if that means something.
fn amplification(stat: &DatabaseStat) -> Option<f64> {
    let trees = stat.keyspaces.iter().map(|k| &k.tree);
    let bytes: u64 = trees.map(|t| t.leaf_bytes + t.buffered_bytes).sum();
    (bytes >= AMPLIFIED_BYTES_MIN).then_some(stat.space_amplification)
}

fn keyspace_json(keyspace: &KeyspaceStat) -> Value {
    let tree = &keyspace.tree;
    let mut all = json!({
        "name": keyspace.name,
        "id": keyspace.id.0,
        "structure": keyspace.structure,
        "records": keyspace.records,
        "bytes": data_bytes(keyspace),
        "expired_permille": keyspace.expired_permille,
        "leaf_records": tree.leaf_records,
        "leaf_bytes": tree.leaf_bytes,
        "buffered_records": tree.buffered_records,
        "buffered_bytes": tree.buffered_bytes,
        "page_bytes": tree.page_bytes,
        "superseded_bytes": tree.superseded_bytes,
        "log_only_bytes": keyspace.memtable_bytes,
        "options": keyspace_options::as_json(&keyspace.options),
    });
    for (name, figure) in &tree.named {
        all[*name] = match figure {
            Figure::Number(number) => (*number).into(),
            Figure::List(list) => list.clone().into(),
            other => format!("{other:?}").into(),
        };
    }
    all
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
        "value_bytes": pages.values,
        "padding_bytes": pages.padding,
        "other_bytes": space.other,
        "free_bytes": space.free,
        "log_ring_bytes": space.log.ring_bytes,
        "log_segment_bytes": space.log.segment_bytes,
        "log_spare_bytes": space.log.spare_bytes,
    })
}

fn as_json(stat: &DatabaseStat, keyspaces: &[&KeyspaceStat], space_bytes: u64) -> Value {
    json!({
        "keyspaces": keyspaces.iter().map(|k| keyspace_json(k)).collect::<Vec<_>>(),
        "records": stat.keyspaces.iter().map(|k| k.records).sum::<u64>(),
        "bytes": stat.keyspaces.iter().map(data_bytes).sum::<u64>(),
        "space_bytes": space_bytes,
        "space_amplification": amplification(stat),
        "space": space_json(&stat.space),
        "data_live_bytes": stat.data_live_bytes,
        "data_free_bytes": stat.data_free_bytes,
        "log_kept_bytes": stat.log_kept_bytes,
        "generation": stat.generation,
    })
}

/// The text for people: a name and its figures per line.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, value: &str) {
        // Writing to memory cannot fail.
        let _ = writeln!(self.0, "{name:<24}{value}");
    }

    fn database(
        &mut self,
        path: &dyn std::fmt::Display,
        stat: &DatabaseStat,
        space_bytes: u64,
        replayed_records: u64,
    ) {
        let (space, log) = (&stat.space, &stat.space.log);
        let pages = &space.pages;
        let blocks = pages.leaf_blocks + pages.buffer_blocks + pages.flushed_blocks;
        self.line("database", &path.to_string());
        self.line("  keyspaces", &thousands(stat.keyspaces.len() as u64));
        self.line("  on disk", &human(space_bytes));
        self.line(
            "  data file",
            &format!(
                "records {}, their indexes and filters {}, all else {}, free {}",
                human(blocks + pages.values),
                human(pages.indexes + pages.filters),
                human(pages.nodes + pages.padding + space.other + space.retired),
                human(space.free + space.reserve)
            ),
        );
        self.line(
            "  log",
            &format!(
                "newest part (ring) {}, log files {}, spare files {}",
                human(log.ring_bytes),
                human(log.segment_bytes),
                human(log.spare_bytes)
            ),
        );
        let to_replay = match replayed_records {
            0 => "nothing".to_owned(),
            _ => format!(
                "{} of the log, at the next open",
                human(stat.log_kept_bytes)
            ),
        };
        self.line("  to replay", &to_replay);
        if let Some(factor) = amplification(stat) {
            self.line(
                "  space amplification",
                &format!("{factor:.2} bytes in the data file for each byte of keys and values"),
            );
        }
        self.line("  checkpoints", &thousands(stat.generation));
    }

    fn keyspace(&mut self, keyspace: &KeyspaceStat) {
        let tree = &keyspace.tree;
        self.line("keyspace", &keyspace.name);
        self.line(
            "  records",
            &format!("about {}", thousands(keyspace.records)),
        );
        self.line("  keys and values", &human(data_bytes(keyspace)));
        if tree.superseded_bytes > 0 {
            self.line(
                "  of it outdated",
                &format!(
                    "about {}, until merges drop it",
                    human(tree.superseded_bytes)
                ),
            );
        }
        if keyspace.expired_permille > 0 {
            let share = format!(
                "about {:.1} % of the records, until compactions drop them",
                keyspace.expired_permille as f64 / 10.0
            );
            self.line("  of it expired", &share);
        }
        if keyspace.memtable_bytes > 0 {
            self.line(
                "  only in the log",
                &format!(
                    "{}, until the next checkpoint",
                    human(keyspace.memtable_bytes)
                ),
            );
        }
        let mut structure = keyspace.structure.to_owned();
        for (name, figure) in &tree.named {
            // Figures of parts that a tree has none of would make the line long.
            if let Figure::Number(number @ 1..) = figure {
                let _ = write!(structure, ", {name} {}", thousands(*number));
            }
        }
        self.line("  structure", &structure);
        self.line(
            "  in leaves",
            &format!(
                "{}, {}",
                counted(tree.leaf_records, "record"),
                human(tree.leaf_bytes)
            ),
        );
        if tree.buffered_records > 0 {
            self.line(
                "  above the leaves",
                &format!(
                    "{} (puts and deletes), {}, which merges bring down",
                    counted(tree.buffered_records, "change"),
                    human(tree.buffered_bytes)
                ),
            );
        }
        let options = keyspace_options::as_text(&keyspace.options).into_iter();
        let own = options.filter(|(name, value)| *name != "structure" && value != "default");
        for (name, value) in own {
            self.line(&format!("  {name}"), &value);
        }
        self.line(
            "  all other options",
            "default: the process that opens the database to write chooses",
        );
    }
}
