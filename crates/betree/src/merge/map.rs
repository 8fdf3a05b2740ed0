//! Maplets in a merge: which a node keeps, which are made, and the task that makes one.
//!
//! While a node is under reconstruction, its frame has the maplets beside the slots, each with the
//! key range of its pivot. At the end each goes to the slot with that range, if the slot still has
//! a group that the maplet names. All other maplets are released. So nothing else in a merge needs
//! to know of maplets.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Charge, Purpose, Result, mutant};
use terrapin_filter::{
    MAPLET_VALUES_MAX, MapletBuilder, PARTITION_BYTES_MAX, fingerprint_bits_for,
};
use terrapin_pages::group::GroupRef;
use terrapin_pages::{Changes, PageUse, ReadFor};
use terrapin_runs::cursor::GroupCursor;
use terrapin_runs::run::KeyRange;
use terrapin_runs::walk::ReadAhead;
use terrapin_structure::Direction;

use super::frame::Frame;
use super::runs::Context;
use super::task::Task;
use crate::maplet::Maplet;

/// So many of a pivot's runs are asked one by one. One more, and a maplet is made over all.
const RUNS_ASKED: usize = 4;
/// A maplet's fingerprints are wide enough for this many times its entries. Until there are more,
/// the next maplet takes over its entries.
const GROWTH: u64 = 4;

/// A maplet of a node under reconstruction.
#[derive(Debug)]
pub(super) struct FrameMaplet {
    range: KeyRange,
    maplet: Box<Maplet>,
}

/// The range of a slot and its new maplet; `None` if there can be none.
pub(super) type MadeMaplet = Option<(KeyRange, Box<Maplet>)>;

/// A part of a group that a maplet covers.
struct Covered {
    group: GroupRef,
    /// Where it is in the node.
    level: usize,
    range: KeyRange,
    records: u64,
    bytes: u64,
}

/// Makes the maplet of a slot.
pub(super) struct MapRuns {
    pub(super) frame: u64,
    range: KeyRange,
    /// The groups of the slot, by id. Their positions are the values.
    groups: Vec<Covered>,
    /// The maplet whose entries are taken over.
    old: Option<Box<Maplet>>,
    pub(super) expected_bytes: u64,
    fingerprint_bits: u32,
    state: Option<(MapletBuilder, Charge)>,
    next: usize,
}

impl Frame {
    /// Takes the maplets out of a node's pivots.
    pub(super) fn hold_maplets(&mut self, maplets: Vec<(usize, Box<Maplet>)>) {
        for (slot, maplet) in maplets {
            let range = self.range_of(slot, slot);
            self.maplets.push(FrameMaplet { range, maplet });
        }
    }

    /// Takes over a new maplet, and releases the slot's old one.
    pub(super) fn take_maplet(&mut self, made: MadeMaplet, changes: &mut Changes) {
        self.waiting -= 1;
        let Some((range, maplet)) = made else {
            return;
        };
        self.maplets.retain(|old| {
            let stays = old.range.lo != range.lo;
            if !stays {
                changes.released.push(old.maplet.page.id);
            }
            stays
        });
        self.maplets.push(FrameMaplet { range, maplet });
    }

    /// The maplet of each slot. Releases those that no slot keeps.
    pub(super) fn give_maplets(&mut self, changes: &mut Changes) -> Vec<Option<Box<Maplet>>> {
        let mut given: Vec<Option<Box<Maplet>>> = vec![None; self.slots.len()];
        for FrameMaplet { range, maplet } in std::mem::take(&mut self.maplets) {
            let first = range.lo.clone().unwrap_or_default();
            let slot = self.slots.binary_search_by(|slot| slot.lower.cmp(&first));
            match slot {
                Ok(slot) if self.keeps(slot, &range, &maplet) => given[slot] = Some(maplet),
                _ => changes.released.push(maplet.page.id),
            }
        }
        given
    }

    /// Whether a slot can use the maplet of a range.
    fn keeps(&self, slot: usize, range: &KeyRange, maplet: &Maplet) -> bool {
        // If the slot has grown, groups may have further keys for it.
        let own = self.range_of(slot, slot);
        let is_within = match (&own.hi, &range.hi) {
            (_, None) => true,
            (Some(own), Some(hi)) => own <= hi,
            (None, Some(_)) => false,
        };
        let has_named = || {
            let segments = self.levels.iter().flatten();
            let named = |id| maplet.groups.binary_search(&id).is_ok();
            segments
                .filter(|segment| named(segment.group.id))
                .any(|segment| {
                    let mut live = segment.live.iter();
                    live.any(|part| usize::from(part.pivot) == slot)
                })
        };
        is_within && has_named()
    }

