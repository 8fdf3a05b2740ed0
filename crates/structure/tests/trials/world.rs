//! A structure on a simulated disk, with its expected content and page references.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Generation, Incarnation, Message, PageId, Purpose, Result};
use terrapin_disk::SimDisk;
use terrapin_pages::{Changes, DATA_FILE, PageStore, PageUse, StoreOptions};
use terrapin_structure::{
    Erased, Estimate, Finding, Found, Merge, MergeInput, MergeOptions, MergeStep, MessageCursor,
    Presence, Structure, Version,
};

use crate::kind::KIND;

/// `None` is a delete.
pub type Messages = BTreeMap<Vec<u8>, Option<Vec<u8>>>;
pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;

pub const CACHE_BYTES: u64 = 64 << 20;
const RESERVE_BYTES: u64 = 256 << 10;

/// The content of a memtable.
pub struct Input {
    pub messages: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Called before each move of a cursor.
    pub before_move: Box<dyn Fn() + Send + Sync>,
    /// The share of messages that replace a record.
    pub permille: u16,
}

/// The input, the next message, and the end.
struct InputCursor(Arc<Input>, usize, usize);

impl MessageCursor for InputCursor {
    fn key(&self) -> Option<&[u8]> {
        self.0.messages[..self.2]
            .get(self.1)
            .map(|message| &message.0[..])
    }

    fn message(&self) -> Message<'_> {
        let value = self.0.messages[self.1].1.as_deref();
        value.map_or(Message::Delete, Message::Put)
    }

    fn advance(&mut self) -> Result<()> {
        (self.0.before_move)();
        self.1 += 1;
        Ok(())
    }
}

impl MergeInput for Input {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        assert!(!KIND.merges_whole || (lo.is_none() && hi.is_none()));
        let place = |key: &[u8]| {
            self.messages
                .partition_point(|message| &message.0[..] < key)
        };
        let (from, to) = (lo.map_or(0, place), hi.map_or(self.messages.len(), place));
        Ok(Box::new(InputCursor(self, from, to.max(from))))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let is_inside = |message: &&(Vec<u8>, Option<Vec<u8>>)| {
            lo.is_none_or(|lo| &message.0[..] >= lo) && hi.is_none_or(|hi| &message.0[..] < hi)
        };
        let inside = || self.messages.iter().filter(is_inside);
        let bytes = |(key, value): &(Vec<u8>, Option<Vec<u8>>)| {
            (key.len() + value.as_ref().map_or(0, Vec::len)) as u64
        };
        Estimate {
            records: inside().count() as u64,
            bytes: inside().map(bytes).sum(),
        }
    }

    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        let each = (self.messages.len() / parts).max(1);
        let cuts = self.messages.iter().step_by(each).skip(1);
        cuts.map(|message| message.0[..].into()).collect()
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }

    fn replacing_permille(&self) -> u16 {
        self.permille
    }
}

pub fn input(messages: &Messages) -> Arc<Input> {
    Arc::new(Input {
        messages: messages.clone().into_iter().collect(),
        before_move: Box::new(|| {}),
        permille: 0,
    })
}

/// Short keys, some with a common prefix.
pub fn any_key(random: &mut Random) -> Vec<u8> {
    let prefix = [&b""[..], b"a", b"common/prefix/", b"\xff\xff"][random.below(4)];
    let mut key = prefix.to_vec();
    key.extend_from_slice(&random.below(600).to_string().into_bytes()[random.below(2)..]);
    key.truncate(16 + random.below(3));
    key
}

/// A small xorshift generator.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % bound
    }

    pub fn key(&mut self) -> Vec<u8> {
        (KIND.key)(self)
    }

    pub fn messages(&mut self, count: usize) -> Messages {
        let message = |random: &mut Self| {
            let bytes = match random.below(40) {
                0 => 900 + random.below(900),
                _ => random.below(60),
            };
            let value = vec![random.below(256) as u8; bytes];
            (random.key(), (random.below(4) > 0).then_some(value))
        };
        (0..count).map(|_| message(self)).collect()
    }
}

