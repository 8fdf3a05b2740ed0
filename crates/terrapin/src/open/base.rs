//! The database as of its last checkpoint: catalog, trees, free space.

use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Result, mutant};
use terrapin_pages::{PageStore, PageUse, Superblock};
use terrapin_structure::StructureId;

use crate::engine::structures::Structures;
use crate::keyspaces::catalog::Catalog;
use crate::keyspaces::catalog::format::Stored;
use crate::keyspaces::schema::DEFAULT_KEYSPACE;
use crate::open::files::Files;
use crate::open::page_uses::PageUses;
use crate::types::key_form::KeyHash;
use crate::types::options::KeyspaceOptions;
use crate::types::options::settings::Settings;

/// The database as of its last checkpoint.
pub(crate) struct Base {
    pub catalog: Catalog,
    pub stored: Vec<Stored>,
    pub structures: Structures,
    /// Why a tree was not fully read. If set, the space in use is not fully known.
    pub unread: Option<Error>,
}

impl Base {
    /// Reads the catalog and opens every root with its keyspace's structure. A damaged root is an
    /// error of reads of its keyspace only. Fails with `Unsupported` if a structure is not there.
    /// Without a catalog, the keyspace "default" has the structure `default_structure`.
    pub fn read(
        store: &Arc<PageStore>,
        superblock: &Superblock,
        structures: Structures,
        default_structure: StructureId,
    ) -> Result<Base> {
        let (catalog, stored) =
            Self::read_catalog(store, superblock, &structures, default_structure)?;
        Ok(Base {
            catalog,
            stored,
            structures,
            unread: None,
        })
    }

    /// What [`Base::read`] reads, with structures that exist already.
    pub fn read_catalog(
        store: &PageStore,
        superblock: &Superblock,
        structures: &Structures,
        default_structure: StructureId,
    ) -> Result<(Catalog, Vec<Stored>)> {
        let (mut catalog, mut stored) = Catalog::read(store, superblock.catalog)?;
        for keyspace in &stored {
            let number = match mutant::active("keyspace-opened-with-another-structure") {
                true => StructureId::LEVELED,
                false => keyspace.options.structure.id(),
            };
            let structure = structures.get(number);
            let opened = structure.and_then(|structure| structure.open(&keyspace.root));
            let version = opened.map_err(|e| {
                catalog
                    .place(e, keyspace.id)
                    .with("keyspace", &keyspace.name)
            })?;
            catalog.adopt(keyspace, version);
        }
        if superblock.catalog.is_none() {
            stored.push(Stored {
                id: KeyspaceId::DEFAULT,
                name: DEFAULT_KEYSPACE.into(),
                options: KeyspaceOptions::default()
                    .structure(default_structure)
                    .with_hash(|| KeyHash::of_default(superblock.database_id)),
                applied: None,
                root: Vec::new(),
            });
        }
        Ok((catalog, stored))
    }

    /// The most page groups that a keyspace ever needed in the reserve.
    pub(super) fn reserve_groups(&self) -> Result<u64> {
        let mut groups = self.catalog.reserve_groups;
        for stored in &self.stored {
            let structure = self.structures.get(stored.options.structure.id())?;
            groups = groups.max(structure.reserve_groups());
        }
        Ok(groups)
    }

    /// Finds the free space. A damaged tree must not block the others. Space that may belong to it
    /// stays in use until an open reads all trees.
    /// `logged` are the large pages that the log names.
    pub(super) fn find_space(
        &mut self,
        files: &Files,
        settings: &Settings,
        logged: &[PageUse],
    ) -> Result<()> {
        let Files {
            store, superblock, ..
        } = files;
        let base = self;
        let groups = base.reserve_groups()?;
        store.raise_reserve(settings.reserve_bytes(groups));
        let mut pages = PageUses::new(store);
        let unread = base.catalog.all_pages(&mut |page| pages.add(page))?;
        base.unread = unread.map(|(id, error)| {
            let stored = base.stored.iter().find(|stored| stored.id == id);
            error.with("keyspace", stored.map_or("", |stored| &*stored.name))
        });
        let uses = &mut pages.into_iter();
        let is_whole = base.unread.is_none();
        let rebuilt = store.rebuild_with(uses, logged, superblock.generation, is_whole);
        match rebuilt {
            // A read-only database needs no free space.
            Err(error) if settings.read_only && error.is_of_data() => {
                base.unread.get_or_insert(error);
            }
            rebuilt => rebuilt?,
        }
        Ok(())
    }
}
