//! The lazy-trie as trials see it.

use std::sync::Arc;

use terrapin_base::Budget;
use terrapin_base::checksum::hash64;
use terrapin_hashtrie::{Fanout, HashTrie, HashTrieParams};
use terrapin_pages::PageStore;
use terrapin_structure::Structure;

use crate::trials::Kind;
use crate::trials::world::Random;

/// The bits of a digit, and S as a power of two, of most tests: small, so that the trie is tall.
const SHAPE: (u8, u8) = (2, 12);

pub const KIND: Kind = Kind {
    structure: |store, budget| structure(store, budget, SHAPE),
    group_bytes: 2048,
    filter_bits: 12,
    merges_whole: false,
    stored,
    key: some_key,
    // Several leaves, of which some have several runs.
    is_grown: |world| world.figure("height") > 1 && world.buffered_records() > 20,
    check: |_, _| (),
    fill_reads_max: 12,
    check_estimate: |world, all| {
        let close = all.records.abs_diff(world.oracle.len() as u64);
        assert!(close < 200, "{all:?} instead of {}", world.oracle.len());
    },
    estimate_error_max: 120,
    // A slice whose leaves the reserve holds.
    reserve_messages: 8,
};

pub fn structure(
    store: &Arc<PageStore>,
    budget: &Arc<Budget>,
    shape: (u8, u8),
) -> Arc<dyn Structure> {
    let params = HashTrieParams {
        fanout: Fanout::new(shape.0).unwrap(),
        leaf_bytes_log2: Some(shape.1),
        ..HashTrieParams::new(budget.clone())
    };
    HashTrie::new(store.clone(), params)
}

/// The order key of a key.
pub fn stored(own: Vec<u8>) -> Vec<u8> {
    [&hash64(&own).to_be_bytes()[..5], &own].concat()
}

/// An order key. One in eight has a hash that many keys share.
fn some_key(random: &mut Random) -> Vec<u8> {
    let own = random.below(900).to_string().into_bytes();
    match own[0] % 8 {
        0 => [b"equal", &own[..]].concat(),
        _ => stored(own),
    }
}
