//! The versions of one key that a run keeps, and the bytes of the record that holds them (a chain).
//!
//! ```text
//! short   0 │ for each version, newest first: LSN varint (from the second on the difference to the version before) │
//!           (payload length << 2 | kind) varint │ payload bytes
//! long    1 │ the chain's number varint; the versions are records of the run's second tree
//! ```
//!
//! A record of the second tree has the key `chain number u64 │ !LSN u64 │ kind u8`, all
//! big-endian. The versions of a chain are therefore consecutive, newest first. The first record at
//! or after a search key is the answer. Its value is the version's payload. A payload that is too
//! long for a short chain is never too long for this record.
//!
//! A version with operands of merges holds all operands that its moments see in the memtable.

use std::ops::Range;

use terrapin_base::codec::{Reader, put_varint, varint_bytes};
use terrapin_base::{Fold, Lsn, Message, MessageKind, Operator, Result, mutant};
use terrapin_memtable::FragmentTree;

/// A chain of more bytes is long. A read of one version would otherwise decode too much of other
/// versions.
pub(crate) const SHORT_BYTES_MAX: usize = 4 << 10;
pub(crate) const SHORT: u8 = 0;
pub(crate) const LONG: u8 = 1;

/// The versions of a key that views of some moments see, newest first. Each comes with the moments
/// that see it, as a range of `moments`. A moment is an exclusive LSN bound. `moments` is
/// ascending. Operands are folded with all older versions.
///
/// O(versions + versions kept · (log moments + operands below)).
pub(crate) fn kept<'a>(
    mut versions: impl Iterator<Item = (Lsn, Message<'a>)> + Clone,
    moments: &[Lsn],
    folding: Folding<'_>,
) -> impl Iterator<Item = (Lsn, Kept<'a>, Range<usize>)> {
    // Moments at or above this index see a newer version.
    let mut end = moments.len();
    std::iter::from_fn(move || {
        loop {
            let last = *moments[..end].last()?;
            let (lsn, message) = versions.next()?;
            if lsn >= last {
                continue;
            }
            let from = moments[..end - 1].partition_point(|moment| *moment <= lsn);
            let seen_by = from..end;
            end = from;
            let kept = folding.of((lsn, message), versions.clone());
            return Some((lsn, kept, seen_by));
        }
    })
}

/// A version that a run keeps.
pub(crate) enum Kept<'a> {
    /// As the memtable has it.
    AsIs(Message<'a>),
    /// Operands, folded with older versions.
    Folded(MessageKind, Vec<u8>),
}

impl Kept<'_> {
    /// The message.
    pub fn message(&self) -> Message<'_> {
        match self {
            Kept::AsIs(message) => *message,
            Kept::Folded(kind, payload) => Message::of(*kind, payload),
        }
    }
}

/// How the operands of a key are folded with its older versions.
#[derive(Clone, Copy)]
pub(crate) struct Folding<'f> {
    pub operator: &'f Operator,
    pub key: &'f [u8],
    /// The range deletes of the memtable.
    pub fragments: Option<&'f FragmentTree>,
}

impl Folding<'_> {
    /// A version, folded with the older ones if it has operands.
    pub fn of<'a>(
        self,
        (lsn, message): (Lsn, Message<'a>),
        older: impl Iterator<Item = (Lsn, Message<'a>)>,
    ) -> Kept<'a> {
        if !message.has_operands() || mutant::active("run-keeps-newest-operand") {
            return Kept::AsIs(message);
        }
        // Newer range deletes hide the version itself: reads of the run know them.
        let deleted = self
            .fragments
            .and_then(|tree| tree.newest_over(self.key, lsn));
        let older = older.take_while(|(lsn, _)| deleted < Some(*lsn));
        let older = older.map(|(_, message)| message);
        let below = deleted.map(|_| Message::Delete);
        let mut fold = Fold::default();
        for message in std::iter::once(message).chain(older).chain(below) {
            // A memtable holds no damaged stack.
            if fold.push(message).unwrap_or(true) {
                break;
            }
        }
        let folded = fold.finish(self.operator, self.key, None);
        Kept::Folded(folded.kind(), folded.payload().to_vec())
    }
}

/// Bytes of a short chain of these versions. None if the chain is long.
pub(crate) fn short_bytes<'a>(versions: impl Iterator<Item = (Lsn, Kept<'a>)>) -> Option<usize> {
    let (mut bytes, mut newer) = (1, None);
    for (lsn, kept) in versions {
        let what = what(kept.message());
        bytes += varint_bytes(shown(lsn, newer)) + varint_bytes(what);
        bytes += kept.message().value_bytes();
        if bytes > SHORT_BYTES_MAX {
            return None;
        }
        newer = Some(lsn);
    }
    Some(bytes)
}

