//! [`Tx`]: a transaction. It reads a view and its own writes, which stay in memory until the commit
//! appends them as one record, if nothing that it depends on has changed ([`Unchanged`]). It holds
//! no lock, so a transaction that is forgotten delays nobody. Its view keeps pages.

pub mod range;
pub mod repeat;
pub mod writes;

use std::cell::RefCell;
use std::sync::Arc;

use terrapin_base::sync::{AtomicU64, Ordering};
use terrapin_base::{
    Charge, Error, ErrorKind, KeyspaceId, Lsn, Message, Purpose, Result, Slice, mutant,
};
use terrapin_pages::ReadFor;
use terrapin_valuelog::{Handle, check_operands};

use crate::engine::clock::{Ends, Moment};
use crate::engine::core::Core;
use crate::engine::state::{KeyspaceShared, KeyspaceState};
use crate::engine::view::ViewHandle;
use crate::log_record::check_bounds;
use crate::read;
use crate::types::condition::Conflict;
use crate::types::key_range::{KeyRange, half_open};
use crate::types::options::Durability;
use crate::types::sought::StoredKey;
use crate::types::transaction::{CommitLsn, Isolation, TransactionOptions};
use crate::write::Asks;
use crate::write::conditional::check_durability;
use crate::write::footprint::{RangeNumber, Reads};
use crate::write::large::LastingValue;
use crate::write::unchanged::Unchanged;
use writes::{Mark, Operands, Own, Writes};

/// A transaction that takes less memory is not charged for it.
const CHARGED_FROM_BYTES: u64 = 4 << 10;

/// A place in a transaction to which it can go back ([`crate::Transaction::savepoint`]).
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    number: u64,
}

/// A transaction.
pub(crate) struct Tx {
    view: Arc<ViewHandle>,
    isolation: Isolation,
    /// The deadlines of what the transaction depends on with snapshot isolation. Otherwise it
    /// depends on all that its view showed.
    ends: Ends,
    durability: Durability,
    /// The time from which on it is too old, on the environment's clock.
    ends_ns: u64,
    writes: Writes,
    savepoints: Vec<(u64, Mark)>,
    reads: RefCell<Reads>,
    charge: RefCell<Option<(Charge, u64)>>,
}

impl Tx {
    /// Begins a transaction that sees what `view` makes.
    pub fn begin(
        core: &Core,
        options: &TransactionOptions,
        view: impl FnOnce() -> Result<Arc<ViewHandle>>,
    ) -> Result<Self> {
        let durability = options.durability.unwrap_or(core.settings.durability);
        check_durability(durability)?;
        core.health.check_open()?;
        let log = core.log()?;
        core.env.breathe();
        log.watch_a_while();
        let view = view()?;
        let ends_ns = options.age_max.map_or(u64::MAX, |age| {
            let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
            view.view().born_ns.saturating_add(age)
        });
        Ok(Tx {
            isolation: options.isolation,
            ends: Ends::default(),
            durability,
            ends_ns,
            writes: Writes::new(log.record_bytes_max() as usize),
            savepoints: Vec::new(),
            reads: RefCell::new(Reads::new(options.read_bytes_max)),
            charge: RefCell::new(None),
            view,
        })
    }

    fn core(&self) -> &Core {
        self.view.core()
    }

    /// The number of the open database.
    pub fn database(&self) -> u64 {
        self.view.owner().number
    }

    /// It sees each record below this LSN.
    pub fn before(&self) -> Lsn {
        self.view.view().before
    }

    /// Bytes of its record in the log.
    pub fn record_bytes(&self) -> usize {
        self.writes.record_bytes()
    }

