//! A merge of sorted runs, newest first. If several runs have a message for one key, the newest
//! run's message counts alone, unless it has operands of a merge operator. Then the messages of all
//! runs are folded into one.

use terrapin_base::{Fold, Message, MessageKind, Operator, Result, expiry, mutant};

use crate::MessageCursor;
use crate::values::{ValuesOwner, finish_fold, report_dropped};

/// Merges cursors into one. The first cursor is the newest. If several cursors have the same key,
/// the newest one's message is taken and the others move on. Operands of merges are folded with
/// what the others say ([`Fold`]).
///
/// [`KWayMerge::settle`] does that for the current key. The current message counts only after it.
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
/// merge.settle(|_| {})?;
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
    /// How operands are folded.
    operator: Operator,
    /// The moment of the merge, if nothing older than the cursors exists.
    last: Option<u64>,
    /// What the messages of the current key were folded into, if its newest one has operands.
    folded: Option<Folded>,
    fold: Fold,
    /// Who owns the values of handles.
    values: ValuesOwner,
}

/// A folded message.
#[derive(Default)]
struct Folded {
    kind: MessageKind,
    bytes: Vec<u8>,
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
            operator: Operator::default(),
            last: None,
            folded: None,
            fold: Fold::default(),
            values: None,
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

    /// Folds operands by this operator. If nothing older than the cursors exists, `last` is the
    /// moment of the merge, in milliseconds since 1970: the merge then drops values whose deadline
    /// is not later. Above the last place an expired value stays, since it hides older ones.
    #[must_use]
    pub fn folding(mut self, operator: &Operator, last: Option<u64>) -> Self {
        self.operator = operator.clone();
        self.last = last;
        self
    }

