//! Scopes: operations on borrowed buffers, which end before the scope does.
#![expect(
    unsafe_code,
    reason = "a scope keeps borrows until the device is done with them"
)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use verbs_core::RemoteMemoryRegion;
use verbs_core::error::Rejected;

use super::pending::ScopedPendingWork;
use crate::engine::{BufferOwner, Engine, Id};
use crate::error::{DownReason, Queue, RejectReason, ScopeError, TransportError};
use crate::request::{GatherList, Incoming, List, Op, Outgoing, Request, ScatterList};
use crate::waiting::{AbortOnUnwind, Deadline, Poller, Steps};

/// Posts requests on borrowed buffers: see [`Channel::scope`](crate::Channel::scope).
///
/// A request that is posted borrows its elements until the scope ends. The scope ends only when the
/// device is done with all of them.
pub struct PollingScope<'scope, 'env: 'scope> {
    // Not a `RefCell`, whose checks are a tenth of a post: see `with`.
    poller: UnsafeCell<&'env mut Poller>,
    pub(super) at: u32,
    receives: Cell<Leftover>,
    // Whether it has granted some.
    pub(super) has_leases: Cell<bool>,
    // As in `std::thread::Scope`: neither lifetime may be shortened or lengthened.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// How a scope ends.
#[derive(Clone, Copy, Debug)]
enum ScopeEnd {
    /// Its closure returned `Ok`: it waits for its operations, up to the channel's timeout. Its receives end so.
    Finished(Leftover),
    /// Its closure has to take all outcomes, and returned `Ok`: its operations in flight are aborted.
    Manual,
    /// Its closure failed: it waits for its operations of the send queue, up to the drain timeout, and aborts those in
    /// flight then.
    Failed,
}

/// How receives end that are in flight when the closure of a scope returns `Ok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    /// The scope waits for them.
    Awaited,
    /// The connection is closed, which aborts them.
    Closed,
}

/// Runs a scope, which waits for its operations when its closure has returned, or `is_manual`: its closure has to take
/// all outcomes.
#[inline(always)]
pub(crate) fn scope<'env, T, E>(
    poller: &'env mut Poller,
    at: u32,
    is_manual: bool,
    closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
) -> Result<T, ScopeError<E>> {
    let scope = PollingScope {
        poller: UnsafeCell::new(poller),
        at,
        receives: Cell::new(Leftover::Awaited),
        has_leases: Cell::new(false),
        scope: PhantomData,
        env: PhantomData,
    };
    // Whether the closure returns or panics, the borrows of posted elements end below.
    let ended = catch_unwind(AssertUnwindSafe(|| closure(&scope)));
    let guard = AbortOnUnwind;
    // The closure's value is dropped after that, if at all, so a panic of its drop ends no borrow.
    let finished = match &ended {
        Ok(Ok(_)) if is_manual => end_scope(&mut &scope, at, ScopeEnd::Manual),
        Ok(Ok(_)) if scope.with(|poller| has_finished(poller, at)) => Ok(()),
        Ok(Ok(_)) => {
            let receives = scope.receives.get();
            end_scope(&mut &scope, at, ScopeEnd::Finished(receives))
        }
        // The closure's own failure is returned; this one is the channel's down reason.
        Ok(Err(_)) | Err(_) => end_scope(&mut &scope, at, ScopeEnd::Failed),
    };
    if scope.has_leases.get() {
        scope.with(|poller| poller.engine.end_leases(at, true));
    }
    guard.defuse();
    match ended {
        Ok(Ok(value)) => finished.map(|()| value).map_err(ScopeError::AutoPollError),
        Ok(Err(error)) => Err(ScopeError::ClosureError(error)),
        Err(panic) => resume_unwind(panic),
    }
}

/// Ends a scope whose closure returned `Ok`, if all of its operations have succeeded.
#[inline(always)]
fn has_finished(poller: &mut Poller, at: u32) -> bool {
    if !poller.engine.is_idle_and_up(at) {
        if poller.engine.is_in_child() {
            return false;
        }
        let found = poller.engine.drive_discarding();
        poller.count(found);
    }
    poller.engine.is_done_and_up(at)
}

