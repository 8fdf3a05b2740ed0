//! Which page bounds a segment of sixteen pages needs, for real and synthetic keys: a linear model
//! as TreeLine has it, a model of byte offsets, or separators (decision 0055).
//!
//! `cargo run --release -p terrapin-inplace --example key_models -- FILE...`
//!
//! Each file has a key on each line, in any order. For each set of keys it prints, for records of
//! 64 and 128 bytes in pages of 4 KiB:
//!
//! - *paper*: a segment of 16, 8, 4, 2 or 1 pages is as long as one line through positions misses
//!   no record by more than ε (5 of 54 records of 64 bytes a page; the same share for 128 bytes).
//!   The share of pages in segments of two or more, and pages in a segment.
//! - *offsets*: the same with byte offsets, where pages are 68 % full and may be as full as they
//!   are.
//! - *separators*: bytes of a segment of 16 pages, and the same with Terrapin's models, which stand
//!   in the place of separators only where they divide the same pages. Their share.

use std::io::{BufRead, BufReader};

use terrapin_base::{Message, PageId, Result};
use terrapin_pages::block::Compression;
use terrapin_pages::group::{GroupBuilder, GroupOptions, NodeIndex};

const PAGE_BYTES: usize = 4096;
const PAGES: usize = 16;

/// The eight bytes behind what all keys of a segment share, as a number.
fn number(key: &[u8], shared: usize) -> f64 {
    let mut bytes = [0; 8];
    let tail = key.get(shared..).unwrap_or_default();
    let count = tail.len().min(8);
    bytes[..count].copy_from_slice(&tail[..count]);
    u64::from_be_bytes(bytes) as f64
}

fn shared(first: &[u8], last: &[u8]) -> usize {
    first.iter().zip(last).take_while(|(a, b)| a == b).count()
}

/// Whether one line passes within `error` of all positions: the cone of slopes from the first
/// point, as in the paper's one pass.
fn is_linear(keys: &[&[u8]], error: f64, position: impl Fn(usize) -> f64) -> bool {
    let shared = shared(keys[0], keys[keys.len() - 1]);
    let (base, from) = (number(keys[0], shared), position(0));
    let (mut least, mut most) = (0f64, f64::INFINITY);
    for (at, key) in keys.iter().enumerate().skip(1) {
        let along = number(key, shared) - base;
        let up = position(at) - from;
        if along <= 0.0 {
            if up > error {
                return false;
            }
            continue;
        }
        least = least.max((up - error) / along);
        most = most.min((up + error) / along);
    }
    least <= most
}

/// Cuts keys into segments by a rule. Returns the share of pages in segments of two or more, and
/// pages in a segment.
fn grouped(keys: &[&[u8]], each: usize, fits: impl Fn(&[&[u8]]) -> bool) -> (f64, f64) {
    let (mut at, mut segments, mut pages, mut together) = (0, 0, 0, 0);
    while at < keys.len() {
        let mut count = PAGES;
        loop {
            let end = (at + count * each).min(keys.len());
            if count == 1 || fits(&keys[at..end]) {
                at = end;
                break;
            }
            count /= 2;
        }
        segments += 1;
        pages += count;
        together += if count > 1 { count } else { 0 };
    }
    (
        together as f64 / pages as f64,
        pages as f64 / segments as f64,
    )
}

/// Bytes of a segment's page bounds, with and without models, and the share of segments with one.
fn bounds(keys: &[&[u8]], record_bytes: usize) -> Result<(f64, f64, f64)> {
    let mut sums = [(0, 0, 0); 2];
    for (models, sum) in [false, true].into_iter().zip(&mut sums) {
        let mut builder = GroupBuilder::new(GroupOptions {
            target_bytes: (PAGES * PAGE_BYTES - 1024) as u64,
            block_bytes: PAGE_BYTES as u32,
            unit: 512,
            compression: Compression::None,
            filter_bits: 0,
            now_ms: 0,
        });
        if models {
            builder.fit_models();
        }
        let mut groups = Vec::new();
        for key in keys {
            let value = vec![7; record_bytes.saturating_sub(key.len()).max(1)];
            groups.extend(builder.add(key, Message::Put(&value))?);
        }
        groups.extend(builder.finish());
        for group in groups {
            let (group, image) = group.place(PageId(1), 0);
            let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
            let index = NodeIndex::of_group(index);
            sum.0 += index.len();
            sum.1 += 1;
            sum.2 += usize::from(NodeIndex::new(index).has_model());
        }
    }
    let mean = |sum: (usize, usize, usize)| sum.0 as f64 / sum.1 as f64;
    Ok((
        mean(sums[0]),
        mean(sums[1]),
        sums[1].2 as f64 / sums[1].1 as f64,
    ))
}

fn show(name: &str, mut keys: Vec<Vec<u8>>) -> Result<()> {
    keys.sort_unstable();
    keys.dedup();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let bytes: usize = keys.iter().map(|key| key.len()).sum();
    print!(
        "| {name} × {} | {:.0} |",
        keys.len(),
        bytes as f64 / keys.len() as f64
    );
    for record_bytes in [64, 128] {
        let each = 44 * 64 / record_bytes;
        let error = 5.0 * 64.0 / record_bytes as f64;
        let (share, pages) = grouped(&keys, each, |keys| is_linear(keys, error, |at| at as f64));
        print!(" {:.1} %, {pages:.2} |", 100.0 * share);
    }
    // A page may be between 0 and 100 % full at a mean of 68 %.
    let full = PAGE_BYTES as f64;
    let (share, pages) = grouped(&keys, (0.68 * full) as usize / 128, |keys| {
        is_linear(keys, 0.32 * full, |at| at as f64 * 128.0)
    });
    let (plain, models, modelled) = bounds(&keys, 128)?;
    println!(
        " {:.0} %, {pages:.2} | {plain:.0} | {models:.0}, {:.0} % |",
        100.0 * share,
        100.0 * modelled
    );
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    println!(
        "| keys | mean bytes | paper, 64 B | paper, 128 B | offsets, 128 B | index bytes | with \
         models, share |\n| --- | --- | --- | --- | --- | --- | --- |"
    );
    let mix = |i: u64| {
        let x = (i ^ i >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let count = 300_000u64;
    let set = |key: &dyn Fn(u64) -> Vec<u8>| (0..count).map(key).collect::<Vec<_>>();
    show(
        "random 8 bytes (synthetic)",
        set(&|i| mix(i).to_be_bytes().to_vec()),
    )?;
    show(
        "counter, 8 bytes (synthetic)",
        set(&|i| i.to_be_bytes().to_vec()),
    )?;
    let second = 1_000_000;
    let time = |i: u64| 1_700_000_000 * second + i * second + mix(i) % 400_000;
    show(
        "times in µs (synthetic)",
        set(&|i| time(i).to_be_bytes().to_vec()),
    )?;
    show(
        "user and a hash in decimal (synthetic)",
        set(&|i| format!("user{:020}", mix(i)).into_bytes()),
    )?;
    for file in std::env::args().skip(1) {
        let lines = BufReader::new(std::fs::File::open(&file)?).split(b'\n');
        let keys = lines.filter(|line| line.as_ref().map_or(true, |key| !key.is_empty()));
        let name = file.rsplit('/').next().unwrap_or(&file).to_owned();
        show(&name, keys.collect::<std::io::Result<_>>()?)?;
    }
    Ok(())
}
