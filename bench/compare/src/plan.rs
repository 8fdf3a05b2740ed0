//! What is measured: cells, sizes, and the parts of a run.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrapin_base::{Error, Result};
use terrapin_bench::{Distribution, Phase, Workload};

/// Bytes of every key.
pub const KEY_BYTES: usize = 8;

/// The smallest memory that a cell has: what Terrapin accepts with its other options at their
/// defaults. Four times the log's ring.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// How much data, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Shows that everything works; its figures mean nothing.
    Tiny,
    /// Minutes per cell.
    Quick,
    /// Minutes per cell, with the same bytes of data in all cells. A hundredth of the data is just
    /// above [`MEMORY_BYTES_MIN`].
    Shape,
    /// The size of the published figures.
    Full,
}

impl Size {
    /// All sizes.
    pub const ALL: [Size; 4] = [Size::Tiny, Size::Quick, Size::Shape, Size::Full];

    /// The name in paths and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Size::Tiny => "tiny",
            Size::Quick => "quick",
            Size::Shape => "shape",
            Size::Full => "full",
        }
    }

    /// With memory a third of the data, the quick size has twice the records of its in-memory
    /// cells. Otherwise an engine's fixed needs (threads, code, buffers) would be as large as its
    /// memory.
    fn records(self, record: Record, memory: Memory) -> u64 {
        let data_bytes = match (self, record, memory) {
            (Size::Quick, Record::K1, Memory::All) => return 150_000,
            (Size::Quick, Record::K1, _) => return 300_000,
            (Size::Full, Record::K1, _) => return 3_000_000,
            (Size::Tiny, ..) => 6_400_000,
            (Size::Quick, _, Memory::All) => 128_000_000,
            (Size::Quick, ..) => 256_000_000,
            (Size::Shape, ..) => 816 << 20,
            (Size::Full, ..) => 2_560_000_000,
        };
        data_bytes / record.bytes() as u64
    }

    /// Duration of a phase that writes.
    fn phase_ms(self) -> u64 {
        match self {
            Size::Tiny => 200,
            Size::Quick | Size::Shape => 3_000,
            Size::Full => 60_000,
        }
    }

    /// Duration of a phase that only reads. No backlog shows later, so the full size spends less
    /// time on it.
    fn read_ms(self) -> u64 {
        match self {
            Size::Tiny => 200,
            Size::Quick | Size::Shape => 3_000,
            Size::Full => 30_000,
        }
    }

    /// Unmeasured reads before each phase: as long as a cache needs to fill from the device.
    fn warm_up_ms(self, memory: Memory) -> u64 {
        match (self, memory) {
            (Size::Tiny, _) => 20,
            (Size::Quick | Size::Shape, Memory::All) => 500,
            (Size::Quick | Size::Shape, _) => 1_000,
            (Size::Full, _) => 10_000,
        }
    }

    /// Memory of every process beyond its budget: code, stacks, and thread-local data.
    fn room_bytes(self, memory: Memory) -> u64 {
        match (self, memory) {
            (Size::Tiny | Size::Full, _) | (_, Memory::All) => 64 << 20,
            // With twice that, engines that read through the page cache would keep as much as all
            // others have memory.
            (Size::Quick | Size::Shape, _) => 32 << 20,
        }
    }

    /// An engine that has not loaded everything by then is not measured further.
    fn load_limit_ms(self) -> u64 {
        match self {
            Size::Tiny => 60_000,
            Size::Shape => 120_000,
            Size::Quick => 180_000,
            Size::Full => 3_600_000,
        }
    }
}

impl FromStr for Size {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        (Size::ALL.into_iter())
            .find(|size| size.name() == text)
            .ok_or_else(|| Error::invalid("a size is tiny, quick, shape or full"))
    }
}

/// Bytes of a record: 8 of key, the others of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// 128 bytes.
    #[serde(alias = "Small")]
    B128,
    /// 1 KiB.
    #[serde(alias = "Large")]
    K1,
    /// 4 KiB.
    K4,
    /// 16 KiB.
    K16,
    /// 256 KiB.
    K256,
    /// 1 MiB.
    M1,
}

