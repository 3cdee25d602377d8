//! Scopes: work on borrowed buffers that ends before the scope does.
#![expect(
    unsafe_code,
    reason = "a scope keeps borrows until the card is done with them"
)]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use verbs_core::{Rejected, RemoteMemoryRegion, WorkSuccess};

use crate::engine::Engine;
use crate::engine::slots::{Id, Reservation};
use crate::engine::teardown::{AbortOnUnwind, Leftover, ScopeEnd};
use crate::error::{Refusal, ScopeError, TransportError};
use crate::request::{GatherList, Incoming, Outgoing, ScatterList, Work};

/// Where work on borrowed buffers is posted: see [`Channel::scope`](crate::Channel::scope).
///
/// Whatever is posted borrows its elements until the scope ends; and it ends only when the device is
/// done with all of them.
pub struct PollingScope<'scope, 'env: 'scope> {
    engine: RefCell<&'env mut Engine>,
    at: u32,
    // Handles that have neither been dropped nor used up.
    handles: Cell<usize>,
    receives: Cell<Leftover>,
    // As in `std::thread::Scope`: neither lifetime may be shortened or lengthened.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Work that was posted in a scope. Its result can be taken here.
///
/// Dropping it detaches the operation: the scope waits for it, and reports its failure as the scope's
/// own. A detached operation takes up no room once it has succeeded, so a scope can post more than
/// fits in the queues at once.
pub struct ScopedPendingWork<'scope, 'env> {
    scope: &'scope PollingScope<'scope, 'env>,
    id: Id,
}

/// A list of elements that was lent to the device in a scope, and comes back with the result.
#[must_use = "without it the elements do not come back before the scope ends"]
pub struct Loan<'scope, 'env, L> {
    work: ScopedPendingWork<'scope, 'env>,
    list: L,
}

/// Runs a scope that waits for what its closure leaves.
#[inline]
pub(crate) fn scope<'env, T, E>(
    engine: &'env mut Engine,
    at: u32,
    closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
) -> Result<T, ScopeError<E>> {
    run(engine, at, closure, Engine::finish_scope)
}

/// Runs a scope that aborts what its closure leaves.
pub(crate) fn manual_scope<'env, T, E>(
    engine: &'env mut Engine,
    at: u32,
    closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
) -> Result<T, ScopeError<E>> {
    run(engine, at, closure, |engine, at, _end| engine.cut_scope(at))
}

