//! The immutable content of a structure.

use std::any::Any;

use terrapin_base::checksum::hash64;
use terrapin_base::{Error, ErrorKind, Result};
use terrapin_pages::PageUse;

use crate::rescue::{Rescued, rescue_by_scans};
use crate::{Finding, Found, Ordered, Presence, StoredValues, StructureStats};

/// The immutable content of a keyspace at one checkpoint.
pub trait Version: Send + Sync + Any {
    /// The bytes that the catalog stores, from which [`crate::Structure::open`] opens this version
    /// again.
    fn root(&self) -> Vec<u8>;
    /// Returns what the version holds for a key. `hash` is `base::checksum::hash64(key)`.
    fn get(&self, key: &[u8], hash: u64) -> Result<Found>;
    /// Returns whether the key has a value. `hash` is `base::checksum::hash64(key)`. Reads no value
    /// that is stored elsewhere.
    fn contains(&self, key: &[u8], hash: u64) -> Result<Presence>;
    /// Looks up many keys with parallel device reads. `out[i]` receives what the version holds for
    /// `keys[i]`; all of `out` is [`Found::Nothing`] before.
    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Found]) -> Result<()>;
    /// Scans and estimates of ranges. `None` if the structure does not keep keys in order: its
    /// keyspaces refuse ranges before anything is logged.
    fn ordered(&self) -> Option<&dyn Ordered>;
    /// The values that the handles of this version's scans name. `None` if the version has no
    /// handles; only [`Version::get`] resolves them then.
    fn stored_values(&self) -> Option<&dyn StoredValues> {
        None
    }
    /// Calls `visit` for every page that this version refers to, once for each reference (D4). It
    /// reads nodes only.
    ///
    /// If a node cannot be read, the walk skips all that is below it and returns that error at the
    /// end. An error of `visit` ends the walk at once.
    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()>;
    /// Approximate key and value bytes that readers see. Tombstones and whatever newer messages
    /// hide do not count. Reads the root node at most.
    fn live_bytes(&self) -> Result<u64>;
    /// Approximate key and value bytes of all records and messages, with those that newer messages
    /// hide. Reads the root node at most.
    fn stored_bytes(&self) -> Result<u64> {
        self.live_bytes()
    }
    /// Figures of this version. Reads nodes only.
    fn stats(&self) -> Result<StructureStats>;
    /// Checks every byte and every invariant. Calls `found` for each fault and goes on. Returns an
    /// error only if the check itself cannot go on.
    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()>;
    /// Gives every message of sound blocks, and names what damaged places may have had.
    ///
    /// Without an implementation of its own, a structure gives the records before its first damaged
    /// place and behind its last one. Fails with `Unsupported` if it keeps no order either.
    fn rescue(&self, rescued: &mut dyn Rescued) -> Result<()> {
        match self.ordered() {
            Some(ordered) => {
                let get = |key: &[u8]| self.get(key, hash64(key));
                rescue_by_scans(ordered, &get, rescued)
            }
            None => {
                let message = "this structure does not salvage a damaged database";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
    /// Gives a structure access to its own type.
    fn as_any(&self) -> &dyn Any;
}