impl Record {
    /// All, smallest first.
    pub const ALL: [Record; 6] = [
        Record::B128,
        Record::K1,
        Record::K4,
        Record::K16,
        Record::K256,
        Record::M1,
    ];

    /// The name on the command line, and key and value bytes.
    fn name_and_bytes(self) -> (&'static str, usize) {
        match self {
            Record::B128 => ("128", 128),
            Record::K1 => ("1k", 1 << 10),
            Record::K4 => ("4k", 4 << 10),
            Record::K16 => ("16k", 16 << 10),
            Record::K256 => ("256k", 256 << 10),
            Record::M1 => ("1m", 1 << 20),
        }
    }

    /// Key and value bytes.
    pub fn bytes(self) -> usize {
        self.name_and_bytes().1
    }
}

impl FromStr for Record {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        (Record::ALL.into_iter())
            .find(|record| record.name_and_bytes().0.eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                Error::invalid("a record has 128, 1k, 4k, 16k, 256k or 1m bytes")
                    .with("given", text)
            })
    }
}

/// Memory relative to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// A third of the data.
    Third,
    /// More than all of it, with every engine's overhead: half-filled pages, records inserted by
    /// ranges, and the half that a buffer of a power of two may leave out.
    All,
    /// A tenth of the data.
    Tenth,
    /// A 64th of the data.
    SixtyFourth,
    /// A hundredth of the data.
    Hundredth,
}

impl Memory {
    /// All shares, those of the published cells first.
    pub const ALL: [Memory; 5] = [
        Memory::Third,
        Memory::All,
        Memory::Tenth,
        Memory::SixtyFourth,
        Memory::Hundredth,
    ];

    /// The name on the command line and in the names of cells.
    fn name(self) -> &'static str {
        match self {
            Memory::Third => "third",
            Memory::All => "all",
            Memory::Tenth => "tenth",
            Memory::SixtyFourth => "64th",
            Memory::Hundredth => "100th",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Memory::Third => "memory a third of the data",
            Memory::All => "all in memory",
            Memory::Tenth => "memory a tenth of the data",
            Memory::SixtyFourth => "memory a 64th of the data",
            Memory::Hundredth => "memory 1 % of the data",
        }
    }

    fn of(self, data_bytes: u64) -> u64 {
        match self {
            Memory::Third => data_bytes / 3,
            // One engine's file grows to 2.4 times the data, and its buffer takes powers of two
            // only.
            Memory::All => (data_bytes * 5 / 2).next_power_of_two(),
            Memory::Tenth => data_bytes / 10,
            Memory::SixtyFourth => data_bytes / 64,
            Memory::Hundredth => data_bytes / 100,
        }
    }
}

impl FromStr for Memory {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        (Memory::ALL.into_iter())
            .find(|memory| memory.name() == text)
            .ok_or_else(|| {
                Error::invalid("the memory is 100th, 64th, tenth, third or all").with("given", text)
            })
    }
}

/// One cell: the engines in it have the same records, memory and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The size of the records.
    pub record: Record,
    /// The memory of engines.
    pub memory: Memory,
    /// Client threads.
    pub threads: usize,
}

impl Cell {
    /// All cells, those of the published figures first, the most important before others.
    pub fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for memory in Memory::ALL {
            for threads in [2, 1] {
                cells.extend(Record::ALL.map(|record| Cell {
                    record,
                    memory,
                    threads,
                }));
            }
        }
        cells
    }

    /// Whether the cell is one of the eight published ones.
    pub fn is_published(&self) -> bool {
        matches!(self.record, Record::B128 | Record::K1)
            && matches!(self.memory, Memory::Third | Memory::All)
    }

    /// The cell in words, for a heading.
    pub fn title(self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!(
            "{} bytes a record, {}, {} thread{plural}",
            self.record.bytes(),
            self.memory.title(),
            self.threads
        )
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, memory) = (self.record.bytes(), self.memory.name());
        write!(f, "{bytes}-{memory}-{}", self.threads)
    }
}

impl FromStr for Cell {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        (Cell::all().into_iter())
            .find(|cell| cell.to_string() == text)
            .ok_or_else(|| {
                Error::invalid(
                    "a cell is BYTES-MEMORY-THREADS: 128, 1024, 4096, 16384, 262144 or 1048576; \
                     100th, 64th, tenth, third or all; 1 or 2",
                )
                .with("given", text.to_owned())
            })
    }
}

