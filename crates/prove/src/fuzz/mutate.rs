//! Changes inputs as a fuzzer does, but by a seed and with knowledge of the format: numbers become
//! edge values, and pieces move, grow and vanish. The libFuzzer binaries add it to their own
//! changes; the replay uses it alone.

use terrapin_model::Random;

use super::archive;

const EDGES: [u64; 14] = [
    0,
    1,
    2,
    127,
    128,
    255,
    512,
    4096,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes bytes, one to four times; they stay shorter than `bytes_max`.
pub fn bytes(input: &mut Vec<u8>, random: &mut Random, bytes_max: usize) {
    for _ in 0..1 + random.index(4) {
        let at = random.index(input.len());
        match random.index(8) {
            0 if !input.is_empty() => input[at] ^= 1 << random.index(8),
            1 if !input.is_empty() => input[at] = random.bits() as u8,
            2 | 3 if !input.is_empty() => {
                let edge = EDGES[random.index(EDGES.len())].to_le_bytes();
                let count = [1, 2, 4, 8][random.index(4)].min(input.len() - at);
                input[at..at + count].copy_from_slice(&edge[..count]);
            }
            4 if !input.is_empty() => {
                let count = [1, 2, 4, 8][random.index(4)].min(input.len() - at);
                let mut number = [0; 8];
                number[..count].copy_from_slice(&input[at..at + count]);
                let change = (random.index(16) as u64).wrapping_sub(8);
                let changed = u64::from_le_bytes(number).wrapping_add(change);
                input[at..at + count].copy_from_slice(&changed.to_le_bytes()[..count]);
            }
            5 => {
                let count = 1 + random.index(16);
                if input.len() + count <= bytes_max {
                    let byte = random.bits() as u8;
                    input.splice(at..at, std::iter::repeat_n(byte, count));
                }
            }
            6 if !input.is_empty() => {
                let count = (1 + random.index(16)).min(input.len() - at);
                input.drain(at..at + count);
            }
            _ => {
                let count = random.index(32).min(input.len() - at);
                let to = random.index(input.len() - count);
                input.copy_within(at..at + count, to);
            }
        }
    }
}

/// Does what [`bytes`] does within one piece of an input whose parts have their length in front,
/// and updates the length.
pub fn parts(input: &mut Vec<u8>, random: &mut Random, bytes_max: usize) {
    let mut starts = Vec::new();
    let mut at = 1;
    while let Some(length) = input.get(at..at + 2) {
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        if at + 2 + length > input.len() {
            break;
        }
        starts.push((at, length));
        at += 2 + length;
    }
    if starts.is_empty() || random.index(8) == 0 {
        return bytes(input, random, bytes_max);
    }
    let (at, length) = starts[random.index(starts.len())];
    let mut part = input[at + 2..at + 2 + length].to_vec();
    bytes(&mut part, random, bytes_max.min(0xffff));
    let mut changed = (part.len() as u16).to_le_bytes().to_vec();
    changed.append(&mut part);
    input.splice(at..at + 2 + length, changed);
}

/// Does what [`bytes`] does within one file of an archive, mostly where it has content. Or it
/// removes, doubles or renames files.
pub fn files(input: &mut Vec<u8>, random: &mut Random, bytes_max: usize) {
    let mut files = archive::unpack(input.get(1..).unwrap_or_default());
    if files.is_empty() || random.index(10) == 0 {
        return bytes(input, random, bytes_max);
    }
    let at = random.index(files.len());
    match random.index(40) {
        0 => {
            files.remove(at);
        }
        1 => {
            let other = random.index(files.len());
            let number = files[at].number;
            files[at].number = files[other].number;
            files[other].number = number;
        }
        2 => {
            let mut copy = files[at].clone();
            copy.number = copy.number.wrapping_add(1);
            files.push(copy);
        }
        3 => {
            let cut = random.index(files[at].content.len());
            files[at].content.truncate(cut);
        }
        4 => {
            let more = files[at].content.len() + 4096;
            files[at].content.resize(more, 0);
        }
        _ => content(&mut files[at].content, random),
    }
    let flags = input.first().copied().unwrap_or(0);
    let mut packed = vec![flags];
    packed.extend(archive::pack(&files));
    if packed.len() <= bytes_max {
        *input = packed;
    }
}

/// Changes some bytes close to one that is not zero; the length stays.
fn content(content: &mut [u8], random: &mut Random) {
    let start = random.index(content.len());
    let held = content[start..].iter().position(|&byte| byte != 0);
    let at = start + held.unwrap_or(0);
    let until = content.len().min(at + 1 + random.index(64));
    let Some(place) = content.get_mut(at..until) else {
        return;
    };
    let mut piece = place.to_vec();
    bytes(&mut piece, random, 128);
    piece.resize(place.len(), 0);
    place.copy_from_slice(&piece);
}
