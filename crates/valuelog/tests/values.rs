//! Value pages and value tables on a simulated disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{Budget, Env, ErrorKind, Generation, Incarnation, PageId};
use terrapin_disk::{Disk, SimDisk};
use terrapin_pages::block::Compression;
use terrapin_pages::{Changes, PageStore, PageUse, ReadFor, SpaceClass, StoreOptions};
use terrapin_valuelog::page::{PageBuilder, PageOptions, check_page, copy_live};
use terrapin_valuelog::{Handle, PLACE_BYTES, PartRef, TableEdit, TableRef, ValueTable};

fn store(medium: &SimDisk) -> Arc<PageStore> {
    let disk: Arc<dyn Disk> = medium.handle();
    let options = StoreOptions {
        budget: Budget::new(8 << 20),
        reserve_bytes: 0,
        system_cache: false,
    };
    let store = PageStore::create(&disk, options, 7).unwrap();
    store.begin_life(Incarnation(1));
    store
}

fn builder(target_bytes: u32, compression: Compression) -> PageBuilder {
    PageBuilder::new(PageOptions {
        target_bytes,
        unit: 512,
        compression,
    })
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

fn value(i: u32) -> Vec<u8> {
    let (_env, random) = Env::simulated(u64::from(i));
    let bytes = 1 + random.below(3000) as usize;
    match random.below(2) {
        0 => vec![i as u8; bytes],
        _ => (0..bytes).map(|_| random.random() as u8).collect(),
    }
}

/// A store, a table, and what it should hold.
struct Fixture {
    store: Arc<PageStore>,
    table: ValueTable,
    generation: u64,
    written: Vec<PageUse>,
    handles: BTreeMap<Vec<u8>, (Handle, Vec<u8>)>,
    next_birth: u64,
}

impl Fixture {
    fn new(medium: &SimDisk) -> Self {
        let store = store(medium);
        Fixture {
            table: ValueTable::empty(&store),
            store,
            generation: 1,
            written: Vec::new(),
            handles: BTreeMap::new(),
            next_birth: 1,
        }
    }

    fn commit(&mut self, edit: &TableEdit) -> Changes {
        let mut changes = Changes::default();
        let written = std::mem::take(&mut self.written);
        let edited = self
            .table
            .edited(edit, &written, SpaceClass::Normal, &mut changes);
        let table = edited.unwrap();
        self.generation += 1;
        self.store
            .commit(Generation(self.generation), changes.clone());
        self.table = table;
        self.table = ValueTable::open(&self.store, self.table.root().copied());
        changes
    }

    /// Separates the values of these keys into births.
    fn separate(&mut self, keys: std::ops::Range<u32>, compression: Compression) {
        let mut builder = builder(16 << 10, compression);
        let mut edit = TableEdit::default();
        for i in keys {
            let (key, value) = (key(i), value(i));
            let place = builder.add(self.next_birth, &key, &value);
            let handle = Handle {
                birth: self.next_birth,
                place,
                value_bytes: value.len() as u32,
            };
            self.handles.insert(key, (handle, value));
            if builder.is_full() {
                self.write(&mut builder, &mut edit);
                self.next_birth += 1;
            }
        }
        self.write(&mut builder, &mut edit);
        self.next_birth += 1;
        self.commit(&edit);
    }

    fn write(&mut self, builder: &mut PageBuilder, edit: &mut TableEdit) {
        if let Some(pending) = builder.finish() {
            let (page, parts) = pending.write(&self.store, SpaceClass::Normal).unwrap();
            self.written.push(page);
            parts.into_iter().for_each(|part| edit.put(part));
        }
    }

    fn check(&self) {
        for (key, (handle, value)) in &self.handles {
            assert_eq!(
                &self.table.get(*handle, key, ReadFor::Get).unwrap()[..],
                &value[..]
            );
        }
    }

    fn parts(&self) -> Vec<PartRef> {
        let mut parts = Vec::new();
        let mut take = |part: &PartRef| {
            parts.push(*part);
            Ok(())
        };
        self.table.parts(&mut take).unwrap();
        parts
    }

    fn image(&self, page: &PageUse) -> Vec<u8> {
        let read = |bytes: &[u8]| Ok(bytes.to_vec());
        self.store
            .read_piece(page, 0..page.bytes, ReadFor::Verify, read)
            .unwrap()
    }
}

#[test]
fn values_are_found_by_their_handles_compressed_or_not() {
    for compression in [Compression::None, Compression::Lz4] {
        let mut fixture = Fixture::new(&SimDisk::new(1));
        fixture.separate(0..100, compression);
        fixture.separate(100..130, compression);
        fixture.check();
        let parts = fixture.parts();
        assert!(parts.len() > 5);
        let root = fixture.table.root().unwrap();
        assert_eq!(root.parts, parts.len() as u64);
        assert_eq!(root.records, 130);
        assert_eq!(
            root.bytes,
            parts.iter().map(|part| u64::from(part.bytes)).sum::<u64>()
        );
        let mut bytes = Vec::new();
        root.encode(&mut bytes);
        let mut reader = terrapin_base::codec::Reader::new("test", &bytes);
        assert_eq!(TableRef::decode(&mut reader).unwrap(), *root);
        for part in &parts {
            let page = check_page(&fixture.image(&part.page), &mut |_, _| false).unwrap();
            assert_eq!(page.dead, 0);
            assert_eq!(page.footer.id, part.page.id);
        }
    }
}

/// Neighbours share reads, and a damaged value harms no neighbour.
#[test]
fn many_values_are_read_together_and_each_has_its_own_error() {
    let medium = SimDisk::new(9);
    let mut fixture = Fixture::new(&medium);
    fixture.separate(0..100, Compression::None);
    fixture.separate(100..400, Compression::Lz4);
    let handles = fixture.handles.iter();
    // Not in the order of places, some twice, one without a record.
    let mut wants: Vec<_> = handles
        .map(|(key, (handle, _))| (*handle, &key[..]))
        .collect();
    wants.reverse();
    wants.extend_from_within(50..60);
    let nowhere = Handle {
        birth: 1 << 40,
        ..wants[0].0
    };
    wants.push((nowhere, wants[0].1));
    let read = || {
        let mut found = vec![None; wants.len()];
        let before = fixture.store.metrics().read;
        fixture
            .table
            .get_many(&wants, ReadFor::Get, &mut |number, value| {
                let twice = found[number].replace(value.map_err(|error| error.kind()));
                assert!(twice.is_none());
            })
            .unwrap();
        let after = fixture.store.metrics().read;
        let values: Vec<_> = found.into_iter().map(Option::unwrap).collect();
        (values, after.get_reads - before.get_reads)
    };
    let (values, _) = read();
    for ((_, key), value) in wants.iter().zip(&values).take(410) {
        assert_eq!(value.as_deref().unwrap(), &fixture.handles[*key].1[..]);
    }
    assert_eq!(values[410], Err(ErrorKind::Corrupt));
    let (_, reads) = read();
    assert!(reads <= 20, "{reads} reads of 400 values");
    let part = &fixture.parts()[0];
    assert!(medium.corrupt("data", part.page.offset + 40, 1));
    let (values, _) = read();
    let wrong = values.iter().filter(|value| value.is_err()).count();
    assert_eq!(
        wrong, 2,
        "the first value of the page, and the one without a record"
    );
}

#[test]
fn a_handle_of_another_key_version_or_length_is_refused() {
    let mut fixture = Fixture::new(&SimDisk::new(2));
    fixture.separate(0..10, Compression::None);
    let (handle, _) = fixture.handles[&key(3)].clone();
    let wrong = [
        (handle, key(4)),
        (
            Handle {
                place: handle.place + 1,
                ..handle
            },
            key(3),
        ),
        (
            Handle {
                place: 400_000,
                ..handle
            },
            key(3),
        ),
        (
            Handle {
                birth: handle.birth + 7,
                ..handle
            },
            key(3),
        ),
        (
            Handle {
                value_bytes: handle.value_bytes + 1,
                ..handle
            },
            key(3),
        ),
        (fixture.handles[&key(5)].0, key(3)),
    ];
    for (handle, key) in wrong {
        let error = fixture.table.get(handle, &key, ReadFor::Get).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn moved_values_keep_their_handles_and_their_pages_go() {
    let mut fixture = Fixture::new(&SimDisk::new(3));
    fixture.separate(0..200, Compression::Lz4);
    let (_env, random) = Env::simulated(9);
    for turn in 0..4 {
        // Some values die; all pages are collected, several into one.
        let dead: Vec<_> = fixture
            .handles
            .keys()
            .filter(|_| random.below(3) == 0)
            .cloned()
            .collect();
        dead.iter()
            .for_each(|key| drop(fixture.handles.remove(key)));
        let live: std::collections::BTreeSet<_> = fixture
            .handles
            .values()
            .map(|(handle, _)| (handle.birth, handle.place))
            .collect();
        let mut is_dead = |birth, place| !live.contains(&(birth, place));
        let mut builder = builder(24 << 10, Compression::None);
        let mut edit = TableEdit::default();
        let before = fixture.parts();
        for part in &before {
            let directory = fixture.table.directory(part).unwrap();
            let entry = directory.part(part.birth).unwrap();
            let image = fixture.image(&part.page);
            let records = &image[..part.record_bytes as usize];
            if builder.is_full() {
                fixture.write(&mut builder, &mut edit);
            }
            if copy_live(records, entry, &mut is_dead, &mut builder).unwrap() == 0 {
                edit.remove(part.birth);
            }
        }
        fixture.write(&mut builder, &mut edit);
        fixture.commit(&edit);
        fixture.check();
        let after = fixture.parts();
        let pages = |parts: &[PartRef]| {
            parts
                .iter()
                .map(|part| part.page.id)
                .collect::<std::collections::BTreeSet<PageId>>()
        };
        assert!(pages(&after).is_disjoint(&pages(&before)), "turn {turn}");
        assert!(
            pages(&after).len() < after.len(),
            "pages have several parts"
        );
        let root = fixture.table.root().unwrap();
        assert_eq!(root.records, fixture.handles.len() as u64);
    }
    // Only the pages that the table names are live.
    let mut bytes = 0;
    let mut seen = std::collections::BTreeSet::new();
    let mut count = |page: PageUse| {
        if seen.insert(page.id) {
            bytes += page.extent().unwrap().bytes;
        }
        Ok(())
    };
    fixture.table.pages(&mut count).unwrap();
    assert_eq!(fixture.store.live_bytes(), bytes);
}

#[test]
fn an_edit_shares_unchanged_leaves() {
    let medium = SimDisk::new(4);
    let mut fixture = Fixture::new(&medium);
    let mut edit = TableEdit::default();
    for birth in 1..=6000 {
        let mut builder = builder(4096, Compression::None);
        builder.add(birth, b"k", b"v");
        fixture.write(&mut builder, &mut edit);
    }
    let changes = fixture.commit(&edit);
    assert!(fixture.table.root().unwrap().leaves >= 3);
    assert_eq!(
        changes.added.len() as u64,
        6000 + fixture.table.root().unwrap().leaves + 1
    );
    for birth in [1, 2, 3000, 5999, 6000] {
        assert_eq!(fixture.table.part(birth).unwrap().unwrap().birth, birth);
    }
    assert!(fixture.table.part(0).unwrap().is_none());
    assert!(fixture.table.part(6001).unwrap().is_none());
    let mut edit = TableEdit::default();
    edit.remove(2);
    let changes = fixture.commit(&edit);
    assert_eq!(changes.added.len(), 2, "one leaf and the root");
    assert_eq!(
        changes.released.len(),
        3,
        "the leaf, the root and the value page"
    );
    assert!(fixture.table.part(2).unwrap().is_none());
    let mut edit = TableEdit::default();
    edit.remove(2);
    let error = fixture
        .table
        .edited(&edit, &[], SpaceClass::Normal, &mut Changes::default())
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Internal);
    let mut edit = TableEdit::default();
    (1..=6000)
        .filter(|&birth| birth != 2)
        .for_each(|birth| edit.remove(birth));
    fixture.commit(&edit);
    assert!(fixture.table.root().is_none());
}

#[test]
fn damage_is_found_and_never_copied() {
    let mut fixture = Fixture::new(&SimDisk::new(5));
    fixture.separate(0..12, Compression::None);
    let part = fixture.parts()[0];
    let good = fixture.image(&part.page);
    let directory = fixture.table.directory(&part).unwrap();
    let entry = directory.part(part.birth).unwrap();
    let records = part.record_bytes as usize;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        // Only the zeros between records are not covered.
        let padding = check_page(&bad, &mut |_, _| false).is_ok();
        if padding {
            assert!(at < records && good[at] == 0, "byte {at}");
            continue;
        }
        if at < records {
            let mut builder = builder(1 << 20, Compression::None);
            let copied = copy_live(&bad[..records], entry, &mut |_, _| false, &mut builder);
            assert!(copied.is_err());
            assert!(builder.is_empty(), "nothing of a damaged part is copied");
        }
    }
    // Dead records may be holes.
    let (dead_place, position) = entry.records()[0];
    let mut holed = good.clone();
    holed[position as usize * PLACE_BYTES..][..PLACE_BYTES].fill(0);
    assert!(check_page(&holed, &mut |_, _| false).is_err());
    let page = check_page(&holed, &mut |_, place| place == dead_place).unwrap();
    assert_eq!(page.dead, 1);
}

#[test]
fn a_failed_edit_gives_its_pages_up() {
    let medium = SimDisk::new(6);
    let mut fixture = Fixture::new(&medium);
    fixture.separate(0..10, Compression::None);
    let live = fixture.store.live_bytes();
    let mut builder = builder(4096, Compression::None);
    builder.add(1000, b"key", b"value");
    let mut edit = TableEdit::default();
    fixture.write(&mut builder, &mut edit);
    edit.remove(999_999);
    let mut changes = Changes::default();
    let edited = fixture
        .table
        .edited(&edit, &fixture.written, SpaceClass::Normal, &mut changes);
    assert!(edited.is_err());
    fixture.store.abandon(changes);
    fixture.generation += 1;
    fixture
        .store
        .commit(Generation(fixture.generation), Changes::default());
    assert_eq!(fixture.store.live_bytes(), live);
    fixture.check();
}