#[inline(always)]
fn run<'env, T, E>(
    engine: &'env mut Engine,
    at: u32,
    closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
    finish: impl FnOnce(&mut Engine, u32, ScopeEnd) -> Result<(), TransportError>,
) -> Result<T, ScopeError<E>> {
    let began_idle = engine.is_idle(at);
    let scope = PollingScope {
        engine: RefCell::new(engine),
        at,
        handles: Cell::new(0),
        receives: Cell::new(Leftover::Awaited),
        scope: PhantomData,
        env: PhantomData,
    };
    // Whatever happens in the closure, the borrows that were posted end below, and nowhere else.
    let ended = catch_unwind(AssertUnwindSafe(|| closure(&scope)));
    let mut engine = scope.engine.borrow_mut();
    let guard = AbortOnUnwind;
    let ended = match ended {
        Ok(Ok(value)) => {
            let end = ScopeEnd {
                began_idle,
                forgot_handles: scope.handles.get() > 0,
                receives: scope.receives.get(),
            };
            let finished = finish(&mut engine, at, end);
            Ok(finished.map(|()| value).map_err(ScopeError::AutoPollError))
        }
        Ok(Err(error)) => {
            engine.abandon_scope(at);
            Ok(Err(ScopeError::ClosureError(error)))
        }
        Err(panic) => {
            engine.abandon_scope(at);
            Err(panic)
        }
    };
    guard.defuse();
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

impl<'scope, 'env> PollingScope<'scope, 'env> {
    /// Posts a send.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: the queue is full, or the channel down. [`try_post`](Self::try_post) gives the
    /// elements back as well.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn post_send<L: GatherList + 'scope>(
        &'scope self,
        list: L,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        self.post(Outgoing::send(list))
    }

    /// Posts an RDMA write to where `remote` begins.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send); [`Refusal::RemoteTooShort`] if it would reach past the
    /// end of `remote`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn post_write<L: GatherList + 'scope>(
        &'scope self,
        list: L,
        remote: RemoteMemoryRegion,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        self.post(Outgoing::write(list, remote))
    }

    /// Posts an RDMA read from where `remote` begins.
    ///
    /// # Errors
    ///
    /// As [`post_write`](Self::post_write); [`Refusal::NoReads`].
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn post_read<L: ScatterList + 'scope>(
        &'scope self,
        list: L,
        remote: RemoteMemoryRegion,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        self.post(Incoming::read(list, remote))
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive<L: ScatterList + 'scope>(
        &'scope self,
        mut list: L,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        self.receive(&mut list)
    }

    /// Posts work with all its options: an [`Outgoing`] or an [`Incoming`].
    ///
    /// # Errors
    ///
    /// As [`post_write`](Self::post_write).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post<W: Work + 'scope>(
        &'scope self,
        work: W,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        let (mut list, options) = work.into_parts();
        self.submit::<W>(&mut list, options)
    }

    /// Posts a batch: one doorbell, one completion, one handle for all of it. The first failure in
    /// it is the batch's.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post); [`Refusal::BatchTooLong`] for more than the send queue can ever hold.
    #[doc(alias = "ibv_post_send")]
    pub fn post_batch<W: Work + 'scope, const N: usize>(
        &'scope self,
        mut works: [W; N],
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        self.submit_batch(&mut works)
    }

    /// [`post`](Self::post), which gives the work back if it is not posted.
    ///
    /// The error borrows what the work borrows: to pass it on with `?`, take its
    /// [`error`](Rejected::error).
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post), with the work.
    #[doc(alias = "ibv_post_send")]
    pub fn try_post<W: Work + 'scope>(
        &'scope self,
        work: W,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Rejected<W, Refusal>> {
        let (mut list, options) = work.into_parts();
        match self.submit::<W>(&mut list, options) {
            Ok(pending) => Ok(pending),
            Err(refusal) => Err(Rejected::new(refusal, W::from_parts(list, options))),
        }
    }

    /// [`post_receive`](Self::post_receive), which gives the elements back if it is not posted.
    ///
    /// # Errors
    ///
    /// As [`post_receive`](Self::post_receive), with the elements.
    #[doc(alias = "ibv_post_recv")]
    pub fn try_post_receive<L: ScatterList + 'scope>(
        &'scope self,
        mut list: L,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Rejected<L, Refusal>> {
        match self.receive(&mut list) {
            Ok(pending) => Ok(pending),
            Err(refusal) => Err(Rejected::new(refusal, list)),
        }
    }

    /// [`post_batch`](Self::post_batch), which gives the work back if it is not posted.
    ///
    /// # Errors
    ///
    /// As [`post_batch`](Self::post_batch), with all of the work.
    #[doc(alias = "ibv_post_send")]
    pub fn try_post_batch<W: Work + 'scope, const N: usize>(
        &'scope self,
        mut works: [W; N],
    ) -> Result<ScopedPendingWork<'scope, 'env>, Rejected<[W; N], Refusal>> {
        match self.submit_batch(&mut works) {
            Ok(pending) => Ok(pending),
            Err(refusal) => Err(Rejected::new(refusal, works)),
        }
    }

    /// Posts work, and gives its elements back when it is done, inside the scope.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    pub fn lend<W: Work + 'scope>(
        &'scope self,
        work: W,
    ) -> Result<Loan<'scope, 'env, W::List>, Refusal> {
        let (mut list, options) = work.into_parts();
        let work = self.submit::<W>(&mut list, options)?;
        Ok(Loan { work, list })
    }

    /// Posts a receive, and gives its elements back when it is done, inside the scope.
    ///
    /// # Errors
    ///
    /// As [`post_receive`](Self::post_receive).
    #[doc(alias = "ibv_post_recv")]
    pub fn lend_receive<L: ScatterList + 'scope>(
        &'scope self,
        mut list: L,
    ) -> Result<Loan<'scope, 'env, L>, Refusal> {
        let work = self.receive(&mut list)?;
        Ok(Loan { work, list })
    }

    /// [`lend`](Self::lend), which gives the work back if it is not posted.
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend), with the work.
    #[doc(alias = "ibv_post_send")]
    pub fn try_lend<W: Work + 'scope>(
        &'scope self,
        work: W,
    ) -> Result<Loan<'scope, 'env, W::List>, Rejected<W, Refusal>> {
        let (mut list, options) = work.into_parts();
        match self.submit::<W>(&mut list, options) {
            Ok(work) => Ok(Loan { work, list }),
            Err(refusal) => Err(Rejected::new(refusal, W::from_parts(list, options))),
        }
    }

    /// [`lend_receive`](Self::lend_receive), which gives the elements back if it is not posted.
    ///
    /// # Errors
    ///
    /// As [`lend_receive`](Self::lend_receive), with the elements.
    #[doc(alias = "ibv_post_recv")]
    pub fn try_lend_receive<L: ScatterList + 'scope>(
        &'scope self,
        mut list: L,
    ) -> Result<Loan<'scope, 'env, L>, Rejected<L, Refusal>> {
        match self.receive(&mut list) {
            Ok(work) => Ok(Loan { work, list }),
            Err(refusal) => Err(Rejected::new(refusal, list)),
        }
    }

    /// Lets the scope end with receives left over: when the closure has returned `Ok`, everything in
    /// the send queue is waited for as usual, and receives that are still in flight are not. The
    /// connection is closed instead, at once, since a device gives posted receives back in no other
    /// way; that is no error.
    ///
    /// For the end of a stream of messages, whose reader always has a few more receives posted than
    /// messages come. If no receive is left over, the channel stays connected.
    pub fn close_with_receives_left(&self) {
        self.receives.set(Leftover::Closed);
    }

    /// Polls the completion queue once: how many completions were there.
    ///
    /// Handles poll by themselves; this is for a loop that looks at none of them.
    pub fn poll(&self) -> usize {
        let mut engine = self.engine.borrow_mut();
        let count = engine.drive();
        if count == 0 {
            engine.glance_at_peers();
        }
        count
    }

    #[inline(always)]
    fn handle(&'scope self, id: Id) -> ScopedPendingWork<'scope, 'env> {
        self.handles.set(self.handles.get() + 1);
        ScopedPendingWork { scope: self, id }
    }

    #[inline(always)]
    fn submit<W: Work + 'scope>(
        &'scope self,
        list: &mut W::List,
        options: W::Options,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        let mut engine = self.engine.borrow_mut();
        // SAFETY: the elements borrow their memory for `'scope`, and `scope` ends that only when
        // the operation is done, even if the closure fails. Nobody else has a scatter element: it
        // was moved here, and `Loan` gives it back only when the operation is done.
        let posted = unsafe { engine.post::<W>(Reservation::send(self.at), list, options) }?;
        Ok(self.handle(posted.id))
    }

    #[inline(always)]
    fn submit_batch<W: Work + 'scope, const N: usize>(
        &'scope self,
        works: &mut [W; N],
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        let mut engine = self.engine.borrow_mut();
        let reservation = Reservation::send(self.at).times(N)?;
        // SAFETY: as in `submit`.
        let posted = unsafe { engine.post_batch::<W, N>(reservation, works) }?;
        Ok(self.handle(posted.id))
    }

    #[inline(always)]
    fn receive<L: ScatterList + 'scope>(
        &'scope self,
        list: &mut L,
    ) -> Result<ScopedPendingWork<'scope, 'env>, Refusal> {
        let mut engine = self.engine.borrow_mut();
        // SAFETY: as in `submit`.
        let posted = unsafe { engine.post_receive(Reservation::receive(self.at), list) }?;
        Ok(self.handle(posted.id))
    }
}

