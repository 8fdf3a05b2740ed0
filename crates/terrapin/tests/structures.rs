//! Keyspaces of different structures in one database. The second structure is a double: the
//! TurtleTree without all that a structure may leave out. It keeps no order, compacts nothing and
//! writes no runs.

mod common;

use std::any::Any;
use std::sync::Arc;

use common::{World, all, key, tiny, value};
use terrapin::verify::{VerifyOptions, verify_on};
use terrapin::{
    Database, Error, ErrorKind, Keyspace, KeyspaceOptions, Options, StructureId, StructureParts,
};
use terrapin_base::Result;
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_disk::sim::CrashMode;
use terrapin_structure::{
    Compacts, Finding, Found, Merge, MergeInput, MergeOptions, MergeStep, Merged, Ordered, PageUse,
    Presence, Structure, StructureStats, Version,
};

const BARE: StructureId = StructureId(200);

/// A structure that does what every structure must do, and no more.
struct Bare(Arc<BeTree>);

struct BareVersion(Arc<dyn Version>);

struct BareMerge(Arc<dyn Merge>);

fn bare(parts: &StructureParts<'_>) -> Arc<dyn Structure> {
    let params = BeTreeParams {
        fanout: 4,
        ..BeTreeParams::new(parts.budget.clone())
    };
    Arc::new(Bare(BeTree::new(parts.store.clone(), params)))
}

impl Structure for Bare {
    fn id(&self) -> StructureId {
        BARE
    }

    fn empty(&self) -> Arc<dyn Version> {
        Arc::new(BareVersion(self.0.empty()))
    }

    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>> {
        Ok(Arc::new(BareVersion(self.0.open(root)?)))
    }

    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>> {
        let own = base.as_any().downcast_ref::<BareVersion>();
        let own = own.ok_or_else(|| Error::invalid("the version belongs to another structure"))?;
        Ok(Arc::new(BareMerge(
            self.0.begin_merge(&own.0, input, options)?,
        )))
    }

    fn compacts(&self) -> Option<&dyn Compacts> {
        None
    }

    fn merges_privately(&self) -> bool {
        false
    }

    fn adopts(&self, _: StructureId) -> bool {
        false
    }
}

impl Version for BareVersion {
    fn root(&self) -> Vec<u8> {
        self.0.root()
    }

    fn get(&self, key: &[u8], hash: u64) -> Result<Found> {
        self.0.get(key, hash)
    }

