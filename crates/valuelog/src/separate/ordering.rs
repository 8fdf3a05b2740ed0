//! Brings values back into the order of keys, for ranges that have paid for it.
//!
//! Overwriting scatters the values of neighbouring keys over many pages, and a range reads each
//! from its own place. An ordering looks at *windows* of neighbouring keys. Where the values of a
//! window lie in more than a few clusters, the values of small clusters are put again, as they are:
//! the merge writes them into a new page, in the order of keys, and drops the old handles. Newer
//! messages stay above them.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Charge, Message, Purpose, Result, Slice};
use terrapin_pages::ReadFor;
use terrapin_structure::{
    Batch, BatchLimits, Direction, Erased, Estimate, Filled, MergeInput, MessageCursor, ValuePlace,
};

use super::Separating;
use super::version::SeparatedVersion;
use crate::PLACE_BYTES;
use crate::handle::Handle;

/// Bytes of values that one window has at least: what a chunk of a range reads together.
const WINDOW_BYTES: u64 = 128 << 10;
/// Values at most this far apart in a page are one cluster: one read fetches them.
const GAP_BYTES: u64 = 16 << 10;
/// A cluster of at least this many bytes stays where it is.
const CLUSTER_BYTES: u64 = 16 << 10;
/// A window with at most this many small clusters stays as it is. The values that an ordering
/// wrote are one.
const SMALL_CLUSTERS: usize = 2;
/// At most this many times as many bytes of values are looked at as written.
const LOOK_FACTOR: u64 = 32;
/// Most bytes of values that one ordering writes: they are in memory.
const ORDERED_BYTES_MAX: u64 = 4 << 20;

/// The values to put again, keys ascending.
pub(super) struct Reordered {
    records: Vec<(Box<[u8]>, Slice)>,
    bytes: u64,
    _memory: Charge,
}

/// The values to put again, and where to go on.
type Looked = (Arc<Reordered>, Option<Box<[u8]>>);

/// A record of a window.
struct Want {
    key: Box<[u8]>,
    handle: Handle,
    place: ValuePlace,
}

/// Looks for scattered values from a key on. Returns those to put again, perhaps none, and where to
/// go on; `None` at the end of the keys. A value that cannot be read stays where it is.
pub(super) fn look(
    owner: &Separating,
    base: &SeparatedVersion,
    (from, to): (&[u8], Option<&[u8]>),
    bytes_max: u64,
) -> Result<Looked> {
    let bytes_max = bytes_max.clamp(1, ORDERED_BYTES_MAX);
    let mut found = Vec::new();
    let (mut looked, mut bytes) = (0u64, 0u64);
    let upper = to.map_or(Bound::Unbounded, Bound::Included);
    let bounds = (Bound::Included(from), upper);
    let mut scan = base.ordered_inner()?.scan(bounds, Direction::Forward)?;
    let mut batch = Batch::default();
    let limits = BatchLimits {
        records: 1024,
        keys_only: true,
        ..BatchLimits::default()
    };
    batch.restart(limits, 0, 0);
    let (mut window, mut window_bytes) = (Vec::new(), 0u64);
    let mut next = None;
    loop {
        match scan.fill(Bound::Unbounded, &mut batch)? {
            Filled::Unresolved => {}
            Filled::Full => {
                batch.restart(limits, 0, 0);
                continue;
            }
            Filled::Reached | Filled::End => break,
        }
        let mut key = Vec::new();
        let handle = scan.unresolved(&mut key).map(Handle::decode).transpose()?;
        scan.skip(&key);
        // A large value is a read of its own, wherever it lies.
        let Some(handle) = handle.filter(|handle| !handle.is_large()) else {
            continue;
        };
        // A value that is damaged or that leads nowhere is reported by its reader.
        let Ok(place) = base.table.place(handle, &key) else {
            continue;
        };
        window_bytes += u64::from(place.bytes);
        let key = key.into_boxed_slice();
        window.push(Want { key, handle, place });
        if window_bytes >= WINDOW_BYTES {
            looked += window_bytes;
            let last = window.last().map(|want| [&want.key[..], &[0]].concat());
            bytes += scattered(std::mem::take(&mut window), &mut found);
            window_bytes = 0;
            if bytes >= bytes_max || looked >= bytes_max.saturating_mul(LOOK_FACTOR) {
                next = last.map(Vec::into_boxed_slice);
                break;
            }
        }
    }
    bytes += scattered(window, &mut found);
    let memory = owner.budget.charge(Purpose::Merge, bytes);
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let wants: Vec<_> = found
        .iter()
        .map(|want| (want.handle, &want.key[..]))
        .collect();
    let mut values: Vec<Option<Slice>> = Vec::new();
    values.resize_with(found.len(), || None);
    base.table
        .get_many(&wants, ReadFor::Merge, &mut |number, value| {
            values[number] = value.ok();
        })?;
    let records = found.into_iter().zip(values);
    let records: Vec<_> = records
        .filter_map(|(want, value)| Some((want.key, value?)))
        .collect();
    let reordered = Reordered {
        bytes: records
            .iter()
            .map(|(k, v)| (k.len() + v.len()) as u64)
            .sum(),
        records,
        _memory: memory,
    };
    Ok((Arc::new(reordered), next))
}