/// The name of a phase, and its work. `load` comes first; the others follow in this order. D is
/// last, since it adds records as fast as an engine can: with everything in memory a third to a
/// half of those loaded. E's ranges add a few hundredths.
pub const PHASES: [(&str, Workload, Distribution); 12] = [
    ("load", Workload::Load, Distribution::Uniform),
    ("a", Workload::A, Distribution::Zipfian),
    ("b", Workload::B, Distribution::Zipfian),
    ("c", Workload::C, Distribution::Zipfian),
    ("f", Workload::F, Distribution::Zipfian),
    ("a-uniform", Workload::A, Distribution::Uniform),
    ("c-uniform", Workload::C, Distribution::Uniform),
    ("e", Workload::E, Distribution::Zipfian),
    ("d", Workload::D, Distribution::Zipfian),
    ("overwrite", Workload::Overwrite, Distribution::Uniform),
    ("swaps", Workload::Swaps, Distribution::Uniform),
    (
        "transactions",
        Workload::Transactions,
        Distribution::Uniform,
    ),
];

/// Whether phases of a workload run only if they are named: the published cells do without them.
/// Swaps and transactions need an engine with conditional writes.
fn is_named_only(workload: Workload) -> bool {
    use Workload::{Overwrite, Ranges, Swaps, Transactions};
    matches!(workload, Overwrite | Swaps | Transactions | Ranges(_))
}

/// Phases of ranges, which run before the others. Ranges of each length begin at uniform keys. The
/// last phase shows ranges of 100 again, after the longer ones.
pub const RANGES: [(&str, Workload, Distribution); 6] = [
    ("range-1", Workload::Ranges(1), Distribution::Uniform),
    ("range-10", Workload::Ranges(10), Distribution::Uniform),
    ("range-100", Workload::Ranges(100), Distribution::Uniform),
    ("range-1000", Workload::Ranges(1000), Distribution::Uniform),
    (
        "range-10000",
        Workload::Ranges(10_000),
        Distribution::Uniform,
    ),
    ("range-again", Workload::Ranges(100), Distribution::Uniform),
];

type Known = (&'static str, Workload, Distribution);

/// All phases, in the order in which they run: the load, ranges, and the others.
pub fn all_phases() -> impl Iterator<Item = &'static Known> {
    let (load, others) = PHASES.split_at(1);
    load.iter().chain(&RANGES).chain(others)
}

/// Everything that an engine's process must know of a run. Runs of the same plan are comparable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The size that the figures below come from.
    pub size: Size,
    /// The cell.
    pub cell: Cell,
    /// Records to load.
    pub records: u64,
    /// The memory that engines are told to use.
    pub memory_bytes: u64,
    /// Names of the phases, load first.
    pub phases: Vec<String>,
    phase_ms: u64,
    /// None in results older than the separate time for reads.
    #[serde(default)]
    read_ms: u64,
    warm_up_ms: u64,
    load_limit_ms: u64,
    /// The driver's revision: other revisions are not comparable. None in results older than the
    /// revision.
    #[serde(default)]
    driver: u32,
}

/// How an engine's memory is bounded, which decides its process's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // a build has the engines that it was asked for
pub enum MemoryKind {
    /// The limit is a tenth above the engine's setting, plus the room of every process (64 MiB,
    /// Terrapin's promise, or less). The page cache gets the rest.
    Bounded,
    /// The engine's own memory exceeds its setting, by fragmentation or by memtables that wait for
    /// flushes, and it was killed at less. The limit is half above the setting, plus the room of
    /// every process. The page cache gets the rest.
    Allocated,
    /// As [`MemoryKind::Allocated`]. With everything in memory the engine was killed at that too,
    /// and gets twice its setting.
    Fragmented,
}

impl Plan {
    /// The plan of a cell; no names means all phases that need not be named.
    pub fn new(size: Size, cell: Cell, names: &[String]) -> Result<Self> {
        Self::with_records(size, cell, size.records(cell.record, cell.memory), names)
    }

