//! [`Fold`]: the messages of one key, made into one.
//!
//! | newer ∘ older | put | delete | merge | nothing, at the last place |
//! | --- | --- | --- | --- | --- |
//! | put, delete | newer | newer | newer | newer |
//! | merge | put of the applied | put of the applied | the combined merge | put of the applied |
//!
//! Where the operator declines, fails or is missing, operands stay side by side in a
//! [`crate::Message::Stack`], with their base if it is known.
//!
//! A value with a deadline is a put until then and a delete from then on. Operands over it stay in
//! a stack, so that the deadline has the same effect whenever messages are merged: it ends the
//! value, and operands then apply to nothing.

use crate::{
    Error, Message, MessageKind, Operator, Outcome, Result, expiry, handle_deadline_ms, mutant,
};

use super::stack::{STACK_BYTES_MAX, Stack, StackBase};

/// What the oldest operand applies to. Bytes of a value are in [`Fold::base_bytes`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Base {
    #[default]
    Older,
    Nothing,
    Value,
    /// The bytes are the handle of a value that is stored elsewhere.
    Handle,
    /// The bytes are a deadline and a value.
    Expiring,
    Lost,
}

/// Gathers the messages of one key, newest first, and makes one message or value of them. Its
/// memory is used again.
///
/// ```
/// use terrapin_base::{Fold, Message, Operator};
/// let add = Operator::named("add-i64", &[]);
/// let mut fold = Fold::default();
/// assert!(!fold.push(Message::Merge(&2i64.to_le_bytes()))?);
/// assert!(!fold.push(Message::Merge(&3i64.to_le_bytes()))?);
/// assert!(fold.push(Message::Put(&7i64.to_le_bytes()))?, "nothing older counts");
/// assert_eq!(fold.finish(&add, b"key", None), Message::Put(&12i64.to_le_bytes()));
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Default)]
pub struct Fold {
    /// Operands, newest first. Combining makes the list shorter.
    operands: Vec<Operand>,
    /// The operands' bytes.
    bytes: Vec<u8>,
    base: Base,
    base_bytes: Vec<u8>,
    out: Vec<u8>,
    kind: MessageKind,
    /// Memory of combining: operands, oldest first, and their bytes in this order.
    done: (Vec<Operand>, Vec<u8>),
}

#[derive(Clone, Copy)]
struct Operand {
    /// Where the operand is in the bytes of its list.
    start: usize,
    len: usize,
    /// How many operands it is made of. `PARTED` if the operator declined to combine it with the
    /// next newer one.
    weight: usize,
}

impl Operand {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..][..self.len]
    }
}

const PARTED: usize = usize::MAX;

impl Fold {
    /// Forgets all messages, and keeps the memory.
    pub fn clear(&mut self) {
        self.operands.clear();
        self.bytes.clear();
        self.base = Base::Older;
        self.base_bytes.clear();
        self.out.clear();
    }

    fn push_operand(&mut self, operand: &[u8]) {
        self.operands.push(Operand {
            start: self.bytes.len(),
            len: operand.len(),
            weight: 1,
        });
        self.bytes.extend_from_slice(operand);
    }

    /// Adds the next older message. Returns whether nothing older counts.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Corrupt`] for a damaged stack.
    pub fn push(&mut self, message: Message<'_>) -> Result<bool> {
        match message {
            Message::Put(value) => {
                self.base = Base::Value;
                self.base_bytes.extend_from_slice(value);
            }
            Message::Delete => self.base = Base::Nothing,
            Message::Separated(handle) => {
                self.base = Base::Handle;
                self.base_bytes.extend_from_slice(handle);
            }
            Message::Expiring(payload) => {
                expiry::split(payload)?;
                self.base = Base::Expiring;
                self.base_bytes.extend_from_slice(payload);
            }
            Message::Merge(operand) => self.push_operand(operand),
            Message::Stack(bytes) => {
                let stack = Stack::decode(bytes)?;
                let first = self.operands.len();
                stack
                    .operands()
                    .for_each(|operand| self.push_operand(operand));
                self.operands[first..].reverse();
                match stack.base {
                    StackBase::Older => {}
                    StackBase::Nothing => self.base = Base::Nothing,
                    StackBase::Value(value) => {
                        self.base = Base::Value;
                        self.base_bytes.extend_from_slice(value);
                    }
                    StackBase::Handle(handle) => {
                        self.base = Base::Handle;
                        self.base_bytes.extend_from_slice(handle);
                    }
                    StackBase::Expiring(payload) => {
                        self.base = Base::Expiring;
                        self.base_bytes.extend_from_slice(payload);
                    }
                    StackBase::Lost => self.base = Base::Lost,
                }
            }
        }
        Ok(self.base != Base::Older)
    }