pub struct World {
    pub disk: SimDisk,
    pub budget: Arc<Budget>,
    pub store: Arc<PageStore>,
    pub structure: Arc<dyn Structure>,
    pub version: Arc<dyn Version>,
    pub options: MergeOptions,
    pub oracle: Records,
    /// What inputs say of their messages.
    pub permille: u16,
    references: BTreeMap<PageId, u64>,
    pub generation: u64,
}

pub fn store_options(budget: &Arc<Budget>) -> StoreOptions {
    StoreOptions {
        budget: budget.clone(),
        reserve_bytes: RESERVE_BYTES,
        system_cache: false,
    }
}

impl World {
    pub fn new() -> Self {
        Self::of(KIND.structure)
    }

    /// A world of a structure that `make` makes.
    pub fn of(make: impl FnOnce(&Arc<PageStore>, &Arc<Budget>) -> Arc<dyn Structure>) -> Self {
        let (disk, budget) = (SimDisk::new(1), Budget::new(CACHE_BYTES));
        let store = PageStore::create(&disk.handle(), store_options(&budget), 7).unwrap();
        store.begin_life(Incarnation(1));
        let structure = make(&store, &budget);
        World {
            version: structure.empty(),
            disk,
            budget,
            store,
            structure,
            options: MergeOptions {
                block_bytes: 512,
                space_amplification_percent: None,
                filter_bits: KIND.filter_bits,
                ..MergeOptions::new(KIND.group_bytes)
            },
            oracle: Records::new(),
            permille: 0,
            references: BTreeMap::new(),
            generation: 1,
        }
    }

    /// A world with some hundred records, grown until the structure is as its tests want it
    /// ([`super::Kind::is_grown`]).
    pub fn grown(seed: u64) -> Self {
        let mut world = World::new();
        let mut random = Random(seed);
        for _ in 0..3 {
            let messages = random.messages(300);
            world.merge(&messages);
        }
        for _ in 0..30 {
            if (KIND.is_grown)(&world) {
                return world;
            }
            let messages = random.messages(12);
            world.merge(&messages);
        }
        panic!("the structure does not grow");
    }

    pub fn figure(&self, name: &str) -> u64 {
        self.version.stats().unwrap().figure(name).unwrap()
    }

    /// Records that may have newer or older ones of their keys elsewhere.
    pub fn buffered_records(&self) -> u64 {
        self.version.stats().unwrap().buffered_records
    }

    pub fn begin(&self, messages: &Messages) -> Arc<dyn Merge> {
        let input = Arc::new(Input {
            permille: self.permille,
            ..Arc::into_inner(input(messages)).unwrap()
        });
        let begun = self
            .structure
            .begin_merge(&self.version, input, &self.options);
        begun.unwrap()
    }

    /// Merges messages without comparing the records: for figures of many records.
    pub fn merge_unchecked(&mut self, messages: &Messages) {
        let merge = self.begin(messages);
        while !matches!(merge.step().unwrap(), MergeStep::Done) {}
        let merged = merge.finish().unwrap();
        self.version = merged.version;
        self.generation += 1;
        self.store
            .commit(Generation(self.generation), merged.changes);
        while self.store.reclaim_step().unwrap() {}
    }

    pub fn merge(&mut self, messages: &Messages) {
        let merge = self.begin(messages);
        let mut before = (0, 0);
        loop {
            let step = merge.step().unwrap();
            let now = merge.progress();
            assert!(before.0 <= now.0 && before.1 <= now.1 && now.0 <= now.1);
            before = now;
            match step {
                MergeStep::Again => {}
                MergeStep::Pending(_) => panic!("one worker never waits"),
                MergeStep::Done => break,
            }
        }
        assert!(messages.is_empty() || before.0 == before.1, "{before:?}");
        self.take(messages, &*merge);
    }

    /// Takes the result of a merge that is done.
    pub fn take(&mut self, messages: &Messages, merge: &dyn Merge) {
        let merged = merge.finish().unwrap();
        assert!(merge.finish().is_err());
        merge.abandon();
        assert_eq!(self.budget.used(Purpose::Merge), 0);
        self.version = merged.version;
        self.count(&merged.changes);
        self.generation += 1;
        self.store
            .commit(Generation(self.generation), merged.changes);
        apply(&mut self.oracle, messages);
        self.check();
    }