/// Writes a short chain.
pub(crate) fn put_short<'a>(versions: impl Iterator<Item = (Lsn, Kept<'a>)>, out: &mut Vec<u8>) {
    out.push(SHORT);
    let mut newer = None;
    for (lsn, kept) in versions {
        put_varint(out, shown(lsn, newer));
        put_varint(out, what(kept.message()));
        out.extend_from_slice(kept.message().payload());
        newer = Some(lsn);
    }
}

/// Writes a reference to a long chain.
pub(crate) fn put_long(number: u64, out: &mut Vec<u8>) {
    out.push(LONG);
    put_varint(out, number);
}

/// The number written for an LSN: its difference to the newer version, if there is one.
pub(crate) fn shown(lsn: Lsn, newer: Option<Lsn>) -> u64 {
    newer.map_or(lsn.0, |newer| newer.0 - lsn.0)
}

pub(crate) fn what(message: Message<'_>) -> u64 {
    (message.value_bytes() as u64) << MessageKind::BITS | message.kind() as u64
}

/// What a record holds for its key at a moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    /// Every version is newer than the moment.
    Nothing,
    /// The version that counts, with its LSN.
    Message(Lsn, Message<'a>),
    /// The version is in the chain of this number.
    Long(u64),
}

/// What a record holds at a moment. Fails with `Corrupt` on damaged bytes.
pub(crate) fn look(record: &[u8], before: Lsn) -> Result<Said<'_>> {
    let mut reader = Reader::new("a run for snapshots", record);
    match reader.u8()? {
        SHORT => {}
        LONG => return Ok(Said::Long(reader.varint()?)),
        _ => return Err(reader.corrupt("the kind of a version chain is unknown")),
    }
    let mut newer = None;
    while reader.remaining() > 0 {
        let shown = reader.varint()?;
        let lsn = match newer {
            None => Some(shown),
            Some(newer) => u64::checked_sub(newer, shown),
        };
        let lsn = lsn.ok_or_else(|| reader.corrupt("versions out of order"))?;
        let what = reader.varint()?;
        let bytes = usize::try_from(what >> MessageKind::BITS)
            .map_err(|_| reader.corrupt("length too large"))?;
        let payload = reader.bytes(bytes)?;
        if Lsn(lsn) < before || mutant::active("run-shows-later-writes") {
            let kind = MessageKind::from_bits(what as u32);
            return Ok(Said::Message(Lsn(lsn), Message::of(kind, payload)));
        }
        newer = Some(lsn);
    }
    Ok(Said::Nothing)
}

/// Bytes of a key of the second tree.
pub(crate) const LONG_KEY_BYTES: usize = 17;

