//! Random runs of the store beside a model of its pages: no reachable page is overwritten (D1, D5).

mod common;

use std::collections::BTreeMap;

use common::{MIB, checkpoint, create, open, options, reclaim_all};
use proptest::prelude::*;
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind, PageId};
use terrapin_disk::SimDisk;
use terrapin_pages::{Changes, PAGES_START, PageKind, PageRef, PageStore, PageUse, SpaceClass};

fn extent_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(EXTENT_ALIGNMENT)
}

/// The operations of a random run.
#[derive(Clone, Debug)]
enum Act {
    Write { kib: u16, class: bool },
    Commit,
    Release(u8),
    Retain(u8),
    Abandon,
    Pin,
    Unpin(u8),
    Reclaim,
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1u16..200, any::<bool>()).prop_map(|(kib, class)| Act::Write { kib, class }),
        3 => Just(Act::Commit),
        6 => any::<u8>().prop_map(Act::Release),
        1 => any::<u8>().prop_map(Act::Retain),
        1 => Just(Act::Abandon),
        2 => Just(Act::Pin),
        2 => any::<u8>().prop_map(Act::Unpin),
        2 => Just(Act::Reclaim),
        1 => Just(Act::Reopen),
    ]
}

/// A page, its content's length, and the byte that fills it.
type Content = (PageRef, usize, u8);

/// The store beside a model that knows each page's content. No reachable page ever changes, no two
/// pages overlap, and every byte of the file is live, retired or free.
#[derive(Default)]
struct Model {
    /// Page, fill byte, references.
    live: BTreeMap<PageId, (PageRef, usize, u8, u32)>,
    fresh: Vec<Content>,
    changes: Changes,
    /// Pins with the pages that were live when they were taken.
    pins: Vec<(terrapin_pages::Pin, Vec<Content>)>,
}

impl Model {
    fn reachable(&self) -> Vec<Content> {
        let live = self
            .live
            .values()
            .map(|&(page, length, fill, _)| (page, length, fill));
        live.chain(self.fresh.iter().copied())
            .chain(self.pins.iter().flat_map(|(_, pages)| pages.clone()))
            .collect()
    }

    fn uses(&self) -> Vec<PageUse> {
        self.live
            .values()
            .flat_map(|(page, _, _, n)| vec![PageUse::from(page); *n as usize])
            .collect()
    }

    fn check(&self, store: &PageStore) {
        let mut places = BTreeMap::new();
        for (page, length, fill) in self.reachable() {
            let content = store.read_page(&page, PageKind::Node).unwrap();
            assert!(
                content.len() == length && content.iter().all(|&b| b == fill),
                "page {} changed",
                page.id
            );
            places.insert(page.offset, (page.id, extent_bytes(page.bytes.into())));
        }
        let list: Vec<_> = places.into_iter().collect();
        for pair in list.windows(2) {
            assert!(pair[0].0 + pair[0].1.1 <= pair[1].0, "{pair:?} overlap");
        }
        let used = store.live_bytes() + store.retired_bytes();
        assert_eq!(used + store.free_bytes() + PAGES_START, store.file_bytes());
        assert!(used >= list.iter().map(|page| page.1.1).sum());
    }
}

fn run(acts: Vec<Act>, capacity: u64, reserve: u64) {
    let medium = SimDisk::new(12);
    let mut store = create(&medium, options(2 * MIB, reserve));
    medium.set_capacity(capacity);
    let mut model = Model::default();
    let mut life = 1;
    for (step, act) in acts.into_iter().enumerate() {
        match act {
            Act::Write { kib, class } => {
                let class = if class {
                    SpaceClass::Normal
                } else {
                    SpaceClass::Reserve
                };
                let (length, fill) = (usize::from(kib) * 1000, step as u8);
                match store.write_page(PageKind::Node, &vec![fill; length], class) {
                    Ok(page) => {
                        model.changes.added.push(PageUse::from(&page));
                        model.fresh.push((page, length, fill));
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
                }
            }
            Act::Commit => {
                checkpoint(&store, std::mem::take(&mut model.changes));
                for (page, length, fill) in model.fresh.drain(..) {
                    model.live.insert(page.id, (page, length, fill, 1));
                }
                model.live.retain(|_, page| page.3 > 0);
            }
            Act::Release(which) | Act::Retain(which) if !model.live.is_empty() => {
                let at = usize::from(which) % model.live.len();
                let (&id, page) = model.live.iter_mut().nth(at).unwrap();
                // The model counts references as of the next commit. A page without references
                // stays readable until then.
                if page.3 == 0 {
                } else if matches!(act, Act::Release(_)) {
                    page.3 -= 1;
                    model.changes.released.push(id);
                } else {
                    page.3 += 1;
                    model.changes.retained.push(id);
                }
            }
            Act::Abandon => {
                let added = std::mem::take(&mut model.changes.added);
                store.abandon(Changes {
                    added,
                    ..Changes::default()
                });
                model.fresh.clear();
            }
            Act::Pin => {
                let pin = store.pin(store.superblock().generation);
                let pages = model
                    .live
                    .values()
                    .map(|&(page, length, fill, _)| (page, length, fill))
                    .collect();
                model.pins.push((pin, pages));
            }
            Act::Unpin(which) if !model.pins.is_empty() => {
                let at = usize::from(which) % model.pins.len();
                model.pins.swap_remove(at);
            }
            Act::Reclaim => {
                if step % 2 == 0 {
                    store.begin_reclaim();
                }
                reclaim_all(&store);
            }
            Act::Reopen => {
                // Uncommitted changes and pins are lost.
                for id in std::mem::take(&mut model.changes.released) {
                    model.live.get_mut(&id).unwrap().3 += 1;
                }
                for id in std::mem::take(&mut model.changes.retained) {
                    model.live.get_mut(&id).unwrap().3 -= 1;
                }
                model.changes = Changes::default();
                model.fresh.clear();
                model.pins.clear();
                drop(store);
                medium.crash_process();
                life += 1;
                store = open(&medium, options(2 * MIB, reserve), &model.uses(), life).0;
            }
            Act::Release(_) | Act::Retain(_) | Act::Unpin(_) => {}
        }
        model.check(&store);
    }
    // All pages are released, and all space is free.
    model.changes.released.extend(
        model
            .live
            .values()
            .flat_map(|(page, _, _, n)| vec![page.id; *n as usize]),
    );
    model
        .changes
        .released
        .extend(model.fresh.iter().map(|(page, _, _)| page.id));
    model.pins.clear();
    checkpoint(&store, model.changes);
    store.reclaim_step().unwrap();
    assert_eq!((store.live_bytes(), store.retired_bytes()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_reachable_page_is_overwritten(
        acts in prop::collection::vec(act(), 1..120), short in any::<bool>(), reserve in prop::option::of(1u64..64),
    ) {
        run(acts, if short { 3 * MIB } else { 1 << 36 }, reserve.map_or(0, |units| units * 8192));
    }
}