    /// What the transaction's reads see.
    fn moment(&self, for_update: bool) -> Moment<'_> {
        let at = self.view.view().moment();
        match self.isolation {
            Isolation::Serializable => at,
            Isolation::Snapshot => Moment {
                ends: for_update.then_some(&self.ends),
                ..at
            },
        }
    }

    fn check(&self) -> Result<()> {
        let core = self.core();
        core.health.check_open()?;
        if self.ends_ns < u64::MAX && core.env.now_ns() >= self.ends_ns {
            let message = "the transaction is older than it may become: begin it again, or raise \
                           TransactionOptions::age_max";
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(())
    }

    /// Charges the memory of reads and writes to the budget. It grows twofold, so that small reads
    /// and writes touch no counter that threads share.
    fn charge(&self) {
        let bytes = (self.writes.bytes() + self.reads.borrow().bytes()) as u64;
        if bytes < CHARGED_FROM_BYTES {
            return;
        }
        let mut charge = self.charge.borrow_mut();
        let budget = &self.core().budget;
        let (charge, charged) =
            charge.get_or_insert_with(|| (budget.charge(Purpose::Transactions, 0), 0));
        if bytes > *charged {
            *charged = bytes.next_power_of_two();
            charge.resize(*charged);
        }
    }

    /// Reads a keyspace as the transaction sees it without its own writes.
    fn with<R>(
        &self,
        shared: &KeyspaceShared,
        keys: usize,
        read: impl FnOnce(&Core, &Arc<KeyspaceState>) -> Result<R>,
    ) -> Result<R> {
        let core = self.core();
        core.env.breathe();
        core.counters.gets.add(keys as u64);
        shared.counters.looked_up(keys as u64);
        let held = self.view.view().held()?;
        held.keyspace(shared.id)
            .and_then(|keyspace| read(core, keyspace))
            .map_err(|error| error.with("keyspace", &shared.name))
    }

    /// Notes a key that must not change until the commit.
    fn depend_on(&self, id: KeyspaceId, key: &[u8], for_update: bool) -> Result<()> {
        let for_update = for_update && !mutant::active("get-for-update-is-forgotten");
        if self.isolation == Isolation::Serializable || for_update {
            self.reads.borrow_mut().add(id, key)?;
            self.charge();
        }
        Ok(())
    }

    /// The value of a key.
    pub fn get(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        for_update: bool,
    ) -> Result<Option<Slice>> {
        self.check()?;
        match self.writes.get(shared.id, key) {
            None => self.get_of_view(shared, key, for_update),
            Some(Own::Value(value)) => Ok(Some(Slice::copy(value))),
            Some(Own::Large(handle)) => own_large(shared, key, handle).map(Some),
            Some(Own::Nothing) => Ok(None),
            Some(Own::Operands(operands)) => {
                let of_view = match operands.need_view() {
                    true => self.get_of_view(shared, key, for_update)?,
                    false => None,
                };
                self.applied(shared.id, key, &operands, of_view.as_deref())
            }
        }
    }

    /// The value that the transaction's operands make of the view's value of a key.
    fn applied(
        &self,
        id: KeyspaceId,
        key: &[u8],
        operands: &Operands<'_>,
        of_view: Option<&[u8]>,
    ) -> Result<Option<Slice>> {
        let held = self.view.view().held()?;
        let keyspace = held.keyspace(id)?;
        let of_view = of_view.filter(|_| !mutant::active("own-operands-forget-view"));
        let own = operands.large_base();
        let own = own.map(|handle| own_large(&keyspace.shared, key, handle));
        let own = own.transpose()?;
        let base = own.as_deref().or(of_view);
        check_operands(base.map_or(0, <[u8]>::len))?;
        operands.value(&keyspace.operator, key, base)
    }

    /// The value of a key that the transaction's view has.
    fn get_of_view(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        for_update: bool,
    ) -> Result<Option<Slice>> {
        self.depend_on(shared.id, key, for_update)?;
        let at = self.moment(for_update);
        self.with(shared, 1, |core, keyspace| {
            let epoch = core.records.epoch();
            match is_newest(core, keyspace) {
                true => read::newest_apart(core, epoch, keyspace, at, key),
                false => read::get(keyspace, at, key),
            }
        })
    }

    /// Whether a key has a value.
    pub fn contains(&self, shared: &KeyspaceShared, key: &[u8]) -> Result<bool> {
        self.check()?;
        match self.writes.get(shared.id, key) {
            None => {}
            Some(Own::Value(_) | Own::Large(_)) => return Ok(true),
            Some(Own::Nothing) => return Ok(false),
            Some(Own::Operands(_)) => return Ok(self.get(shared, key, false)?.is_some()),
        }
        self.depend_on(shared.id, key, false)?;
        let at = self.moment(false);
        self.with(shared, 1, |_, keyspace| read::contains(keyspace, at, key))
    }

    /// The values of several keys.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        shared: &KeyspaceShared,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        self.check()?;
        let mut values = vec![None; keys.len()];
        let (mut places, mut others) = (Vec::with_capacity(keys.len()), Vec::new());
        let form = shared.form;
        for (place, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            match self.writes.get(shared.id, key) {
                Some(_) => values[place] = self.get(shared, key, false)?,
                None => {
                    self.depend_on(shared.id, key, false)?;
                    places.push(place);
                    others.push(StoredKey { form, key });
                }
            }
        }
        let at = self.moment(false);
        let found = self.with(shared, others.len(), |core, keyspace| {
            let epoch = core.records.epoch();
            match is_newest(core, keyspace) {
                true => read::newest_of_many(core, epoch, keyspace, at, &others),
                false => read::multi_get(keyspace, at, &others, &()),
            }
        })?;
        for (place, value) in places.into_iter().zip(found) {
            values[place] = value;
        }
        Ok(values)
    }

    /// Notes a range that begins. None if it need not be remembered.
    fn begin_range(&self, id: KeyspaceId, range: &impl KeyRange) -> Result<Option<RangeNumber>> {
        self.check()?;
        match self.isolation {
            Isolation::Serializable => {
                let number = self.reads.borrow_mut().begin_range(id, range.bounds())?;
                Ok(Some(number))
            }
            Isolation::Snapshot => Ok(None),
        }
    }

    /// Adds a put of a value that is not large, a delete or a merge. The operand of a merge was
    /// [checked](Core::check_operand).
    pub fn write(
        &mut self,
        shared: &KeyspaceShared,
        key: &[u8],
        message: Message<'_>,
    ) -> Result<()> {
        self.check_write(shared)?;
        self.writes.add(shared.id, key, message)?;
        self.charge();
        Ok(())
    }

    /// Adds a put of a large value, which is written into its page first.
    pub fn write_large(
        &mut self,
        shared: &KeyspaceShared,
        key: &[u8],
        value: LastingValue<'_>,
    ) -> Result<()> {
        self.check_write(shared)?;
        let large = self.core().write_large(shared, key, value)?;
        self.writes.add_large(shared.id, key, large)?;
        self.charge();
        Ok(())
    }

    /// Adds a range delete. An empty range adds nothing.
    pub fn delete_range(&mut self, shared: &KeyspaceShared, range: &impl KeyRange) -> Result<()> {
        self.check_write(shared)?;
        check_bounds(range.bounds())?;
        let (lo, hi) = half_open(range.bounds());
        if hi.as_ref().is_none_or(|hi| *hi > lo) {
            self.writes.delete_range(shared.id, &lo, hi.as_deref())?;
            self.charge();
        }
        Ok(())
    }

    /// Refuses a write into a keyspace that the view does not have.
    fn check_write(&self, shared: &KeyspaceShared) -> Result<()> {
        self.check()?;
        let held = self.view.view().held()?;
        let keyspace = held.keyspace(shared.id);
        keyspace
            .map(drop)
            .map_err(|error| error.with("keyspace", &shared.name))
    }

    /// A place to which [`Tx::roll_back`] goes back.
    pub fn savepoint(&mut self) -> Savepoint {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        self.savepoints.push((number, self.writes.mark()));
        Savepoint { number }
    }

    /// Takes back all writes since a savepoint, and forgets the savepoints after it.
    pub fn roll_back(&mut self, savepoint: &Savepoint) -> Result<()> {
        let at = self
            .savepoints
            .iter()
            .position(|(number, _)| *number == savepoint.number);
        let Some(at) = at else {
            return Err(Error::invalid(
                "the savepoint is gone: the transaction went back to an earlier one, or another \
                 transaction made it",
            ));
        };
        self.savepoints.truncate(at + 1);
        if !mutant::active("rollback-keeps-writes") {
            self.writes.roll_back(self.savepoints[at].1);
        }
        Ok(())
    }

    /// Commits. The inner error says that something has changed that the transaction depends on.
    pub fn commit(self) -> Result<Result<CommitLsn, Conflict>> {
        self.check()?;
        if self.writes.is_empty() {
            return Ok(Ok(self.before()));
        }
        let core = self.core();
        let is_forgetful = mutant::active("transaction-forgets-its-writes");
        let written = self.writes.keys().filter(|_| !is_forgetful);
        let footprint = self
            .reads
            .borrow()
            .footprint(written, self.writes.deleted());
        let unchanged = Unchanged {
            view: &self.view,
            footprint: &footprint,
            ends: match self.isolation {
                Isolation::Serializable => &self.view.view().ends,
                Isolation::Snapshot => &self.ends,
            },
        };
        let batch = self.writes.prepared(Asks::Unchanged(&unchanged));
        let outcome = core.write_batch_if(batch, self.durability)?;
        match &outcome {
            Ok(_) => core.counters.transactions.add(1),
            Err(_) => core.counters.transaction_conflicts.add(1),
        }
        Ok(outcome)
    }
}

/// A large value that a transaction wrote.
#[cold]
fn own_large(shared: &KeyspaceShared, key: &[u8], handle: &[u8]) -> Result<Slice> {
    let handle = Handle::decode(handle)?;
    shared.large.get(handle, key, ReadFor::Get)
}

/// Whether a view's keyspace is as the newest state has it, apart from later writes into its
/// memtables. Then cached records are those of the view's tree. The caller reads their epoch
/// before.
fn is_newest(core: &Core, keyspace: &Arc<KeyspaceState>) -> bool {
    let state = core.state.load();
    let now = state.keyspaces.get(keyspace.id);
    now.is_some_and(|now| Arc::ptr_eq(now, keyspace))
}
