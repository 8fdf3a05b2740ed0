//! The shape of the lazy-trie: Figures 4 and 9 of the paper on CedrusDB, for the paper's trie and
//! for this one, and what churn leaves. All figures are counts.
//!
//! `cargo run --release -p terrapin-hashtrie --example shape [RECORDS]`: the most records of the
//! tables, by default 1,000,000. The paper's tables have 10⁸ records, which take 3 GB of memory and
//! a minute.
//!
//! The paper's trie is counted, not built: a node exists where more than s hashes share its path
//! (sluggish splitting), and a list hangs at the first slot that it has for itself (path
//! compression). A node takes 8 bytes for each slot, two masks and 48 bytes.

#[path = "../../betree/examples/simulated/mod.rs"]
mod simulated;

use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Error, Message, Result};
use terrapin_hashtrie::{Fanout, HashTrie, HashTrieParams};
use terrapin_structure::{Erased, Estimate, Figure, MergeInput, MergeOptions, MessageCursor};

use simulated::Simulated;

/// Key and value bytes of a record of this trie.
const KEY_BYTES: usize = 13;
const VALUE_BYTES: usize = 51;
const RECORD_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;
const GROUP_BYTES: u64 = 64 << 10;
const MEMTABLE_RECORDS: u64 = 16 << 10;
/// A record of the paper, for the share that nodes take: 23 + 128 bytes.
const PAPER_RECORD_BYTES: f64 = 151.0;

fn main() -> Result<()> {
    let most = match std::env::args().nth(1) {
        None => 1_000_000,
        Some(records) => records
            .parse::<u64>()
            .map_err(|_| Error::invalid("a number of records is expected"))?,
    };
    figure_4(most);
    figure_9(most);
    own_figure_4(most)?;
    own_figure_9(most / 4)?;
    churn(most / 10)
}

/// Numbers of records up to `most`, four for each power of ten.
fn steps(from: u64, most: u64) -> impl Iterator<Item = u64> {
    (0..)
        .map(move |step| (from as f64 * 10f64.powf(f64::from(step) / 4.0)) as u64)
        .take_while(move |records| *records <= most)
}

/// The paper's trie over some hashes.
#[derive(Default)]
struct Paper {
    nodes: u64,
    taken: u64,
    records: u64,
    /// Nodes on the way to all records, and on the longest way.
    path: u64,
    path_max: u64,
    /// List elements that gets of all records pass.
    passed: u64,
}

impl Paper {
    /// Counts the trie of a fan-out of 2^bits and a sluggishness. `hashes` ascend.
    fn of(hashes: &[u64], bits: u32, sluggishness: usize) -> Paper {
        let mut paper = Paper::default();
        paper.node(hashes, 1, bits, sluggishness);
        paper
    }

    fn node(&mut self, hashes: &[u64], depth: u64, bits: u32, sluggishness: usize) {
        self.nodes += 1;
        let shift = 64 - bits * depth as u32;
        let mut rest = hashes;
        while let Some(first) = rest.first() {
            let digit = first >> shift;
            let (own, behind) = rest.split_at(rest.partition_point(|hash| hash >> shift == digit));
            rest = behind;
            self.taken += 1;
            if own.len() > sluggishness && shift >= bits {
                self.node(own, depth + 1, bits, sluggishness);
            } else {
                let count = own.len() as u64;
                self.records += count;
                self.path += count * depth;
                self.path_max = self.path_max.max(depth);
                self.passed += count * (count + 1) / 2;
            }
        }
    }

    fn mean_path(&self) -> f64 {
        self.path as f64 / self.records as f64
    }

    fn utilization(&self, bits: u32) -> f64 {
        100.0 * self.taken as f64 / (self.nodes << bits) as f64
    }

    fn node_bytes_a_record(&self, bits: u32) -> f64 {
        let node_bytes = (8 << bits) + (1 << bits) / 4 + 48;
        (self.nodes * node_bytes) as f64 / self.records as f64
    }
}

fn hashes(records: u64) -> Vec<u64> {
    let mut hashes: Vec<u64> = (0..records).map(|n| hash64(&n.to_le_bytes())).collect();
    hashes.sort_unstable();
    hashes
}

fn figure_4(most: u64) {
    for bits in [7, 4] {
        println!("\nFigure 4, the paper's trie, fan-out {}", 1 << bits);
        println!(
            "for s = 1, 4, 16 each: mean path (longest), child tables in use, bytes of nodes a record"
        );
        for records in steps(10_000, most) {
            let hashes = hashes(records);
            print!("{records:>11}");
            for sluggishness in [1, 4, 16] {
                let paper = Paper::of(&hashes, bits, sluggishness);
                print!(
                    "  | {:5.2} ({:2}) {:5.1} % {:7.2} B",
                    paper.mean_path(),
                    paper.path_max,
                    paper.utilization(bits),
                    paper.node_bytes_a_record(bits),
                );
            }
            println!();
        }
    }
}

