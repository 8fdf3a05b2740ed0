//! Where a salvage puts the records of one keyspace: the certain ones, and the others.

use std::io::{self, Read};

use terrapin_base::{
    Error, ErrorKind, Fold, Lsn, Message, Operator, Result, Stack, StackBase, handle_deadline_ms,
    mutant,
};
use terrapin_pages::{PageUse, ReadFor};
use terrapin_valuelog::Handle;
use terrapin_valuelog::large::{LargeReader, LargeValues, PIECE_BYTES};

use super::{DamagedRange, UNCERTAIN};
use crate::api::database::Database;
use crate::api::keyspace::Keyspace;
use crate::read::messages;
use crate::types::key_form::KeyForm;
use crate::types::options::KeyspaceOptions;

/// Where the records of one keyspace go.
pub(super) struct Sink {
    pub name: String,
    /// The form of the keys that it takes.
    form: KeyForm,
    pub certain: Option<Keyspace>,
    pub uncertain: Option<Keyspace>,
    /// The trees have the log's records below this LSN.
    pub from: Lsn,
}

/// A large value of the damaged database.
pub(super) struct Large<'a> {
    pub values: &'a LargeValues,
    pub page: &'a PageUse,
    pub handle: Handle,
    /// The checksum of the page's footer, if it is known.
    pub checksum: Option<u32>,
    pub deadline_ms: Option<u64>,
}

impl Large<'_> {
    fn open(&self, key: &[u8]) -> Result<LargeReader> {
        let purpose = ReadFor::Verify;
        let reader = self.values.open_in(self.page, self.handle, key, purpose)?;
        match self.checksum {
            Some(known) if known != reader.checksum() => {
                let error = Error::corrupt("another large value lies here");
                Err(error.with("page", self.page.id))
            }
            _ => Ok(reader),
        }
    }
}

/// The error of a value that is damaged or that the device cannot read. Other errors are returned.
fn lost<T>(read: Result<T>) -> Result<Result<T, Error>> {
    match read {
        Err(error) if error.is_of_data() || mutant::active("salvage-takes-errors-for-loss") => {
            Ok(Err(error))
        }
        read => read.map(Ok),
    }
}

