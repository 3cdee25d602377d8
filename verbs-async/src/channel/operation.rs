//! Operations: futures of requests that were posted or queued.
#![expect(private_interfaces, reason = "`Payload` is sealed")]

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use verbs_channel::engine::Engine;
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{OwnedBuffer, OwnedRequest, Ticket, TransportError};

use crate::driver::{self, Submission};
use crate::engine::SharedEngine;
use crate::task::coop;

/// An operation that has been posted or queued: a future of its outcome.
///
/// It resolves to the result and the value that it took: a buffer, the requests of a
/// [batch](crate::AsyncChannel::batch), or a [chain](crate::AsyncChannel::chain).
///
/// `?` applies to the result only: `let (received, buffer) = operation.await;`, then `received?`. To
/// drop the buffer at once: `operation.result().await?`.
///
/// The operation is posted, or in the backlog of its queue, when this value is created. Awaiting it
/// only takes the outcome. Any task may poll it. After a timeout around `&mut operation`, or a
/// `select` that chose another branch, it can be awaited again. Now and then it yields to other
/// tasks: see [cooperative scheduling](crate#cooperative-scheduling).
///
/// Dropping it abandons the operation. While the device may access the buffer, the channel keeps
/// it. After the completion the buffer returns to its pool, or is freed. An operation in the
/// backlog is not posted. A receive in flight still receives a message, which is lost: to keep the
/// message, keep the operation.
#[must_use = "dropping an operation abandons it"]
pub struct Operation<T: Payload = OwnedBuffer> {
    shared: Arc<SharedEngine>,
    // `None` once the outcome has been taken.
    at: Option<Submission>,
    given: PhantomData<fn() -> T>,
}

/// A future of the result of an [`Operation`]: see [`Operation::result`].
///
/// Dropping it abandons the operation.
#[derive(Debug)]
#[must_use = "dropping an operation abandons it"]
pub struct OperationResult<T: Payload = OwnedBuffer> {
    operation: Operation<T>,
}

/// A value that an [`Operation`] takes and returns: one buffer, the requests of a batch, or a
/// chain.
pub trait Payload: sealed::Payload {}

impl Payload for OwnedBuffer {}
impl Payload for Vec<OwnedRequest> {}
impl Payload for OwnedChain {}

mod sealed {
    use std::task::Poll;

    use verbs_channel::engine::Engine;
    use verbs_channel::{Ticket, TransportError};

    use crate::driver;

    #[expect(unnameable_types, reason = "seals `Payload`")]
    pub trait Payload: Sized {
        /// The value of a success.
        type Success;

        /// Takes the outcome if the operation has completed. Polls once at most. It may leave an outcome where it is, as
        /// that of a failure, and be pending: [`Driver::wait`](driver::Driver::wait) takes it then.
        fn poll(
            engine: &mut Engine,
            ticket: Ticket,
        ) -> Poll<(Result<Self::Success, TransportError>, Self)> {
            let outcome = driver::Outcome::poll(engine, ticket);
            outcome.map_or(Poll::Pending, |outcome| Poll::Ready(Self::of(outcome)))
        }

        /// The result, and what was given.
        fn of(outcome: driver::Outcome) -> (Result<Self::Success, TransportError>, Self);
    }
}

impl sealed::Payload for OwnedBuffer {
    type Success = WorkSuccess;

    #[inline(always)]
    fn poll(
        engine: &mut Engine,
        ticket: Ticket,
    ) -> Poll<(Result<WorkSuccess, TransportError>, Self)> {
        match engine.poll_success(ticket) {
            Some((success, buffer)) => Poll::Ready((Ok(*success), buffer)),
            None => Poll::Pending,
        }
    }

    fn of(outcome: driver::Outcome) -> (Result<WorkSuccess, TransportError>, Self) {
        (outcome.result, outcome.buffer)
    }
}

impl sealed::Payload for Vec<OwnedRequest> {
    type Success = ();

    fn of(outcome: driver::Outcome) -> (Result<(), TransportError>, Self) {
        (outcome.result.map(drop), outcome.batch)
    }
}

impl sealed::Payload for OwnedChain {
    type Success = ();

    fn of(outcome: driver::Outcome) -> (Result<(), TransportError>, Self) {
        (outcome.result.map(drop), outcome.chain.unwrap_or_default())
    }
}

