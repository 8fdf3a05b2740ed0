//! Locks of the model checker (shuttle) with the interface of parking_lot.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

use shuttle::sync as checked;

/// A mutex.
#[derive(Debug, Default)]
pub struct Mutex<T>(checked::Mutex<T>);

/// A locked mutex.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a checked::Mutex<T>,
    /// `None` while its holder waits for a [`Condvar`].
    guard: Option<checked::MutexGuard<'a, T>>,
}

fn lock<T>(mutex: &checked::Mutex<T>) -> checked::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Mutex(checked::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            mutex: &self.0,
            guard: Some(lock(&self.0)),
        }
    }

    /// Takes the lock if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard {
            mutex: &self.0,
            guard: Some(guard),
        })
    }

    /// The value, borrowed uniquely.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

const HELD: &str = "a guard is only empty inside of a wait";

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_deref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_deref_mut().expect(HELD)
    }
}

/// A condition variable.
#[derive(Debug)]
pub struct Condvar(checked::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Condvar::new()
    }
}

impl Condvar {
    /// A condition variable without waiting threads.
    pub const fn new() -> Self {
        Condvar(checked::Condvar::new())
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Releases the lock until a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.guard.take().expect(HELD);
        guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Releases the lock once and lets time pass. The caller tests its condition again, with or
    /// without a notification.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        guard.guard = None;
        super::yield_now();
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        super::pass((ns / 4).max(ns.min(1_000_000)));
        guard.guard = Some(lock(guard.mutex));
    }
}

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T>(checked::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        RwLock(checked::RwLock::new(value))
    }

    /// Waits for the lock as a reader.
    pub fn read(&self) -> checked::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock as a reader, unless a writer holds it.
    pub fn try_read(&self) -> Option<checked::RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the lock as the writer.
    pub fn write(&self) -> checked::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
