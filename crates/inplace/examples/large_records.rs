//! A model of updates of records that fill a page each (4 KB): the bytes written for each byte by
//! several rules, before one of them is built (decision 0059).
//!
//! `cargo run --release -p terrapin-inplace --example large_records`
//!
//! The model knows pages only. Uniform updates come in memtables of a tenth of the data. Leaves of
//! 1,120 pages have segments.
//!
//! - *Wait*: an update waits beside its leaf. When the waiting bytes reach a limit, the leaf is
//!   merged. The merge rewrites each changed segment, with a page for its index.
//! - *Straight*: each memtable goes into the segments, which are written anew.
//! - *Slots*: each memtable goes into spare slots of its segments. A segment without enough of them
//!   is written anew.

const LEAVES: usize = 24;
const LEAF_PAGES: usize = 1120;
const PAGES: usize = LEAVES * LEAF_PAGES;
const MEMTABLE: usize = PAGES / 10;
const ROUNDS: usize = 120;
/// Rounds before the steady state.
const BEFORE: usize = 40;

enum Rule {
    /// Leaves are merged while more than this share of all bytes waits; pages of a segment.
    Wait(f64, usize),
    Straight(usize),
    /// Pages of a segment, and spare slots.
    Slots(usize, usize),
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % bound
    }
}

/// Pages written for each page that was updated, and pages in use for each page of data.
fn run(rule: &Rule) -> (f64, f64) {
    let mut random = Random(1);
    let (mut written, mut space) = (0, 0);
    // Which pages wait, and in how many places at most: the groups of a leaf.
    let mut waits = vec![false; PAGES];
    let mut groups = [0; LEAVES];
    let pages_of = |rule: &Rule| match rule {
        Rule::Wait(_, pages) | Rule::Straight(pages) | Rule::Slots(pages, _) => *pages,
    };
    let pages = pages_of(rule);
    for round in 0..ROUNDS {
        let mut changed = vec![false; PAGES];
        (0..MEMTABLE).for_each(|_| changed[random.below(PAGES)] = true);
        let mut own = 0;
        match rule {
            Rule::Wait(share, _) => {
                for (leaf, groups) in groups.iter_mut().enumerate() {
                    let span = leaf * LEAF_PAGES..(leaf + 1) * LEAF_PAGES;
                    let new = changed[span.clone()].iter().filter(|is| **is).count();
                    own += new;
                    *groups += new;
                    for page in span {
                        waits[page] |= changed[page];
                    }
                }
                let mut densest: Vec<usize> = (0..LEAVES).collect();
                densest.sort_by_key(|leaf| std::cmp::Reverse(groups[*leaf]));
                for leaf in densest {
                    if groups.iter().sum::<usize>() as f64 <= share * PAGES as f64 {
                        break;
                    }
                    let span = leaf * LEAF_PAGES..(leaf + 1) * LEAF_PAGES;
                    for segment in waits[span].chunks_mut(pages) {
                        if segment.contains(&true) {
                            own += segment.len() + 1;
                        }
                        segment.fill(false);
                    }
                    groups[leaf] = 0;
                }
                space += groups.iter().sum::<usize>();
            }
            Rule::Straight(_) | Rule::Slots(..) => {
                for segment in changed.chunks(pages) {
                    let count = segment.iter().filter(|is| **is).count();
                    // The old images of changed pages are spare slots after the commit.
                    match rule {
                        _ if count == 0 => {}
                        Rule::Slots(_, spare) if count <= *spare => own += count,
                        _ => own += segment.len() + 1,
                    }
                }
            }
        }
        if round >= BEFORE {
            written += own;
        }
    }
    let rounds = ROUNDS - BEFORE;
    let line = match rule {
        Rule::Slots(pages, spare) => (pages + spare + 1) as f64 / *pages as f64,
        _ => (pages + 1) as f64 / pages as f64,
    };
    let waiting = space as f64 / (ROUNDS * PAGES) as f64;
    (written as f64 / (rounds * MEMTABLE) as f64, line + waiting)
}

fn main() {
    let rules = [
        (
            "wait, 0.15 of the bytes, segments of 16",
            Rule::Wait(0.15, 16),
        ),
        (
            "wait, 0.3 (all that a bound of 1.3 accepts)",
            Rule::Wait(0.3, 16),
        ),
        ("wait, 0.6", Rule::Wait(0.6, 16)),
        ("wait, 1.0", Rule::Wait(1.0, 16)),
        ("wait, 0.15, segments of 4", Rule::Wait(0.15, 4)),
        ("wait, 0.3, segments of 4", Rule::Wait(0.3, 4)),
        ("straight, segments of 16", Rule::Straight(16)),
        ("straight, segments of 4", Rule::Straight(4)),
        ("straight, segments of 2", Rule::Straight(2)),
        ("3 spare slots for 16 pages", Rule::Slots(16, 3)),
        ("5 spare slots for 16 pages", Rule::Slots(16, 5)),
    ];
    println!("| rule | pages written for an update | mean space |");
    println!("| --- | --- | --- |");
    for (name, rule) in &rules {
        let (written, space) = run(rule);
        println!("| {name} | {written:.2} | {space:.2} |");
    }
}