    /// Reports the handles of messages that the merge drops to their owner, and asks the owner for
    /// values that operands apply to.
    #[must_use]
    pub fn reporting(mut self, values: &ValuesOwner) -> Self {
        self.values = values.clone();
        self
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

    /// Moves all older cursors past the current key, and folds their messages into the current one
    /// if that has operands. Calls `dropped` with the number of each such cursor first.
    ///
    /// # Errors
    ///
    /// Errors of the cursors; `Corrupt` for damaged operands.
    #[inline]
    pub fn settle(&mut self, mut dropped: impl FnMut(usize)) -> Result<()> {
        let Some(&first) = self.order.first() else {
            return Ok(());
        };
        let message = self.cursors[first.cursor as usize].message();
        if message.settles() && self.folded.is_none() {
            return match message {
                Message::Expiring(payload) => {
                    let (deadline_ms, _) = expiry::split(payload)?;
                    self.settle_expiring(first, deadline_ms, &mut dropped)
                }
                Message::Separated(_) => {
                    let deadline_ms = message.deadline_ms().unwrap_or(u64::MAX);
                    self.settle_expiring(first, deadline_ms, &mut dropped)
                }
                _ => self.settle_operands(first, &mut dropped),
            };
        }
        self.drop_older(first, &mut dropped)
    }

    /// Moves all older cursors past the current key.
    #[inline]
    fn drop_older(&mut self, first: Positioned, dropped: &mut impl FnMut(usize)) -> Result<()> {
        while self.second_is_at(first) {
            let second = self.order[1].cursor as usize;
            dropped(second);
            if self.values.is_some() {
                report_dropped(&self.values, self.cursors[second].message())?;
            }
            self.step(1)?;
        }
        Ok(())
    }

    /// A value with a deadline replaces older messages, and is itself dropped at its last place
    /// once it is expired.
    #[cold]
    fn settle_expiring(
        &mut self,
        first: Positioned,
        deadline_ms: u64,
        dropped: &mut impl FnMut(usize),
    ) -> Result<()> {
        self.drop_older(first, dropped)?;
        let drops = match mutant::active("merge-drops-expired-above-leaves") {
            true => self.last.or(Some(u64::MAX)),
            false => self.last,
        };
        if drops.is_some_and(|now_ms| deadline_ms <= now_ms) {
            let cursor = &self.cursors[first.cursor as usize];
            if !mutant::active("expired-large-values-stay") {
                report_dropped(&self.values, cursor.message())?;
            }
            self.folded.insert(Folded::default()).kind = MessageKind::Delete;
        }
        Ok(())
    }

    /// Whether the second cursor in the order is at the key of the first.
    #[inline]
    fn second_is_at(&self, first: Positioned) -> bool {
        self.order.get(1).is_some_and(|second| {
            first.head == second.head
                && self.cursors[first.cursor as usize].key()
                    == self.cursors[second.cursor as usize].key()
        })
    }

    #[cold]
    fn settle_operands(&mut self, first: Positioned, dropped: &mut dyn FnMut(usize)) -> Result<()> {
        self.fold.clear();
        let newest = &self.cursors[first.cursor as usize];
        let mut is_based = self.fold.push(newest.message())?;
        while self.second_is_at(first) {
            let second = self.order[1].cursor as usize;
            dropped(second);
            if !is_based && !mutant::active("merge-forgets-older-operands") {
                is_based = self.fold.push(self.cursors[second].message())?;
            } else {
                report_dropped(&self.values, self.cursors[second].message())?;
            }
            self.step(1)?;
        }
        let key = self.cursors[first.cursor as usize]
            .key()
            .unwrap_or_default();
        let (operator, last) = (&self.operator, self.last);
        let message = finish_fold(&self.values, operator, key, &mut self.fold, last)?;
        let folded = self.folded.insert(Folded::default());
        folded.kind = message.kind();
        folded.bytes.extend_from_slice(message.payload());
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
        if let Some(folded) = &self.folded {
            return Message::of(folded.kind, &folded.bytes);
        }
        self.cursors[self.order[0].cursor as usize].message()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.order.is_empty() {
            return Ok(());
        }
        self.settle(|_| {})?;
        if self.folded.is_some() {
            self.folded = None;
        }
        self.step(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrapin_base::{Error, Stack, StackBase};

    use super::*;

    /// The moment of merges that judge deadlines.
    const LATER_MS: u64 = 1_800_000_000_000;

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
            while merge.key().is_some() {
                merge.settle(|_| {}).unwrap();
                let (key, message) = (merge.key().unwrap().to_vec(), merge.message());
                got.push((key, message.put_value().map(<[u8]>::to_vec)));
                merge.advance().unwrap();
            }
            assert_eq!(got, expected.into_iter().collect::<Vec<_>>());
            assert!(merge.current().is_none());
            merge.advance().unwrap();
        }
    }

    /// Every row and column of the table of combinations, at a last place and above it.
    #[test]
    fn operands_fold_with_what_older_runs_say() {
        struct One(Option<Message<'static>>);
        impl MessageCursor for One {
            fn key(&self) -> Option<&[u8]> {
                self.0.map(|_| &b"key"[..])
            }
            fn message(&self) -> Message<'_> {
                self.0.unwrap()
            }
            fn advance(&mut self) -> Result<()> {
                self.0 = None;
                Ok(())
            }
        }
        let append = Operator::named("append", &[]);
        let (put, delete) = (Message::Put(b"v"), Message::Delete);
        let (a, b) = (Message::Merge(b"a"), Message::Merge(b"b"));
        let leak = |bytes: Vec<u8>| -> &'static [u8] { bytes.leak() };
        let live = Message::Expiring(leak(expiry::payload(LATER_MS + 1, b"v")));
        let expired = Message::Expiring(leak(expiry::payload(LATER_MS, b"v")));
        let over = |message: Message<'_>, operand: &[u8]| {
            let mut bytes = Vec::new();
            let base = StackBase::Expiring(message.payload());
            Stack::encode(base, [operand], &mut bytes);
            Message::Stack(leak(bytes))
        };
        let (over_live, over_expired) = (over(live, b"a"), over(expired, b"ab"));
        for (runs, above, last) in [
            (vec![put, a], put, put),
            (vec![delete, a], delete, delete),
            (vec![a, put], Message::Put(b"va"), Message::Put(b"va")),
            (vec![a, delete, put], Message::Put(b"a"), Message::Put(b"a")),
            (vec![b, a], Message::Merge(b"ab"), Message::Put(b"ab")),
            (
                vec![b, a, put, a],
                Message::Put(b"vab"),
                Message::Put(b"vab"),
            ),
            (vec![a], a, Message::Put(b"a")),
            (vec![put], put, put),
            // A live value, and an expired one, which is a delete at its last place only.
            (vec![live, put], live, live),
            (vec![expired, put], expired, delete),
            (vec![put, expired], put, put),
            (
                vec![a, delete, expired],
                Message::Put(b"a"),
                Message::Put(b"a"),
            ),
            (vec![a, live, put], over_live, over_live),
            (vec![b, a, expired, put], over_expired, Message::Put(b"ab")),
        ] {
            for (at, expected) in [(None, above), (Some(LATER_MS), last)] {
                let cursors = runs.iter().map(|&message| One(Some(message))).collect();
                let mut merge = KWayMerge::new(cursors, 0).folding(&append, at);
                let mut dropped = Vec::new();
                merge.settle(|run| dropped.push(run)).unwrap();
                assert_eq!(merge.message(), expected, "{runs:?}");
                merge.settle(|_| panic!("settled before")).unwrap();
                assert_eq!(merge.message(), expected, "{runs:?}");
                assert_eq!(dropped, (1..runs.len()).collect::<Vec<_>>());
                merge.advance().unwrap();
                assert_eq!(merge.key(), None);
            }
        }
        // Without an operator, operands and base stay side by side.
        let cursors = vec![One(Some(b)), One(Some(a)), One(Some(put))];
        let mut merge = KWayMerge::new(cursors, 0);
        merge.settle(|_| {}).unwrap();
        let Message::Stack(bytes) = merge.message() else {
            panic!("{:?}", merge.message());
        };
        let stack = Stack::decode(bytes).unwrap();
        assert_eq!(stack.base, StackBase::Value(b"v"));
        assert_eq!(stack.operands().collect::<Vec<_>>(), [b"a", b"b"]);
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