    fn contains(&self, key: &[u8], hash: u64) -> Result<Presence> {
        // The engine asks for the record of a key for which this is not known.
        match key.last().is_some_and(|byte| byte % 2 == 0) {
            true => Ok(Presence::Unresolved),
            false => self.0.contains(key, hash),
        }
    }

    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Found]) -> Result<()> {
        self.0.multi_get(keys, out)
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        None
    }

    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        self.0.pages(visit)
    }

    fn live_bytes(&self) -> Result<u64> {
        self.0.live_bytes()
    }

    fn stats(&self) -> Result<StructureStats> {
        let mut stats = self.0.stats()?;
        stats.named.clear();
        Ok(stats)
    }

    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()> {
        self.0.verify(found)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Merge for BareMerge {
    fn step(&self) -> Result<MergeStep> {
        self.0.step()
    }

    fn progress(&self) -> (u64, u64) {
        self.0.progress()
    }

    fn finish(&self) -> Result<Merged> {
        let merged = self.0.finish()?;
        Ok(Merged {
            version: Arc::new(BareVersion(merged.version)),
            changes: merged.changes,
        })
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}

fn with_bare() -> Options {
    tiny().structure_for_tests(bare)
}

fn create(database: &Database, name: &str) -> Keyspace {
    let options = KeyspaceOptions::new().structure(BARE);
    database.create_keyspace(name, options).unwrap()
}

/// Numbers below `count` whose record is there: all but every seventh.
fn check(keyspace: &Keyspace, count: u64, bytes: usize) {
    let keys: Vec<_> = (0..count).map(key).collect();
    let many = keyspace.multi_get(&keys).unwrap();
    for (number, (key, together)) in (0..).zip(keys.iter().zip(many)) {
        let wanted = (number % 7 != 3).then(|| value(number, bytes));
        assert_eq!(keyspace.get(key).unwrap().as_deref(), wanted.as_deref());
        assert_eq!(together.as_deref(), wanted.as_deref());
        assert_eq!(keyspace.contains(key).unwrap(), wanted.is_some());
    }
}

fn fill(keyspace: &Keyspace, count: u64, bytes: usize) {
    for number in 0..count {
        keyspace.put(key(number), value(number, bytes)).unwrap();
    }
    for number in (0..count).filter(|number| number % 7 == 3) {
        keyspace.delete(key(number)).unwrap();
    }
}

#[test]
fn keyspaces_of_two_structures_live_side_by_side_and_survive() {
    for power in [false, true] {
        let world = World::new(7);
        let options = with_bare();
        let database = world.open(&options);
        let (own, other) = (
            create(&database, "own"),
            database.keyspace("other").unwrap(),
        );
        fill(&own, 1500, 60);
        fill(&other, 1500, 40);
        check(&own, 1500, 60);
        database.checkpoint().unwrap();
        check(&own, 1500, 60);
        assert_eq!(all(&other).len() as u64, 1500 - 1500_u64.div_ceil(7) + 1);

        // A held view reads runs in the place of the memtables that are merged meanwhile.
        own.put(key(3), "of the view").unwrap();
        let snapshot = database.snapshot().unwrap();
        own.delete(key(3)).unwrap();
        for round in 0..3 {
            fill(&own, 900, 60);
            fill(&other, 900, 40);
            database.checkpoint().unwrap();
            world.sim.advance_ns(2_000_000_000);
            world.sim.settle();
            let seen = snapshot.get(&own, key(3)).unwrap();
            assert_eq!(seen.as_deref(), Some(&b"of the view"[..]), "{round}");
            assert!(!snapshot.contains(&own, key(10)).unwrap());
            let many = snapshot.multi_get(&own, &[key(3), key(10)]).unwrap();
            assert!(many[0].is_some() && many[1].is_none());
        }
        assert!(database.metrics().folds > 0, "the view reads no run");
        drop(snapshot);
        database.flush().unwrap();
        drop((own, other));
        match power {
            false => world.kill(database),
            true => world.cut_power(database, CrashMode::LoseUnsynced),
        }

        let database = world.open(&options);
        let (own, other) = (
            database.open_keyspace("own").unwrap(),
            database.open_keyspace("other").unwrap(),
        );
        check(&own, 1500, 60);
        check(&other, 1500, 40);
        let listed = database.keyspaces().unwrap();
        let structures: Vec<_> = listed.iter().map(|k| k.structure).collect();
        assert_eq!(structures, ["leveled", "unknown", "leveled"]);
        assert_eq!(listed[1].options.structure, BARE.into());

        // Options of the keyspace leave its structure alone, and a clear keeps it.
        own.set_checkpoint_distance(terrapin::CheckpointDistance::Fixed(2))
            .unwrap();
        own.clear().unwrap();
        assert_eq!(own.get(key(1)).unwrap(), None);
        fill(&own, 300, 60);
        database.checkpoint().unwrap();
        database.close().unwrap();
        drop((own, other, database));
        world.sim.settle();
        let checked = VerifyOptions::new().structure_for_tests(bare);
        let report = verify_on(world.env.clone(), world.disk.handle(), &checked).unwrap();
        assert!(report.is_sound(), "{:?}", report.findings);
        let database = world.open(&options.clone().read_only(true));
        check(&database.open_keyspace("own").unwrap(), 300, 60);
        database.close().unwrap();
    }
}

#[test]
fn what_needs_an_order_is_refused_by_name() {
    let world = World::new(8);
    let database = world.open(&with_bare());
    let keyspace = create(&database, "points");
    for merged in [false, true] {
        fill(&keyspace, 700, 50);
        if merged {
            database.checkpoint().unwrap();
        }
        let snapshot = database.snapshot().unwrap();
        let refused: [Error; 9] = [
            keyspace.iter().next().unwrap().unwrap_err(),
            keyspace.range(key(1)..).next_back().unwrap().unwrap_err(),
            keyspace.prefix("a").next_ref().unwrap_err(),
            keyspace.first().unwrap_err(),
            keyspace.last().unwrap_err(),
            keyspace.is_empty().unwrap_err(),
            keyspace.approximate(key(1)..).unwrap_err(),
            snapshot.iter(&keyspace).next().unwrap().unwrap_err(),
            snapshot.approximate(&keyspace, key(1)..).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            for part in ["keyspace points", "unknown (200)", "multi_get", "leveled"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        // All keys together need no order.
        let count = keyspace.approximate_count().unwrap();
        assert!((400..=1400).contains(&count), "{count}");
        let seen = snapshot.approximate_count(&keyspace).unwrap();
        assert!((400..=1400).contains(&seen), "{seen}");
        let stat = database.stat().unwrap();
        let figures = stat.keyspaces.iter().find(|k| k.name == "points").unwrap();
        assert!(figures.records > 0 && figures.tree.named.is_empty());
    }
    database.close().unwrap();
}

/// A range delete is refused before anything is logged, alone or in a batch.
#[test]
fn a_structure_without_order_refuses_range_deletes() {
    let world = World::new(11);
    let database = world.open(&with_bare());
    let keyspace = create(&database, "points");
    fill(&keyspace, 50, 50);
    let written = database.metrics().log_bytes_written;
    let mut batch = database.batch();
    batch.put(&database.default_keyspace(), "a", "1");
    batch.delete_prefix(&keyspace, "a");
    let refused = [
        keyspace.delete_range(key(1)..).unwrap_err(),
        keyspace.delete_prefix("").unwrap_err(),
        batch.error().unwrap().clone(),
        database.write(&batch).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains("clear") && text.contains("points"), "{text}");
    }
    assert_eq!(database.metrics().log_bytes_written, written);
    check(&keyspace, 50, 50);
    database.close().unwrap();
}

#[test]
fn jobs_pass_over_what_a_structure_does_not_do() {
    let world = World::new(9);
    // Room for everything: gets bring a warm-up about, and ranges a compaction.
    let database = world.open(&with_bare().memory(32 << 20));
    let (own, other) = (
        create(&database, "own"),
        database.keyspace("other").unwrap(),
    );
    fill(&own, 3000, 60);
    fill(&other, 3000, 60);
    database.checkpoint().unwrap();
    for round in 0..8 {
        for number in 0..3000 {
            let _ = own.get(key(number)).unwrap();
            let _ = other.get(key(number)).unwrap();
        }
        for number in 0..500 {
            let _ = other.range(key(number)..).limit(3).count();
        }
        world.sim.settle();
        assert!(database.background_error().is_none(), "{round}");
    }
    check(&own, 3000, 60);
    database.close().unwrap();
}

#[test]
fn an_open_without_a_keyspaces_structure_says_which_one_is_missing() {
    for merged in [false, true] {
        let world = World::new(10);
        let database = world.open(&with_bare());
        let keyspace = create(&database, "foreign");
        keyspace.put("a", "1").unwrap();
        drop(keyspace);
        if merged {
            database.checkpoint().unwrap();
        }
        world.kill(database);
        for options in [tiny(), tiny().read_only(true)] {
            let error = world.try_open(&options).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("foreign") && text.contains("unknown (200)"),
                "{text}"
            );
            world.sim.kill();
        }
        let error = verify_on(world.env.clone(), world.disk.handle(), &Default::default());
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
        // Nothing is lost.
        let database = world.open(&with_bare());
        let keyspace = database.open_keyspace("foreign").unwrap();
        assert_eq!(keyspace.get("a").unwrap().unwrap(), "1");
        // Nothing is created that a later open could not open.
        let options = KeyspaceOptions::new().structure(StructureId(9));
        let error = database.create_keyspace("later", options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("unknown (9)"), "{error}");
        assert!(database.open_keyspace("later").is_err());
        database.close().unwrap();
    }
}
