//! The page-grouped tree as trials see it.

use std::sync::Arc;

use terrapin_base::Budget;
use terrapin_inplace::{InPlace, InPlaceParams};
use terrapin_pages::PageStore;
use terrapin_structure::Structure;

use crate::trials::Kind;
use crate::trials::world::any_key;

pub const KIND: Kind = Kind {
    structure,
    group_bytes: 4096,
    filter_bits: 12,
    merges_whole: false,
    stored: |key| key,
    key: any_key,
    // Several leaves, and records that wait.
    is_grown: |world| world.figure("map_leaves") > 3 && world.figure("waiting_groups") > 3,
    check: |_, _| (),
    fill_reads_max: 12,
    check_estimate: |world, all| assert!(all.records >= world.oracle.len() as u64),
    estimate_error_max: 120,
    reserve_messages: 50,
};

/// A tree with small nodes, so that its map is tall.
fn structure(store: &Arc<PageStore>, budget: &Arc<Budget>) -> Arc<dyn Structure> {
    let params = InPlaceParams {
        node_bytes: 600,
        ..InPlaceParams::new(budget.clone())
    };
    InPlace::new(store.clone(), params)
}
