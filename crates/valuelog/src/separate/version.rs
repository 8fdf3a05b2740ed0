//! A version with separated values.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};
use terrapin_base::{Error, Message, Result, Slice, Stack, StackBase, expiry, handle_deadline_ms};
use terrapin_pages::{Extent, PageStore, PageUse, ReadFor};
use terrapin_structure::{
    Direction, Estimate, Figure, Finding, Found, KeyBounds, Ordered, Presence, Rescued, Scan,
    StoredValues, StructureStats, ValuePlace, Values, Version,
};

use super::collecting::tree_percent;
use super::root::SeparatedRoot;
use crate::handle::{Handle, check_operands, dangling};
use crate::page::holes;
use crate::table::{PartRef, ValueTable};

/// The inner version, its values, and which of them are dead.
#[derive(Clone)]
pub(crate) struct SeparatedVersion {
    pub(super) inner: Arc<dyn Version>,
    pub(super) table: ValueTable,
    /// The places that no tree refers to any more: keys of [`dead_key`], empty values.
    pub(super) dead: Arc<dyn Version>,
    pub(super) next_birth: u64,
    /// See [`StoredValues::moment`].
    pub(super) moment: u64,
}

/// The number of the next version.
static NEXT_MOMENT: AtomicU64 = AtomicU64::new(1);

/// A number for a new version.
pub(super) fn next_moment() -> u64 {
    NEXT_MOMENT.fetch_add(1, Ordering::Relaxed)
}

/// Bytes of a key of the tree of dead places.
pub(super) const DEAD_KEY_BYTES: usize = 12;

/// The key of a dead place.
pub(super) fn dead_key(birth: u64, place: u32) -> [u8; DEAD_KEY_BYTES] {
    let mut key = [0; DEAD_KEY_BYTES];
    key[..8].copy_from_slice(&birth.to_be_bytes());
    key[8..].copy_from_slice(&place.to_be_bytes());
    key
}

/// The place of a key of the tree of dead places.
pub(super) fn place_of(key: &[u8]) -> Result<(u64, u32)> {
    let parts = key.split_first_chunk::<8>().and_then(|(birth, place)| {
        Some((
            u64::from_be_bytes(*birth),
            u32::from_be_bytes(place.try_into().ok()?),
        ))
    });
    parts.ok_or_else(|| Error::corrupt("a dead place with an impossible key"))
}

impl SeparatedVersion {
    /// A version without separated values around an inner version.
    pub(super) fn around(
        inner: Arc<dyn Version>,
        store: &Arc<PageStore>,
        dead: Arc<dyn Version>,
    ) -> Self {
        SeparatedVersion {
            inner,
            table: ValueTable::empty(store),
            dead,
            next_birth: 1,
            moment: next_moment(),
        }
    }

    pub(super) fn open(
        inner: Arc<dyn Version>,
        store: &Arc<PageStore>,
        root: &SeparatedRoot,
        dead: Arc<dyn Version>,
    ) -> Self {
        SeparatedVersion {
            inner,
            table: ValueTable::open(store, root.table),
            dead,
            next_birth: root.next_birth,
            moment: next_moment(),
        }
    }

    /// About how many bytes of live records newer messages in the tree's buffers hide.
    fn hidden_bytes(&self) -> Result<u64> {
        let (seen, stored) = (self.inner.live_bytes()?, self.inner.stored_bytes()?);
        let live = self.live_record_bytes();
        let hidden = u128::from(live) * u128::from(stored.saturating_sub(seen));
        Ok(u64::try_from(hidden / u128::from(stored.max(1))).unwrap_or(live))
    }

    pub(super) fn live_record_bytes(&self) -> u64 {
        let root = self.table.root();
        root.map_or(0, |root| root.bytes.saturating_sub(root.dead_bytes))
    }

    /// The space amplification for the inner version's buffers, in per cent, where `accepted` is
    /// the one for all. A tree that cannot be read is merged as if it had no values outside.
    pub(super) fn tree_percent(&self, accepted: u32) -> u32 {
        let tree = self.inner.stored_bytes().unwrap_or(u64::MAX);
        tree_percent(accepted, tree, self.live_record_bytes())
    }

    /// What a merge of the inner version asks and tells about handles.
    pub(super) fn values(&self) -> Arc<DroppedValues> {
        DroppedValues::of(self.table.clone())
    }

    fn value(&self, handle: &[u8], key: &[u8], purpose: ReadFor) -> Result<Slice> {
        self.table.get(Handle::decode(handle)?, key, purpose)
    }