fn figure_9(records: u64) {
    let hashes = hashes(records);
    println!("\nFigure 9, the paper's trie of {records} records");
    println!(
        "for fan-out 64, 128, 256, 16 each: places that a get visits (nodes, list elements), MB of nodes, share of data"
    );
    for sluggishness in [1, 2, 4, 8, 16, 32, 64, 128] {
        print!("s = {sluggishness:>3}");
        for bits in [6, 7, 8, 4] {
            let paper = Paper::of(&hashes, bits, sluggishness);
            let visits = (paper.path + paper.passed) as f64 / records as f64;
            let bytes = paper.node_bytes_a_record(bits);
            print!(
                "  | {visits:5.2} {:8.1} MB {:6.1} %",
                bytes * records as f64 / 1e6,
                100.0 * bytes / PAPER_RECORD_BYTES
            );
        }
        println!();
    }
}

/// The content of a memtable: puts and deletes of numbers, in the order of their order keys.
struct Memtable {
    messages: Vec<([u8; KEY_BYTES], bool)>,
}

/// The order key of a number: five bytes of its hash, then the number.
fn order_key(number: u64) -> [u8; KEY_BYTES] {
    let own = number.to_be_bytes();
    let mut key = [0; KEY_BYTES];
    key[..5].copy_from_slice(&hash64(&own).to_be_bytes()[..5]);
    key[5..].copy_from_slice(&own);
    key
}

struct Cursor(Arc<Memtable>, usize, usize);

impl Memtable {
    fn place(&self, key: Option<&[u8]>, otherwise: usize) -> usize {
        key.map_or(otherwise, |key| {
            self.messages
                .partition_point(|message| message.0[..] < *key)
        })
    }
}

impl MessageCursor for Cursor {
    fn key(&self) -> Option<&[u8]> {
        let messages = self.0.messages.get(..self.2)?;
        messages.get(self.1).map(|message| &message.0[..])
    }

    fn message(&self) -> Message<'_> {
        match self.0.messages.get(self.1) {
            Some((_, true)) => Message::Put(&[7; VALUE_BYTES]),
            _ => Message::Delete,
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.1 += 1;
        Ok(())
    }
}

impl MergeInput for Memtable {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let (from, to) = (self.place(lo, 0), self.place(hi, self.messages.len()));
        Ok(Box::new(Cursor(self, from, to)))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let (from, to) = (self.place(lo, 0), self.place(hi, self.messages.len()));
        let inside = &self.messages[from..to.max(from)];
        let values = inside.iter().filter(|message| message.1).count();
        Estimate {
            records: inside.len() as u64,
            bytes: (inside.len() * KEY_BYTES + values * VALUE_BYTES) as u64,
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}

/// A trie on a simulated disk, with records numbered from `first` to below `next`.
struct Own {
    trie: Simulated<HashTrie>,
    first: u64,
    next: u64,
}

impl Own {
    fn new(bits: u8, leaf_bytes_log2: u8) -> Result<Own> {
        let budget = Budget::new(256 << 20);
        let fanout = Fanout::new(bits).ok_or_else(|| Error::invalid("a digit has 1 to 8 bits"))?;
        let make = |store, budget| {
            let params = HashTrieParams {
                fanout,
                leaf_bytes_log2: Some(leaf_bytes_log2),
                ..HashTrieParams::new(budget)
            };
            HashTrie::new(store, params)
        };
        Ok(Own {
            trie: Simulated::new(&budget, make)?,
            first: 0,
            next: 0,
        })
    }

    /// Puts `puts` new records and deletes the `deletes` oldest ones, in one merge.
    fn merge(&mut self, puts: u64, deletes: u64) -> Result<()> {
        let deleted = (self.first..self.first + deletes).map(|n| (order_key(n), false));
        let put = (self.next..self.next + puts).map(|n| (order_key(n), true));
        let mut messages: Vec<_> = deleted.chain(put).collect();
        messages.sort_unstable();
        let input = Memtable { messages };
        self.trie.merge(input, &MergeOptions::new(GROUP_BYTES))?;
        self.first += deletes;
        self.next += puts;
        Ok(())
    }