impl<T: Payload> Operation<T> {
    /// The result only, as a future: it drops the buffer, the requests of a batch, or the chain.
    ///
    /// A block returns to its pool. It is awaited and dropped like the operation itself.
    ///
    /// ```no_run
    /// # use verbs_async::{AsyncChannel, Result};
    /// # use verbs_async::verbs_channel::BufferPool;
    /// # async fn example(channel: AsyncChannel, pool: BufferPool) -> Result<()> {
    /// let hello = pool.take_when_free().await.filled(b"hello")?;
    /// channel.send(hello).result().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn result(self) -> OperationResult<T> {
        OperationResult { operation: self }
    }

    #[inline(always)]
    pub(crate) const fn new(shared: Arc<SharedEngine>, submission: Submission) -> Self {
        Self {
            shared,
            at: Some(submission),
            given: PhantomData,
        }
    }

    /// Whether it was posted at once: it is not in the backlog, and was not refused.
    pub(crate) const fn was_posted(&self) -> bool {
        matches!(self.at, Some(Submission::Posted(_)))
    }

    /// Polls for a stream, which does its own counting for cooperative scheduling.
    pub(crate) fn poll_uncounted(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(Result<T::Success, TransportError>, T)> {
        self.poll_outcome(cx, false)
    }

    /// Polls, and counts the poll for cooperative scheduling if it `is_counted`.
    // One function: an outcome that passes through two functions is copied twice.
    #[inline(always)]
    fn poll_outcome(
        &mut self,
        cx: &mut Context<'_>,
        is_counted: bool,
    ) -> Poll<(Result<T::Success, TransportError>, T)> {
        if is_counted && self.shared.must_yield(cx) {
            return Poll::Pending;
        }
        let at = self.at;
        let at = at.expect("an operation is not polled again after it was ready");
        if let Submission::Posted(ticket) = at {
            let driver = &self.shared.driver;
            let mut state = driver.state().lock_only();
            let taken = T::poll(&mut state.engine, ticket);
            if taken.is_ready() {
                driver.unlock_after_take(state, ticket);
                self.at = None;
                if is_counted {
                    coop::count_ready(cx);
                }
                return taken;
            }
            driver.state().unlock(state);
        }
        // In a place of its own: what is taken above would be in memory, too, if both had one.
        let mut slowly = Poll::Pending;
        self.poll_slowly(cx, is_counted, &mut slowly);
        slowly
    }

    #[inline(never)]
    fn poll_slowly(
        &mut self,
        cx: &mut Context<'_>,
        is_counted: bool,
        output: &mut Poll<(Result<T::Success, TransportError>, T)>,
    ) {
        let Some(at) = self.at else {
            return;
        };
        let Poll::Ready(outcome) = self.shared.driver.wait(at, cx) else {
            return;
        };
        self.at = None;
        if is_counted {
            coop::count_ready(cx);
        }
        *output = Poll::Ready(T::of(outcome));
    }
}

impl<T: Payload> Drop for Operation<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(at) = self.at {
            abandon(&self.shared, at);
        }
    }
}

// A function of its own, so that dropping a completed operation stays inline.
#[cold]
#[inline(never)]
fn abandon(shared: &SharedEngine, at: Submission) {
    shared.driver.abandon(at);
}

impl<T: Payload> Future for Operation<T> {
    /// The result and what was given: `(Result<WorkSuccess, TransportError>, OwnedBuffer)`; for a batch
    /// `(Result<(), TransportError>, Vec<OwnedRequest>)`, and for a chain `(Result<(), TransportError>, OwnedChain)`.
    /// The result of a batch or a chain is its first failure.
    ///
    /// If the driver fails to destroy a queue pair, the device may still access its buffers. Then
    /// the returned buffer is empty with a capacity of 0, or the batch or chain is empty.
    type Output = (Result<T::Success, TransportError>, T);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_outcome(cx, true)
    }
}

impl<T: Payload> Future for OperationResult<T> {
    /// `Result<WorkSuccess, TransportError>`, or `Result<(), TransportError>` for a batch or a chain.
    type Output = Result<T::Success, TransportError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = Pin::new(&mut self.operation).poll(cx);
        outcome.map(|(result, _given)| result)
    }
}

impl<T: Payload> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Operation").field(&self.at).finish()
    }
}
