//! [`Catalog`]: what a superblock leads to. It is a small copy-on-write tree of pages. It holds the
//! name, options, root and applied LSN of each keyspace, and an applied LSN of its own (D2). A
//! checkpoint rewrites only leaves whose content changed. The catalog's applied LSN also counts for
//! keyspaces without new records. Quiet keyspaces therefore neither change their leaf nor keep the
//! log long (D3).

pub(crate) mod format;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Lsn, Result, mutant};
use terrapin_pages::{
    Changes, DATA_FILE, Extent, PageKind, PageRef, PageStore, PageUse, SpaceClass,
};
use terrapin_structure::Version;

use format::{LEAF_KEYSPACES, LIVES_MAX, Life, RootPage, Stored, decode_leaf, encode_leaf};

use crate::engine::id_map::IdMap;
use crate::engine::state::State;

/// The LSN at which every log begins. A database without a catalog needs the log from here.
const LOG_START: Lsn = Lsn(4096);

/// A durable catalog.
#[derive(Clone, Default)]
pub(crate) struct Catalog {
    /// The last now that the catalog stores, in milliseconds since 1970; 0 if no record ever had a
    /// deadline.
    pub last_now_ms: u64,
    /// The most page groups that a keyspace ever needed in the reserve, as far as the catalog
    /// stores it.
    pub reserve_groups: u64,
    /// The root page. None before the first checkpoint.
    pub root: Option<PageRef>,
    /// The catalog holds changes of the set of keyspaces below this LSN.
    pub applied: Lsn,
    /// The log was synced below this LSN before a superblock named the catalog (D3). No tree holds
    /// a record at or above it. It never goes back.
    pub through: Lsn,
    /// The next keyspace's number.
    pub next_id: u32,
    /// The last lives that committed a catalog, ascending. For backups, which compare their pages
    /// with those of an older backup (decision 0032).
    lives: Vec<Life>,
    /// Leaf pages by number: a keyspace's number divided by [`LEAF_KEYSPACES`].
    leaves: IdMap<LeafPage>,
    /// The trees to which the catalog leads, by keyspace.
    trees: IdMap<Arc<dyn Version>>,
    /// Keyspaces with an applied LSN of their own, below which every record is in the tree. For all
    /// others, the catalog's applied LSN counts.
    applied_apart: BTreeMap<KeyspaceId, Lsn>,
}

#[derive(Clone)]
struct LeafPage {
    page: PageRef,
    content: Arc<[u8]>,
}

/// The result of a checkpoint for one keyspace.
pub(crate) struct Outcome {
    /// The tree after the checkpoint.
    pub version: Arc<dyn Version>,
    /// Every record below this LSN is in the tree.
    pub applied: Lsn,
    /// True if no memtable held a record of the keyspace below the seal. The catalog's applied LSN
    /// then counts.
    pub quiet: bool,
}

/// The input for the next catalog.
pub(crate) struct Following<'a> {
    /// The database as of the seal.
    pub frozen: &'a State,
    /// The next keyspace's number as of the seal.
    pub next_id: u32,
    /// Keyspaces whose entry may have changed: those created, dropped, cleared or reconfigured
    /// since the last catalog, and those with a record in a memtable of `frozen`. Any other
    /// keyspace without an applied LSN of its own is unchanged.
    pub changed: &'a BTreeSet<KeyspaceId>,
    /// The applied LSN for changes of the set of keyspaces, and for quiet keyspaces. It never goes
    /// back.
    pub applied: Lsn,
    /// The commit syncs the log through this LSN before a superblock names the catalog.
    pub through: Lsn,
    /// The life that writes the catalog.
    pub life: Life,
    /// The last now, in milliseconds since 1970; 0 if no record ever had a deadline.
    pub last_now_ms: u64,
    /// The most page groups that a keyspace ever needed in the reserve.
    pub reserve_groups: u64,
    /// The result of the checkpoint for each keyspace of `frozen`.
    pub outcome: &'a dyn Fn(KeyspaceId) -> Result<Outcome>,
    /// The class of space from which the catalog takes its pages.
    pub class: SpaceClass,
}

