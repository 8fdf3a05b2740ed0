//! A merge of sorted runs, newest first. If several runs have a message for one key, only the
//! newest run's message counts.

use terrapin_base::{Message, Result, mutant};

use crate::MessageCursor;

/// Merges cursors into one. The first cursor is the newest. If several cursors have the same key,
/// the newest one's message is taken and the others move on.
///
/// The cursors are in an array sorted by their current keys. The cursor that moved sinks to its new
/// position. Runs of a level-tiered buffer double in size from one to the next. So the next record
/// mostly comes from one of the largest runs, and sinking takes one or two comparisons. A tree of
/// losers is no faster for so few cursors (up to about 14).
///
/// All keys share a known number of leading bytes. The eight bytes behind these are kept as a
/// number beside each cursor, and comparisons use the number first. Only if two numbers are equal,
/// the keys themselves are compared. Nothing is allocated per record.
///
/// ```
/// use terrapin_structure::{KWayMerge, MessageCursor};
/// # use terrapin_base::{Message, Result};
/// struct Run(Vec<(&'static str, &'static str)>, usize);
/// impl MessageCursor for Run {
///     fn key(&self) -> Option<&[u8]> {
///         self.0.get(self.1).map(|r| r.0.as_bytes())
///     }
///     fn message(&self) -> Message<'_> {
///         Message::Put(self.0[self.1].1.as_bytes())
///     }
///     fn advance(&mut self) -> Result<()> {
///         self.1 += 1;
///         Ok(())
///     }
/// }
/// let newer = Run(vec![("b", "new")], 0);
/// let older = Run(vec![("a", "x"), ("b", "old")], 0);
/// let mut merge = KWayMerge::new(vec![newer, older], 0);
/// assert_eq!(merge.key(), Some(&b"a"[..]));
/// merge.advance()?;
/// assert_eq!((merge.key(), merge.message()), (Some(&b"b"[..]), Message::Put(b"new")));
/// merge.advance()?;
/// assert_eq!(merge.key(), None);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
pub struct KWayMerge<C> {
    cursors: Vec<C>,
    /// Number of leading bytes that all keys share.
    shared: usize,
    /// Cursors that are not at their end, sorted by (key, cursor number).
    order: Vec<Positioned>,
}

/// A cursor and the start of its current key.
#[derive(Clone, Copy)]
struct Positioned {
    /// Eight bytes of the key behind the shared ones, as a number with the same order.
    head: u64,
    cursor: u32,
}

impl<C: MessageCursor> KWayMerge<C> {
    /// Merges cursors that are at their first records, newest first. All keys share at least
    /// `shared` leading bytes; 0 is always correct. A larger number makes comparisons of keys with
    /// long common prefixes cheap.
    #[must_use]
    pub fn new(cursors: Vec<C>, shared: usize) -> Self {
        let mut merge = KWayMerge {
            order: Vec::with_capacity(cursors.len()),
            cursors,
            shared,
        };
        for cursor in 0..merge.cursors.len() {
            if let Some(head) = merge.head(cursor) {
                merge.order.insert(
                    0,
                    Positioned {
                        head,
                        cursor: cursor as u32,
                    },
                );
                merge.sink(0);
            }
        }
        merge
    }

    /// The cursors, in the order in which they were given.
    #[must_use]
    pub fn cursors(&self) -> &[C] {
        &self.cursors
    }

