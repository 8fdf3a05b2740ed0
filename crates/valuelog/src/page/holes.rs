//! Which parts of a value page can go back to the file system: whole extents of dead records.

use std::ops::Range;

use terrapin_base::EXTENT_ALIGNMENT;

use super::directory::Directory;
use crate::PLACE_BYTES;

/// The whole extents of a page in which every record is dead, as bytes of the page, ascending. Each
/// comes with the birth of the record in which it begins. `record_bytes`: where records end.
/// `is_dead` says whether nothing refers to a record of a birth and a place. O(n log n).
pub(crate) fn holes(
    directory: &Directory,
    record_bytes: u32,
    is_dead: &mut dyn FnMut(u64, u32) -> bool,
) -> Vec<(u64, Range<u64>)> {
    let mut records = Vec::new();
    for part in directory.parts() {
        let placed = part.records().iter();
        records.extend(placed.map(|&(place, position)| (position, part.birth, place)));
    }
    records.sort_unstable();
    let at = |position: u32| u64::from(position) * PLACE_BYTES as u64;
    let mut holes = Vec::new();
    let mut dead: Option<(u64, u64)> = None;
    let mut end_run = |dead: &mut Option<(u64, u64)>, end: u64| {
        let Some((birth, start)) = dead.take() else {
            return;
        };
        let start = start.next_multiple_of(EXTENT_ALIGNMENT);
        let end = end - end % EXTENT_ALIGNMENT;
        if start < end {
            holes.push((birth, start..end));
        }
    };
    for &(position, birth, place) in &records {
        match is_dead(birth, place) {
            true => _ = dead.get_or_insert((birth, at(position))),
            false => end_run(&mut dead, at(position)),
        }
    }
    end_run(&mut dead, u64::from(record_bytes));
    holes
}

/// About how many bytes of whole extents are dead among `records` records of `bytes` bytes, if
/// `dead` of them are dead and lie anywhere. A run of dead records loses most of an extent at its
/// ends. Runs are as long as chance makes them.
pub(crate) fn expected_hole_bytes(records: u32, bytes: u64, dead: u32) -> u64 {
    if dead == 0 || records == 0 {
        return 0;
    }
    let length = bytes as f64 / f64::from(records);
    let share = f64::from(dead) / f64::from(records);
    if share >= 1.0 {
        return bytes;
    }
    let lost = (EXTENT_ALIGNMENT - PLACE_BYTES as u64) as f64;
    let runs = f64::from(dead) * (1.0 - share);
    // The shortest run, in records, that is longer than what its ends lose.
    let least = (lost / length).ceil().max(1.0);
    let longer = share.powf(least - 1.0);
    let kept = least * length - lost + length * share / (1.0 - share);
    ((runs * longer * kept) as u64).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::PartEntry;
    use super::*;
    use terrapin_base::PageId;

    fn page(lengths: &[u32]) -> (Directory, u32) {
        let mut at = 0;
        let mut records = Vec::new();
        for length in lengths {
            records.push((at, at));
            at += length;
        }
        let part = PartEntry::new(3, PageId(1), records);
        (Directory::new(vec![part]), at * PLACE_BYTES as u32)
    }

    fn found(lengths: &[u32], dead: &[usize]) -> Vec<(u64, u64)> {
        let (directory, bytes) = page(lengths);
        let places: Vec<u32> = directory.parts()[0].records().iter().map(|r| r.0).collect();
        let dead: Vec<u32> = dead.iter().map(|&number| places[number]).collect();
        let holes = holes(&directory, bytes, &mut |_, place| dead.contains(&place));
        let ranges = holes.into_iter().map(|(_, range)| range);
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn holes_are_whole_extents_without_a_byte_of_a_live_record() {
        const EXTENT: u64 = EXTENT_ALIGNMENT;
        let records = [100, 200, 128, 300, 28];
        assert_eq!(found(&records, &[]), []);
        assert_eq!(found(&records, &[0]), [], "no whole extent");
        assert_eq!(found(&records, &[1]), [(EXTENT, 2 * EXTENT)]);
        assert_eq!(found(&records, &[0, 1]), [(0, 2 * EXTENT)]);
        assert_eq!(
            found(&records, &[2]),
            [],
            "as long as an extent, and no extent"
        );
        assert_eq!(found(&records, &[1, 2]), [(EXTENT, 3 * EXTENT)]);
        assert_eq!(
            found(&records, &[0, 1, 3]),
            [(0, 2 * EXTENT), (4 * EXTENT, 5 * EXTENT)]
        );
        assert_eq!(found(&records, &[0, 1, 2, 3]), [(0, 5 * EXTENT)]);
        // 756 places are less than six extents: the directory follows.
        assert_eq!(found(&records, &[0, 1, 2, 3, 4]), [(0, 5 * EXTENT)]);
    }

    #[test]
    fn the_expected_holes_agree_with_random_ones() {
        let mut random = 5u64;
        for (length, share) in [
            (40, 50),
            (40, 90),
            (130, 25),
            (514, 25),
            (514, 60),
            (33, 97),
        ] {
            let (mut all, mut expected) = (0, 0);
            for _ in 0..40 {
                let records = vec![length; 200];
                let dead: Vec<usize> = (0..records.len())
                    .filter(|_| {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        (random >> 33) % 100 < share
                    })
                    .collect();
                let bytes = u64::from(length) * 200 * PLACE_BYTES as u64;
                expected += expected_hole_bytes(200, bytes, dead.len() as u32);
                all += found(&records, &dead)
                    .iter()
                    .map(|r| r.1 - r.0)
                    .sum::<u64>();
            }
            let difference = (all as f64 - expected as f64).abs();
            let most = 0.15 * all as f64 + 40.0 * 4096.0;
            assert!(difference <= most, "{length} {share}: {all} and {expected}");
        }
        assert_eq!(expected_hole_bytes(10, 1000, 0), 0);
        assert_eq!(expected_hole_bytes(10, 1000, 10), 1000);
        assert_eq!(expected_hole_bytes(0, 0, 0), 0);
    }
}
