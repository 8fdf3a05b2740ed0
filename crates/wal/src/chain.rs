//! How segments join into lives: by their headers alone, newest first.
//!
//! Within a life each segment continues where the one before is full, or takes its place from some
//! block on: what a recovery could read but not know to be on stable storage, it has copied there
//! ([`crate::copy`]). A life's first segment says where the life before was found to end; a later
//! segment of that earlier life that starts there or behind holds nothing that counts (its records
//! were the torn tail) and is only waiting to be trimmed. A life's first segment always counts,
//! though its life be empty: it says where the one before ended.
//!
//! Segments of one life have one branch, and a life's first segment says the branch of the life
//! before. So segments of two copies of a database, which have equal numbers and places, do not
//! join.

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
    /// Records below were synced, by what the newest segment's header says.
    pub(crate) whole_below: u64,
    /// What the newest segment's header says.
    pub(crate) previous_end: u64,
    /// What the newest segment's header says.
    pub(crate) previous_branch: u32,
    kept: VecDeque<KeptSegment>,
    /// No record starts between here and the first one: where the life before ended, if its
    /// segments are gone.
    begins: u64,
}

impl Chain {
    /// The latest place at or before `lsn` at which a record is known to start.
    pub(crate) fn start_for(&self, lsn: u64) -> Option<LogPosition> {
        let lives = self.lives.iter().enumerate().rev();
        let mut places = lives.flat_map(|(life, l)| {
            l.pieces.iter().rev().map(move |p| LogPosition {
                life,
                position: p.first,
            })
        });
        let found = places.find(|place| place.position <= lsn);
        let oldest = self.lives.first().and_then(|life| life.pieces.first());
        // Everything below the end of a life is trimmed with it; the next one begins at a block.
        let in_gap = oldest
            .filter(|_| lsn >= self.begins)
            .map(|piece| LogPosition {
                life: 0,
                position: piece.first,
            });
        found.or(in_gap)
    }

    /// Holds the segments against the lengths of their files. What does not count of an earlier
    /// life's segment may have been given back ([`crate::segments::Segments::give_ends_back`]); the
    /// newest segment is as long as it was made.
    pub(crate) fn check_lengths(&mut self, lengths: &[u64]) -> Result<()> {
        for (segment, &bytes) in self.kept.iter_mut().zip(lengths) {
            let needed = BLOCK_BYTES + segment.used();
            if bytes < needed {
                let error =
                    Error::corrupt("a log segment's file is shorter than what counts of it");
                return Err(error
                    .with("file", segment_name(segment.number))
                    .with("bytes", bytes)
                    .with("needed", needed));
            }
            segment.capacity = segment.capacity.min(block_down(bytes) - BLOCK_BYTES);
        }
        Ok(())
    }

    /// Every segment, those included that hold nothing that counts.
    pub(crate) fn kept(&self) -> VecDeque<KeptSegment> {
        self.kept.clone()
    }
}

fn broken(header: &SegmentHeader, message: &'static str) -> Error {
    Error::corrupt(message)
        .with("file", segment_name(header.number))
        .with("offset", 0)
}

/// Joins segments whose numbers follow each other, oldest first.
pub(crate) fn find_chain(headers: Vec<SegmentHeader>) -> Result<Chain> {
    let Some(newest) = headers.last().cloned() else {
        return Err(Error::internal("a log without segments"));
    };
    let mut lives: VecDeque<Life> = VecDeque::new();
    let mut kept = VecDeque::new();
    // The segment that follows, among those that count.
    let mut next: Option<SegmentHeader> = None;
    for (index, header) in headers.iter().enumerate().rev() {
        // Of the oldest one it is not known; where it could be either, nothing depends on it.
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
                        "a log segment does not continue the one before",
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
                        "a life of the log does not follow the one before",
                    ));
                }
                if begins_life && header.start > next.previous_end {
                    return Err(broken(next, "a life of the log ends before it began"));
                }
                end = next.previous_end;
                counts = header.start < end || (begins_life && header.start == end);
                if counts {
                    // What lies behind the end was perhaps given back.
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
    // The oldest segment that is kept may be that of an empty life.
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
    fn what_starts_behind_a_life_s_end_does_not_count() {
        let chain = find_chain(vec![
            header(1, 1, 4096, 4096),
            header(2, 1, 20480, 20480), // its records were all torn
            header(3, 2, 20480, 20000),
            header(4, 3, 20480, 20480), // the second life was empty
        ])
        .unwrap();
        let lives: Vec<u32> = chain.lives.iter().map(|l| l.life_id.incarnation).collect();
        assert_eq!(lives, [1, 2, 3]);
        assert_eq!(chain.lives[0].end, Some(20000));
        assert_eq!(chain.lives[1].end, Some(20480));
        assert_eq!(chain.kept().len(), 4);
    }

    #[test]
    fn a_torn_tail_s_segment_may_outlive_the_segment_that_its_life_ended_in() {
        let chain =
            find_chain(vec![header(2, 1, 24576, 24576), header(3, 2, 20480, 20000)]).unwrap();
        assert_eq!((chain.lives.len(), chain.first), (1, 20480));
        let kept = chain.kept();
        assert_eq!((kept[0].end, kept[0].first), (20000, 20000));
    }

    #[test]
    fn segments_of_another_branch_are_refused_by_name() {
        let of = |branch, previous, header: SegmentHeader| SegmentHeader {
            branch,
            previous_branch: branch_link(previous),
            ..header
        };
        let high = 5 << 32; // the link has the lower half alone
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
