//! A tree of which no node can be read, for tests.

use std::any::Any;
use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Result};
use terrapin_structure::{
    Direction, Estimate, Finding, Found, KeyBounds, Ordered, PageUse, Presence, Scan,
    StructureStats, Version,
};

use crate::engine::core::Core;
use crate::engine::state::{KeyspaceState, State};

/// The unreadable tree.
struct Unreadable;

fn unreadable<T>() -> Result<T> {
    Err(Error::corrupt("a node cannot be read"))
}

impl Version for Unreadable {
    fn root(&self) -> Vec<u8> {
        Vec::new()
    }

    fn get(&self, _: &[u8], _: u64) -> Result<Found> {
        unreadable()
    }

    fn contains(&self, _: &[u8], _: u64) -> Result<Presence> {
        unreadable()
    }

    fn multi_get(&self, _: &[(&[u8], u64)], _: &mut [Found]) -> Result<()> {
        unreadable()
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }

    fn pages(&self, _: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        unreadable()
    }

    fn live_bytes(&self) -> Result<u64> {
        unreadable()
    }

    fn stats(&self) -> Result<StructureStats> {
        unreadable()
    }

    fn verify(&self, _: &mut dyn FnMut(Finding)) -> Result<()> {
        unreadable()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Ordered for Unreadable {
    fn scan_expecting(&self, _: KeyBounds<'_>, _: Direction, _: usize) -> Result<Box<dyn Scan>> {
        unreadable()
    }

    fn estimate(&self, _: KeyBounds<'_>) -> Result<Estimate> {
        unreadable()
    }
}

/// Makes the tree of a keyspace unreadable from now on. The test may run no checkpoint afterwards.
pub(crate) fn make_unreadable(core: &Core, id: KeyspaceId) {
    let _install = core.install.lock();
    let current = core.state.load_full();
    let mut keyspaces = current.keyspaces.clone();
    let keyspace = keyspaces.get(id).expect("it is there");
    let unreadable = KeyspaceState {
        version: Arc::new(Unreadable),
        ..(**keyspace).clone()
    };
    keyspaces.insert(Arc::new(unreadable));
    core.replace_state(State {
        generation: current.generation,
        pin: current.pin.clone(),
        floor: current.floor,
        keyspaces,
    });
}