    /// Tasks that make maplets where reads would ask too many runs.
    pub(super) fn map_runs(&mut self, context: &Context) -> Vec<Task> {
        let options = &context.options;
        if std::mem::replace(&mut self.is_mapped, true)
            || !self.is_stacked
            || !options.maplets
            || options.space_is_short
            || options.around.adds_only
        {
            return Vec::new();
        }
        let ranges: Vec<KeyRange> = (0..self.slots.len())
            .map(|slot| self.range_of(slot, slot))
            .collect();
        let mut runs: Vec<Vec<Covered>> = ranges.iter().map(|_| Vec::new()).collect();
        for (level, segments) in self.levels.iter().enumerate() {
            for segment in segments
                .iter()
                .filter(|segment| !options.around.has(segment.group.id))
            {
                let own = KeyRange {
                    lo: Some(segment.min[..].into()),
                    hi: Some(segment.max.iter().copied().chain([0]).collect()),
                };
                for part in &segment.live {
                    let slot = usize::from(part.pivot);
                    runs[slot].extend(own.intersection(&ranges[slot]).map(|range| Covered {
                        group: segment.group,
                        level,
                        range,
                        records: u64::from(part.records),
                        bytes: part.bytes,
                    }));
                }
            }
        }
        let mut tasks = Vec::new();
        for (slot, (mut runs, range)) in runs.into_iter().zip(ranges).enumerate() {
            let old = self.maplets.iter().find(|old| old.range.lo == range.lo);
            let old = old.filter(|old| {
                self.keeps(slot, &old.range, &old.maplet) && !options.around.has(old.maplet.page.id)
            });
            let named = |id| old.is_some_and(|old| old.maplet.groups.binary_search(&id).is_ok());
            let mut asked: Vec<usize> = (runs.iter())
                .filter(|covered| !named(covered.group.id))
                .map(|covered| covered.level)
                .collect();
            asked.dedup();
            if asked.len() <= RUNS_ASKED || runs.len() > MAPLET_VALUES_MAX {
                continue;
            }
            let sum = |of: fn(&Covered) -> u64| {
                runs.iter()
                    .fold(0u64, |sum, covered| sum.saturating_add(of(covered)))
            };
            let records = sum(|covered| covered.records);
            let expected_bytes = sum(|covered| covered.bytes);
            let least = fingerprint_bits_for(records);
            let wanted = fingerprint_bits_for(records.saturating_mul(GROWTH));
            let old = old.map(|old| old.maplet.clone());
            let old = old.filter(|old| old.shape.fingerprint_bits() >= least);
            let bits = old
                .as_ref()
                .map(|old| old.shape.fingerprint_bits().min(wanted));
            runs.sort_by_key(|covered| covered.group.id);
            tasks.push(Task::Map(Box::new(MapRuns {
                frame: self.id,
                range,
                groups: runs,
                old,
                expected_bytes,
                fingerprint_bits: bits.unwrap_or(wanted),
                state: None,
                next: 0,
            })));
        }
        tasks
    }
}

impl MapRuns {
    /// Does a piece of the work. Returns the result once everything is written. Adds the read bytes
    /// to `consumed`.
    pub(super) fn step(
        &mut self,
        context: &Arc<Context>,
        changes: &mut Changes,
        consumed: &mut u64,
    ) -> Result<Option<MadeMaplet>> {
        let (mut builder, mut charge) = self.state.take().unwrap_or_else(|| {
            let charge = context.budget.charge(Purpose::Merge, 0);
            (MapletBuilder::new(self.fingerprint_bits), charge)
        });
        if let Some(covered) = self.groups.get(self.next) {
            let is_taken_over = self.is_named(covered);
            if !is_taken_over && !mutant::active("maplet-leaves-a-run-out") {
                *consumed += covered.add_keys(context, &mut builder, self.next)?;
            }
            self.next += 1;
            charge.resize(builder.memory_bytes() as u64);
            self.state = Some((builder, charge));
            return Ok(None);
        }
        if let Some(old) = &self.old {
            self.take_over(context, &mut builder, old)?;
        }
        // The entries, and the partitions that are made of them.
        charge.resize(2 * builder.memory_bytes() as u64);
        let Some((shape, partitions)) = builder.finish(self.groups.len()) else {
            return Ok(Some(None));
        };
        let page = context.store.write_maplet(&partitions, context.class())?;
        changes.added.push(PageUse::from(&page));
        let groups = self.groups.iter().map(|covered| covered.group.id).collect();
        let maplet = Maplet {
            page,
            shape,
            groups,
        };
        Ok(Some(Some((self.range.clone(), Box::new(maplet)))))
    }

    fn is_named(&self, covered: &Covered) -> bool {
        let old = self.old.as_ref();
        old.is_some_and(|old| old.groups.binary_search(&covered.group.id).is_ok())
    }

    /// Adds the entries of the old maplet whose groups are still there.
    fn take_over(
        &self,
        context: &Context,
        builder: &mut MapletBuilder,
        old: &Maplet,
    ) -> Result<()> {
        let values: Vec<Option<usize>> = (old.groups.iter())
            .map(|id| {
                self.groups
                    .binary_search_by_key(id, |covered| covered.group.id)
                    .ok()
            })
            .collect();
        let bytes = context.store.read_maplet(&old.page, ReadFor::Merge)?;
        for (number, partition) in (0..).zip(bytes.chunks(PARTITION_BYTES_MAX)) {
            let mut add = |fingerprint, value: usize| {
                if let Some(Some(value)) = values.get(value) {
                    let bits = old.shape.fingerprint_bits();
                    builder.add_fingerprint(fingerprint, bits, *value);
                }
            };
            old.shape
                .entries(partition, number, &mut add)
                .map_err(|e| e.with("page", old.page.id).with("partition", number))?;
        }
        Ok(())
    }
}

impl Covered {
    /// Adds all keys of the part. Returns their bytes, with those of their values.
    fn add_keys(
        &self,
        context: &Context,
        builder: &mut MapletBuilder,
        value: usize,
    ) -> Result<u64> {
        let bounds = (
            (self.range.lo.as_deref()).map_or(Bound::Unbounded, Bound::Included),
            (self.range.hi.as_deref()).map_or(Bound::Unbounded, Bound::Excluded),
        );
        let (store, forward) = (&context.store, Direction::Forward);
        let mut cursor =
            GroupCursor::prepare(store, &self.group, bounds, forward, ReadAhead::MERGE)?;
        cursor.start()?;
        let mut bytes = 0;
        while let Some(key) = cursor.current_key() {
            bytes += (key.len() + cursor.current_message().value_bytes()) as u64;
            builder.add(hash64(key), value);
            cursor.step()?;
        }
        Ok(bytes)
    }
}