/// Ends a scope: the device is done with its buffers when this returns. The first failure whose outcome was not
/// taken fails the scope.
#[inline(never)]
fn end_scope(steps: &mut impl Steps, at: u32, end: ScopeEnd) -> Result<(), TransportError> {
    let receives = match end {
        ScopeEnd::Finished(receives) => receives,
        ScopeEnd::Manual | ScopeEnd::Failed => Leftover::Awaited,
    };
    let reason = match end {
        // The operations in flight are the parent's, and the device does not access this process's memory.
        _ if steps.step(|poller| poller.engine.is_in_child()) => DownReason::Closed,
        ScopeEnd::Finished(_) => {
            let timeout = steps.step(|poller| poller.config.timeout);
            let deadline = Deadline::after(timeout);
            if receives == Leftover::Awaited
                && steps.step(|poller| poller.engine.flight.is_all_borrowed(at))
            {
                // Nothing is looked for once all have succeeded.
                let has_ended = |engine: &Engine| {
                    let member = engine.member(at);
                    engine.is_idle_at(at) || member.is_none_or(|member| member.down().is_some())
                };
                steps.wait_before(deadline, has_ended);
                if steps.step(|poller| poller.engine.is_done_and_up(at)) {
                    return Ok(());
                }
            }
            if let Some(late) = wait_for_borrowed(steps, at, deadline, receives) {
                steps.abort_late(at, late, timeout);
            }
            // The receives in flight, if any.
            DownReason::Closed
        }
        ScopeEnd::Failed => {
            let timeout = steps.step(|poller| poller.config.drain_timeout);
            let deadline = Deadline::after(Some(timeout));
            let _late = wait_for_borrowed(steps, at, deadline, Leftover::Closed);
            DownReason::Abandoned
        }
        ScopeEnd::Manual => {
            steps.step(|poller| poller.engine.drive());
            DownReason::Abandoned
        }
    };
    steps.abort_borrowed(at, reason);
    steps.step(|poller| take_outcomes(&mut poller.engine, at, receives))
}

/// Waits for the operations of a scope, and for its receives if they are awaited. Returns one that is late.
fn wait_for_borrowed(
    steps: &mut impl Steps,
    at: u32,
    deadline: Deadline,
    receives: Leftover,
) -> Option<Id> {
    let mut next = steps.step(|poller| poller.engine.flight.first(at));
    while let Some(id) = next {
        let queue = steps.step(|poller| poller.engine.flight.borrowed_in_flight(id));
        let is_awaited = match queue {
            Some(Queue::Receive) => receives == Leftover::Awaited,
            Some(Queue::Send) => true,
            None => false,
        };
        if is_awaited && !steps.wait_before(deadline, |engine| !engine.flight.is_pending(id)) {
            return Some(id);
        }
        next = steps.step(|poller| poller.engine.flight.after(id));
    }
    None
}

/// Takes the untaken outcomes of operations that have all ended. Returns the first failure.
fn take_outcomes(engine: &mut Engine, at: u32, receives: Leftover) -> Result<(), TransportError> {
    let mut first: Option<(TransportError, u32)> = None;
    let mut next = engine.flight.first(at);
    while let Some(id) = next {
        next = engine.flight.after(id);
        let Some(queue) = engine.flight.borrowed(id) else {
            continue;
        };
        // With `Leftover::Closed`, a receive that is aborted with the connection has not failed.
        let is_left = |error| {
            receives == Leftover::Closed
                && queue == Queue::Receive
                && matches!(error, TransportError::Aborted(_))
        };
        if let Some((error, when)) = engine.flight.failure(id)
            && !is_left(error)
            && first.is_none_or(|(_, earliest)| when < earliest)
        {
            first = Some((error, when));
        }
        let _taken = engine.flight.release(id);
    }
    first.map_or(Ok(()), |(error, _)| Err(error))
}

