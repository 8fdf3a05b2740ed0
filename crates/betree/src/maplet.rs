//! Maplets over the runs of a pivot (*SplinterDB and Maplets*, SIGMOD 2023). One question to a
//! maplet replaces one to the filter of each run.
//!
//! A maplet names the page groups that it covers: its values are positions in that list. Page ids
//! are never used twice. So a maplet stays right whatever happens to the runs: a group that the
//! pivot no longer has is never asked for, and a group that is not named is asked itself. A merge
//! keeps a pivot's maplet while the pivot has a group that it names ([`crate::merge`]).

use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::{PageId, Result, mutant};
use terrapin_filter::{MAPLET_PARTITIONS_MAX, MAPLET_VALUES_MAX, MapletShape, PARTITION_BYTES_MAX};
use terrapin_pages::{MapletHandle, PageRef};

/// A maplet, as its node refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maplet {
    /// Its partitions.
    pub(crate) page: PageRef,
    pub(crate) shape: MapletShape,
    /// The groups that it covers, ascending: value N stands for the Nth.
    pub(crate) groups: Box<[PageId]>,
}

impl Maplet {
    /// The value that stands for a group.
    #[inline]
    pub(crate) fn value_of(&self, group: PageId) -> Option<usize> {
        let value = match self.groups.binary_search(&group) {
            Ok(value) => value,
            Err(place) if mutant::active("maplet-takes-new-groups-for-old") => {
                place % self.groups.len()
            }
            Err(_) => return None,
        };
        Some(match mutant::active("maplet-values-one-off") {
            true => (value + 1) % self.groups.len(),
            false => value,
        })
    }

    /// Approximate bytes of the encoded maplet, rather too large than too small.
    pub(crate) fn encoded_bytes(&self) -> usize {
        32 + 6 * self.groups.len()
    }

    /// Page reference | bits of a fingerprint u8 | groups v, then for each: page id v (difference
    /// to the one before; the first as it is).
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.page.encode(out);
        out.push(self.shape.fingerprint_bits() as u8);
        put_varint(out, self.groups.len() as u64);
        let mut before = 0;
        for group in &self.groups {
            put_varint(out, group.0 - before);
            before = group.0;
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Maplet> {
        let page = PageRef::decode(reader)?;
        let bits = u32::from(reader.u8()?);
        let count = reader.varint()?;
        let partitions = page.bytes / PARTITION_BYTES_MAX as u32;
        let values = usize::try_from(count).unwrap_or(usize::MAX);
        let shape = MapletShape::new(bits, values, partitions);
        let is_whole = page.bytes.is_multiple_of(PARTITION_BYTES_MAX as u32);
        let Some(shape) = shape.filter(|_| is_whole) else {
            return Err(reader
                .corrupt("no maplet has this shape")
                .with("page", page.id)
                .with("groups", count)
                .with("limit of groups", MAPLET_VALUES_MAX)
                .with("limit of partitions", MAPLET_PARTITIONS_MAX));
        };
        let mut groups: Vec<PageId> = Vec::with_capacity(values);
        for _ in 0..values {
            let before = groups.last().map_or(0, |group| group.0);
            let next = before.checked_add(reader.varint()?).map(PageId);
            let ascends = |next: &PageId| groups.last().is_none_or(|last| last < next);
            let next = next.filter(ascends);
            groups.push(next.ok_or_else(|| reader.corrupt("groups of a maplet do not ascend"))?);
        }
        Ok(Maplet {
            page,
            shape,
            groups: groups.into(),
        })
    }
}

/// A pivot's maplet, laid out for lookups.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) maplet: Maplet,
    pub(crate) handle: MapletHandle,
    /// For each of the pivot's runs: the values of its groups as bits. 0 if the maplet does not
    /// cover all of them.
    pub(crate) values: Box<[u64]>,
}

impl Mapped {
    /// `runs` yields the groups of each of the pivot's runs, newest first.
    pub(crate) fn new<G: Iterator<Item = PageId>>(
        maplet: &Maplet,
        runs: impl Iterator<Item = G>,
    ) -> Mapped {
        let values = runs.map(|mut groups| {
            let bits = groups.try_fold(0u64, |bits, group| {
                maplet.value_of(group).map(|value| bits | 1 << value)
            });
            bits.unwrap_or(0)
        });
        Mapped {
            values: values.collect(),
            maplet: maplet.clone(),
            handle: MapletHandle::default(),
        }
    }

    /// Whether a set of values has that of a group.
    #[inline]
    pub(crate) fn has(&self, values: u64, group: PageId) -> bool {
        let value = self.maplet.value_of(group);
        value.is_some_and(|value| values >> value & 1 == 1)
    }

    /// Bytes of memory besides the node's own copy.
    pub(crate) fn memory_bytes(&self) -> usize {
        let maplet = &self.maplet;
        size_of_val(&self.values[..])
            + 2 * (size_of::<Maplet>() + size_of_val(&maplet.groups[..]))
            + MapletHandle::memory_bytes(&maplet.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maplet(groups: &[u64]) -> Maplet {
        Maplet {
            page: PageRef {
                id: PageId(77),
                offset: 8192,
                bytes: 2 * PARTITION_BYTES_MAX as u32,
            },
            shape: MapletShape::new(19, groups.len(), 2).unwrap(),
            groups: groups.iter().copied().map(PageId).collect(),
        }
    }

    fn encoded(maplet: &Maplet) -> Vec<u8> {
        let mut out = Vec::new();
        maplet.encode(&mut out);
        out
    }

    #[test]
    fn maplets_round_trip_and_hostile_ones_are_refused() {
        for groups in [vec![0], vec![5, 6, 1 << 40, u64::MAX], (9..73).collect()] {
            let maplet = maplet(&groups);
            let bytes = encoded(&maplet);
            let mut reader = Reader::new("test", &bytes);
            assert_eq!(Maplet::decode(&mut reader).unwrap(), maplet);
            assert_eq!(reader.remaining(), 0);
            assert!(bytes.len() <= maplet.encoded_bytes() + 12);
            for cut in 0..bytes.len() {
                assert!(Maplet::decode(&mut Reader::new("test", &bytes[..cut])).is_err());
            }
        }
        let good = encoded(&maplet(&[5, 9]));
        for (at, byte) in [
            (16, 1),
            (17, 8),
            (20, 11),
            (20, 41),
            (21, 0),
            (21, 65),
            (23, 0),
        ] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(
                Maplet::decode(&mut Reader::new("test", &bad)).is_err(),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_run_that_is_not_covered_whole_has_no_values() {
        let maplet = maplet(&[5, 9, 11]);
        let runs: [&[u64]; 4] = [&[7], &[11], &[5, 9], &[9, 8]];
        let runs = runs
            .iter()
            .map(|groups| groups.iter().map(|&id| PageId(id)));
        let mapped = Mapped::new(&maplet, runs);
        assert_eq!(mapped.values[..], [0, 0b100, 0b011, 0]);
        assert!(mapped.has(0b010, PageId(9)) && !mapped.has(0b101, PageId(9)));
        assert!(!mapped.has(u64::MAX, PageId(8)));
    }
}
