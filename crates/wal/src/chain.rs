//! Joins segments into lives, by their headers alone, newest first.
//!
//! Within a life, a segment either continues where the one before is full, or replaces it from some
//! block on. Recovery writes the second kind: it holds copies of records that were readable but
//! perhaps not durable ([`crate::copy`]).
//!
//! The first segment of a life says where recovery found the end of the life before. A later
//! segment of that earlier life may start at or behind the end. Then none of its records count,
//! because they were the torn tail, and it only waits for a trim. The first segment of a life
//! always counts, even if its life is empty.
//!
//! All segments of a life have one branch, and the first one also names the branch of the life
//! before. So segments of two copies of a database do not join, although their numbers and LSNs
//! match.

use std::collections::VecDeque;

use terrapin_base::{Error, Result, mutant};

use crate::format::{
    BLOCK_BYTES, LifeId, SegmentHeader, block_down, block_up, branch_link, segment_name,
};
use crate::segments::KeptSegment;
use crate::stream::{Life, Piece};

/// A position in the log: a life, by its index, and an LSN in that life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) life: usize,
    pub(crate) position: u64,
}

/// The segments, joined into lives.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Oldest first, never empty.
    pub(crate) lives: Vec<Life>,
    /// LSN of the oldest record.
    pub(crate) first: u64,
    /// Records below this LSN were synced, as the newest segment's header says.
    pub(crate) whole_below: u64,
    /// What the newest segment's header says.
    pub(crate) previous_end: u64,
    /// What the newest segment's header says.
    pub(crate) previous_branch: u32,
    kept: VecDeque<KeptSegment>,
    /// No record starts between this LSN and the first record. It is the end of the life before, if
    /// that life's segments are gone.
    begins: u64,
}

impl Chain {
    /// The last position at or before `lsn` at which a record is known to start.
    pub(crate) fn start_for(&self, lsn: u64) -> Option<LogPosition> {
        let lives = self.lives.iter().enumerate().rev();
        let mut starts = lives.flat_map(|(life, l)| {
            l.pieces.iter().rev().map(move |p| LogPosition {
                life,
                position: p.first,
            })
        });
        let found = starts.find(|start| start.position <= lsn);
        let oldest = self.lives.first().and_then(|life| life.pieces.first());
        // A trim removes all of a life below its end. The next life begins at a block's start.
        let in_gap = oldest
            .filter(|_| lsn >= self.begins)
            .map(|piece| LogPosition {
                life: 0,
                position: piece.first,
            });
        found.or(in_gap)
    }

    /// Checks the lengths of the segments' files. A segment of an earlier life may have lost its
    /// unused end ([`crate::segments::Segments::give_ends_back`]). The newest segment must have its
    /// full length.
    pub(crate) fn check_lengths(&mut self, lengths: &[u64]) -> Result<()> {
        for (segment, &bytes) in self.kept.iter_mut().zip(lengths) {
            let needed = BLOCK_BYTES + segment.used();
            if bytes < needed {
                let error = Error::corrupt("the file of a log segment is shorter than its content");
                return Err(error
                    .with("file", segment_name(segment.number))
                    .with("bytes", bytes)
                    .with("needed", needed));
            }
            segment.capacity = segment.capacity.min(block_down(bytes) - BLOCK_BYTES);
        }
        Ok(())
    }

    /// All segments, including those whose records do not count.
    pub(crate) fn kept(&self) -> VecDeque<KeptSegment> {
        self.kept.clone()
    }
}

fn broken(header: &SegmentHeader, message: &'static str) -> Error {
    Error::corrupt(message)
        .with("file", segment_name(header.number))
        .with("offset", 0)
}