/// Moves the records of a window's small clusters to `found`, if there are many such clusters.
/// Returns their bytes.
fn scattered(mut window: Vec<Want>, found: &mut Vec<Want>) -> u64 {
    let start = |want: &Want| {
        let place = u64::from(want.place.place) * PLACE_BYTES as u64;
        want.place.page.offset + place
    };
    window.sort_unstable_by_key(start);
    let mut small: Vec<Vec<Want>> = Vec::new();
    let mut cluster: Vec<Want> = Vec::new();
    let (mut end, mut bytes) = (0u64, 0u64);
    let mut close = |cluster: &mut Vec<Want>, bytes: u64| match bytes < CLUSTER_BYTES {
        true if !cluster.is_empty() => small.push(std::mem::take(cluster)),
        _ => cluster.clear(),
    };
    for want in window {
        let (at, length) = (start(&want), u64::from(want.place.bytes));
        if at > end.saturating_add(GAP_BYTES) {
            close(&mut cluster, bytes);
            bytes = 0;
        }
        end = at.saturating_add(length).max(end);
        bytes += length;
        cluster.push(want);
    }
    close(&mut cluster, bytes);
    if small.len() <= SMALL_CLUSTERS {
        return 0;
    }
    let small = small.into_iter().flatten();
    let first = found.len();
    found.extend(small);
    found[first..]
        .iter()
        .map(|want| u64::from(want.place.bytes))
        .sum()
}

impl Reordered {
    /// Whether there is nothing to put again.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn at(&self, key: Option<&[u8]>, otherwise: usize) -> usize {
        let below = |key| self.records.partition_point(|(own, _)| &own[..] < key);
        key.map_or(otherwise, below)
    }
}

impl MergeInput for Reordered {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let (at, end) = (self.at(lo, 0), self.at(hi, self.records.len()));
        Ok(Box::new(ReorderedCursor {
            at,
            end: end.max(at),
            input: self,
        }))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let (at, end) = (self.at(lo, 0), self.at(hi, self.records.len()));
        let (records, all) = (end.saturating_sub(at) as u64, self.records.len() as u64);
        Estimate {
            records,
            bytes: self.bytes.saturating_mul(records) / all.max(1),
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }

    /// Each message replaces the record that it was read from.
    fn replacing_permille(&self) -> u16 {
        1000
    }
}

struct ReorderedCursor {
    input: Arc<Reordered>,
    at: usize,
    end: usize,
}

impl MessageCursor for ReorderedCursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then(|| &self.input.records[self.at].0[..])
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&self.input.records[self.at].1)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::PageId;
    use terrapin_pages::PageUse;

    use super::*;

    fn want(number: u32, offset: u64, place: u32, bytes: u32) -> Want {
        Want {
            key: number.to_be_bytes().into(),
            handle: Handle {
                birth: 1,
                place,
                value_bytes: bytes,
            },
            place: ValuePlace {
                page: PageUse::whole(PageId(1), offset, 1 << 20),
                place,
                bytes,
            },
        }
    }

    #[test]
    fn only_windows_in_many_small_clusters_are_put_again() {
        let moved = |window: Vec<Want>| {
            let mut found = Vec::new();
            let bytes = scattered(window, &mut found);
            (found.len(), bytes)
        };
        let in_order = || (0..100).map(|i| want(i, 1 << 20, i * 32, 1024));
        assert_eq!(moved(in_order().collect()), (0, 0));
        // Two values elsewhere are two clusters.
        let apart = |count: u32| {
            let far = (0..count).map(|i| want(200 + i, (4 + u64::from(i)) << 20, 7, 1024));
            moved(in_order().chain(far).collect())
        };
        assert_eq!(apart(2), (0, 0));
        assert_eq!(apart(3), (3, 3072), "the large cluster stays");
        // What an ordering wrote is one cluster.
        let together = (0..10).map(|i| want(200 + i, 9 << 20, i * 32, 1024));
        assert_eq!(moved(in_order().chain(together).collect()), (0, 0));
        let long = (0..10).map(|i| want(i, u64::from(i) << 24, 0, 16 << 10));
        assert_eq!(
            moved(long.collect()),
            (0, 0),
            "long values are a read each anyway"
        );
        assert_eq!(moved(Vec::new()), (0, 0));
    }
}
