//! What a merge asks and tells about values that are stored outside of the structure.

use std::fmt::Debug;
use std::sync::Arc;

use terrapin_base::{
    Fold, Message, Operator, Result, Slice, Stack, StackBase, handle_deadline_ms, mutant,
};
use terrapin_pages::{Extent, PageUse};

use crate::Found;

/// The values that a structure's handles name. A structure stores handles as they come, and tells
/// here which of them a merge ends.
pub trait Values: Send + Sync + Debug {
    /// The value of a handle of `key`: a merge applies operands to it.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if it cannot be found or is damaged; those of reads.
    fn value(&self, key: &[u8], handle: &[u8]) -> Result<Slice>;
    /// A merge ended the version of this handle, whatever ended it. Each version is reported once.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] for bytes that are no handle.
    fn dropped(&self, handle: &[u8]) -> Result<()>;
}

/// Where a version has a value, until the value's page is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePlace {
    /// The page.
    pub page: PageUse,
    /// Where the value's record begins in the page, in steps of 32 bytes.
    pub place: u32,
    /// Bytes of the record, or more.
    pub bytes: u32,
}

/// The values that the handles of a version name, for its readers.
pub trait StoredValues {
    /// The version's number: each version of a process has a larger one than those before.
    fn moment(&self) -> u64;
    /// What [`crate::Version::get`] returns, and where a value is that a handle names.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Version::get`].
    fn get_located(&self, key: &[u8], hash: u64) -> Result<(Found, Option<ValuePlace>)>;
    /// What the version holds for a key, with the handle in place of a value that is stored
    /// elsewhere. `hash` is that of the key.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Version::get`].
    fn get_unread(&self, key: &[u8], hash: u64) -> Result<Found>;
    /// The value at a place. `None` if the record there is another key's.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if no sound record is there; those of the read.
    fn read_at(&self, place: &ValuePlace, key: &[u8]) -> Result<Option<Slice>>;
    /// Calls `visit` for each whole extent of the data file that pages of values occupy and that no
    /// value of this version is in. Such an extent may be a hole. Reads what lists the values of
    /// these pages.
    ///
    /// # Errors
    ///
    /// Those of these reads.
    fn unread_extents(&self, visit: &mut dyn FnMut(Extent)) -> Result<()>;
    /// Length of the value of a handle, in bytes. Reads nothing.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] for bytes that are no handle.
    fn value_bytes(&self, handle: &[u8]) -> Result<usize>;
    /// Reads values with parallel device reads. `wants` names keys and their handles. `found` gets
    /// the number of each in `wants`, with its value or the error of reading it, in any order.
    /// Returns the number of reads: one fetches neighbours.
    ///
    /// # Errors
    ///
    /// Those that concern no single value. Some of `wants` were not found then.
    fn read(
        &self,
        wants: &[(&[u8], &[u8])],
        found: &mut dyn FnMut(usize, Result<Slice>),
    ) -> Result<u64>;
}

/// The owner of the values of handles, if there is one.
pub type ValuesOwner = Option<Arc<dyn Values>>;

/// Reports the handle of a message that a merge drops to its owner, if it has one.
///
/// # Errors
///
/// Those of [`Values::dropped`]; [`terrapin_base::ErrorKind::Corrupt`] for damaged operands.
pub fn report_dropped(owner: &ValuesOwner, message: Message<'_>) -> Result<()> {
    let Some(values) = owner else {
        return Ok(());
    };
    match message {
        Message::Separated(handle) => values.dropped(handle),
        Message::Stack(bytes) => match Stack::decode(bytes)?.base {
            StackBase::Handle(handle) => values.dropped(handle),
            _ => Ok(()),
        },
        Message::Put(_) | Message::Delete | Message::Merge(_) | Message::Expiring(_) => Ok(()),
    }
}

/// A message where nothing older exists: an expired value is a delete, and its handle is reported.
///
/// # Errors
///
/// Those of [`report_dropped`].
pub fn at_last_place<'a>(
    owner: &ValuesOwner,
    message: Message<'a>,
    now_ms: u64,
) -> Result<Message<'a>> {
    let last = message.at_last_place(now_ms);
    if last.is_delete() && !message.is_delete() {
        report_dropped(owner, message)?;
    }
    Ok(last)
}

/// Replaces the handle that gathered operands apply to by its value, and reports the handle.
/// Without a registered operator, the handle stays. So it does if the value cannot be read: the
/// read of the key then reports that. The handle of a value with a deadline stays until the
/// deadline, as operands stay over such a value. At the last place, an expired value is nothing:
/// `last` is the moment, in milliseconds since 1970.
fn read_base(
    owner: &ValuesOwner,
    operator: &Operator,
    key: &[u8],
    fold: &mut Fold,
    last: Option<u64>,
) -> Result<()> {
    let (Some(values), Some(handle)) = (owner, fold.handle()) else {
        return Ok(());
    };
    if let Some(deadline_ms) = handle_deadline_ms(handle) {
        let outlives = mutant::active("operands-outlive-a-large-base");
        if last.is_some_and(|now_ms| deadline_ms <= now_ms) && !outlives {
            values.dropped(handle)?;
            fold.end_base();
        }
    } else if operator.is_registered()
        && let Ok(value) = values.value(key, handle)
    {
        values.dropped(handle)?;
        fold.set_base(&value);
    }
    Ok(())
}

/// The message that does what gathered messages do ([`Fold::finish`]), after operands got the value
/// that they apply to. Reports the handle of a value that ends.
///
/// # Errors
///
/// Those of [`Values::dropped`].
pub fn finish_fold<'a>(
    owner: &ValuesOwner,
    operator: &Operator,
    key: &[u8],
    fold: &'a mut Fold,
    last: Option<u64>,
) -> Result<Message<'a>> {
    read_base(owner, operator, key, fold, last)?;
    let handle = fold.handle().map(<[u8]>::to_vec);
    let message = fold.finish(operator, key, last);
    if let (Some(values), Some(handle), Message::Stack(bytes)) = (owner, handle, message)
        && Stack::decode(bytes)?.base == StackBase::Lost
    {
        // There were too many operands.
        values.dropped(&handle)?;
    }
    Ok(message)
}
