//! The end of a memory's registrations, and how it is waited for.

use std::any::Any;
use std::future::Future;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use verbs_core::error::ErrorChain;
use verbs_core::memory::MwBindInfo;
use verbs_core::{AccessFlags, Error as CoreError, ProtectionDomain, RemoteMemoryRegion};

use super::wake::wake;
use crate::error::{Error, Result};
use crate::panics::log_error;

/// Waits until a [`SharedMemory`](crate::SharedMemory) has been deregistered: from
/// [`SharedMemory::deregister`](crate::SharedMemory::deregister).
///
/// It is a future for any runtime, and can be [waited](Self::wait) for by a thread. It does not keep the memory, and
/// dropping it has no effect.
#[derive(Debug)]
#[must_use = "it tells when no device reaches the memory any more"]
pub struct Deregistration {
    pub(super) end: Arc<End>,
}

/// A region of shared memory, which can be lent, and is deregistered with the memory.
#[expect(unnameable_types, reason = "is of a sealed trait")]
pub trait Registered: Any + Send + Sync {
    /// How peers address it, and its key.
    fn memory(&self) -> (RemoteMemoryRegion, u32);

    fn pd(&self) -> &ProtectionDomain;

    /// Deregisters it. The value that kept the memory is dropped, or leaked after an error.
    fn dereg(self: Arc<Self>) -> Result<(), CoreError>;

    /// The access that it was registered with, if that is known.
    fn access(&self) -> AccessFlags;

    /// A part of it, for a window that permits this access.
    fn bind_info(
        &self,
        part: Range<usize>,
        access: AccessFlags,
    ) -> Result<MwBindInfo<'_>, CoreError>;

    /// Its first byte, if that is known, and at the address by which requests name it.
    fn start(&self) -> Option<NonNull<u8>>;
}

/// Shared by a memory and those who wait for its end.
#[derive(Debug, Default)]
pub(super) struct End {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    // How many regions could not be deregistered, once all have been tried, or a device keeps a part.
    failed: Option<usize>,
    sleeping: Vec<Waker>,
    // The next in a list of `Leaked`.
    next: Option<Arc<End>>,
}

/// Memories of which a device keeps a part, so that they never end, and whose waiters are still to be woken. It is a
/// list, so that nothing is allocated.
#[derive(Debug, Default)]
pub(crate) struct Leaked(Option<Arc<End>>);

impl Leaked {
    /// Adds a memory of this many regions, unless it has a result.
    pub(super) fn add(&mut self, end: &Arc<End>, regions: usize) {
        let mut state = end.lock();
        if state.failed.is_none() {
            state.failed = Some(regions);
            state.next = self.0.replace(Arc::clone(end));
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Wakes the waiters: code of others.
    pub(crate) fn wake(self) {
        let mut next = self.0;
        while let Some(end) = next {
            next = end.lock().next.take();
            end.wake();
        }
    }
}

impl Deregistration {
    /// Waits until the memory is deregistered on all of its devices, and what kept it is dropped; `None` if
    /// `timeout` passes first.
    ///
    /// Slices in flight on a channel come back when that is polled, which this does not do.
    ///
    /// # Errors
    ///
    /// [`Error::NotDeregistered`]: a device may access the memory until the process ends.
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Option<Result<()>> {
        let timeout = timeout.into();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.end.lock();
        while state.failed.is_none() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let changed = &self.end.changed;
            state = match left {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    let waited = changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.result()
    }
}

impl Future for Deregistration {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // Wakers are cloned and dropped without the lock.
        let waker = context.waker().clone();
        let mut state = self.end.lock();
        if let Some(result) = state.result() {
            return Poll::Ready(result);
        }
        if !state.sleeping.iter().any(|other| other.will_wake(&waker)) {
            state.sleeping.push(waker);
        }
        Poll::Pending
    }
}

impl End {
    /// Deregisters all regions of a memory of this length, in this order, and wakes those who wait for that.
    pub(super) fn deregister(
        &self,
        len: usize,
        regions: impl Iterator<Item = Arc<dyn Registered>>,
    ) {
        let mut failed = 0;
        for region in regions {
            let Err(error) = region.dereg() else {
                continue;
            };
            failed += 1;
            // In a child, the region is the parent's.
            if !matches!(error, CoreError::OtherProcess { .. }) {
                let error = ErrorChain::new(&error);
                log_error(format_args!(
                    "leaked a memory region and its {len} bytes, which the device may still reach: {error}"
                ));
            }
        }
        self.lock().failed.get_or_insert(failed);
        self.wake();
    }

    /// Wakes those who wait.
    fn wake(&self) {
        let sleeping = mem::take(&mut self.lock().sleeping);
        self.changed.notify_all();
        sleeping.into_iter().for_each(wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn result(&self) -> Option<Result<()>> {
        Some(match self.failed? {
            0 => Ok(()),
            regions => Err(Error::NotDeregistered { regions }),
        })
    }
}