    fn count(&mut self, changes: &Changes) {
        for page in &changes.added {
            assert!(self.references.insert(page.id, 1).is_none(), "added twice");
        }
        assert!(changes.retained.is_empty());
        for id in &changes.released {
            assert!(self.references.remove(id).is_some(), "released twice");
        }
    }

    /// Checks content, figures and page accounting.
    pub fn check(&self) {
        let own = pages(&*self.version);
        let walked: BTreeMap<PageId, u64> = own.iter().map(|page| (page.id, 1)).collect();
        assert_eq!(walked, self.references);
        let occupied = own.iter().map(|page| page.extent().unwrap().bytes).sum();
        assert_eq!(self.store.live_bytes(), occupied);
        let bytes: usize = self.oracle.iter().map(|(k, v)| k.len() + v.len()).sum();
        let stats = self.version.stats().unwrap();
        assert!(!KIND.merges_whole || stats.buffered_records == 0);
        if stats.buffered_records == 0 {
            assert_eq!(stats.leaf_records, self.oracle.len() as u64);
            assert_eq!(stats.leaf_bytes, bytes as u64);
            assert_eq!(self.version.live_bytes().unwrap(), bytes as u64);
        }
        assert_eq!(stats.page_bytes, own.iter().map(|page| page.bytes).sum());
        assert_eq!(stats.parts.total(), occupied);
        (KIND.check)(self, &own);
        assert_eq!(findings(&*self.version), [""; 0]);
        let opened = self.structure.open(&self.version.root()).unwrap();
        check_content(&*opened, &self.oracle);
    }

    /// Empties the cache.
    pub fn forget_cache(&self) {
        self.budget.set_limit(0);
        while self.store.shrink() {}
        self.budget.set_limit(CACHE_BYTES);
    }

    /// Changes a byte of the data file. A second call changes it back.
    pub fn damage(&self, offset: u64, mask: u8) {
        assert!(self.disk.corrupt(DATA_FILE, offset, mask));
    }
}

pub fn apply(records: &mut Records, messages: &Messages) {
    for (key, value) in messages {
        match value {
            Some(value) => records.insert(key.clone(), value.clone()),
            None => records.remove(key),
        };
    }
}

pub fn pages(version: &dyn Version) -> Vec<PageUse> {
    let mut pages = Vec::new();
    let mut visit = |page| {
        pages.push(page);
        Ok(())
    };
    version.pages(&mut visit).unwrap();
    pages
}

pub fn findings(version: &dyn Version) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |finding: Finding| found.push(finding.to_string());
    version.verify(&mut note).unwrap();
    found
}

/// Compares all records, and some keys that are missing, with all point reads and a scan.
pub fn check_content(version: &dyn Version, records: &Records) {
    let missing = records.keys().map(|key| [&key[..], b"\0"].concat());
    let missing: Vec<_> = missing.filter(|key| !records.contains_key(key)).collect();
    let keys: Vec<&[u8]> = records.keys().chain(&missing).map(|key| &key[..]).collect();
    let hashed: Vec<(&[u8], u64)> = keys.iter().map(|key| (*key, hash64(key))).collect();
    let mut many = vec![Found::Nothing; keys.len()];
    version.multi_get(&hashed, &mut many).unwrap();
    for ((key, hash), found) in hashed.into_iter().zip(many) {
        let (wanted, presence) = match records.get(key) {
            Some(value) => (Found::Value(value[..].into()), Presence::Present),
            None => (Found::Nothing, Presence::Absent),
        };
        assert_eq!(found, wanted);
        assert_eq!(version.get(key, hash).unwrap(), wanted);
        assert_eq!(version.contains(key, hash).unwrap(), presence);
    }
    let everything = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let ordered = version.ordered().unwrap();
    let mut scan = ordered
        .scan(everything, terrapin_structure::Direction::Forward)
        .unwrap();
    for (key, value) in records {
        assert_eq!(scan.next().unwrap(), Some((&key[..], &value[..])));
    }
    assert_eq!(scan.next().unwrap(), None);
}
