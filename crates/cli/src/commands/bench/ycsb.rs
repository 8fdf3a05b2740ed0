//! `terrapin bench ycsb`: the workloads of YCSB (Cooper et al., SoCC 2010), by the crate
//! `terrapin-bench`.

use std::path::{Path, PathBuf};

use clap::Args;
use terrapin::{CheckpointDistance, KeyspaceOptions, Options, StructureKind};
use terrapin_base::{Error, Result};
use terrapin_bench::{Config, Distribution, Mix, Phase, PhaseReport, TerrapinStore, Workload};

use super::{Form, driven::Driven, with_bar};
use crate::arguments::{self, CompressionName, DurabilityName, Own};
use crate::database::KeyspaceArgs;
use crate::own_files;
use crate::temporary::Temporary;

/// Arguments of `bench ycsb`.
#[derive(Args)]
pub(super) struct Ycsb {
    /// Directory of the database; for a load its keyspace is empty or does not exist [default: a
    /// temporary one, removed at the end, or by the next run if this one is killed]
    #[arg(value_name = "DB")]
    db: Option<PathBuf>,
    #[command(flatten)]
    keyspace: KeyspaceArgs,
    /// Phases in order; without load, DB holds the records, loaded with the same --records,
    /// --key-bytes and --value-bytes
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "load,a,b,c,d,e,f"
    )]
    workloads: Vec<Workload>,
    /// A phase more, at the end: per cent of gets, of ranges and of updates, such as 10,40,50
    #[arg(long, value_name = "GETS,RANGES,UPDATES")]
    mix: Option<Mix>,
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Operations of each phase but load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    operations: u64,
    #[command(flatten)]
    driven: Driven,
    /// Structure of the keyspace, if the suite creates it
    #[arg(long, value_name = "NAME", default_value = "leveled", value_parser = arguments::structure)]
    structure: StructureKind,
    /// Values from this length on are kept out of the tree: 512B to 64KiB, or none; the keyspace
    /// of DB keeps it [default: none, or what the keyspace of DB has]
    #[arg(long, value_name = "SIZE", value_parser = arguments::separate_from)]
    separate: Option<Own<u32>>,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = arguments::size)]
    memory: u64,
    /// Checkpoint distance: a number, or auto; the keyspace of DB keeps it [default: auto, or what
    /// the keyspace of DB has]
    #[arg(long, value_name = "N|auto", value_parser = arguments::distance)]
    chi: Option<CheckpointDistance>,
    /// How requests spread over the records: zipfian (0.99, scrambled) or uniform; d always prefers
    /// the latest
    #[arg(long, value_name = "NAME", default_value = "zipfian")]
    distribution: Distribution,
    /// What a write waits for
    #[arg(long, value_enum, default_value = "process")]
    durability: DurabilityName,
    /// Compression of the blocks that are written
    #[arg(long, value_enum, default_value = "none")]
    compression: CompressionName,
    /// Bits of filter for each record that is written: 6 to 20, or 0 for no filters
    #[arg(long, value_name = "N", default_value_t = 12)]
    filter_bits: u32,
    /// Give all memory for reads to cached blocks
    #[arg(long)]
    no_record_cache: bool,
    /// Read through the system's page cache, beside the memory budget
    #[arg(long)]
    system_cache: bool,
    /// Do not compact trees, however much ranges would gain
    #[arg(long)]
    no_range_compaction: bool,
    #[command(flatten)]
    form: Form,
}

impl Ycsb {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<()> {
        let loads = self.workloads.contains(&Workload::Load);
        let config = Config {
            loaded: !loads,
            ..self.driven.config(self.records)?
        };
        let phases = self.phases();
        terrapin_bench::check(&config, &phases)?;
        if self.db.is_none() && config.loaded {
            return Err(Error::invalid(
                "without load, name the database (DB) that holds the records",
            ));
        }
        match &self.db {
            Some(directory) => self.run_in(directory, &config, &phases),
            None => {
                let temporary = Temporary::new("ycsb")?;
                self.run_in(temporary.path(), &config, &phases)
            }
        }
    }

    fn phases(&self) -> Vec<Phase> {
        let phase = |&workload: &Workload| Phase {
            workload,
            distribution: self.distribution,
            operations: if workload == Workload::Load {
                self.records
            } else {
                self.operations
            },
            time: None,
        };
        let mix = self.mix.map(Workload::Mix);
        self.workloads.iter().chain(&mix).map(phase).collect()
    }

    fn run_in(&self, directory: &Path, config: &Config, phases: &[Phase]) -> Result<()> {
        own_files::refuse_std(directory)?;
        let create = self.db.is_none() || !config.loaded;
        let options = Options::new()
            .create_if_missing(create)
            .memory(self.memory)
            .system_cache(self.system_cache)
            .checkpoint_distance(self.chi.unwrap_or_default())
            .durability(self.durability.into())
            .compression(self.compression.into())
            .filter_bits(self.filter_bits)
            .record_cache(!self.no_record_cache)
            .range_compaction(!self.no_range_compaction);
        let database = options.open(directory)?;
        let keyspace = match create {
            true => {
                let options = KeyspaceOptions::new().structure(self.structure);
                self.keyspace.find_or_create_with(&database, options)?
            }
            false => self.keyspace.find(&database)?,
        };
        let store = TerrapinStore::new(database.clone(), self.durability.into(), self.memory)
            .keyspace(keyspace.clone())?;
        let stored = keyspace.options()?.structure;
        if create && stored != self.structure {
            return Err(Error::invalid(
                "the keyspace exists with another structure: name a new one with --keyspace",
            )
            .with("keyspace", keyspace.name())
            .with("structure", stored));
        }
        if config.loaded {
            terrapin_bench::check_loaded(config, &store)?;
        } else if !keyspace.is_empty()? {
            return Err(Error::invalid(
                "a load needs an empty keyspace, and this one has records: name another database or keyspace, or leave load out",
            )
            .with("database", directory.display())
            .with("keyspace", keyspace.name()));
        }
        // An existing keyspace may have a χ of its own: measure the requested one.
        if let Some(chi) = self.chi {
            keyspace.set_checkpoint_distance(chi)?;
        }
        if let Some(Own(bytes)) = self.separate {
            let options = keyspace.options()?.separate_from(bytes);
            keyspace.set_options(options)?;
        }
        self.form.say_head::<PhaseReport>()?;
        let mut failure = None;
        let ran = with_bar("ycsb", self.records, |seen| {
            terrapin_bench::run(config, phases, &store, directory, seen, &mut |report| {
                if let Err(error) = self.form.say(report) {
                    failure.get_or_insert(error);
                }
            })
        });
        ran.and(failure.map_or(Ok(()), Err))
            .and(crate::database::close(&database))
    }
}
