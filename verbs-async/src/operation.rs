//! Operations: what has been begun, and how it ends.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{OwnedBuffer, OwnedWork, Ticket};

use crate::coop;
use crate::driver::Submission;
use crate::error::Result;
use crate::shared::Shared;

/// An operation that has been posted or queued: a future of its outcome.
///
/// It resolves to the result and what the operation was given: a buffer, or the requests of a
/// [batch](crate::AsyncChannel::batch).
///
/// The operation was posted when this was made, or is in the backlog of its queue; to await it only
/// brings the outcome. It may be polled from any task, and dropped from a `select` and polled again:
/// with a timeout around `&mut operation` it can be awaited anew when the timeout has passed. After 64
/// operations of a thread that were ready at once, the next is pending once and wakes its task, so
/// that other tasks run.
///
/// Dropping it abandons the operation, not the memory: while the device may touch the buffer, the
/// channel keeps it; the completion returns it to its pool, or frees it. An operation that is still in
/// the backlog is not posted. The message that an abandoned receive takes is lost: to keep it, keep
/// the operation.
#[must_use = "dropping an operation abandons it"]
pub struct Operation<T: Given = OwnedBuffer> {
    shared: Arc<Shared>,
    // `None` once the outcome has been taken.
    at: Option<Submission<Ticket>>,
    given: PhantomData<fn() -> T>,
}

/// What an [`Operation`] was given: one buffer, or the requests of a batch.
pub trait Given: sealed::Given {}

impl Given for OwnedBuffer {}
impl Given for Vec<OwnedWork> {}

mod sealed {
    use crate::driver::End;
    use crate::ring::Channels;

    #[expect(unnameable_types, reason = "seals `Given`")]
    #[expect(private_bounds, reason = "the crate's alone")]
    pub trait Given {
        /// How an operation ends, and what it was given.
        type Outcome: End<Channels>;
    }
}

impl sealed::Given for OwnedBuffer {
    type Outcome = (Result<WorkSuccess>, Self);
}

impl sealed::Given for Vec<OwnedWork> {
    type Outcome = (Result<()>, Self);
}

impl<T: Given> Operation<T> {
    #[inline(always)]
    pub(crate) const fn new(shared: Arc<Shared>, submission: Submission<Ticket>) -> Self {
        Self {
            shared,
            at: Some(submission),
            given: PhantomData,
        }
    }

    /// Polls it for a stream, which counts what it is itself polled for.
    pub(crate) fn poll_uncounted(&mut self, cx: &mut Context<'_>) -> Poll<T::Outcome> {
        self.poll_outcome::<false>(cx)
    }

    /// Polls it, and counts that for its task if it is the task's own.
    // In one place: an outcome that passes through two functions is copied twice.
    #[inline(always)]
    fn poll_outcome<const IS_COUNTED: bool>(&mut self, cx: &mut Context<'_>) -> Poll<T::Outcome> {
        if IS_COUNTED && coop::is_over(cx) {
            return Poll::Pending;
        }
        let at = self.at.as_ref();
        let at = at.expect("an operation that is done is not polled again");
        if let Some(taken) = self.shared.driver.take::<T::Outcome>(at) {
            self.at = None;
            if IS_COUNTED {
                coop::spend();
            }
            return Poll::Ready(taken.into());
        }
        self.poll_slowly::<IS_COUNTED>(cx)
    }

    #[inline(never)]
    fn poll_slowly<const IS_COUNTED: bool>(&mut self, cx: &mut Context<'_>) -> Poll<T::Outcome> {
        let Some(at) = &self.at else {
            return Poll::Pending;
        };
        let outcome = ready!(self.shared.driver.wait(at, cx));
        self.at = None;
        if IS_COUNTED {
            coop::spend();
        }
        Poll::Ready(outcome.into())
    }
}

impl<T: Given> Drop for Operation<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            abandon(&self.shared, at);
        }
    }
}

// Apart, so that what is done is dropped where it is.
#[cold]
#[inline(never)]
fn abandon(shared: &Shared, at: Submission<Ticket>) {
    shared.driver.abandon(at);
}

impl<T: Given> Future for Operation<T> {
    /// How it ended, and what it was given: the buffer, `(Result<WorkSuccess>, OwnedBuffer)`; or the
    /// requests of a batch, `(Result<()>, Vec<OwnedWork>)`, and the first failure in it is the
    /// batch's.
    ///
    /// The buffer is empty, with a capacity of 0, and so is the list of requests, in one case: the
    /// driver refused to destroy the queue pair, and so to take the buffer from the device.
    type Output = T::Outcome;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_outcome::<true>(cx)
    }
}

impl<T: Given> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Operation").field(&self.at).finish()
    }
}