    /// The plan of a cell with another number of records than its size has. The memory is the
    /// cell's share of these records.
    pub fn with_records(size: Size, cell: Cell, records: u64, names: &[String]) -> Result<Self> {
        let named = |known: &str| names.iter().any(|name| name.eq_ignore_ascii_case(known));
        for name in names {
            if all_phases().all(|(known, ..)| !known.eq_ignore_ascii_case(name)) {
                return Err(Error::invalid("there is no such phase").with("given", name));
            }
        }
        let mut memory_bytes = cell.memory.of(records * cell.record.bytes() as u64);
        if size == Size::Tiny {
            memory_bytes = memory_bytes.max(2 * MEMORY_BYTES_MIN);
        }
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::invalid(
                "the cell's memory is less than Terrapin accepts; choose --size shape or full, or more --records",
            )
            .with("cell", cell)
            .with("memory", memory_bytes)
            .with("smallest", MEMORY_BYTES_MIN));
        }
        let is_wanted = |name: &str, workload: Workload| match names.is_empty() {
            true => !is_named_only(workload),
            false => workload == Workload::Load || named(name),
        };
        let phases = all_phases()
            .filter(|(name, workload, _)| is_wanted(name, *workload))
            .map(|(name, ..)| (*name).to_owned())
            .collect();
        Ok(Plan {
            size,
            cell,
            records,
            memory_bytes,
            phases,
            phase_ms: size.phase_ms(),
            read_ms: size.read_ms(),
            warm_up_ms: size.warm_up_ms(cell.memory),
            load_limit_ms: size.load_limit_ms(),
            driver: terrapin_bench::REVISION,
        })
    }

    /// The control group's limit of a process, page cache included.
    pub fn memory_limit_bytes(&self, kind: MemoryKind) -> u64 {
        let (memory, room) = (self.memory_bytes, self.size.room_bytes(self.cell.memory));
        match kind {
            MemoryKind::Bounded => memory + memory / 10 + room,
            MemoryKind::Fragmented if self.cell.memory == Memory::All => 2 * memory + room,
            MemoryKind::Allocated | MemoryKind::Fragmented => memory + memory / 2 + room,
        }
    }

    /// Bytes of a value.
    pub fn value_bytes(&self) -> usize {
        self.cell.record.bytes() - KEY_BYTES
    }

    /// Bytes of all keys and values after load.
    pub fn data_bytes(&self) -> u64 {
        self.records * self.cell.record.bytes() as u64
    }

    /// Whether runs of both plans may stand in one table: they are the same except for their
    /// phases.
    pub fn is_like(&self, other: &Plan) -> bool {
        let mine = Plan {
            phases: other.phases.clone(),
            ..self.clone()
        };
        mine == *other
    }

    /// Whether a run of this plan includes a run of the other one: it has the other's phases in
    /// their order.
    pub fn covers(&self, other: &Plan) -> bool {
        let shared = self
            .phases
            .iter()
            .filter(|name| other.phases.contains(name));
        self.is_like(other) && shared.eq(&other.phases)
    }

    /// How one of the phases is driven.
    pub fn phase(&self, name: &str) -> Option<Phase> {
        let (_, workload, distribution) = *all_phases().find(|(known, ..)| *known == name)?;
        let load = workload == Workload::Load;
        let ms = if load {
            self.load_limit_ms
        } else if workload.writes() {
            self.phase_ms
        } else if matches!(workload, Workload::Ranges(_)) {
            // Ranges pay for a compaction. The first ones shall show the tree that the load left.
            self.read_ms / 3
        } else {
            self.read_ms
        };
        Some(Phase {
            workload,
            distribution,
            operations: if load { self.records } else { u64::MAX },
            time: Some(Duration::from_millis(ms)),
        })
    }

    /// The unmeasured reads before a phase, which warm its caches.
    pub fn warm_up(&self, phase: &Phase) -> Phase {
        Phase {
            workload: Workload::C,
            operations: u64::MAX,
            time: Some(Duration::from_millis(self.warm_up_ms)),
            ..*phase
        }
    }

    /// A process that reports no phase for this long hangs.
    pub fn patience(&self) -> Duration {
        let longest = self.load_limit_ms + 10 * (self.phase_ms + self.warm_up_ms);
        Duration::from_millis(2 * longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_names_that_are_read_back() {
        let cells = Cell::all();
        assert_eq!(cells.len(), 60);
        assert_eq!(cells[0].to_string(), "128-third-2");
        assert_eq!(cells.iter().filter(|cell| cell.is_published()).count(), 8);
        for cell in cells {
            assert_eq!(cell.to_string().parse::<Cell>().unwrap(), cell);
            let name = cell.record.name_and_bytes().0;
            assert_eq!(name.parse::<Record>().unwrap(), cell.record);
            assert_eq!(cell.memory.name().parse::<Memory>().unwrap(), cell.memory);
        }
        assert!("128-half-2".parse::<Cell>().is_err());
    }

    #[test]
    fn every_cell_of_the_shape_size_has_memory_that_terrapin_accepts() {
        for cell in Cell::all() {
            Plan::new(Size::Shape, cell, &[]).unwrap();
        }
        let cell: Cell = "128-100th-2".parse().unwrap();
        let plan = Plan::new(Size::Shape, cell, &[]).unwrap();
        assert!(plan.data_bytes() >= 100 * MEMORY_BYTES_MIN);
        let error = Plan::new(Size::Quick, cell, &[]).unwrap_err();
        assert!(error.to_string().contains("--size shape"), "{error}");
        let larger = Plan::with_records(Size::Quick, cell, plan.records, &[]).unwrap();
        assert_eq!(larger.memory_bytes, plan.memory_bytes);
        assert_ne!(larger, plan, "phases last as long as the size says");
        let directory = std::env::temp_dir().join(format!("compare-floor-{}", std::process::id()));
        let open = |memory| terrapin::Options::new().memory(memory).open(&directory);
        assert!(open(MEMORY_BYTES_MIN - 1).is_err());
        open(MEMORY_BYTES_MIN).unwrap().close().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Results from before the other sizes of records name the two sizes differently.
    #[test]
    fn cells_of_old_results_are_read() {
        let cell = r#"{"record": "Large", "memory": "All", "threads": 1}"#;
        let cell: Cell = serde_json::from_str(cell).unwrap();
        assert_eq!(cell.to_string(), "1024-all-1");
    }

    #[test]
    fn fragmented_engines_get_more_only_with_everything_in_memory() {
        let more = |cell: &str| {
            let plan = Plan::new(Size::Quick, cell.parse().unwrap(), &[]).unwrap();
            let limit = |kind| plan.memory_limit_bytes(kind);
            let more = limit(MemoryKind::Fragmented) - limit(MemoryKind::Allocated);
            (more, plan.memory_bytes / 2)
        };
        let (all, half) = more("1024-all-2");
        assert_eq!(all, half);
        assert_eq!(more("1024-third-2").0, 0);
    }

    #[test]
    fn a_plan_keeps_the_order_and_always_loads() {
        let cell: Cell = "1024-all-1".parse().unwrap();
        let plan = Plan::new(Size::Quick, cell, &["E".into(), "c".into()]).unwrap();
        assert_eq!(plan.phases, ["load", "c", "e"]);
        assert!(plan.memory_bytes.is_power_of_two() && plan.memory_bytes > plan.data_bytes());
        assert_eq!(plan.value_bytes(), 1016);
        assert!(plan.phases.iter().all(|name| plan.phase(name).is_some()));
        assert!(Plan::new(Size::Quick, cell, &["g".into()]).is_err());
        let swaps = Plan::new(Size::Quick, cell, &["swaps".into()]).unwrap();
        assert_eq!(swaps.phases, ["load", "swaps"]);
        let all = Plan::new(Size::Quick, cell, &[]).unwrap();
        for (name, workload, _) in all_phases() {
            let is_there = all.phases.contains(&(*name).to_owned());
            assert_eq!(is_there, !is_named_only(*workload), "{name}");
        }
        assert!(all.covers(&plan) && all.covers(&all) && !plan.covers(&all));
        assert!(plan.is_like(&all) && !plan.is_like(&Plan::new(Size::Tiny, cell, &[]).unwrap()));
        assert!(!Plan::new(Size::Full, cell, &[]).unwrap().covers(&plan));
        let mut other_order = all.clone();
        other_order.phases.reverse();
        assert!(!other_order.covers(&all) && !all.covers(&other_order));
    }
}