    /// The value in place of its handle. The handle of a value with a deadline stays: the caller
    /// knows now, and an expired value is not read.
    fn resolve(&self, found: Found, key: &[u8]) -> Result<Found> {
        match found {
            Found::Handle(handle) if handle_deadline_ms(&handle).is_some() => {
                Ok(Found::Handle(handle))
            }
            Found::Handle(handle) => self.value(&handle, key, ReadFor::Get).map(Found::Value),
            Found::Operands(bytes) => self.based(bytes, key, false).map(Found::Operands),
            found @ (Found::Nothing | Found::Value(_) | Found::Expiring(_)) => Ok(found),
        }
    }

    /// Operands over the value itself in place of its handle. The handle of a value with a deadline
    /// stays unless `all` are read.
    fn based(&self, bytes: Slice, key: &[u8], all: bool) -> Result<Slice> {
        let stack = Stack::decode(&bytes)?;
        let StackBase::Handle(handle) = stack.base else {
            return Ok(bytes);
        };
        let deadline_ms = handle_deadline_ms(handle);
        if deadline_ms.is_some() && !all {
            return Ok(bytes);
        }
        check_operands(Handle::decode(handle)?.value_bytes as usize)?;
        let value = self.value(handle, key, ReadFor::Get)?;
        let expiring = deadline_ms.map(|deadline_ms| expiry::payload(deadline_ms, &value));
        let base = match &expiring {
            Some(payload) => StackBase::Expiring(payload),
            None => StackBase::Value(&value),
        };
        let mut based = Vec::new();
        Stack::encode(base, stack.operands(), &mut based);
        Ok(Slice::from_vec(based))
    }
}

/// The handles that a merge dropped, and the values of those that it must read.
pub(super) struct DroppedValues {
    table: ValueTable,
    dropped: Mutex<Vec<Handle>>,
}

impl DroppedValues {
    pub(super) fn of(table: ValueTable) -> Arc<Self> {
        Arc::new(DroppedValues {
            table,
            dropped: Mutex::default(),
        })
    }

    pub(super) fn take(&self) -> Vec<Handle> {
        std::mem::take(&mut *self.dropped.lock())
    }

    pub(super) fn drop_handle(&self, handle: Handle) {
        self.dropped.lock().push(handle);
    }
}

impl Values for DroppedValues {
    fn value(&self, key: &[u8], handle: &[u8]) -> Result<Slice> {
        let handle = Handle::decode(handle)?;
        // A handle that fails stays under its operands.
        check_operands(handle.value_bytes as usize)?;
        self.table.get(handle, key, ReadFor::Merge)
    }

    fn dropped(&self, handle: &[u8]) -> Result<()> {
        self.drop_handle(Handle::decode(handle)?);
        Ok(())
    }
}

impl std::fmt::Debug for DroppedValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DroppedValues").finish_non_exhaustive()
    }
}

impl Version for SeparatedVersion {
    fn root(&self) -> Vec<u8> {
        SeparatedRoot {
            inner: self.inner.root(),
            dead: self.dead.root(),
            next_birth: self.next_birth,
            table: self.table.root().copied(),
        }
        .encode()
    }

    fn get(&self, key: &[u8], hash: u64) -> Result<Found> {
        self.resolve(self.inner.get(key, hash)?, key)
    }

