//! What a damaged version still holds.

use std::ops::Bound;

use terrapin_base::{Error, Message, Result};

use crate::{Direction, Ordered};

/// The receiver of what [`crate::Version::rescue`] finds.
pub trait Rescued {
    /// A message from a sound block. The messages of one key come oldest first. `is_certain` is
    /// false if a damaged place, newer than the message, may have had a message of the key.
    fn message(&mut self, key: &[u8], message: Message<'_>, is_certain: bool) -> Result<()>;
    /// A place is damaged that may have had messages of keys from `from` on, and below `to`. `None`
    /// is the end of all keys.
    fn lost(&mut self, from: &[u8], to: Option<&[u8]>, cause: &Error) -> Result<()>;
}

/// Gives the records before the first damaged place and behind the last one.
pub(crate) fn rescue_by_scans(ordered: &dyn Ordered, rescued: &mut dyn Rescued) -> Result<()> {
    let mut from = Vec::new();
    let Some(cause) = give(ordered, &[], Direction::Forward, rescued, &mut |key| {
        from.clear();
        from.extend_from_slice(key);
        // The key behind this one.
        from.push(0);
    })?
    else {
        return Ok(());
    };
    let mut to: Option<Vec<u8>> = None;
    let backward = give(ordered, &from, Direction::Backward, rescued, &mut |key| {
        to = Some(key.to_vec());
    })?;
    rescued.lost(&from, to.as_deref(), &backward.unwrap_or(cause))
}

/// Gives the records of a scan from a key on, up to the first damaged place. Returns the damage.
fn give(
    ordered: &dyn Ordered,
    from: &[u8],
    direction: Direction,
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
                rescued.message(key, Message::Put(value), true)?;
                passed(key);
            }
            Ok(None) => return Ok(None),
            Err(error) if error.is_of_data() => return Ok(Some(error)),
            Err(error) => return Err(error),
        }
    }
}
