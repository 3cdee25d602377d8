//! Handles of operations of a scope.

use std::fmt;
use std::time::Duration;

use verbs_core::WorkSuccess;

// tidy: allow(circle): a scope makes its handles, and a handle takes its result from the scope
use super::scope::PollingScope;
use crate::engine::Id;
use crate::error::TransportError;
use crate::request::List;
use crate::waiting::Steps as _;

/// An operation of a scope: a handle to take its outcome, and its elements if they were lent.
///
/// With [`lend`], `L` is the list of elements that are returned with the
/// outcome. Without it, the elements are borrowed until the scope ends.
///
/// Dropping the handle detaches the operation: the scope waits for the operation, and fails if the
/// operation fails. Lent elements are then returned only when the scope ends. For a receive, the scope
/// waits until a message arrives. If none may arrive, call
/// [`close_with_receives_left`](PollingScope::close_with_receives_left).
///
/// The slot of a detached operation is free once a poll has found its success. So in total, a scope
/// can post more requests than its queues hold at once: if a post is rejected for lack of room, call
/// [`PollingScope::poll`] and try again.
///
/// [`lend`]: PollingScope::lend
pub struct ScopedPendingWork<'scope, 'env, L = ()> {
    handle: Handle<'scope, 'env>,
    list: L,
}

/// Takes the result, or detaches the operation when dropped.
struct Handle<'scope, 'env> {
    scope: &'scope PollingScope<'scope, 'env>,
    id: Id,
}

impl ScopedPendingWork<'_, '_> {
    /// Takes the outcome. Polls once if there is none. Returns `None` while the operation is in flight,
    /// and after the outcome was taken.
    #[inline(always)]
    #[must_use = "a failure that is taken here is not reported by the scope"]
    pub fn poll(&mut self) -> Option<Result<WorkSuccess, TransportError>> {
        self.handle.poll()
    }

    /// Waits for the outcome, up to the channel's timeout.
    ///
    /// Spins, yields or sleeps according to the channel's [`PollStrategy`](crate::PollStrategy).
    /// [`wait_timeout`](Self::wait_timeout) has its own timeout, and does not abort the channel.
    ///
    /// # Errors
    ///
    /// The operation failed; or the timeout passed, and the channel was aborted.
    /// [`Taken`](TransportError::Taken) if the outcome was taken before.
    #[doc(alias = "wait")]
    #[inline(always)]
    pub fn spin_poll(self) -> Result<WorkSuccess, TransportError> {
        self.handle.spin_poll()
    }

    /// Waits for the outcome; `None` if `timeout` passes first, and after the outcome was taken.
    ///
    /// After a timeout the operation continues, and can be waited for again.
    #[inline]
    #[must_use = "a failure that is taken here is not reported by the scope"]
    pub fn wait_timeout(
        &mut self,
        timeout: Duration,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        self.handle.wait_timeout(timeout)
    }
}

/// Methods for elements that were lent.
impl<L: List> ScopedPendingWork<'_, '_, L> {
    /// Takes the outcome and the elements if the operation has completed, and polls once if it has not.
    ///
    /// # Errors
    ///
    /// The handle, while the operation is in flight.
    pub fn poll(mut self) -> Result<(Result<WorkSuccess, TransportError>, L), Self> {
        match self.handle.poll() {
            Some(result) => Ok((result, self.list)),
            None => Err(self),
        }
    }

    /// Waits for the outcome, up to the channel's timeout, and returns the elements with it.
    ///
    /// Spins, yields or sleeps according to the channel's [`PollStrategy`](crate::PollStrategy). If
    /// the timeout passes, the channel is aborted: the elements are returned in any case.
    #[doc(alias = "wait")]
    #[inline]
    pub fn spin_poll(self) -> (Result<WorkSuccess, TransportError>, L) {
        (self.handle.spin_poll(), self.list)
    }

    /// Waits for the outcome and the elements.
    ///
    /// # Errors
    ///
    /// The handle, if `timeout` passes first: the operation continues, and can be waited for again.
    pub fn wait_timeout(
        mut self,
        timeout: Duration,
    ) -> Result<(Result<WorkSuccess, TransportError>, L), Self> {
        match self.handle.wait_timeout(timeout) {
            Some(result) => Ok((result, self.list)),
            None => Err(self),
        }
    }
}

impl<'scope, 'env, L> ScopedPendingWork<'scope, 'env, L> {
    /// The handle of an operation posted in this scope. The list can be lent again once it is
    /// returned.
    #[inline(always)]
    pub(super) const fn new(scope: &'scope PollingScope<'scope, 'env>, id: Id, list: L) -> Self {
        let handle = Handle { scope, id };
        Self { handle, list }
    }
}

impl Handle<'_, '_> {
    #[inline(always)]
    fn poll(&mut self) -> Option<Result<WorkSuccess, TransportError>> {
        match self.poll_success() {
            Some(success) => Some(Ok(success)),
            None => self.take_after_poll(),
        }
    }

    /// Polls for all that have completed, and takes the outcome if it is there.
    #[inline(never)]
    fn take_after_poll(&mut self) -> Option<Result<WorkSuccess, TransportError>> {
        let mut scope = self.scope;
        if scope.with(|poller| poller.engine.flight.is_pending(self.id)) {
            scope.poll();
        }
        scope.run_afterwards();
        self.take()
    }

    #[inline(always)]
    fn spin_poll(mut self) -> Result<WorkSuccess, TransportError> {
        match self.poll_success() {
            Some(success) => Ok(success),
            None => self.wait(),
        }
    }

    /// Waits while the operation is in flight, and aborts it after the channel's timeout. Takes the outcome.
    #[inline(never)]
    fn wait(&mut self) -> Result<WorkSuccess, TransportError> {
        let mut scope = self.scope;
        if scope.with(|poller| poller.engine.flight.is_pending(self.id)) {
            scope.wait_or_abort(scope.at, self.id, None);
        }
        scope.run_afterwards();
        self.take().unwrap_or(Err(TransportError::Taken))
    }

    #[inline]
    fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<WorkSuccess, TransportError>> {
        let mut scope = self.scope;
        if !scope.wait_for(self.id, Some(timeout)) {
            return None;
        }
        self.take()
    }

    /// Polls, and takes the success if it is the first that completed.
    #[inline(always)]
    fn poll_success(&mut self) -> Option<WorkSuccess> {
        let (scope, id) = (self.scope, self.id);
        let success = scope.with(|poller| poller.poll_borrowed(scope.at, id))?;
        // It identifies nothing from now on, however often its slot is used again.
        self.id = Id::NONE;
        Some(success)
    }

    /// Takes the outcome out of the operation's slot, if it is there.
    #[inline(never)]
    fn take(&mut self) -> Option<Result<WorkSuccess, TransportError>> {
        let id = self.id;
        let taken = self.scope.with(|poller| poller.engine.flight.release(id))?;
        self.id = Id::NONE;
        Some(taken.result)
    }
}

impl Drop for Handle<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        let id = self.id;
        self.scope.with(|poller| poller.engine.detach(id));
    }
}

impl<L: fmt::Debug> fmt::Debug for ScopedPendingWork<'_, '_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedPendingWork")
            .field("id", &self.handle.id)
            .field("list", &self.list)
            .finish()
    }
}