impl Sink {
    pub(super) fn new(
        database: Option<&Database>,
        name: &str,
        options: KeyspaceOptions,
    ) -> Result<Sink> {
        let open = |database: &Database, name: &str| -> Result<Keyspace> {
            match database.create_keyspace(name, options) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => return created,
            }
            // The default keyspace, whose structure is given.
            let keyspace = database.open_keyspace(name)?;
            let own = keyspace.options()?.structure;
            keyspace.set_options(options.structure(own))?;
            Ok(keyspace)
        };
        let (mut certain, mut uncertain) = (None, None);
        if let Some(database) = database {
            certain = Some(open(database, name)?);
            uncertain = Some(open(database, &format!("{name}{UNCERTAIN}"))?);
        }
        Ok(Sink {
            name: name.to_owned(),
            form: options.key_form(),
            certain,
            uncertain,
            from: Lsn(0),
        })
    }

    pub(super) fn both(&self) -> impl Iterator<Item = &Keyspace> {
        self.certain.iter().chain(&self.uncertain)
    }

    /// Takes a message of a stored key that is newer than all before. It replaces what they left.
    /// Returns whether it is certain: operands are no more certain than what they apply to, which
    /// may be lost where `damaged` has their key.
    pub(super) fn take(
        &self,
        key: &[u8],
        message: Message<'_>,
        is_certain: bool,
        damaged: &[DamagedRange],
    ) -> Result<bool> {
        let is_certain = is_certain && self.has_base(key, message, damaged)?;
        self.put(key, message, is_certain)?;
        Ok(is_certain)
    }

    /// Takes a large value of a stored key that is newer than all before, like [`Sink::take`].
    /// Returns why it is lost, if it is: nothing has changed then.
    pub(super) fn take_large(
        &self,
        key: &[u8],
        large: &Large<'_>,
        is_certain: bool,
    ) -> Result<Option<Error>> {
        let reader = match lost(large.open(key))? {
            Ok(reader) => reader,
            Err(error) => return Ok(Some(error)),
        };
        let length = reader.length();
        let mut into = None;
        if let Some((own, other)) = self.sides(counts_as_certain(is_certain)) {
            let key = self.form.given(key);
            let durability = own.core().settings.durability;
            into = Some((own.writer_with(key, length, durability)?, other, key));
        }
        let mut piece = Vec::new();
        let mut at = 0;
        while at < length {
            let end = length.min(at + PIECE_BYTES);
            piece.clear();
            let read = reader.read(at..end, &mut |bytes| piece.extend_from_slice(bytes));
            if let Err(error) = lost(read)? {
                return Ok(Some(error));
            }
            if let Some((writer, ..)) = &mut into {
                writer.append(&piece)?;
            }
            at = end;
        }
        if let Some((writer, other, key)) = into {
            writer.finish_until(large.deadline_ms)?;
            if has(other, key)? {
                other.delete(key)?;
            }
        }
        Ok(None)
    }

    /// The keyspace that takes a record, and the other one.
    fn sides(&self, is_certain: bool) -> Option<(&Keyspace, &Keyspace)> {
        let (certain, uncertain) = (self.certain.as_ref()?, self.uncertain.as_ref()?);
        match is_certain {
            true => Some((certain, uncertain)),
            false => Some((uncertain, certain)),
        }
    }

    /// Whether it is certain what operands apply to.
    fn has_base(&self, key: &[u8], message: Message<'_>, damaged: &[DamagedRange]) -> Result<bool> {
        let covers = |range: &DamagedRange| {
            let is_below = range.to.as_ref().is_none_or(|to| key < &to[..]);
            range.keyspace == self.name && range.from[..] <= *key && is_below
        };
        let needs_older = base_of(message)? == Some(StackBase::Older);
        if !needs_older || !damaged.iter().any(covers) {
            return Ok(true);
        }
        match &self.certain {
            Some(certain) => has(certain, self.form.given(key)),
            None => Ok(false),
        }
    }

    /// The newest message of a stored key is lost, so what the older ones left is uncertain.
    pub(super) fn doubt(&self, key: &[u8]) -> Result<()> {
        let (Some(certain), Some(uncertain)) = (&self.certain, &self.uncertain) else {
            return Ok(());
        };
        if mutant::active("salvage-trusts-older-values") {
            return Ok(());
        }
        move_as_is(certain, uncertain, self.form.given(key))
    }

    fn put(&self, key: &[u8], message: Message<'_>, is_certain: bool) -> Result<()> {
        // The value that such operands apply to is not at hand.
        let has_base = base_of(message)?.is_none_or(|base| !is_handle(base));
        let is_certain = counts_as_certain(is_certain) && has_base;
        let Some((own, other)) = self.sides(is_certain) else {
            return Ok(());
        };
        let key = self.form.given(key);
        match message {
            Message::Merge(operand) => {
                return Self::merge((own, other), is_certain, key, std::iter::once(operand));
            }
            Message::Stack(bytes) => {
                let stack = Stack::decode(bytes)?;
                if stack.base == StackBase::Older {
                    return Self::merge((own, other), is_certain, key, stack.operands());
                }
                write_stack(own, key, &stack)?;
            }
            Message::Put(_) | Message::Expiring(_) => write_as_is(own, key, message)?,
            Message::Delete => own.delete(key)?,
            Message::Separated(_) => return Err(Error::internal("a handle outside of a tree")),
        }
        if has(other, key)? {
            other.delete(key)?;
        }
        Ok(())
    }

    /// Takes operands. They go where what they apply to is, unless they are less certain than that.
    fn merge<'a>(
        (own, other): (&Keyspace, &Keyspace),
        is_certain: bool,
        key: &[u8],
        operands: impl Iterator<Item = &'a [u8]>,
    ) -> Result<()> {
        let mut to = own;
        if has(other, key)? {
            match is_certain {
                true => to = other,
                false => move_as_is(other, own, key)?,
            }
        }
        for operand in operands {
            write_operand(to, key, operand)?;
        }
        Ok(())
    }
}