    /// The handle that operands apply to, if their base is a value that is stored elsewhere.
    #[must_use]
    pub fn handle(&self) -> Option<&[u8]> {
        (self.base == Base::Handle && !self.operands.is_empty()).then_some(&self.base_bytes)
    }

    /// The deadline of the value that operands apply to, in milliseconds since 1970, if it has one.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        match self.base {
            Base::Expiring => Some(expiry::split_or_expired(&self.base_bytes).0),
            Base::Handle => handle_deadline_ms(&self.base_bytes),
            Base::Older | Base::Nothing | Base::Value | Base::Lost => None,
        }
    }

    /// The value that operands apply to has expired: they apply to nothing.
    pub fn end_base(&mut self) {
        self.base = Base::Nothing;
        self.base_bytes.clear();
    }

    /// Replaces a base with a deadline by its value, or by nothing if it is expired.
    fn judge(&mut self, is_expired: bool) {
        match is_expired {
            true => self.end_base(),
            false => {
                self.base_bytes.drain(..expiry::DEADLINE_BYTES);
                self.base = Base::Value;
            }
        }
    }

    /// Replaces the handle that operands apply to by its value, and keeps its deadline.
    pub fn set_base(&mut self, value: &[u8]) {
        let deadline_ms = self.handle().and_then(handle_deadline_ms);
        self.base_bytes.clear();
        self.base = match deadline_ms {
            None => Base::Value,
            Some(deadline_ms) => {
                let deadline = expiry::deadline_bytes(deadline_ms);
                self.base_bytes.extend_from_slice(&deadline);
                Base::Expiring
            }
        };
        self.base_bytes.extend_from_slice(value);
    }

    /// Combines neighbours while the operator agrees. Operands of about equal weight are combined
    /// first, so that operands that grow are copied a few times only.
    fn combine(&mut self, operator: &Operator, key: &[u8]) {
        if self.operands.len() < 2 || !operator.is_registered() {
            return;
        }
        let (mut done, mut bytes) = std::mem::take(&mut self.done);
        done.clear();
        bytes.clear();
        // Oldest first: the list is newest first.
        while let Some(next) = self.operands.pop() {
            done.push(Operand {
                start: bytes.len(),
                ..next
            });
            bytes.extend_from_slice(next.of(&self.bytes));
            while let [.., older, newer] = done[..]
                && older.weight <= newer.weight
                && self.combine_last(&mut done, &mut bytes, (operator, key))
            {}
        }
        while let [.., older, _] = done[..]
            && older.weight != PARTED
            && self.combine_last(&mut done, &mut bytes, (operator, key))
        {}
        done.reverse();
        std::mem::swap(&mut self.operands, &mut done);
        std::mem::swap(&mut self.bytes, &mut bytes);
        self.done = (done, bytes);
    }

    /// Combines the last two operands, the older one first. Marks the older one if the operator
    /// declines.
    fn combine_last(
        &mut self,
        done: &mut Vec<Operand>,
        bytes: &mut Vec<u8>,
        (operator, key): (&Operator, &[u8]),
    ) -> bool {
        let [.., older, newer] = &mut done[..] else {
            return false;
        };
        let (first, second) = match mutant::active("operands-combine-newest-first") {
            true => (newer.of(bytes), older.of(bytes)),
            false => (older.of(bytes), newer.of(bytes)),
        };
        if !operator.combine(key, first, second, &mut self.out) {
            older.weight = PARTED;
            return false;
        }
        older.weight = older.weight.saturating_add(newer.weight).min(PARTED - 1);
        older.len = self.out.len();
        bytes.truncate(older.start);
        bytes.extend_from_slice(&self.out);
        done.pop();
        true
    }

    /// Applies operands to the base, oldest first, until one fails. What was applied is the new
    /// base.
    fn apply(&mut self, operator: &Operator, key: &[u8]) -> Result<()> {
        while let Some(oldest) = self.operands.last() {
            let existing = (self.base == Base::Value).then_some(&self.base_bytes[..]);
            let outcome = operator.apply(key, existing, oldest.of(&self.bytes), &mut self.out)?;
            std::mem::swap(&mut self.base_bytes, &mut self.out);
            self.base = match outcome {
                Outcome::Value => Base::Value,
                Outcome::Nothing => Base::Nothing,
            };
            self.operands.pop();
        }
        Ok(())
    }

    /// The message that does what all messages do. At the last place nothing older exists, and
    /// `last` is the moment, in milliseconds since 1970, by which deadlines count. The result stays
    /// until the fold is cleared.
    ///
    /// An operator that declines, fails, panics or is missing leaves its operands in a stack.
    pub fn finish(&mut self, operator: &Operator, key: &[u8], last: Option<u64>) -> Message<'_> {
        if self.base == Base::Older && last.is_some() {
            self.base = Base::Nothing;
        }
        if let (Some(now_ms), Some(deadline_ms)) = (last, self.deadline_ms())
            && self.base == Base::Expiring
            && deadline_ms <= now_ms
        {
            self.judge(true);
        }
        self.combine(operator, key);
        let is_known = matches!(self.base, Base::Nothing | Base::Value);
        // An error stays with the operands, and reads return it.
        let applied = is_known.then(|| self.apply(operator, key));
        if matches!(applied, Some(Err(_))) && mutant::active("failing-operands-are-dropped") {
            self.operands.clear();
        }
        self.out.clear();
        let (base, bytes) = match (self.base, &self.operands[..]) {
            (Base::Value, []) => return Message::Put(&self.base_bytes),
            (Base::Handle, []) => return Message::Separated(&self.base_bytes),
            (Base::Expiring, []) => return Message::Expiring(&self.base_bytes),
            (Base::Nothing, []) => return Message::Delete,
            (Base::Older, [operand]) => {
                self.out.extend_from_slice(operand.of(&self.bytes));
                self.kind = MessageKind::Merge;
                return Message::of(self.kind, &self.out);
            }
            (Base::Older, _) => (StackBase::Older, 0),
            (Base::Nothing, _) => (StackBase::Nothing, 0),
            (Base::Value, _) => (StackBase::Value(&self.base_bytes), self.base_bytes.len()),
            (Base::Handle, _) => (StackBase::Handle(&self.base_bytes), self.base_bytes.len()),
            (Base::Expiring, _) => (StackBase::Expiring(&self.base_bytes), self.base_bytes.len()),
            (Base::Lost, _) => (StackBase::Lost, 0),
        };
        // A length takes at most five bytes.
        let operands: usize = self.operands.iter().map(|o| o.len + 5).sum();
        self.kind = MessageKind::Stack;
        if base == StackBase::Lost || bytes + operands + 6 > STACK_BYTES_MAX {
            Stack::encode(StackBase::Lost, [], &mut self.out);
        } else {
            let oldest_first = self.operands.iter().rev();
            let oldest_first = oldest_first.map(|operand| operand.of(&self.bytes));
            Stack::encode(base, oldest_first, &mut self.out);
        }
        Message::of(self.kind, &self.out)
    }

    /// The user's value of all messages. If the oldest has no base, the key had no value before.
    /// `is_live` says whether a value with this deadline, in milliseconds since 1970, counts.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Operator`], with the operator's name and the key, if an operand does not
    /// apply.
    pub fn value(
        &mut self,
        operator: &Operator,
        key: &[u8],
        is_live: impl FnOnce(u64) -> bool,
    ) -> Result<Option<&[u8]>> {
        if let (Base::Expiring, Some(deadline_ms)) = (self.base, self.deadline_ms()) {
            self.judge(!is_live(deadline_ms));
        }
        match self.base {
            Base::Lost => return Err(operator.lost(key)),
            Base::Older => self.base = Base::Nothing,
            Base::Nothing | Base::Value | Base::Expiring => {}
            Base::Handle => return Err(Error::internal("operands over a handle")),
        }
        self.combine(operator, key);
        self.apply(operator, key)?;
        match self.base {
            Base::Value => Ok(Some(&self.base_bytes)),
            Base::Nothing => Ok(None),
            Base::Older | Base::Handle | Base::Expiring | Base::Lost => {
                Err(Error::internal("operands without a base"))
            }
        }
    }
}
