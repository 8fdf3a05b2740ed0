//! Transactions.

use std::fmt;

use terrapin_base::{Error, Lsn, Message, Result, Slice};

use crate::api::database::Database;
use crate::api::keyspace::Keyspace;
use crate::engine::view::ViewHandle;
use crate::transaction::range::TransactionRange;
use crate::transaction::repeat::repeat;
use crate::transaction::{Savepoint, Tx};
use crate::types::condition::Conflict;
use crate::types::key_range::{KeyRange, prefix_range};
use crate::types::transaction::{CommitLsn, TransactionOptions};
use crate::write::lasting::LastingPut;

/// Reads and writes of any keyspaces that take effect at one moment or not at all.
///
/// A transaction sees the database as of its beginning, and its own writes. Its writes stay in
/// memory until [`Transaction::commit`], which writes them as one record. They take effect only if
/// no other write has changed what the transaction depends on ([`crate::Isolation`]). Otherwise the
/// commit returns a [`Conflict`], and nothing was written. A transaction that is dropped writes
/// nothing. It takes no lock, and other writers never wait for it.
///
/// [`Database::transact`] begins a transaction again after a conflict. Most programs need no more.
///
/// **Costs.** An open transaction keeps pages, as a [`crate::Snapshot`] does. The commit tests what
/// other writers wrote meanwhile. It searches the memtables if they wrote more than some thousand
/// records. It reads what the transaction depends on again if memtables were merged meanwhile.
///
/// **Errors of all calls.** `Closed`; `InvalidArgument` for a keyspace of another database;
/// `KeyspaceNotFound` for a keyspace that did not exist when the transaction began; `Conflict` if
/// the transaction is older than [`TransactionOptions::age_max`]. After an error the transaction
/// goes on without the call's effect.
///
/// Writes of [`crate::Durability::None`] are not in the log. A transaction that read one may
/// survive a crash without it.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let name = format!("terrapin-doc-transaction-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// # let database = terrapin::Database::open(&directory)?;
/// let stock = database.keyspace("stock")?;
/// let mut transaction = database.transaction()?;
/// if !transaction.contains(&stock, "apples")? {
///     transaction.put(&stock, "apples", "12")?;
/// }
/// match transaction.commit()? {
///     Ok(_lsn) => println!("done"),
///     Err(conflict) => println!("begin again: {conflict}"),
/// }
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[doc(alias("begin", "optimistic transaction", "write_tx"))]
pub struct Transaction {
    tx: Tx,
}

impl Database {
    /// Begins a transaction with the default options: serializable, with the durability of the
    /// database. O(1). Errors: `InvalidArgument` for [`crate::Durability::None`]; `ReadOnly`;
    /// `Closed`.
    #[doc(alias("begin", "begin_write", "write_tx", "begin_transaction"))]
    pub fn transaction(&self) -> Result<Transaction> {
        self.transaction_with(&TransactionOptions::default())
    }

    /// Begins a transaction with these options. Errors as for [`Database::transaction`].
    pub fn transaction_with(&self, options: &TransactionOptions) -> Result<Transaction> {
        let view = || ViewHandle::new(&self.owner);
        let tx = Tx::begin(self.core(), options, view)?;
        Ok(Transaction { tx })
    }

    /// Runs a function in a transaction and commits. After a conflict, the function runs again in a
    /// new transaction, up to 100 times in all, with growing pauses. Returns what the function
    /// returned in the transaction that committed.
    ///
    /// The function may run several times, so it should have no other effects. What it writes
    /// outside of its transaction stays, and is a conflict if the transaction depends on it. No
    /// lock is held while it runs, so it may take long. If it returns an error or panics, nothing
    /// is written.
    ///
    /// Errors: that of the function; `Conflict` after the last attempt; those of
    /// [`Database::transaction`] and [`Transaction::commit`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-transact-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let accounts = database.keyspace("accounts")?;
    /// accounts.put("ann", [70])?;
    /// accounts.put("bob", [30])?;
    /// database.transact(|tx| {
    ///     let (ann, bob) = (tx.get(&accounts, "ann")?, tx.get(&accounts, "bob")?);
    ///     let (ann, bob) = (ann.map_or(0, |v| v[0]), bob.map_or(0, |v| v[0]));
    ///     tx.put(&accounts, "ann", [ann - 5])?;
    ///     tx.put(&accounts, "bob", [bob + 5])
    /// })?;
    /// assert_eq!(accounts.get("bob")?.unwrap(), [35]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn transact<R>(&self, run: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.transact_with(&TransactionOptions::default(), run)
    }

    /// Runs a function in a transaction with these options: see [`Database::transact`].
    pub fn transact_with<R>(
        &self,
        options: &TransactionOptions,
        mut run: impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        repeat(self.core(), options.attempts_max, || {
            let mut transaction = self.transaction_with(options)?;
            let result = run(&mut transaction)?;
            Ok(transaction.commit()?.map(|_| result))
        })
    }
}