    fn load(&mut self, records: u64) -> Result<()> {
        while self.next < records {
            self.merge((records - self.next).min(MEMTABLE_RECORDS), 0)?;
        }
        Ok(())
    }

    fn figures(&self) -> Result<Figures> {
        let stats = self.trie.version.stats()?;
        let figure = |name: &str| stats.figure(name).unwrap_or(0) as f64;
        let records = (self.next - self.first) as f64;
        let chains = stats.named.iter().find(|named| named.0 == "leaves_by_runs");
        let runs = match chains {
            Some((_, Figure::List(chains))) => {
                let runs = chains.iter().zip(1..).map(|(leaves, runs)| leaves * runs);
                runs.sum::<u64>() as f64
            }
            _ => 0.0,
        };
        let (leaves, nodes) = (figure("leaves"), figure("nodes"));
        let occupied = (nodes + leaves - 1.0) / (nodes * figure("fanout"));
        let live_bytes = records * RECORD_BYTES as f64;
        Ok(Figures {
            leaves,
            nodes,
            mean_path: figure("path_permille") / 1000.0,
            path_max: figure("height"),
            occupied: occupied * 100.0,
            leaf_share: live_bytes / leaves / figure("sluggishness_bytes"),
            node_bytes_a_record: stats.parts.nodes as f64 / records,
            bytes_a_record: stats.page_bytes as f64 / records,
            runs_a_leaf: runs / leaves,
        })
    }
}

struct Figures {
    leaves: f64,
    nodes: f64,
    mean_path: f64,
    path_max: f64,
    /// Slots of nodes that are taken, in per cent.
    occupied: f64,
    /// Live bytes of a leaf on average, as a share of S.
    leaf_share: f64,
    node_bytes_a_record: f64,
    bytes_a_record: f64,
    runs_a_leaf: f64,
}

const SLUGGISHNESS: [u8; 3] = [16, 18, 20];

fn own_figure_4(most: u64) -> Result<()> {
    println!(
        "\nFigure 4, this trie, fan-out 16, {RECORD_BYTES} bytes a record, page groups of 64 KiB"
    );
    println!(
        "for S = 64 KiB, 256 KiB, 1 MiB each: mean path (longest), slots in use, leaf / S, bytes a record of nodes, of all pages"
    );
    for records in steps(10_000, most) {
        print!("{records:>11}");
        for leaf_bytes_log2 in SLUGGISHNESS {
            let mut own = Own::new(4, leaf_bytes_log2)?;
            own.load(records)?;
            let own = own.figures()?;
            print!(
                "  | {:4.2} ({}) {:3.0} % {:4.2} {:5.2} {:6.2} B",
                own.mean_path,
                own.path_max,
                own.occupied,
                own.leaf_share,
                own.node_bytes_a_record,
                own.bytes_a_record
            );
        }
        println!();
    }
    Ok(())
}

fn own_figure_9(records: u64) -> Result<()> {
    println!("\nFigure 9, this trie of {records} records");
    println!(
        "for fan-out 4, 16, 64, 256 each: mean path (longest), nodes, leaves, runs a leaf, bytes a record of nodes, of all pages"
    );
    for leaf_bytes_log2 in SLUGGISHNESS {
        print!("S = {:>4} KiB", 1 << (leaf_bytes_log2 - 10));
        for bits in [2, 4, 6, 8] {
            let mut own = Own::new(bits, leaf_bytes_log2)?;
            own.load(records)?;
            let own = own.figures()?;
            print!(
                "  | {:4.2} ({}) {:4} {:4} {:4.1} {:5.2} {:6.2} B",
                own.mean_path,
                own.path_max,
                own.nodes,
                own.leaves,
                own.runs_a_leaf,
                own.node_bytes_a_record,
                own.bytes_a_record
            );
        }
        println!();
    }
    Ok(())
}

/// Half inserts and half deletes, twenty times the data.
fn churn(records: u64) -> Result<()> {
    println!(
        "\nChurn: {records} records, half inserts and half deletes, of 20 times the data; fan-out 16, S = 256 KiB"
    );
    println!("  x data   nodes  leaves  path  bytes a record");
    let mut own = Own::new(4, 18)?;
    own.load(records)?;
    let each = (records / 36).max(1);
    for turn in 0..=360 {
        if turn % 18 == 0 {
            let figures = own.figures()?;
            println!(
                "{:>8}{:>8}{:>8}{:>6.2}{:>16.2}",
                2 * turn / 36,
                figures.nodes,
                figures.leaves,
                figures.mean_path,
                figures.bytes_a_record
            );
        }
        own.merge(each, each)?;
    }
    Ok(())
}
