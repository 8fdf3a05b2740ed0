//! The plain structure as trials see it.

use terrapin_plain::{Plain, PlainParams};

use crate::trials::Kind;
use crate::trials::world::{any_key, pages};

pub const KIND: Kind = Kind {
    structure: |store, budget| Plain::new(store.clone(), PlainParams::new(budget.clone())),
    group_bytes: 4096,
    filter_bits: 0,
    merges_whole: true,
    stored: |key| key,
    key: any_key,
    // Several groups.
    is_grown: |world| pages(&*world.version).len() > 4,
    check: |world, own| {
        let groups = own.len().saturating_sub(1) as u64;
        assert_eq!(
            world.version.stats().unwrap().figure("groups"),
            Some(groups)
        );
    },
    fill_reads_max: 2,
    check_estimate: |world, all| {
        assert_eq!(all.records, world.oracle.len() as u64);
        assert_eq!(all.bytes, world.version.live_bytes().unwrap());
    },
    estimate_error_max: 60,
    reserve_messages: 50,
};