impl Catalog {
    /// Reads the catalog that a superblock names, and its entry for each keyspace. Opens no tree:
    /// the caller does so and calls [`Catalog::adopt`].
    pub fn read(store: &PageStore, root: Option<PageRef>) -> Result<(Catalog, Vec<Stored>)> {
        let Some(page) = root else {
            let fresh = Catalog {
                applied: LOG_START,
                through: LOG_START,
                next_id: 1,
                ..Catalog::default()
            };
            return Ok((fresh, Vec::new()));
        };
        let content = store.read_page(&page, PageKind::CatalogRoot)?;
        let decoded = RootPage::decode(&content).map_err(|e| e.with("page", page.id))?;
        let mut catalog = Catalog {
            root: Some(page),
            applied: decoded.applied,
            through: decoded.through,
            next_id: decoded.next_id,
            lives: decoded.lives,
            last_now_ms: decoded.last_now_ms,
            reserve_groups: decoded.reserve_groups,
            ..Catalog::default()
        };
        let mut keyspaces = Vec::new();
        for (number, page) in decoded.leaves {
            let content = store.read_page(&page, PageKind::CatalogLeaf)?;
            keyspaces
                .append(&mut decode_leaf(number, &content).map_err(|e| e.with("page", page.id))?);
            catalog.leaves.insert(
                number,
                LeafPage {
                    page,
                    content: content.into(),
                },
            );
        }
        let writer = catalog.lives.last().map(|life| life.incarnation);
        if writer != Some(page.id.incarnation()) {
            let error = Error::corrupt("the catalog's root does not list the life that wrote it");
            return Err(catalog.place(error, KeyspaceId::DEFAULT));
        }
        let mut names = std::collections::BTreeSet::new();
        for keyspace in &keyspaces {
            let is_ahead = keyspace.applied.is_some_and(|lsn| lsn > catalog.through);
            if keyspace.id.0 >= catalog.next_id || is_ahead || !names.insert(&keyspace.name) {
                let error = Error::corrupt("the catalog contradicts itself");
                return Err(catalog
                    .place(error, keyspace.id)
                    .with("keyspace", &keyspace.name));
            }
        }
        Ok((catalog, keyspaces))
    }

    /// Adds the page that holds a keyspace, or should hold it, to an error.
    pub fn place(&self, error: Error, id: KeyspaceId) -> Error {
        let leaf = self.leaves.get(id.0 / LEAF_KEYSPACES);
        let leaf = leaf.map(|leaf| &leaf.page);
        match leaf.or(self.root.as_ref()) {
            Some(page) => error.with("page", page.id).with("offset", page.offset),
            None => error,
        }
        .with("file", DATA_FILE)
    }

    /// Stores the opened tree of an entry.
    pub fn adopt(&mut self, stored: &Stored, version: Arc<dyn Version>) {
        self.trees.insert(stored.id.0, version);
        self.set_applied(stored.id, stored.applied);
    }

    fn set_applied(&mut self, id: KeyspaceId, apart: Option<Lsn>) {
        match apart {
            Some(applied) => drop(self.applied_apart.insert(id, applied)),
            None => drop(self.applied_apart.remove(&id)),
        }
    }

    /// The tree of a keyspace, if the catalog has an entry for it.
    pub fn tree(&self, id: KeyspaceId) -> Option<&Arc<dyn Version>> {
        self.trees.get(id.0)
    }

    /// The applied LSN of a keyspace: every record below it is in the tree.
    pub fn applied_of(&self, id: KeyspaceId) -> Option<Lsn> {
        self.tree(id)?;
        let apart = self.applied_apart.get(&id);
        Some(apart.copied().unwrap_or(self.applied))
    }

    /// The LSN below which every record is in durable trees. The log may be trimmed to it (D3).
    pub fn durable_through(&self) -> Lsn {
        if mutant::active("log-trimmed-to-catalog-lsn") {
            return self.applied;
        }
        let apart = self.applied_apart.values().copied();
        apart.fold(self.applied, Lsn::min)
    }

    /// The last lives that committed a catalog, ascending.
    pub fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// The catalog's own pages.
    pub fn pages(&self) -> impl Iterator<Item = PageUse> {
        self.root.iter().map(PageUse::from).chain(
            self.leaves
                .iter_from(0)
                .map(|(_, l)| PageUse::from(&l.page)),
        )
    }

    /// Every page to which the catalog and its trees refer, once for each reference (D4). In a
    /// damaged tree, the nodes that lead to some pages may be unreadable. Such pages are left out,
    /// and the first damaged tree is returned with its error.
    pub fn all_pages(
        &self,
        visit: &mut dyn FnMut(PageUse) -> Result<()>,
    ) -> Result<Option<(KeyspaceId, Error)>> {
        if !mutant::active("catalog-pages-free-after-open") {
            self.pages().try_for_each(&mut *visit)?;
        }
        let mut unread = None;
        for (id, tree) in self.trees.iter_from(0) {
            let mut is_refused = false;
            let walked = tree.pages(&mut |page| visit(page).inspect_err(|_| is_refused = true));
            match walked {
                Err(error) if is_refused || !error.is_of_data() => return Err(error),
                Err(error) => unread = unread.or(Some((KeyspaceId(id), error))),
                Ok(()) => {}
            }
        }
        Ok(unread)
    }