impl Transaction {
    fn check(&self, keyspace: &Keyspace) -> Result<()> {
        match self.tx.database() == keyspace.owner.number {
            true => Ok(()),
            false => Err(Error::invalid(
                "the keyspace belongs to another open database than the transaction",
            )
            .with("keyspace", keyspace.name())),
        }
    }

    /// The LSN of its view: it sees every write with a smaller LSN, and its own.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.tx.before()
    }

    /// Bytes of its writes in the log. The limit is [`Database::batch_bytes_max`]. Each write of a
    /// key counts, also if a later one replaces it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tx.record_bytes()
    }

    /// The value of a key. Other errors: those of [`Keyspace::get`]; `TooLarge` if the transaction
    /// has read more keys than it may remember ([`TransactionOptions::read_bytes_max`]).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.check(keyspace)?;
        let mut buffer = None;
        let key = keyspace.shared.form.stored(key.as_ref(), &mut buffer);
        self.tx.get(&keyspace.shared, key, false)
    }

    /// The value of a key. The transaction depends on it in every [`crate::Isolation`]. Errors as
    /// for [`Transaction::get`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-for-update-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// use terrapin::{Isolation, TransactionOptions};
    /// let doctors = database.keyspace("doctors on call")?;
    /// doctors.put("ann", "yes")?;
    /// let options = TransactionOptions::new().isolation(Isolation::Snapshot);
    /// let mut transaction = database.transaction_with(&options)?;
    /// if transaction.get_for_update(&doctors, "ann")?.is_some() {
    ///     transaction.delete(&doctors, "bob")?;
    /// }
    /// doctors.delete("ann")?;
    /// assert!(transaction.commit()?.is_err());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn get_for_update(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Slice>> {
        self.check(keyspace)?;
        let mut buffer = None;
        let key = keyspace.shared.form.stored(key.as_ref(), &mut buffer);
        self.tx.get(&keyspace.shared, key, true)
    }

    /// Whether a key has a value. Errors as for [`Transaction::get`].
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.check(keyspace)?;
        let mut buffer = None;
        let key = keyspace.shared.form.stored(key.as_ref(), &mut buffer);
        self.tx.contains(&keyspace.shared, key)
    }

    /// The values of many keys, in the order of `keys`. Errors as for [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        self.check(keyspace)?;
        match keyspace.shared.form.all_stored(keys) {
            None => self.tx.multi_get(&keyspace.shared, keys),
            Some(keys) => self.tx.multi_get(&keyspace.shared, &keys),
        }
    }

    /// The records of a range of keys, in order, from either end. No write is possible while the
    /// range is in use: collect the records that you change.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-transaction-range-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let queue = database.keyspace("queue")?;
    /// let done = database.keyspace("done")?;
    /// queue.put("1", "wash")?;
    /// queue.put("2", "cook")?;
    /// // Moves the first record. Others may add records behind it meanwhile.
    /// database.transact(|tx| {
    ///     let first = tx.range(&queue, ..).next().transpose()?;
    ///     if let Some((key, job)) = first {
    ///         tx.delete(&queue, &key)?;
    ///         tx.put(&done, &key, &job)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(done.first()?.unwrap().1, "wash");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> TransactionRange<'_> {
        let checked = self.check(keyspace).and_then(|()| keyspace.has_order());
        TransactionRange::new(&self.tx, checked, &keyspace.shared, &range)
    }

    /// The records whose keys begin with `prefix`, in order, from either end.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange<'_> {
        self.range(keyspace, prefix_range(prefix))
    }

    /// The record with the smallest key. The transaction depends on the keys up to it.
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Slice, Slice)>> {
        self.range(keyspace, ..).limit(1).next().transpose()
    }

    /// The record with the largest key. The transaction depends on the keys from it on.
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Slice, Slice)>> {
        self.range(keyspace, ..).limit(1).next_back().transpose()
    }

    /// Sets a key's value. A large value ([`Keyspace::writer`]) is written into its page at once.
    /// The transaction keeps the page, and gives it back if it does not commit.
    ///
    /// Other errors: `TooLarge` for a long key or value, and if the transaction's writes become
    /// longer than [`Database::batch_bytes_max`]; for large values those of [`Keyspace::writer`].
    pub fn put(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let put = LastingPut::by_default(keyspace.core(), &keyspace.shared, value.as_ref());
        self.write_put(keyspace, key.as_ref(), put)
    }

    /// Adds a put. A large value is written into its page.
    pub(super) fn write_put(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        put: LastingPut<'_>,
    ) -> Result<()> {
        self.check(keyspace)?;
        let (shared, mut buffer) = (&keyspace.shared, None);
        let key = shared.form.written(key, &mut buffer)?;
        match put.large(keyspace.core(), key) {
            Some(value) => self.tx.write_large(shared, key, value),
            None => put.with(|message| self.tx.write(shared, key, message)),
        }
    }

    pub(super) fn write(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        message: Message<'_>,
    ) -> Result<()> {
        self.check(keyspace)?;
        let mut buffer = None;
        let key = keyspace.shared.form.written(key, &mut buffer)?;
        self.tx.write(&keyspace.shared, key, message)
    }

    /// Applies an operand to a key's value by the keyspace's merge operator: see
    /// [`Keyspace::merge`]. The transaction reads its own merges. Like every write of a key, the
    /// merge conflicts with writes of others to the key; [`Keyspace::merge`] does not.
    ///
    /// Other errors: those of [`Transaction::put`]; `InvalidArgument` without an operator, and for
    /// an operand that the operator refuses; `Operator` if the operator is not registered.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-tx-merge-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let options = terrapin::KeyspaceOptions::new().merge_operator("add-i64");
    /// let stock = database.create_keyspace("stock", options)?;
    /// database.transact(|tx| {
    ///     tx.merge(&stock, "apple", 5i64.to_le_bytes())?;
    ///     tx.merge(&stock, "apple", (-2i64).to_le_bytes())?;
    ///     assert_eq!(tx.get(&stock, "apple")?.unwrap(), 3i64.to_le_bytes());
    ///     Ok(())
    /// })?;
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn merge(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<()> {
        self.check(keyspace)?;
        let (core, operand) = (keyspace.core(), operand.as_ref());
        let mut buffer = None;
        let key = keyspace.shared.form.written(key.as_ref(), &mut buffer)?;
        core.check_operand(&keyspace.shared, key, operand)?;
        self.tx
            .write(&keyspace.shared, key, Message::Merge(operand))
    }

    /// Removes a key. Deleting a missing key is no error. Errors as for [`Transaction::put`].
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(keyspace, key.as_ref(), Message::Delete)
    }

    /// Removes all keys of a range. The transaction depends on all of them. Errors as for
    /// [`Transaction::put`]; `Unsupported` if the keyspace's structure keeps no order of keys.
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<()> {
        self.check(keyspace)?;
        keyspace.deletes_ranges()?;
        self.tx.delete_range(&keyspace.shared, &range)
    }

    /// Removes all keys that begin with a prefix: see [`Transaction::delete_range`].
    pub fn delete_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.delete_range(keyspace, prefix_range(prefix))
    }

    /// A place to go back to.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-savepoint-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// let mut transaction = database.transaction()?;
    /// transaction.put(&fruit, "apple", "sweet")?;
    /// let savepoint = transaction.savepoint();
    /// transaction.put(&fruit, "apple", "sour")?;
    /// transaction.rollback_to(&savepoint)?;
    /// assert_eq!(transaction.get(&fruit, "apple")?.unwrap(), "sweet");
    /// # drop(transaction);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn savepoint(&mut self) -> Savepoint {
        self.tx.savepoint()
    }

    /// Takes back all writes since a savepoint, which stays usable. The transaction still depends
    /// on what it has read since. O(writes before the savepoint). Errors: `InvalidArgument` if the
    /// transaction went back to an earlier savepoint meanwhile, or did not make this one.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<()> {
        self.tx.roll_back(savepoint)
    }

    /// Commits: all writes take effect at once. Returns the end of their record. A transaction that
    /// wrote nothing always commits, and returns the LSN of its view.
    ///
    /// The inner error says that another write changed what this transaction depends on. Begin
    /// again then. Other errors are those of [`Database::write`].
    pub fn commit(self) -> Result<std::result::Result<CommitLsn, Conflict>> {
        self.tx.commit()
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("lsn", &self.lsn())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
