//! The options of a keyspace, as arguments, as JSON and as text.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use terrapin::{
    CheckpointDistance, Compression, KeyspaceOptions, OperatorName, SpaceAmplification,
    StructureKind,
};

use crate::arguments::{self, Own};

/// Options of a keyspace, which the database stores.
#[derive(Args, Clone)]
pub struct OptionArgs {
    /// Structure of the records on disk: leveled, tiered, inplace, or hashed (by key only, no
    /// ranges). It can change between leveled and tiered at any time [default: leveled]
    #[arg(long, value_name = "NAME", value_parser = arguments::structure)]
    structure: Option<StructureKind>,
    /// Checkpoint distance χ: a number from 1, auto, or default (the database's). A larger one
    /// writes less to the disk, and takes more memory for it
    #[arg(long, visible_alias = "chi", value_name = "N|auto", value_parser = arguments::own_distance)]
    checkpoint_distance: Option<Own<CheckpointDistance>>,
    /// Compression of blocks: none, lz4, zstd (if this command has it), or default (that of the
    /// command that writes)
    #[arg(long, value_name = "NAME", value_parser = arguments::own_compression)]
    compression: Option<Own<Compression>>,
    /// Bits of filter for each record: 6 to 20, 0 for no filters, or default (12). More bits save
    /// reads of the disk, and take more memory
    #[arg(long, value_name = "N", value_parser = arguments::own_filter_bits)]
    filter_bits: Option<Own<u32>>,
    /// Size to which overwritten data may grow on disk, as a multiple of the data: 1.1 to 100,
    /// unbounded, or default (1.3)
    #[arg(long, value_name = "FACTOR", value_parser = arguments::own_space_amplification)]
    space_amplification: Option<Own<SpaceAmplification>>,
    /// Values from this length on are kept out of the tree: 512B to 64KiB, or none. That saves
    /// bytes written for values from 4KiB on
    #[arg(long, value_name = "SIZE", value_parser = arguments::separate_from)]
    separate: Option<Own<u32>>,
    /// Sorted runs of the structure tiered: 2 to 64, or default (16, and 8 while the keyspace is
    /// read as often as written). More runs write less to the disk, and reads visit more
    #[arg(long, value_name = "N", value_parser = arguments::own_runs)]
    runs: Option<Own<u32>>,
    /// Merge operator: add-i64, saturating-add-i64, checked-add-i64, max, min, append, bit-or, or
    /// default (none). It can change only while the keyspace has no records
    #[arg(long, value_name = "NAME", value_parser = arguments::own_merge_operator)]
    merge_operator: Option<Own<OperatorName>>,
    /// Seconds that values last which get no time of their own, such as 60 or 0.5, or default (for
    /// ever). A change is for later writes only
    #[arg(long, value_name = "SECONDS", value_parser = arguments::own_ttl)]
    ttl: Option<Own<Duration>>,
}

impl OptionArgs {
    /// Replaces the options that are named.
    pub fn apply(&self, mut options: KeyspaceOptions) -> KeyspaceOptions {
        if let Some(structure) = self.structure {
            options.structure = structure;
        }
        if let Some(Own(distance)) = self.checkpoint_distance {
            options.checkpoint_distance = distance;
        }
        if let Some(Own(compression)) = self.compression {
            options.compression = compression;
        }
        if let Some(Own(bits)) = self.filter_bits {
            options.filter_bits = bits;
        }
        if let Some(Own(bound)) = self.space_amplification {
            options.space_amplification = bound;
        }
        if let Some(Own(bytes)) = self.separate {
            options.separate_from = bytes;
        }
        if let Some(Own(runs)) = self.runs {
            options.runs = runs;
        }
        if let Some(Own(operator)) = self.merge_operator {
            options.merge_operator = operator;
        }
        if let Some(Own(ttl)) = self.ttl {
            options = options.ttl(ttl);
        }
        options
    }

    /// Whether no option is named.
    pub fn is_empty(&self) -> bool {
        self.structure.is_none()
            && self.checkpoint_distance.is_none()
            && self.compression.is_none()
            && self.filter_bits.is_none()
            && self.space_amplification.is_none()
            && self.separate.is_none()
            && self.runs.is_none()
            && self.merge_operator.is_none()
            && self.ttl.is_none()
    }
}

fn distance(distance: CheckpointDistance) -> Value {
    match distance {
        CheckpointDistance::Auto => "auto".into(),
        CheckpointDistance::Fixed(chi) => chi.into(),
        other => format!("{other:?}").into(),
    }
}

fn compression(compression: Compression) -> String {
    format!("{compression:?}").to_ascii_lowercase()
}

fn amplification(bound: SpaceAmplification) -> Value {
    match bound {
        SpaceAmplification::Percent(percent) => (f64::from(percent) / 100.0).into(),
        SpaceAmplification::Unbounded => "unbounded".into(),
        other => format!("{other:?}").into(),
    }
}

/// The options; null for those that follow the database.
pub fn as_json(options: &KeyspaceOptions) -> Value {
    json!({
        "checkpoint_distance": options.checkpoint_distance.map(distance),
        "compression": options.compression.map(compression),
        "filter_bits": options.filter_bits,
        "space_amplification": options.space_amplification.map(amplification),
        "separate_from": options.separate_from,
        "runs": options.runs,
        "merge_operator": options.merge_operator.map(|name| name.to_string()),
        "ttl_s": options.ttl.map(|ttl| ttl.as_secs_f64()),
    })
}

/// The name and the value of each option as the arguments take them; `default` for those that
/// follow the database.
pub fn as_text(options: &KeyspaceOptions) -> Vec<(&'static str, String)> {
    let text = |value: Option<Value>| match value {
        None => "default".to_owned(),
        Some(Value::String(text)) => text,
        Some(value) => value.to_string(),
    };
    let compression = options.compression.map(|c| compression(c).into());
    let bound = options.space_amplification.map(amplification);
    vec![
        ("structure", options.structure.to_string()),
        (
            "checkpoint distance χ",
            text(options.checkpoint_distance.map(distance)),
        ),
        ("compression", text(compression)),
        ("filter bits", text(options.filter_bits.map(Into::into))),
        ("space amplification", text(bound)),
        ("separate from", text(options.separate_from.map(Into::into))),
        ("runs", text(options.runs.map(Into::into))),
        (
            "merge operator",
            text(options.merge_operator.map(|name| name.as_str().into())),
        ),
        (
            "time to live",
            text(
                options
                    .ttl
                    .map(|ttl| format!("{} s", ttl.as_secs_f64()).into()),
            ),
        ),
    ]
}