    /// Calls `visit` for each extent of value pages that no tree reads. Errors: those of reads.
    pub fn unread_extents(&self, visit: &mut dyn FnMut(Extent)) -> Result<()> {
        for (_, tree) in self.trees.iter_from(0) {
            if let Some(values) = tree.stored_values() {
                values.unread_extents(&mut *visit)?;
            }
        }
        Ok(())
    }

    /// Writes the next catalog: the leaves of keyspaces that changed, and a root. Adds the pages
    /// that it writes and frees to `changes`, including the trees of dropped or cleared keyspaces.
    /// If a node of such a tree is unreadable, its error is added to `unread`, and the pages below
    /// the node stay in use. The next open does not reach them, so they are free then (D4).
    ///
    /// O(64 · keyspaces that may have changed), plus the root, which has some twenty bytes per
    /// leaf.
    pub fn follow(
        &self,
        store: &PageStore,
        following: &Following<'_>,
        changes: &mut Changes,
        unread: &mut Vec<Error>,
    ) -> Result<Catalog> {
        let next_id = match mutant::active("keyspace-number-reused") {
            true => {
                let all = following.frozen.keyspaces.iter();
                all.map(|k| k.id.0 + 1).max().unwrap_or(1)
            }
            false => following.next_id,
        };
        let mut next = Catalog {
            applied: following.applied,
            through: self.through.max(following.through),
            next_id,
            last_now_ms: following.last_now_ms,
            reserve_groups: following.reserve_groups,
            ..self.clone()
        };
        next.note_life(following.life);
        let apart = self.applied_apart.keys();
        let numbers = apart.chain(following.changed);
        let numbers: BTreeSet<u32> = numbers.map(|id| id.0 / LEAF_KEYSPACES).collect();
        for number in numbers {
            next.follow_leaf(self, number, store, following, changes, unread)?;
        }
        let mut leaves = Vec::with_capacity(next.leaves.iter_from(0).count());
        let all = next.leaves.iter_from(0);
        leaves.extend(all.map(|(number, leaf)| (number, leaf.page)));
        let root = RootPage {
            applied: next.applied,
            through: next.through,
            next_id,
            lives: next.lives.clone(),
            last_now_ms: next.last_now_ms,
            reserve_groups: next.reserve_groups,
            leaves,
        };
        let root = store.write_page(PageKind::CatalogRoot, &root.encode(), following.class)?;
        changes.released.extend(self.root.map(|r| r.id));
        changes.added.push(PageUse::from(&root));
        next.root = Some(root);
        Ok(next)
    }

    /// Lists the life that commits this catalog, and drops the oldest life if there are too many.
    fn note_life(&mut self, life: Life) {
        if self.lives.last() != Some(&life) {
            self.lives.push(life);
        }
        let excess = self.lives.len().saturating_sub(LIVES_MAX);
        self.lives.drain(..excess);
    }