/// Whether a record goes to the certain ones.
fn counts_as_certain(is_certain: bool) -> bool {
    is_certain || mutant::active("salvage-ignores-newer-damage")
}

/// Whether a keyspace has a record of a key, also if nobody registered its merge operator.
fn has(keyspace: &Keyspace, key: &[u8]) -> Result<bool> {
    match keyspace.contains(key) {
        Err(error) if error.kind() == ErrorKind::Operator => Ok(true),
        found => found,
    }
}

/// Moves the record of a user's key, with its deadline and its operands.
fn move_as_is(from: &Keyspace, to: &Keyspace, key: &[u8]) -> Result<()> {
    let (mut fold, mut buffer) = (Fold::default(), None);
    let stored = from.shared.form.stored(key, &mut buffer);
    from.observed(|keyspace, at| messages(keyspace, at, stored, &mut fold))?;
    match fold.finish(&Operator::default(), stored, Some(0)) {
        Message::Delete => return Ok(()),
        Message::Separated(handle) => {
            // It may have expired.
            if let Some(mut reader) = from.reader(key)? {
                let durability = to.core().settings.durability;
                let mut writer = to.writer_with(key, reader.len(), durability)?;
                let mut piece = vec![0; reader.len().min(PIECE_BYTES) as usize];
                while writer.missing() > 0 {
                    let count = reader.read(&mut piece).map_err(unwrapped)?;
                    writer.append(&piece[..count])?;
                }
                writer.finish_until(handle_deadline_ms(handle))?;
            }
        }
        Message::Stack(bytes) => write_stack(to, key, &Stack::decode(bytes)?)?,
        message => write_as_is(to, key, message)?,
    }
    from.delete(key)
}

/// The error of a reader of a value.
fn unwrapped(error: io::Error) -> Error {
    error
        .downcast()
        .unwrap_or_else(|error| Error::io("cannot read a value", error))
}

/// Writes operands and what they apply to, which is not older than they are.
fn write_stack(keyspace: &Keyspace, key: &[u8], stack: &Stack<'_>) -> Result<()> {
    match stack.base {
        StackBase::Value(value) => write_as_is(keyspace, key, Message::Put(value))?,
        StackBase::Expiring(payload) => write_as_is(keyspace, key, Message::Expiring(payload))?,
        StackBase::Older | StackBase::Nothing | StackBase::Handle(_) | StackBase::Lost => {
            keyspace.delete(key)?;
        }
    }
    for operand in stack.operands() {
        write_operand(keyspace, key, operand)?;
    }
    Ok(())
}

/// Writes an operand, which may be a combined one that users cannot write, also if nobody
/// registered the merge operator.
fn write_operand(keyspace: &Keyspace, key: &[u8], operand: &[u8]) -> Result<()> {
    write_as_is(keyspace, key, Message::Merge(operand))
}

/// Writes a message of a user's key that another database held. A value keeps its deadline, or has
/// none, whatever the keyspace's time to live.
fn write_as_is(keyspace: &Keyspace, key: &[u8], message: Message<'_>) -> Result<()> {
    let core = keyspace.core();
    if message.deadline_ms().is_some() {
        core.clock.begin(&core.env);
    }
    let mut buffer = None;
    let key = keyspace.shared.form.written(key, &mut buffer)?;
    core.write_one(&keyspace.shared, key, message, core.settings.durability)
}

/// What the operands of a message apply to, if it has some.
fn base_of(message: Message<'_>) -> Result<Option<StackBase<'_>>> {
    match message {
        Message::Put(_) | Message::Delete | Message::Separated(_) | Message::Expiring(_) => {
            Ok(None)
        }
        Message::Merge(_) => Ok(Some(StackBase::Older)),
        Message::Stack(bytes) => Ok(Some(Stack::decode(bytes)?.base)),
    }
}

fn is_handle(base: StackBase<'_>) -> bool {
    matches!(base, StackBase::Handle(_))
}