impl<'scope, 'env> PollingScope<'scope, 'env> {
    /// Posts a send. For immediate data, [`post`](Self::post) an [`Outgoing::immediate`].
    ///
    /// # Errors
    ///
    /// The reason of the rejection: the queue is full, the channel is down, or the elements do not fit
    /// the channel. [`try_lend`](Self::try_lend) hands the elements back as well. A full queue has room
    /// again after a [`poll`](Self::poll) that finds completions.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn post_send<L: GatherList + 'scope>(
        &'scope self,
        list: L,
    ) -> Result<ScopedPendingWork<'scope, 'env>, RejectReason> {
        self.post(Outgoing::send(list))
    }

    /// Posts an RDMA write to the start of `remote`.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send); [`RejectReason::RemoteTooShort`] if the bytes do not fit
    /// into `remote`.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn post_write<L: GatherList + 'scope>(
        &'scope self,
        list: L,
        remote: RemoteMemoryRegion,
    ) -> Result<ScopedPendingWork<'scope, 'env>, RejectReason> {
        self.post(Outgoing::write(list, remote))
    }

    /// Posts an RDMA read from the start of `remote`.
    ///
    /// # Errors
    ///
    /// As [`post_write`](Self::post_write); [`RejectReason::NoReads`].
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn post_read<L: ScatterList + 'scope>(
        &'scope self,
        list: L,
        remote: RemoteMemoryRegion,
    ) -> Result<ScopedPendingWork<'scope, 'env>, RejectReason> {
        self.post(Incoming::read(list, remote))
    }

    /// Posts a receive.
    ///
    /// Its bytes can be read after the scope. To read them within it, use
    /// [`lend`](Self::lend). The scope waits for a message, even if the handle is
    /// dropped: if none may come, call
    /// [`close_with_receives_left`](Self::close_with_receives_left).
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive<L: ScatterList + 'scope>(
        &'scope self,
        list: L,
    ) -> Result<ScopedPendingWork<'scope, 'env>, RejectReason> {
        self.post(Incoming::receive(list))
    }

    /// Posts a request with its options: an [`Outgoing`] or an [`Incoming`].
    ///
    /// # Errors
    ///
    /// As [`post_write`](Self::post_write).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post<W: Request + 'scope>(
        &'scope self,
        request: W,
    ) -> Result<ScopedPendingWork<'scope, 'env>, RejectReason> {
        let (mut list, op) = request.into_parts();
        let id = self.submit(&mut list, op)?;
        Ok(ScopedPendingWork::new(self, id, ()))
    }

    /// Posts a batch with one doorbell, one completion and one handle.
    ///
    /// The outcome of the batch is its first failure. The requests before that one have succeeded.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post); [`RejectReason::BatchTooLong`] if the send queue cannot hold it.
    #[doc(alias = "ibv_post_send")]
    pub fn post_batch<W: Request + 'scope, const N: usize>(
        &'scope self,
        mut requests: [W; N],
    ) -> Result<ScopedPendingWork<'scope, 'env>, RejectReason> {
        let id = self.submit_batch(&mut requests)?;
        Ok(ScopedPendingWork::new(self, id, ()))
    }

    /// Posts a request whose elements are returned with its outcome, within the scope: a loan. For a receive, it is
    /// an [`Incoming::receive`].
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post).
    #[doc(alias = "ibv_post_send")]
    pub fn lend<W: Request + 'scope>(
        &'scope self,
        request: W,
    ) -> Result<ScopedPendingWork<'scope, 'env, W::List>, RejectReason> {
        self.try_lend(request).map_err(Rejected::into_error)
    }

    /// [`lend`](Self::lend) that hands the request back if it is rejected.
    ///
    /// The error borrows what the request borrows. To pass it on with `?`, drop the request first:
    /// `.map_err(Rejected::into_error)?`.
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend), with the request.
    #[doc(alias = "ibv_post_send")]
    pub fn try_lend<W: Request + 'scope>(
        &'scope self,
        mut request: W,
    ) -> Result<ScopedPendingWork<'scope, 'env, W::List>, Rejected<W, RejectReason>> {
        let (list, op) = request.parts();
        match self.submit(list, *op) {
            Ok(id) => Ok(ScopedPendingWork::new(self, id, request.into_parts().0)),
            Err(reason) => Err(Rejected::new(reason, request)),
        }
    }

    /// Lets the scope end while receives are in flight, by closing the connection.
    ///
    /// Call it at any time in the closure: it takes effect at the scope's end. When the closure has
    /// returned `Ok`, the scope waits for the operations of the send queue. If receives are still in
    /// flight, it closes the connection: this is the only way to get them back from the device. That
    /// is not an error: a reader of a stream of messages usually has more receives posted than
    /// messages arrive. If no receive is in flight, the channel stays connected.
    pub fn close_with_receives_left(&self) {
        self.receives.set(Leftover::Closed);
    }

    /// Polls the completion queue once, and returns how many completions it found.
    ///
    /// Handles poll when their outcomes are taken. This method is for loops that take no outcomes, for
    /// example until there is room for another post.
    pub fn poll(&self) -> usize {
        let found = self.with(|poller| {
            let found = poller.engine.drive();
            match found {
                0 => poller.check_peers_now(),
                found => {
                    poller.count(found);
                }
            }
            found
        });
        if found == 0 {
            let mut this = self;
            this.run_afterwards();
        }
        found
    }

    /// Runs one of the closures of this folder, and of the steps of `waiting`, which lead back here
    /// by no code of others: what runs that is left for [afterwards](Steps::run_afterwards).
    #[inline(always)]
    pub(super) fn with<R>(&self, then: impl FnOnce(&mut Poller) -> R) -> R {
        // SAFETY: `poller` is the only reference. A scope is not `Sync`. The closures given to this
        // function are all there, and what they call has no reference to the scope:
        // `Request` and the lists are sealed; and the engine calls no logger, waker, destructor or
        // other code from outside of this crate and the ones below, which could find the scope in a
        // thread-local (`engine/afterwards.rs`).
        let poller = unsafe { &mut *self.poller.get() };
        then(poller)
    }

    /// The engine, for a post: a closure of [`with`](Self::with) may not be inlined, and passes all through memory.
    ///
    /// # Safety
    ///
    /// - The reference is not used once code from outside has run, or `with` or this was called again.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller has no other reference to it"
    )]
    #[inline(always)]
    unsafe fn engine(&self) -> &mut Engine {
        // SAFETY: a scope is not `Sync`, and the caller has no other reference.
        let poller = unsafe { &mut *self.poller.get() };
        &mut poller.engine
    }

    /// A post was rejected.
    #[cold]
    #[inline(never)]
    fn rejected(mut self: &Self, reason: RejectReason) -> RejectReason {
        Steps::rejected(&mut self, reason)
    }

    #[inline(always)]
    fn submit<L: List + 'scope>(&'scope self, list: &mut L, op: Op) -> Result<Id, RejectReason> {
        // SAFETY: a post calls no code from outside, and the reference is not used after it.
        let engine = unsafe { self.engine() };
        // SAFETY: the elements borrow their memory for `'scope`, which `scope` ends only after the
        // operation has ended, even if the closure fails or panics. A scatter element was moved
        // here, so it is not used elsewhere; a handle returns it only after the
        // operation has ended.
        match unsafe { engine.post_list(self.at, BufferOwner::Borrowed, list, op) } {
            Ok(posted) => Ok(posted.id),
            Err(reason) => Err(self.rejected(reason)),
        }
    }

    #[inline(always)]
    fn submit_batch<W: Request + 'scope, const N: usize>(
        &'scope self,
        requests: &mut [W; N],
    ) -> Result<Id, RejectReason> {
        // SAFETY: a post calls no code from outside, and the reference is not used after it.
        let engine = unsafe { self.engine() };
        // SAFETY: the elements borrow their memory for `'scope`, which `scope` ends only after the
        // operation has ended, even if the closure fails or panics. A scatter element was moved
        // here, so it is not used elsewhere before that.
        let posted = unsafe { engine.post_batch_at(self.at, requests) };
        match posted {
            Ok(posted) => Ok(posted.id),
            Err(reason) => Err(self.rejected(reason)),
        }
    }
}

impl Steps for &PollingScope<'_, '_> {
    #[inline(always)]
    fn step<R>(&mut self, then: impl FnOnce(&mut Poller) -> R) -> R {
        self.with(then)
    }
}

impl fmt::Debug for PollingScope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollingScope").finish_non_exhaustive()
    }
}
