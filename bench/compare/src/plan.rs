//! What is measured: cells, sizes, and the parts of a run.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrapin_base::{Error, Result};
use terrapin_bench::{Distribution, Phase, Workload};

/// Bytes of every key.
pub const KEY_BYTES: usize = 8;

/// How much data, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Shows that everything works; its figures mean nothing.
    Tiny,
    /// Minutes per cell.
    Quick,
    /// The size of the published figures.
    Full,
}

impl Size {
    /// The name in paths and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Size::Tiny => "tiny",
            Size::Quick => "quick",
            Size::Full => "full",
        }
    }

    /// With memory a third of the data, the quick size has twice the records of its in-memory
    /// cells. Otherwise an engine's fixed needs (threads, code, buffers) would be as large as its
    /// memory.
    fn records(self, record: Record, memory: Memory) -> u64 {
        match (self, record, memory) {
            (Size::Tiny, Record::Small, _) => 50_000,
            (Size::Tiny, Record::Large, _) => 6_000,
            (Size::Quick, Record::Small, Memory::Third) => 2_000_000,
            (Size::Quick, Record::Large, Memory::Third) => 300_000,
            (Size::Quick, Record::Small, Memory::All) => 1_000_000,
            (Size::Quick, Record::Large, Memory::All) => 150_000,
            (Size::Full, Record::Small, _) => 20_000_000,
            (Size::Full, Record::Large, _) => 3_000_000,
        }
    }

    /// Duration of a phase that writes.
    fn phase_ms(self) -> u64 {
        match self {
            Size::Tiny => 200,
            Size::Quick => 3_000,
            Size::Full => 60_000,
        }
    }

    /// Duration of a phase that only reads. No backlog shows later, so the full size spends less
    /// time on it.
    fn read_ms(self) -> u64 {
        match self {
            Size::Tiny => 200,
            Size::Quick => 3_000,
            Size::Full => 30_000,
        }
    }

    /// Unmeasured reads before each phase: as long as a cache needs to fill from the device.
    fn warm_up_ms(self, memory: Memory) -> u64 {
        match (self, memory) {
            (Size::Tiny, _) => 20,
            (Size::Quick, Memory::Third) => 1_000,
            (Size::Quick, Memory::All) => 500,
            (Size::Full, _) => 10_000,
        }
    }

    /// Memory of every process beyond its budget: code, stacks, and thread-local data.
    fn room_bytes(self, memory: Memory) -> u64 {
        match (self, memory) {
            // With twice that, engines that read through the page cache would keep as much as all
            // others have memory.
            (Size::Quick, Memory::Third) => 32 << 20,
            _ => 64 << 20,
        }
    }

    /// An engine that has not loaded everything by then is not measured further.
    fn load_limit_ms(self) -> u64 {
        match self {
            Size::Tiny => 60_000,
            Size::Quick => 180_000,
            Size::Full => 3_600_000,
        }
    }
}

impl FromStr for Size {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        [Size::Tiny, Size::Quick, Size::Full]
            .into_iter()
            .find(|size| size.name() == text)
            .ok_or_else(|| Error::invalid("a size is tiny, quick or full"))
    }
}

/// Bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// 8 bytes of key and 120 of value.
    Small,
    /// 8 bytes of key and 1016 of value.
    Large,
}

impl Record {
    /// Key and value bytes.
    pub fn bytes(self) -> usize {
        match self {
            Record::Small => 128,
            Record::Large => 1024,
        }
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
    /// All cells, the most important first.
    pub fn matrix() -> Vec<Cell> {
        let mut cells = Vec::new();
        for memory in [Memory::Third, Memory::All] {
            for threads in [2, 1] {
                for record in [Record::Small, Record::Large] {
                    cells.push(Cell {
                        record,
                        memory,
                        threads,
                    });
                }
            }
        }
        cells
    }

    /// The cell in words, for a heading.
    pub fn title(self) -> String {
        let memory = match self.memory {
            Memory::Third => "memory a third of the data",
            Memory::All => "all in memory",
        };
        let plural = if self.threads == 1 { "" } else { "s" };
        format!(
            "{} bytes a record, {memory}, {} thread{plural}",
            self.record.bytes(),
            self.threads
        )
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match self.memory {
            Memory::Third => "third",
            Memory::All => "all",
        };
        write!(f, "{}-{memory}-{}", self.record.bytes(), self.threads)
    }
}

impl FromStr for Cell {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Cell::matrix()
            .into_iter()
            .find(|cell| cell.to_string() == text)
            .ok_or_else(|| {
                Error::invalid("a cell is BYTES-MEMORY-THREADS: 128 or 1024, third or all, 1 or 2")
                    .with("given", text.to_owned())
            })
    }
}