impl ScopedPendingWork<'_, '_> {
    /// The result, if it is there; polls once. `None` while it is not, and after it was taken.
    #[inline(always)]
    #[must_use = "a failure that is taken here is not reported by the scope"]
    pub fn poll(&mut self) -> Option<Result<WorkSuccess, TransportError>> {
        let mut engine = self.scope.engine.borrow_mut();
        let at = self.scope.at;
        let taken = engine.take_borrowed(at, self.id);
        let taken = taken.or_else(|| engine.poll_borrowed(at, self.id));
        if taken.is_some() {
            // It identifies nothing from now on, however often its slot is used again.
            self.id = Id::NONE;
        }
        taken
    }

    /// Waits for the result, up to the channel's timeout.
    ///
    /// # Errors
    ///
    /// [`TransportError`]: the work failed; or the timeout passed, and the channel was aborted.
    #[inline(always)]
    pub fn spin_poll(mut self) -> Result<WorkSuccess, TransportError> {
        // Its outcome is taken here.
        let (at, id) = (self.scope.at, mem::replace(&mut self.id, Id::NONE));
        let mut engine = self.scope.engine.borrow_mut();
        let taken = engine.take_borrowed(at, id);
        taken.unwrap_or_else(|| engine.wait_borrowed(at, id))
    }

    /// Waits for the result; `None` if `timeout` passes first, and after it was taken. The work goes
    /// on, and can be waited for again.
    #[inline]
    #[must_use = "a failure that is taken here is not reported by the scope"]
    pub fn wait_timeout(
        &mut self,
        timeout: Duration,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        let mut engine = self.scope.engine.borrow_mut();
        if !engine.wait_for(self.id, Some(timeout)) {
            return None;
        }
        let taken = engine.release(self.scope.at, self.id);
        if taken.is_some() {
            self.id = Id::NONE;
        }
        taken
    }
}

impl Drop for ScopedPendingWork<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        self.scope.handles.set(self.scope.handles.get() - 1);
        // It is borrowed only while one of its own calls runs.
        if let Ok(mut engine) = self.scope.engine.try_borrow_mut() {
            engine.detach(self.scope.at, self.id);
        }
    }
}

impl<L> Loan<'_, '_, L> {
    /// The result and the elements, if it is done; polls once.
    ///
    /// # Errors
    ///
    /// The loan, while it is not done.
    pub fn poll(mut self) -> Result<(Result<WorkSuccess, TransportError>, L), Self> {
        match self.work.poll() {
            Some(result) => Ok((result, self.list)),
            None => Err(self),
        }
    }

    /// Waits for the result, up to the channel's timeout, and gives the elements back.
    #[inline]
    pub fn wait(self) -> (Result<WorkSuccess, TransportError>, L) {
        (self.work.spin_poll(), self.list)
    }

    /// Waits for the result and the elements.
    ///
    /// # Errors
    ///
    /// The loan, if `timeout` passes first: the work goes on, and can be waited for again.
    pub fn wait_timeout(
        mut self,
        timeout: Duration,
    ) -> Result<(Result<WorkSuccess, TransportError>, L), Self> {
        match self.work.wait_timeout(timeout) {
            Some(result) => Ok((result, self.list)),
            None => Err(self),
        }
    }
}

impl fmt::Debug for PollingScope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollingScope").finish_non_exhaustive()
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