/// The key of one version of a long chain.
pub(crate) fn long_key(number: u64, lsn: Lsn, message: Message<'_>) -> [u8; LONG_KEY_BYTES] {
    let mut key = [0; LONG_KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key[8..16].copy_from_slice(&(!lsn.0).to_be_bytes());
    key[16] = message.kind() as u8;
    key
}

/// The search key for the version of a long chain that counts at a moment. That version is the
/// first record at or after the key, if the record is below the next chain. None if no version can
/// be older than the moment.
pub(crate) fn long_place(number: u64, before: Lsn) -> Option<([u8; LONG_KEY_BYTES], [u8; 8])> {
    let newest = match mutant::active("chain-shows-later-writes") {
        true => before.0,
        false => before.0.checked_sub(1)?,
    };
    let from = long_key(number, Lsn(newest), Message::Put(&[]));
    Some((from, number.saturating_add(1).to_be_bytes()))
}

/// What a record of the second tree holds: a version and its LSN.
pub(crate) fn long_message<'a>(key: &[u8], value: &'a [u8]) -> Result<(Lsn, Message<'a>)> {
    let damaged =
        || Reader::new("a run for snapshots", key).corrupt("the kind of a version is unknown");
    let key: &[u8; LONG_KEY_BYTES] = key.try_into().map_err(|_| damaged())?;
    let mut lsn = [0; 8];
    lsn.copy_from_slice(&key[8..16]);
    let lsn = Lsn(!u64::from_be_bytes(lsn));
    match key[16] {
        kind @ 0..=5 => {
            let kind = MessageKind::from_bits(u32::from(kind));
            Ok((lsn, Message::of(kind, value)))
        }
        _ => Err(damaged()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsns(bounds: &[u64]) -> Vec<Lsn> {
        bounds.iter().copied().map(Lsn).collect()
    }

    fn versions<'a>(
        all: &'a [(u64, Message<'a>)],
    ) -> impl Iterator<Item = (Lsn, Message<'a>)> + Clone {
        all.iter().map(|&(lsn, message)| (Lsn(lsn), message))
    }

    fn as_is<'a>(all: &'a [(u64, Message<'a>)]) -> impl Iterator<Item = (Lsn, Kept<'a>)> {
        versions(all).map(|(lsn, message)| (lsn, Kept::AsIs(message)))
    }

    #[test]
    fn a_kept_version_with_operands_holds_all_that_its_moment_sees() {
        let all = [
            (110, Message::Merge(b"e")),
            (90, Message::Merge(b"d")),
            (80, Message::Merge(b"c")),
            (70, Message::Put(b"b")),
            (60, Message::Merge(b"a")),
        ];
        let fragments = terrapin_memtable::Fragments::default();
        fragments.insert(b"k", None, Lsn(100));
        let folding = Folding {
            operator: &Operator::named("append", &[]),
            key: b"key",
            fragments: Some(&fragments.tree()),
        };
        let moments = lsns(&[65, 75, 85, 95, 115]);
        let mut record = Vec::new();
        let kept = kept(versions(&all), &moments, folding);
        put_short(kept.map(|(lsn, kept, _)| (lsn, kept)), &mut record);
        for (before, lsn, expected) in [
            (65, 60, Message::Merge(b"a")),
            (75, 70, Message::Put(b"b")),
            (85, 80, Message::Put(b"bc")),
            (95, 90, Message::Put(b"bcd")),
            (115, 110, Message::Put(b"e")),
        ] {
            let found = look(&record, Lsn(before)).unwrap();
            assert_eq!(found, Said::Message(Lsn(lsn), expected), "{before}");
        }
    }

    #[test]
    fn a_version_is_kept_if_a_moment_sees_it() {
        let all = [
            (90, Message::Delete),
            (70, Message::Put(b"c")),
            (70, Message::Put(b"before c in its batch")),
            (50, Message::Put(b"b")),
            (40, Message::Put(b"nobody's")),
            (30, Message::Put(b"a")),
        ];
        for (moments, expected) in [
            (vec![30], vec![]),
            (vec![31], vec![(30, 0..1)]),
            (vec![10, 30, 31, 40], vec![(30, 2..4)]),
            (vec![90], vec![(70, 0..1)]),
            (vec![70, 71, 91], vec![(90, 2..3), (70, 1..2), (50, 0..1)]),
            (vec![], vec![]),
        ] {
            let moments = lsns(&moments);
            let folding = Folding {
                operator: &Operator::default(),
                key: b"key",
                fragments: None,
            };
            let kept: Vec<_> = kept(versions(&all), &moments, folding)
                .map(|(lsn, kept, seen_by)| {
                    assert!(kept.message() != Message::Put(b"before c in its batch"));
                    (lsn.0, seen_by)
                })
                .collect();
            assert_eq!(kept, expected, "{moments:?}");
        }
    }

    #[test]
    fn a_short_chain_shows_each_moment_its_version() {
        let all = [
            (u64::MAX - 1, Message::Put(b"new")),
            (300, Message::Delete),
            (299, Message::Put(b"")),
            (7, Message::Put(&[1; 300])),
        ];
        let mut record = Vec::new();
        put_short(as_is(&all), &mut record);
        assert_eq!(short_bytes(as_is(&all)), Some(record.len()));
        for before in [0, 7, 8, 299, 300, 301, 1 << 40, u64::MAX] {
            let expected = all.iter().find(|(lsn, _)| *lsn < before);
            let expected = expected.map_or(Said::Nothing, |(lsn, message)| {
                Said::Message(Lsn(*lsn), *message)
            });
            assert_eq!(look(&record, Lsn(before)).unwrap(), expected, "{before}");
        }
        for bytes in 0..record.len() {
            // Damaged bytes never cause a panic.
            let _ = look(&record[..bytes], Lsn(1));
        }
        assert!(look(&[2], Lsn(1)).is_err() && look(&[], Lsn(1)).is_err());
        assert!(look(&[SHORT, 5, 0, 6, 0], Lsn(1)).is_err(), "out of order");
    }

    #[test]
    fn the_keys_of_a_long_chain_are_in_the_order_of_its_moments() {
        let value = [0; SHORT_BYTES_MAX];
        assert_eq!(short_bytes(as_is(&[(1, Message::Put(&value))])), None);
        let mut record = Vec::new();
        put_long(9, &mut record);
        assert_eq!(look(&record, Lsn(0)).unwrap(), Said::Long(9));
        let (newer, older) = (
            long_key(9, Lsn(20), Message::Delete),
            long_key(9, Lsn(10), Message::Put(&[])),
        );
        assert!(newer < older);
        for (before, finds) in [
            (10, None),
            (11, Some(older)),
            (20, Some(older)),
            (21, Some(newer)),
        ] {
            let (from, until) = long_place(9, Lsn(before)).unwrap();
            let found = [newer, older].into_iter().find(|key| *key >= from);
            assert_eq!(found, finds);
            assert!(older[..] < until[..]);
        }
        assert!(long_place(9, Lsn(0)).is_none());
        assert_eq!(long_message(&newer, b"").unwrap().1, Message::Delete);
        assert_eq!(long_message(&older, b"x").unwrap().1, Message::Put(b"x"));
        assert!(long_message(&older[..16], b"x").is_err());
    }
}