/// The name of a phase, and its work. `load` comes first; the others follow in this order. D is
/// last, since it adds records as fast as an engine can: with everything in memory a third to a
/// half of those loaded. E's ranges add a few hundredths.
pub const PHASES: [(&str, Workload, Distribution); 9] = [
    ("load", Workload::Load, Distribution::Uniform),
    ("a", Workload::A, Distribution::Zipfian),
    ("b", Workload::B, Distribution::Zipfian),
    ("c", Workload::C, Distribution::Zipfian),
    ("f", Workload::F, Distribution::Zipfian),
    ("a-uniform", Workload::A, Distribution::Uniform),
    ("c-uniform", Workload::C, Distribution::Uniform),
    ("e", Workload::E, Distribution::Zipfian),
    ("d", Workload::D, Distribution::Zipfian),
];

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
    /// The plan of a cell; no names means all phases.
    pub fn new(size: Size, cell: Cell, names: &[String]) -> Result<Self> {
        for name in names {
            if PHASES.iter().all(|(known, ..)| known != name) {
                return Err(Error::invalid("there is no such phase").with("given", name));
            }
        }
        let records = size.records(cell.record, cell.memory);
        let data = records * cell.record.bytes() as u64;
        let memory_bytes = match cell.memory {
            Memory::Third => data / 3,
            // One engine's file grows to 2.4 times the data, and its buffer takes powers of two
            // only.
            Memory::All => (data * 5 / 2).next_power_of_two(),
        };
        // No engine opens with less than this.
        let memory_bytes = memory_bytes.max(16 << 20);
        let phases = PHASES
            .iter()
            .map(|(name, ..)| (*name).to_owned())
            .filter(|name| names.is_empty() || name == "load" || names.contains(name))
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
        let (_, workload, distribution) = *PHASES.iter().find(|(known, ..)| *known == name)?;
        let load = workload == Workload::Load;
        let ms = if load {
            self.load_limit_ms
        } else if workload.writes() {
            self.phase_ms
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
        let cells = Cell::matrix();
        assert_eq!(cells.len(), 8);
        assert_eq!(cells[0].to_string(), "128-third-2");
        for cell in cells {
            assert_eq!(cell.to_string().parse::<Cell>().unwrap(), cell);
        }
        assert!("128-half-2".parse::<Cell>().is_err());
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
        let plan = Plan::new(Size::Quick, cell, &["e".into(), "c".into()]).unwrap();
        assert_eq!(plan.phases, ["load", "c", "e"]);
        assert!(plan.memory_bytes.is_power_of_two() && plan.memory_bytes > plan.data_bytes());
        assert_eq!(plan.value_bytes(), 1016);
        assert!(plan.phases.iter().all(|name| plan.phase(name).is_some()));
        assert!(Plan::new(Size::Quick, cell, &["g".into()]).is_err());
        let all = Plan::new(Size::Quick, cell, &[]).unwrap();
        assert!(all.covers(&plan) && all.covers(&all) && !plan.covers(&all));
        assert!(plan.is_like(&all) && !plan.is_like(&Plan::new(Size::Tiny, cell, &[]).unwrap()));
        assert!(!Plan::new(Size::Full, cell, &[]).unwrap().covers(&plan));
        let mut other_order = all.clone();
        other_order.phases.reverse();
        assert!(!other_order.covers(&all) && !all.covers(&other_order));
    }
}
