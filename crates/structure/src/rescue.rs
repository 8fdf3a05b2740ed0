//! What a damaged version still holds.

use std::ops::Bound;

use terrapin_base::{Error, Message, Result};
use terrapin_pages::PageUse;

use crate::{Direction, Found, Ordered};

/// The receiver of what [`crate::Version::rescue`] finds.
pub trait Rescued {
    /// A message from a sound block. The messages of one key come oldest first. `is_certain` is
    /// false if a damaged place, newer than the message, may have had a message of the key.
    fn message(&mut self, key: &[u8], message: Message<'_>, is_certain: bool) -> Result<()>;
    /// A place is damaged that may have had messages of keys from `from` on, and below `to`. `None`
    /// is the end of all keys.
    fn lost(&mut self, from: &[u8], to: Option<&[u8]>, cause: &Error) -> Result<()>;
    /// A message of a key is there, and its value is lost. It is newer than all messages of the key
    /// that came before, so none of those is certain any more.
    fn lost_value(&mut self, key: &[u8], cause: &Error) -> Result<()>;
    /// A put of a large value, like a message. Its handle is there, and its page is known. The
    /// receiver reads the value, piece by piece, and finds out whether it is lost.
    fn large_value(
        &mut self,
        key: &[u8],
        (page, handle): (&PageUse, &[u8]),
        is_certain: bool,
    ) -> Result<()> {
        let _ = (page, handle, is_certain);
        Err(Error::internal("a large value in a structure without such")
            .with("key", key.escape_ascii()))
    }
}

/// What a version holds for a key.
type Get<'a> = &'a dyn Fn(&[u8]) -> Result<Found>;

/// Gives the records before the first damaged place and behind the last one.
pub(crate) fn rescue_by_scans(
    ordered: &dyn Ordered,
    get: Get<'_>,
    rescued: &mut dyn Rescued,
) -> Result<()> {
    let mut from = Vec::new();
    let forward = (&[][..], Direction::Forward);
    let Some(cause) = give((ordered, get), forward, rescued, &mut |key| {
        from.clear();
        from.extend_from_slice(key);
        // The key behind this one.
        from.push(0);
    })?
    else {
        return Ok(());
    };
    let mut to: Option<Vec<u8>> = None;
    let backward = (&from[..], Direction::Backward);
    let backward = give((ordered, get), backward, rescued, &mut |key| {
        to = Some(key.to_vec());
    })?;
    rescued.lost(&from, to.as_deref(), &backward.unwrap_or(cause))
}

/// Gives the records of a scan from a key on, up to the first damaged place. Returns the damage.
fn give(
    (ordered, get): (&dyn Ordered, Get<'_>),
    (from, direction): (&[u8], Direction),
    rescued: &mut dyn Rescued,
    passed: &mut dyn FnMut(&[u8]),
) -> Result<Option<Error>> {
    let bounds = (Bound::Included(from), Bound::Unbounded);
    let mut scan = match ordered.scan(bounds, direction) {
        Err(error) if error.is_of_data() => return Ok(Some(error)),
        scan => scan?,
    };
    loop {
        match scan.next() {
            Ok(Some((key, value))) => {
                // A scan shows only the key of what it does not resolve.
                match value.is_empty() {
                    true => give_found(key, get(key), rescued)?,
                    false => rescued.message(key, Message::Put(value), true)?,
                }
                passed(key);
            }
            Ok(None) => return Ok(None),
            Err(error) if error.is_of_data() => return Ok(Some(error)),
            Err(error) => return Err(error),
        }
    }
}

/// Gives what a version holds for a key, or says that it is lost.
fn give_found(key: &[u8], found: Result<Found>, rescued: &mut dyn Rescued) -> Result<()> {
    let found = match found {
        Ok(found) => found,
        Err(error) if error.is_of_data() => return rescued.lost_value(key, &error),
        Err(error) => return Err(error),
    };
    let message = match &found {
        Found::Nothing => return Ok(()),
        Found::Value(value) => Message::Put(value),
        Found::Handle(handle) => Message::Separated(handle),
        Found::Expiring(payload) => Message::Expiring(payload),
        Found::Operands(stack) => Message::Stack(stack),
    };
    rescued.message(key, message, true)
}