    /// Updates the keyspaces of one leaf from the entries in `last` to the next ones.
    fn follow_leaf(
        &mut self,
        last: &Catalog,
        number: u32,
        store: &PageStore,
        following: &Following<'_>,
        changes: &mut Changes,
        unread: &mut Vec<Error>,
    ) -> Result<()> {
        let first = KeyspaceId(number * LEAF_KEYSPACES);
        let is_here = |id: KeyspaceId| id.0 / LEAF_KEYSPACES == number;
        let mut stored = Vec::with_capacity(LEAF_KEYSPACES as usize);
        let mut kept = BTreeSet::new();
        let keyspaces = following.frozen.keyspaces.iter_from(first);
        for keyspace in keyspaces.take_while(|keyspace| is_here(keyspace.id)) {
            let id = keyspace.id;
            let outcome = (following.outcome)(id)?;
            // The tree grew out of the last catalog's tree. Its merge listed the pages that it
            // freed.
            if last
                .tree(id)
                .is_some_and(|last| Arc::ptr_eq(last, &keyspace.version))
            {
                kept.insert(id);
            }
            let applied = (!outcome.quiet).then_some(outcome.applied);
            stored.push(Stored {
                id,
                name: keyspace.shared.name.clone(),
                options: keyspace.options,
                applied,
                root: outcome.version.root(),
            });
            self.trees.insert(id.0, outcome.version);
            self.set_applied(id, applied);
        }
        let trees = last.trees.iter_from(first.0);
        let trees = trees.map(|(id, tree)| (KeyspaceId(id), tree));
        for (id, tree) in trees.take_while(|(id, _)| is_here(*id)) {
            if following.frozen.keyspaces.get(id).is_none() {
                self.trees.remove(id.0);
                self.set_applied(id, None);
            }
            if kept.contains(&id) {
                continue;
            }
            let walked = tree.pages(&mut |page| {
                changes.released.push(page.id);
                Ok(())
            });
            if let Err(error) = walked {
                let error = error.with("while", "freeing the pages of a dropped or cleared tree");
                unread.push(error.with("keyspace number", id));
            }
        }
        let content = encode_leaf(&stored);
        let before = last.leaves.get(number);
        if before.is_some_and(|before| *before.content == *content) {
            return Ok(());
        }
        changes.released.extend(before.map(|leaf| leaf.page.id));
        if stored.is_empty() {
            self.leaves.remove(number);
            return Ok(());
        }
        let page = store.write_page(PageKind::CatalogLeaf, &content, following.class)?;
        changes.added.push(PageUse::from(&page));
        let content = content.into();
        self.leaves.insert(number, LeafPage { page, content });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::sync::Mutex;
    use terrapin_base::{Env, ErrorKind};
    use terrapin_disk::SimDisk;

    use super::*;
    use crate::{CheckpointDistance, Database, Keyspace, Options, verify};

    /// The nodes of a keyspace's tree, the root first.
    fn nodes(keyspace: &Keyspace) -> Vec<PageUse> {
        let core = &keyspace.owner.core;
        let state = core.state.load_full();
        let version = &state.keyspaces.get(keyspace.id()).unwrap().version;
        let mut nodes = Vec::new();
        let collected = version.pages(&mut |page| {
            let node = PageRef {
                id: page.id,
                offset: page.offset,
                bytes: u32::try_from(page.bytes).unwrap(),
            };
            if core.store.read_page(&node, PageKind::Node).is_ok() {
                nodes.push(page);
            }
            Ok(())
        });
        collected.unwrap();
        nodes
    }

    /// The checkpoint that was to free such a tree used to fail. So did every later checkpoint, of
    /// all keyspaces, and every open.
    #[test]
    fn an_unreadable_node_of_a_dropped_tree_fails_no_checkpoint() {
        let options = Options::small()
            .fanout(4)
            .checkpoint_distance(CheckpointDistance::Fixed(4));
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        for (clears, root) in [(false, false), (false, true), (true, false), (true, true)] {
            let (env, sim) = Env::simulated(1);
            let disk = SimDisk::new(1);
            let database = options.open_on(env.clone(), disk.handle()).unwrap();
            let (goes, stays) = (
                database.keyspace("goes").unwrap(),
                database.keyspace("stays").unwrap(),
            );
            for number in 0..2000 {
                goes.put(key(number), [1; 60]).unwrap();
                stays.put(key(number), [2; 60]).unwrap();
            }
            database.checkpoint().unwrap();
            let heard = Arc::new(Mutex::new(Vec::new()));
            let hears = heard.clone();
            database.on_background_error(move |error| hears.lock().push(error.kind()));
            let nodes = nodes(&goes);
            assert!(nodes.len() > 8);
            let damaged = nodes[if root { 0 } else { nodes.len() / 2 }];
            database.core().store.empty_caches();
            assert!(disk.corrupt("data", damaged.offset + 50, 0x41));

            match clears {
                true => goes.clear().unwrap(),
                false => database.drop_keyspace("goes").unwrap(),
            }
            database.checkpoint().unwrap();
            assert_eq!(*heard.lock(), [ErrorKind::Corrupt]);
            let error = database.background_error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            for number in 1000..3000 {
                stays.put(key(number), [3; 60]).unwrap();
            }
            database.checkpoint().unwrap();
            assert!(database.background_error().is_none());
            assert_eq!(*heard.lock(), [ErrorKind::Corrupt], "it was told once");
            let leaked = database.metrics().data_live_bytes;
            database.close().unwrap();
            drop((goes, stays, database));
            sim.settle();

            let report = verify::verify_on(env.clone(), disk.handle(), &Default::default());
            assert!(report.unwrap().is_sound());
            let database = options.open_on(env, disk.handle()).unwrap();
            let live = database.metrics().data_live_bytes;
            assert!(
                live + damaged.bytes <= leaked,
                "{live} of {leaked} bytes are left"
            );
            let stays = database.open_keyspace("stays").unwrap();
            for number in 0..3000 {
                let value = if number < 1000 { [2; 60] } else { [3; 60] };
                let found = stays.get(key(number)).unwrap();
                assert_eq!(found.as_deref(), Some(&value[..]));
            }
            match clears {
                true => assert!(
                    database
                        .open_keyspace("goes")
                        .unwrap()
                        .iter()
                        .next()
                        .is_none()
                ),
                false => assert!(database.open_keyspace("goes").is_err()),
            }
            database.close().unwrap();
        }
    }

    /// Every open used to fail, read-only ones too. Users could not reach the sound keyspaces, nor
    /// drop the damaged one.
    #[test]
    fn an_unreadable_node_does_not_block_the_sound_keyspaces() {
        let options = Options::small()
            .fanout(4)
            .checkpoint_distance(CheckpointDistance::Fixed(4));
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        for root in [false, true] {
            let (env, sim) = Env::simulated(1);
            let disk = SimDisk::new(1);
            let open = |options: &Options| options.open_on(env.clone(), disk.handle()).unwrap();
            let close = |database: Database| {
                database.close().unwrap();
                drop(database);
                sim.settle();
            };
            let fill = |database: &Database, name: &str, value: u8| {
                let keyspace = database.keyspace(name).unwrap();
                for number in 0..2000 {
                    keyspace.put(key(number), [value; 60]).unwrap();
                }
                database.checkpoint().unwrap();
            };
            // The number of records of a keyspace that cannot be read. None of them may read as
            // missing.
            let unreadable = |database: &Database, name: &str, value: u8| {
                let keyspace = database.open_keyspace(name).unwrap();
                let all = (0..2000).map(|number| match keyspace.get(key(number)) {
                    Ok(found) => {
                        assert_eq!(found.as_deref(), Some(&[value; 60][..]));
                        0
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt);
                        assert!(error.to_string().contains("keyspace bad"), "{error}");
                        1
                    }
                });
                all.sum::<u64>()
            };
            let database = open(&options);
            fill(&database, "bad", 1);
            fill(&database, "good", 2);
            let nodes = nodes(&database.open_keyspace("bad").unwrap());
            assert!(nodes.len() > 8);
            let damaged = nodes[if root { 0 } else { nodes.len() / 2 }];
            close(database);
            let flip = || assert!(disk.corrupt("data", damaged.offset + 50, 0x41));
            flip();

            let report = verify::verify_on(env.clone(), disk.handle(), &Default::default());
            let report = report.unwrap();
            assert!(!report.stopped && report.keyspaces == 3);
            let places = report.findings.iter().map(|finding| &finding.place);
            assert!(places.clone().count() > 0);
            assert!(places.clone().all(|place| place.contains("bad")));
            let database = open(&options.clone().read_only(true));
            let error = database.background_error().unwrap().to_string();
            assert!(error.contains("keyspace bad"), "{error}");
            assert_eq!(unreadable(&database, "good", 2), 0);
            let lost = unreadable(&database, "bad", 1);
            assert!(lost > 0 && (lost == 2000) == root, "{lost}");
            close(database);

            let database = open(&options);
            for value in 3..6 {
                fill(&database, "good", value);
            }
            assert_eq!(unreadable(&database, "good", 5), 0);
            assert_eq!(unreadable(&database, "bad", 1), lost);
            assert!(database.background_error().is_some(), "it is there still");
            close(database);
            let bytes = || disk.content("data").unwrap().len();
            let before = bytes();
            for _ in 0..3 {
                close(open(&options));
            }
            // Each checkpoint has a catalog of its own, and no reserve.
            assert!(bytes() <= before + 3 * 8192, "{before} {}", bytes());

            // The space below that node was not reused meanwhile.
            flip();
            let database = open(&options);
            assert!(database.background_error().is_none());
            assert_eq!(unreadable(&database, "bad", 1), 0);
            assert_eq!(unreadable(&database, "good", 5), 0);
            close(database);

            flip();
            let database = open(&options);
            database.drop_keyspace("bad").unwrap();
            database.checkpoint().unwrap();
            close(database);
            let database = open(&options);
            assert!(database.background_error().is_none());
            assert_eq!(unreadable(&database, "good", 5), 0);
            close(database);
            let report = verify::verify_on(env.clone(), disk.handle(), &Default::default());
            assert!(report.unwrap().is_sound());
        }
    }
}
