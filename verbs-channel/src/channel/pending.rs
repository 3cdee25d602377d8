//! Handles of operations of a scope, and loans.

use std::fmt;
use std::time::Duration;

use verbs_core::WorkSuccess;

// tidy: allow(circle): a scope makes its handles, and a handle takes its result from the scope
use super::scope::PollingScope;
use crate::engine::Id;
use crate::error::TransportError;
use crate::waiting::Ended;

/// An operation of a scope: a handle to take its result.
///
/// Dropping the handle detaches the operation: the scope waits for it, and fails if it does. The slot
/// of a detached operation is free once it has succeeded. So in total a scope can post more than its
/// queues hold at once.
pub struct ScopedPendingWork<'scope, 'env> {
    pub(super) scope: &'scope PollingScope<'scope, 'env>,
    pub(super) id: Id,
}

/// A list of elements that is lent to the device, and returned with the result within the scope.
#[must_use = "without it the elements do not come back before the scope ends"]
pub struct Loan<'scope, 'env, L> {
    pub(super) pending: ScopedPendingWork<'scope, 'env>,
    pub(super) list: L,
}

impl ScopedPendingWork<'_, '_> {
    /// Takes the result if there is one, and polls once if not. `None` after it was taken.
    #[inline(always)]
    #[must_use = "a failure that is taken here is not reported by the scope"]
    pub fn poll(&mut self) -> Option<Result<WorkSuccess, TransportError>> {
        loop {
            if let Some(success) = self.take_success() {
                return Some(Ok(success));
            }
            let id = self.id;
            match self.scope.with(|poller| poller.poll_borrowed(id)) {
                Ended::Success => {}
                Ended::Failure => return Some(Err(self.take_failure())),
                Ended::No => return None,
            }
        }
    }

    /// Waits for the result, up to the channel's timeout.
    ///
    /// # Errors
    ///
    /// The operation failed; or the timeout passed, and the channel was aborted.
    #[inline(always)]
    pub fn spin_poll(mut self) -> Result<WorkSuccess, TransportError> {
        loop {
            if let Some(success) = self.take_success() {
                return Ok(success);
            }
            let (at, id) = (self.scope.at, self.id);
            match self.scope.with(|poller| poller.wait_borrowed(at, id)) {
                Ended::Success => {}
                Ended::Failure => return Err(self.take_failure()),
                Ended::No => return Err(TransportError::Taken),
            }
        }
    }

    /// Waits for the result; `None` if `timeout` passes first, and after the result was taken.
    ///
    /// After a timeout the operation continues, and can be waited for again.
    #[inline]
    #[must_use = "a failure that is taken here is not reported by the scope"]
    pub fn wait_timeout(
        &mut self,
        timeout: Duration,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        let id = self.id;
        if !self.scope.with(|poller| poller.wait_for(id, Some(timeout))) {
            return None;
        }
        self.take()
    }

    /// Takes the result, if it is a success. It is not copied where it is not used.
    #[inline(always)]
    fn take_success(&mut self) -> Option<WorkSuccess> {
        let (at, id) = (self.scope.at, self.id);
        let success = self
            .scope
            .with(|poller| poller.engine.take_borrowed_success(at, id))?;
        // It identifies nothing from now on, however often its slot is used again.
        self.id = Id::NONE;
        Some(success)
    }

    /// Takes the result, which is a failure.
    #[cold]
    #[inline(never)]
    fn take_failure(&mut self) -> TransportError {
        match self.take() {
            Some(Err(error)) => error,
            Some(Ok(_)) | None => TransportError::Taken,
        }
    }

    /// Takes the result, if there is one.
    #[inline(never)]
    fn take(&mut self) -> Option<Result<WorkSuccess, TransportError>> {
        let (at, id) = (self.scope.at, self.id);
        let taken = self.scope.with(|poller| poller.engine.release(at, id))?;
        self.id = Id::NONE;
        Some(taken)
    }
}

impl Drop for ScopedPendingWork<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        let (at, id) = (self.scope.at, self.id);
        self.scope.handles.set(self.scope.handles.get() - 1);
        self.scope.with(|poller| poller.engine.detach(at, id));
    }
}

impl<L> Loan<'_, '_, L> {
    /// Takes the result and the elements if the operation has completed, and polls once if it has not.
    ///
    /// # Errors
    ///
    /// The loan, while the operation is in flight.
    pub fn poll(mut self) -> Result<(Result<WorkSuccess, TransportError>, L), Self> {
        match self.pending.poll() {
            Some(result) => Ok((result, self.list)),
            None => Err(self),
        }
    }

    /// Waits for the result, up to the channel's timeout, and returns the elements with it.
    #[inline]
    pub fn wait(self) -> (Result<WorkSuccess, TransportError>, L) {
        (self.pending.spin_poll(), self.list)
    }

    /// Waits for the result and the elements.
    ///
    /// # Errors
    ///
    /// The loan, if `timeout` passes first: the operation continues, and can be waited for again.
    pub fn wait_timeout(
        mut self,
        timeout: Duration,
    ) -> Result<(Result<WorkSuccess, TransportError>, L), Self> {
        match self.pending.wait_timeout(timeout) {
            Some(result) => Ok((result, self.list)),
            None => Err(self),
        }
    }
}

impl fmt::Debug for ScopedPendingWork<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedPendingWork").field(&self.id).finish()
    }
}

impl<L: fmt::Debug> fmt::Debug for Loan<'_, '_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&self.list).finish()
    }
}
