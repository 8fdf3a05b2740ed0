//! The store on a real file system, which must hold what the simulated disk promises.

mod common;

use std::sync::Arc;

use common::{added, checkpoint, options, pending, reclaim_all, released};
use terrapin_base::{Env, Incarnation};
use terrapin_disk::{Disk, RealDisk};
use terrapin_pages::group::check_group;
use terrapin_pages::{PAGES_START, PageStore, PageUse, SpaceClass};

#[test]
fn groups_survive_a_reopen_and_space_returns() {
    let path = std::env::temp_dir().join(format!("terrapin-pages-{}", std::process::id()));
    std::fs::remove_dir_all(&path).ok();
    let disk =
        || -> Arc<dyn Disk> { Arc::new(RealDisk::open(Env::threads(), &path, true).unwrap()) };
    let store = PageStore::create(&disk(), options(4 << 20, 1 << 20), 5).unwrap();
    store.begin_life(Incarnation(1));
    let groups: Vec<_> = (0..8)
        .map(|_| {
            store
                .write_group(pending(0, 10_000, 100, true), SpaceClass::Normal)
                .unwrap()
        })
        .collect();
    checkpoint(&store, added(&groups));
    drop(store);

    let (store, superblock) = PageStore::open(&disk(), options(4 << 20, 1 << 20), false).unwrap();
    let mut uses = groups.iter().map(|group| Ok(PageUse::from(group)));
    store.rebuild(&mut uses, superblock.generation).unwrap();
    store.begin_life(Incarnation(2));
    for group in &groups {
        let report = check_group(&store.read_whole_group(group).unwrap(), group).unwrap();
        assert_eq!(report.records, 10_000);
    }
    let full = store.allocated_bytes().unwrap();
    checkpoint(
        &store,
        released(groups.iter().skip(1).map(|group| group.id)),
    );
    store.begin_reclaim();
    reclaim_all(&store);
    let (kept, live) = (store.allocated_bytes().unwrap(), store.live_bytes());
    // A file system may refuse to punch holes, but it can always truncate the file.
    assert!(
        store.file_bytes() < full / 2,
        "{} bytes long",
        store.file_bytes()
    );
    assert!(
        kept <= live + (1 << 20) + PAGES_START + (1 << 20),
        "{kept} bytes for {live} live ones"
    );
    check_group(&store.read_whole_group(&groups[0]).unwrap(), &groups[0]).unwrap();
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
}