    fn contains(&self, key: &[u8], hash: u64) -> Result<Presence> {
        self.inner.contains(key, hash)
    }

    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Found]) -> Result<()> {
        self.inner.multi_get(keys, out)?;
        let mut wants = Vec::new();
        let mut places = Vec::new();
        for (place, ((key, _), found)) in keys.iter().zip(&mut *out).enumerate() {
            match found {
                Found::Handle(handle) if handle_deadline_ms(handle).is_none() => {
                    wants.push((Handle::decode(handle)?, *key));
                    places.push(place);
                }
                _ => *found = self.resolve(std::mem::take(found), key)?,
            }
        }
        let mut failed: Option<(usize, Error)> = None;
        self.table
            .get_many(&wants, ReadFor::Get, &mut |number, value| match value {
                Ok(value) => out[places[number]] = Found::Value(value),
                Err(error) => {
                    if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                        failed = Some((number, error));
                    }
                }
            })?;
        failed.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn stored_values(&self) -> Option<&dyn StoredValues> {
        Some(self)
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.inner.ordered().map(|_| self as &dyn Ordered)
    }

    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        // An error of a walk is reported at the end, so that all other pages are named.
        let inner = self.inner.pages(visit);
        let table = self.table.pages(visit);
        let dead = self.dead.pages(visit);
        inner.and(table).and(dead)
    }

    fn live_bytes(&self) -> Result<u64> {
        let seen = self
            .live_record_bytes()
            .saturating_sub(self.hidden_bytes()?);
        Ok(self.inner.live_bytes()?.saturating_add(seen))
    }

    fn stored_bytes(&self) -> Result<u64> {
        let stored = self.inner.stored_bytes()?;
        Ok(stored.saturating_add(self.live_record_bytes()))
    }

    fn stats(&self) -> Result<StructureStats> {
        let mut stats = self.inner.stats()?;
        let dead = self.dead.stats()?;
        stats.page_bytes = stats.page_bytes.saturating_add(dead.page_bytes);
        stats.parts.add(&dead.parts);
        let mut pages = BTreeMap::new();
        let (mut tables, mut holes) = (0u64, 0u64);
        self.table.pages(&mut |page| {
            tables = tables.saturating_add(page.extent().map_or(page.bytes, |e| e.bytes));
            Ok(())
        })?;
        self.table.parts(&mut |part| {
            pages.insert(part.page.id, part.page);
            holes = holes.saturating_add(part.page.hole_bytes);
            tables = tables.saturating_sub(part.page.extent().map_or(part.page.bytes, |e| e.bytes));
            Ok(())
        })?;
        let extents = pages
            .values()
            .map(|page| page.extent().map_or(page.bytes, |e| e.bytes));
        let occupied = extents
            .fold(0u64, u64::saturating_add)
            .saturating_sub(holes);
        let root = self.table.root();
        let of = |figure: fn(&crate::TableRef) -> u64| Figure::Number(root.map_or(0, figure));
        stats.parts.values = stats.parts.values.saturating_add(occupied);
        stats.parts.nodes = stats.parts.nodes.saturating_add(tables);
        stats.page_bytes = stats
            .page_bytes
            .saturating_add(occupied)
            .saturating_add(tables);
        stats.named.extend([
            ("value_pages", Figure::Number(pages.len() as u64)),
            ("value_parts", of(|root| root.parts)),
            ("value_records", of(|root| root.records)),
            ("value_bytes", of(|root| root.bytes)),
            ("dead_value_bytes", of(|root| root.dead_bytes)),
            ("punched_value_bytes", of(|root| root.hole_bytes)),
            ("hidden_value_bytes", Figure::Number(self.hidden_bytes()?)),
        ]);
        Ok(stats)
    }

    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()> {
        self.inner.verify(found)?;
        self.dead.verify(found)?;
        super::verify::verify(self, found)
    }

    fn rescue(&self, rescued: &mut dyn Rescued) -> Result<()> {
        self.inner.rescue(&mut Resolving {
            version: self,
            rescued,
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl StoredValues for SeparatedVersion {
    fn moment(&self) -> u64 {
        self.moment
    }

    fn get_located(&self, key: &[u8], hash: u64) -> Result<(Found, Option<ValuePlace>)> {
        let found = self.inner.get(key, hash)?;
        let place = match &found {
            Found::Handle(handle) => match Handle::decode(handle)? {
                handle if handle.is_large() => None,
                handle => Some(self.table.place(handle, key)?),
            },
            _ => None,
        };
        Ok((self.resolve(found, key)?, place))
    }

    fn get_unread(&self, key: &[u8], hash: u64) -> Result<Found> {
        self.inner.get(key, hash)
    }

    fn read_at(&self, place: &ValuePlace, key: &[u8]) -> Result<Option<Slice>> {
        self.table.read_at(place, key)
    }

    fn unread_extents(&self, visit: &mut dyn FnMut(Extent)) -> Result<()> {
        let mut pages: BTreeMap<_, Vec<PartRef>> = BTreeMap::new();
        self.table.parts(&mut |part| {
            pages.entry(part.page.id).or_default().push(*part);
            Ok(())
        })?;
        for parts in pages.values() {
            let [first, ..] = &parts[..] else {
                continue;
            };
            if first.is_large() {
                continue;
            }
            let directory = self.table.directory(first)?;
            let dead = DeadPlaces::of(self, parts)?;
            let mut is_dead = |birth, place| dead.is_dead(birth, place);
            for (_, range) in holes(&directory, first.record_bytes, &mut is_dead) {
                visit(Extent {
                    offset: first.page.offset + range.start,
                    bytes: range.end - range.start,
                });
            }
        }
        Ok(())
    }

    fn value_bytes(&self, handle: &[u8]) -> Result<usize> {
        Ok(Handle::decode(handle)?.value_bytes as usize)
    }

    fn read(
        &self,
        wants: &[(&[u8], &[u8])],
        found: &mut dyn FnMut(usize, Result<Slice>),
    ) -> Result<u64> {
        let decode = |&(key, handle): &(_, &[u8])| Handle::decode(handle).map(|h| (h, key));
        let wants: Vec<_> = wants.iter().map(decode).collect::<Result<_>>()?;
        self.table.get_many(&wants, ReadFor::Scan, found)
    }
}

/// Gives values on in place of their handles.
struct Resolving<'a> {
    version: &'a SeparatedVersion,
    rescued: &'a mut dyn Rescued,
}

impl Resolving<'_> {
    fn large(&mut self, key: &[u8], handle: &[u8], is_certain: bool) -> Result<()> {
        let decoded = Handle::decode(handle)?;
        let part = self.version.table.part(decoded.birth);
        match part.and_then(|part| part.ok_or_else(|| dangling(decoded))) {
            Ok(part) => {
                let place = (&part.page, handle);
                self.rescued.large_value(key, place, is_certain)
            }
            Err(error) if error.is_of_data() => self.rescued.lost_value(key, &error),
            Err(error) => Err(error),
        }
    }
}

impl Rescued for Resolving<'_> {
    fn message(&mut self, key: &[u8], message: Message<'_>, is_certain: bool) -> Result<()> {
        let based;
        match message {
            Message::Separated(handle) if Handle::decode(handle)?.is_large() => {
                return self.large(key, handle, is_certain);
            }
            Message::Stack(bytes) => {
                let stack = Stack::decode(bytes)?;
                if let StackBase::Handle(handle) = stack.base
                    && Handle::decode(handle)?.is_large()
                {
                    // First what the operands apply to, which may be too long for them.
                    self.large(key, handle, is_certain)?;
                    let mut above = Vec::new();
                    Stack::encode(StackBase::Older, stack.operands(), &mut above);
                    return self
                        .rescued
                        .message(key, Message::Stack(&above), is_certain);
                }
            }
            _ => {}
        }
        let resolved = match message {
            Message::Separated(handle) => self.version.value(handle, key, ReadFor::Verify),
            Message::Stack(bytes) => self.version.based(Slice::copy(bytes), key, true),
            message => return self.rescued.message(key, message, is_certain),
        };
        let message = match (message, resolved) {
            (Message::Separated(handle), Ok(value)) => match handle_deadline_ms(handle) {
                Some(deadline_ms) => {
                    based = Slice::from_vec(expiry::payload(deadline_ms, &value));
                    Message::Expiring(&based)
                }
                None => {
                    based = value;
                    Message::Put(&based)
                }
            },
            (_, Ok(bytes)) => {
                based = bytes;
                Message::Stack(&based)
            }
            (_, Err(error)) if error.is_of_data() => return self.rescued.lost_value(key, &error),
            (_, Err(error)) => return Err(error),
        };
        self.rescued.message(key, message, is_certain)
    }

    fn lost(&mut self, from: &[u8], to: Option<&[u8]>, cause: &Error) -> Result<()> {
        self.rescued.lost(from, to, cause)
    }

    fn lost_value(&mut self, key: &[u8], cause: &Error) -> Result<()> {
        self.rescued.lost_value(key, cause)
    }
}