/// Joins segments with consecutive numbers, oldest first, into lives.
pub(crate) fn find_chain(headers: Vec<SegmentHeader>) -> Result<Chain> {
    let Some(newest) = headers.last().cloned() else {
        return Err(Error::internal("a log without segments"));
    };
    let mut lives: VecDeque<Life> = VecDeque::new();
    let mut kept = VecDeque::new();
    // The segment that follows, among the segments that count.
    let mut next: Option<SegmentHeader> = None;
    for (index, header) in headers.iter().enumerate().rev() {
        // For the oldest segment this is unknown. Where both are possible, nothing depends on it.
        let begins_life = index > 0 && headers[index - 1].incarnation != header.incarnation;
        let mut piece = Piece {
            number: header.number,
            start: header.start,
            capacity: header.capacity,
            first: header.first,
        };
        let mut end = piece.end();
        let mut counts = true;
        let life_id = LifeId {
            branch: header.branch,
            incarnation: header.incarnation,
        };
        if let Some(next) = &next {
            let joins = match next.incarnation == header.incarnation {
                true => next.branch == header.branch,
                false => next.previous_branch == branch_link(header.branch),
            };
            if !joins && !mutant::active("log-branches-unchecked") {
                return Err(broken(
                    header,
                    "a log segment belongs to another copy of this database than the segment behind it",
                )
                .with("segment behind it", segment_name(next.number)));
            }
        }
        match &next {
            None => lives.push_front(Life {
                life_id,
                end: None,
                pieces: vec![piece],
            }),
            Some(next) if next.incarnation == header.incarnation => {
                let joins = header.start <= next.start && next.start <= end;
                if !joins || next.previous_end != next.start || next.first < header.first {
                    return Err(broken(
                        next,
                        "a log segment does not continue the segment before it",
                    ));
                }
                end = next.start;
                piece.capacity = end - header.start;
                if let Some(life) = lives.front_mut() {
                    life.pieces.insert(0, piece);
                }
            }
            Some(next) => {
                if next.incarnation < header.incarnation || next.previous_end > end {
                    return Err(broken(
                        next,
                        "a life of the log does not follow the life before it",
                    ));
                }
                if begins_life && header.start > next.previous_end {
                    return Err(broken(next, "a life of the log ends before it began"));
                }
                end = next.previous_end;
                counts = header.start < end || (begins_life && header.start == end);
                if counts {
                    // Bytes behind the end may have been returned to the file system.
                    piece.capacity = block_up(end) - header.start;
                    lives.push_front(Life {
                        life_id,
                        end: Some(end),
                        pieces: vec![piece],
                    });
                }
            }
        }
        let first = if counts { header.first } else { end };
        kept.push_front(KeptSegment {
            number: header.number,
            start: header.start,
            end,
            first,
            capacity: header.capacity,
            full: false,
        });
        if counts {
            next = Some(header.clone());
        }
    }
    let first = next.as_ref().map_or(newest.first, |oldest| oldest.first);
    // The oldest kept segment may belong to an empty life.
    let begins = [
        next.as_ref().unwrap_or(&newest),
        headers.first().unwrap_or(&newest),
    ]
    .into_iter()
    .filter(|header| header.previous_end < header.start)
    .map(|header| header.previous_end)
    .fold(first, u64::min);
    Ok(Chain {
        begins,
        lives: lives.into(),
        first,
        whole_below: newest.whole_below,
        previous_end: newest.previous_end,
        previous_branch: newest.previous_branch,
        kept,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u64, incarnation: u32, start: u64, previous_end: u64) -> SegmentHeader {
        SegmentHeader {
            database_id: 1,
            number,
            incarnation,
            start,
            previous_end,
            whole_below: previous_end,
            first: start,
            capacity: 16384,
            branch: 7,
            previous_branch: 7,
        }
    }

    #[test]
    fn lives_join_where_their_headers_say() {
        let chain = find_chain(vec![
            header(3, 1, 4096, 4096),
            header(4, 1, 20480, 20480),
            header(5, 2, 24576, 24000),
            header(6, 2, 40960, 40960),
        ])
        .unwrap();
        assert_eq!(chain.lives.len(), 2);
        assert_eq!(
            (chain.lives[0].end, chain.lives[0].pieces.len()),
            (Some(24000), 2)
        );
        assert_eq!((chain.lives[1].end, chain.lives[1].pieces.len()), (None, 2));
        assert_eq!(chain.start_for(4095), None);
        assert_eq!(
            chain.start_for(24100),
            Some(LogPosition {
                life: 0,
                position: 20480
            })
        );
        assert_eq!(
            chain.start_for(u64::MAX),
            Some(LogPosition {
                life: 1,
                position: 40960
            })
        );
        assert_eq!(chain.kept()[1].end, 24000);
    }

    #[test]
    fn a_segment_behind_the_end_of_its_life_does_not_count() {
        let chain = find_chain(vec![
            header(1, 1, 4096, 4096),
            header(2, 1, 20480, 20480), // all records are a torn tail
            header(3, 2, 20480, 20000),
            header(4, 3, 20480, 20480), // the second life is empty
        ])
        .unwrap();
        let lives: Vec<u32> = chain.lives.iter().map(|l| l.life_id.incarnation).collect();
        assert_eq!(lives, [1, 2, 3]);
        assert_eq!(chain.lives[0].end, Some(20000));
        assert_eq!(chain.lives[1].end, Some(20480));
        assert_eq!(chain.kept().len(), 4);
    }

    #[test]
    fn the_segment_of_a_torn_tail_may_outlive_the_segment_with_the_end() {
        let chain =
            find_chain(vec![header(2, 1, 24576, 24576), header(3, 2, 20480, 20000)]).unwrap();
        assert_eq!((chain.lives.len(), chain.first), (1, 20480));
        let kept = chain.kept();
        assert_eq!((kept[0].end, kept[0].first), (20000, 20000));
    }

    #[test]
    fn the_error_names_a_segment_of_another_branch() {
        let of = |branch, previous, header: SegmentHeader| SegmentHeader {
            branch,
            previous_branch: branch_link(previous),
            ..header
        };
        let high = 5 << 32; // a link holds the lower half only
        let chain = [
            of(high | 1, 0, header(1, 1, 4096, 4096)),
            of(high | 1, 1, header(2, 1, 20480, 20480)),
            of(2, 1, header(3, 2, 36864, 36864)),
            of(2, 2, header(4, 2, 53248, 53248)),
        ];
        assert_eq!(find_chain(chain.to_vec()).unwrap().lives.len(), 2);
        for foreign in 0..3 {
            let mut headers = chain.to_vec();
            headers[foreign].branch = 9;
            let text = find_chain(headers).unwrap_err().to_string();
            let name = segment_name(foreign as u64 + 1);
            assert!(
                text.contains(&name) && text.contains("another copy"),
                "{text}"
            );
        }
    }

    #[test]
    fn segments_that_do_not_join_are_refused() {
        for headers in [
            vec![header(1, 1, 4096, 4096), header(2, 1, 24576, 24576)],
            vec![header(1, 2, 4096, 4096), header(2, 1, 8192, 8192)],
            vec![header(1, 1, 4096, 4096), header(2, 2, 40960, 40960)],
            vec![
                header(1, 1, 4096, 4096),
                header(2, 2, 12288, 12288),
                header(3, 3, 8192, 8192),
            ],
        ] {
            assert!(find_chain(headers).is_err());
        }
    }
}
