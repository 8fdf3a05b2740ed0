//! Transactions that begin again after a conflict.

use std::sync::Arc;

use terrapin_base::{Condition, Error, Message, Result, Share, Slice};

use crate::engine::core::Core;
use crate::engine::owner::Owner;
use crate::engine::state::KeyspaceShared;
use crate::engine::view::ViewHandle;
use crate::transaction::Tx;
use crate::transaction::range::TransactionRange;
use crate::types::condition::Conflict;
use crate::types::transaction::TransactionOptions;
use crate::write::conditional::ATTEMPTS_MAX;

/// Conflicts after which a transaction begins again at once.
const AT_ONCE: u32 = 3;
/// The first pause after them, and the longest one, in nanoseconds. Pauses double.
const PAUSE_NS: u64 = 20_000;
const PAUSE_NS_MAX: u64 = 10_000_000;

/// Makes attempts until one commits. Returns the error of an attempt that fails, and that of the
/// last conflict.
pub(crate) fn repeat<R>(
    core: &Core,
    attempts: u32,
    mut attempt: impl FnMut() -> Result<Result<R, Conflict>>,
) -> Result<R> {
    let mut done = 1;
    loop {
        let conflict = match attempt()? {
            Ok(result) => return Ok(result),
            Err(conflict) => conflict,
        };
        if done >= attempts {
            let error: Error = conflict.error();
            return Err(error.with("attempts", attempts));
        }
        // Now the next attempt sees what was in the way.
        core.log()?.wait_until_published();
        if let Some(doubled) = done.checked_sub(AT_ONCE + 1) {
            let longest = (PAUSE_NS << doubled.min(20)).min(PAUSE_NS_MAX);
            let pause = core.env.random() % longest;
            let until = core.env.now_ns() + pause;
            core.env.wait(&Condition::delay_until(until))?;
        }
        done += 1;
    }
}

/// Removes the first record of a keyspace, or the last one, and returns it.
pub(crate) fn pop(
    owner: &Arc<Share<Owner>>,
    shared: &KeyspaceShared,
    back: bool,
) -> Result<Option<(Slice, Slice)>> {
    let core = &owner.core;
    let options = TransactionOptions::default();
    repeat(core, ATTEMPTS_MAX, || {
        let view = || ViewHandle::of_keyspace(owner, shared.id);
        let mut tx = Tx::begin(core, &options, view)?;
        let mut range = TransactionRange::new(&tx, Ok(()), shared, &..).limit(1);
        let record = match back {
            true => range.next_back(),
            false => range.next(),
        };
        let Some(record) = record.transpose()? else {
            return Ok(Ok(None));
        };
        drop(range);
        tx.write(shared, &record.0, Message::Delete)?;
        Ok(tx.commit()?.map(|_| Some(record)))
    })
}