    /// The number of the cursor that has the current message; `None` at the end.
    #[inline]
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.order.first().map(|first| first.cursor as usize)
    }

    /// Moves all older cursors past the current key; the current message stays. Calls `dropped`
    /// with the number of each such cursor first.
    ///
    /// [`MessageCursor::advance`] does this too. Only callers that need to know which messages are
    /// dropped call this before.
    ///
    /// # Errors
    ///
    /// Errors of the cursors.
    #[inline]
    pub fn drop_older(&mut self, mut dropped: impl FnMut(usize)) -> Result<()> {
        let Some(&first) = self.order.first() else {
            return Ok(());
        };
        while let Some(&second) = self.order.get(1) {
            let same = first.head == second.head
                && self.cursors[first.cursor as usize].key()
                    == self.cursors[second.cursor as usize].key();
            if !same {
                break;
            }
            dropped(second.cursor as usize);
            self.step(1)?;
        }
        Ok(())
    }

    #[inline]
    fn head(&self, cursor: usize) -> Option<u64> {
        let key = self.cursors[cursor].key()?;
        let key = key.get(self.shared..).unwrap_or_default();
        Some(match key.first_chunk::<8>() {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => {
                let mut chunk = [0; 8];
                chunk[..key.len()].copy_from_slice(key);
                u64::from_be_bytes(chunk)
            }
        })
    }

    /// Whether `a` comes before `b`.
    #[inline]
    fn comes_before(&self, a: Positioned, b: Positioned) -> bool {
        if a.head != b.head {
            return a.head < b.head;
        }
        let keys = (
            self.cursors[a.cursor as usize].key(),
            self.cursors[b.cursor as usize].key(),
        );
        let by_age = match mutant::active("merge-prefers-older-run") {
            true => b.cursor.cmp(&a.cursor),
            false => a.cursor.cmp(&b.cursor),
        };
        keys.0.cmp(&keys.1).then(by_age).is_lt()
    }

    /// Moves the entry at `at`, whose key has grown, behind all entries that are smaller.
    #[inline]
    fn sink(&mut self, mut at: usize) {
        let moved = self.order[at];
        while let Some(&next) = self.order.get(at + 1) {
            if !self.comes_before(next, moved) {
                break;
            }
            self.order[at] = next;
            at += 1;
        }
        self.order[at] = moved;
    }

    /// Moves the cursor of the entry at `at` to its next record.
    #[inline]
    fn step(&mut self, at: usize) -> Result<()> {
        let cursor = self.order[at].cursor as usize;
        self.cursors[cursor].advance()?;
        match self.head(cursor) {
            Some(head) => {
                self.order[at].head = head;
                self.sink(at);
            }
            None => {
                self.order.remove(at);
            }
        }
        Ok(())
    }
}

impl<C: MessageCursor> MessageCursor for KWayMerge<C> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.cursors[self.order.first()?.cursor as usize].key()
    }

    #[inline]
    fn message(&self) -> Message<'_> {
        self.cursors[self.order[0].cursor as usize].message()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.order.is_empty() {
            return Ok(());
        }
        self.drop_older(|_| {})?;
        self.step(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrapin_base::Error;

    use super::*;

    struct Run {
        records: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        at: usize,
        fails_at: Option<usize>,
    }

    impl MessageCursor for Run {
        fn key(&self) -> Option<&[u8]> {
            self.records.get(self.at).map(|r| &r.0[..])
        }

        fn message(&self) -> Message<'_> {
            self.records[self.at]
                .1
                .as_deref()
                .map_or(Message::Delete, Message::Put)
        }

        fn advance(&mut self) -> Result<()> {
            self.at += 1;
            if self.fails_at == Some(self.at) {
                Err(Error::corrupt("test"))
            } else {
                Ok(())
            }
        }
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Keys with few distinct values, so that runs collide. Some are shorter than a head, some have
    /// equal heads, and some end with zeros.
    fn key(state: &mut u64, prefix: &[u8]) -> Vec<u8> {
        let mut key = prefix.to_vec();
        for _ in 0..random(state) % 11 {
            key.push((random(state) % 2) as u8 * 7);
        }
        key
    }

    #[test]
    fn a_merge_equals_writing_the_runs_oldest_first_into_a_map() {
        let mut state = 42;
        for round in 0..600 {
            let prefix: &[u8] = if round % 2 == 0 {
                b""
            } else {
                b"a-shared-prefix"
            };
            let mut expected = BTreeMap::new();
            let mut cursors = Vec::new();
            for run in 0..random(&mut state) % 15 {
                let mut records = BTreeMap::new();
                for _ in 0..random(&mut state) % 60 {
                    let value = (!random(&mut state).is_multiple_of(4))
                        .then(|| format!("{round} {run}").into_bytes());
                    records.insert(key(&mut state, prefix), value);
                }
                expected.extend(records.clone());
                cursors.push(Run {
                    records: records.into_iter().collect(),
                    at: 0,
                    fails_at: None,
                });
            }
            cursors.reverse();
            let mut merge = KWayMerge::new(cursors, prefix.len());
            let mut got = Vec::new();
            while let Some(key) = merge.key() {
                got.push((key.to_vec(), merge.message().value().map(<[u8]>::to_vec)));
                merge.advance().unwrap();
            }
            assert_eq!(got, expected.into_iter().collect::<Vec<_>>());
            assert!(merge.current().is_none());
            merge.advance().unwrap();
        }
    }

    #[test]
    fn an_error_of_any_cursor_is_returned() {
        let run = |fails_at| Run {
            records: vec![(b"a".to_vec(), None), (b"b".to_vec(), None)],
            at: 0,
            fails_at,
        };
        let mut merge = KWayMerge::new(vec![run(None), run(Some(1))], 0);
        assert!(merge.advance().is_err());
    }
}
