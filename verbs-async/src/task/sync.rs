//! The locks of this crate, without poisoning: loom tests replace them by their own.
//!
//! They are the standard library's, which work in the child of a fork: there is no table of waiting threads, some of
//! which the child would not have.

use std::fmt;
use std::sync::{self, PoisonError};
use std::time::Duration;

pub(crate) use std::sync::MutexGuard;
pub(crate) use std::thread_local;

#[derive(Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(locked) => Some(locked),
            Err(sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(sync::TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Returns whether the time has passed.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        locked: MutexGuard<'a, T>,
        time: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout(locked, time);
        let (locked, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (locked, result.timed_out())
    }
}
