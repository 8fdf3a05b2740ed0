//! Values with a deadline: puts, and what concerns their time.

use std::time::{Duration, SystemTime};

use terrapin_base::Result;

use crate::api::batch::Batch;
use crate::api::keyspace::Keyspace;
use crate::api::transaction::Transaction;
use crate::engine::clock::Moment;
use crate::read::large::{Content, find};
use crate::write::lasting::LastingPut;
use crate::write::renew::Lasts;

/// How long the value of a key lasts ([`Keyspace::ttl`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The key has no value, or its value has expired.
    Absent,
    /// The value has no deadline.
    Unlimited,
    /// The value expires after this time.
    Left(Duration),
}

impl Keyspace {
    /// Sets a key's value for a time, in whole milliseconds. After that the key has no value: reads
    /// do not see it, and a later merge frees its space. A put or a delete ends the value earlier.
    /// A time of 0 deletes the key.
    ///
    /// The deadline is a moment of the wall clock. It passes while the database is closed, too. A
    /// clock that is set back does not bring an expired value back: see [`crate::Keyspace::ttl`].
    ///
    /// A value with a deadline is stored with its key unless it is large ([`Keyspace::writer`]).
    /// It takes 7 bytes more. The record cache does not hold it. Durability and errors as for
    /// [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-put-ttl-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// use std::time::Duration;
    /// let sessions = database.keyspace("sessions")?;
    /// sessions.put_with_ttl("Ann", "token", Duration::from_secs(3600))?;
    /// assert_eq!(sessions.get("Ann")?.unwrap(), "token");
    /// sessions.put_with_ttl("Bob", "token", Duration::from_millis(5))?;
    /// std::thread::sleep(Duration::from_millis(10));
    /// assert!(sessions.get("Bob")?.is_none());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("setex", "expire", "expiration"))]
    pub fn put_with_ttl(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        self.put_lasting(
            key.as_ref(),
            LastingPut::after(self.core(), ttl, value.as_ref()),
        )
    }

    /// Sets a key's value until a deadline, which counts in milliseconds. A deadline that has come
    /// deletes the key. Otherwise as [`Keyspace::put_with_ttl`].
    pub fn put_expiring(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) -> Result<()> {
        let put = LastingPut::until(self.core(), deadline, value.as_ref());
        self.put_lasting(key.as_ref(), put)
    }

    fn put_lasting(&self, key: &[u8], put: LastingPut<'_>) -> Result<()> {
        let core = self.core();
        let mut buffer = None;
        let key = self.shared.form.written(key, &mut buffer)?;
        put.write(core, &self.shared, key, core.settings.durability)
    }

    /// How long the value of a key lasts from now on. If merges ([`Keyspace::merge`]) changed a
    /// value with a deadline, this is the time until that value ends. The operands of the merges
    /// stay, and then apply to nothing.
    ///
    /// *Now* is the wall clock, but never earlier than any moment by which the database judged a
    /// deadline. The database remembers that moment over a restart, up to a second that a crash
    /// may take. Cost and errors as for [`Keyspace::get`], but a large value is not read.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-ttl-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let sessions = database.keyspace("sessions")?;
    /// use std::time::Duration;
    /// use terrapin::Lifetime;
    /// let hour = Duration::from_secs(3600);
    /// sessions.put_with_ttl("Ann", "token", hour)?;
    /// assert!(matches!(sessions.ttl("Ann")?, Lifetime::Left(left) if left <= hour));
    /// assert!(sessions.persist("Ann")?);
    /// assert_eq!(sessions.ttl("Ann")?, Lifetime::Unlimited);
    /// assert_eq!(sessions.ttl("Bob")?, Lifetime::Absent);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("time_to_live", "expires"))]
    pub fn ttl(&self, key: impl AsRef<[u8]>) -> Result<Lifetime> {
        let core = self.core();
        core.env.breathe();
        let mut buffer = None;
        let key = self.shared.form.stored(key.as_ref(), &mut buffer);
        self.observed(|keyspace, at| {
            core.counters.gets.add(1);
            keyspace.shared.counters.looked_up(1);
            let read = |at: Moment<'_>| find(keyspace, at, key);
            Ok(match at.learning(read)? {
                (Content::Value(None), _) => Lifetime::Absent,
                (_, None) => Lifetime::Unlimited,
                (_, Some(deadline_ms)) => {
                    let left_ms = deadline_ms.saturating_sub(at.now_ms);
                    Lifetime::Left(Duration::from_millis(left_ms))
                }
            })
        })
    }

    /// Lets a key's value last for a time from now on, whatever deadline it had. Returns whether
    /// the key has a value. A time of 0 deletes the key.
    ///
    /// Writes the value again, a large one piece by piece. Durability, cost and errors as for
    /// [`Keyspace::insert_if_absent`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-touch-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let sessions = database.keyspace("sessions")?;
    /// use std::time::Duration;
    /// sessions.put("Ann", "token")?;
    /// assert!(sessions.touch("Ann", Duration::from_secs(60))?);
    /// assert!(!sessions.touch("Bob", Duration::from_secs(60))?);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("expire", "renew"))]
    pub fn touch(&self, key: impl AsRef<[u8]>, ttl: Duration) -> Result<bool> {
        let core = self.core();
        let mut buffer = None;
        let key = self.shared.form.written(key.as_ref(), &mut buffer)?;
        let durability = core.settings.durability;
        core.renew(&self.shared, key, durability, Lasts::For(ttl))
    }

    /// Lets a key's value last without a deadline. Returns whether the key has a value. Writes the
    /// value again if it has a deadline. Durability, cost and errors as for [`Keyspace::touch`].
    pub fn persist(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let core = self.core();
        let mut buffer = None;
        let key = self.shared.form.written(key.as_ref(), &mut buffer)?;
        let durability = core.settings.durability;
        core.renew(&self.shared, key, durability, Lasts::Forever)
    }
}

impl Batch {
    /// Adds a put of a value that lasts for a time from now on: see [`Keyspace::put_with_ttl`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-batch-ttl-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let sessions = database.keyspace("sessions")?;
    /// let mut batch = database.batch();
    /// batch.put_with_ttl(&sessions, "Ann", "token", std::time::Duration::from_secs(3600));
    /// database.write(&batch)?;
    /// assert!(sessions.contains("Ann")?);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn put_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) {
        let put = LastingPut::after(keyspace.core(), ttl, value.as_ref());
        self.add_put(keyspace, key.as_ref(), put);
    }

    /// Adds a put of a value that lasts until a deadline: see [`Keyspace::put_expiring`].
    pub fn put_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) {
        let put = LastingPut::until(keyspace.core(), deadline, value.as_ref());
        self.add_put(keyspace, key.as_ref(), put);
    }
}

impl Transaction {
    /// Sets a key's value for a time from now on: see [`Keyspace::put_with_ttl`]. Errors as for
    /// [`Transaction::put`].
    pub fn put_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let put = LastingPut::after(keyspace.core(), ttl, value.as_ref());
        self.write_put(keyspace, key.as_ref(), put)
    }

    /// Sets a key's value until a deadline: see [`Keyspace::put_expiring`]. Errors as for
    /// [`Transaction::put`].
    pub fn put_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) -> Result<()> {
        let put = LastingPut::until(keyspace.core(), deadline, value.as_ref());
        self.write_put(keyspace, key.as_ref(), put)
    }
}