impl Ordered for SeparatedVersion {
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Box<dyn Scan>> {
        // A scan stops before a handle. Its caller reads the values of many handles together.
        self.ordered_inner()?
            .scan_expecting(bounds, direction, expected)
    }

    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate> {
        self.ordered_inner()?.estimate(bounds)
    }
}

/// The dead places of the births that a page has in the table.
pub(super) struct DeadPlaces(BTreeMap<u64, Vec<u32>>);

impl DeadPlaces {
    /// Those of a page's parts. Errors: those of reading the tree of dead places.
    pub(super) fn of(version: &SeparatedVersion, parts: &[PartRef]) -> Result<Self> {
        let places = |part: &PartRef| Ok((part.birth, version.dead_places(part.birth)?));
        parts.iter().map(places).collect::<Result<_>>().map(Self)
    }

    /// The dead places of a birth, ascending; `None` if the table does not have the birth here.
    pub(super) fn of_birth(&self, birth: u64) -> Option<&[u32]> {
        self.0.get(&birth).map(Vec::as_slice)
    }

    /// Whether nothing refers to a record. A birth that the table does not have here was given up,
    /// or moved.
    pub(super) fn is_dead(&self, birth: u64, place: u32) -> bool {
        let places = self.of_birth(birth);
        places.is_none_or(|places| places.binary_search(&place).is_ok())
    }
}

impl SeparatedVersion {
    /// The places of a birth in the tree of dead places, ascending.
    pub(super) fn dead_places(&self, birth: u64) -> Result<Vec<u32>> {
        let ordered = self.dead.ordered();
        let ordered = ordered.ok_or_else(|| Error::internal("dead places without order"))?;
        let (lo, hi) = (dead_key(birth, 0), dead_key(birth, u32::MAX));
        let bounds = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
        let mut scan = ordered.scan(bounds, Direction::Forward)?;
        let mut places = Vec::new();
        while let Some((key, _)) = scan.next()? {
            places.push(place_of(key)?.1);
        }
        Ok(places)
    }

    pub(super) fn ordered_inner(&self) -> Result<&dyn Ordered> {
        let ordered = self.inner.ordered();
        ordered.ok_or_else(|| Error::internal("a range over keys without order"))
    }
}
