//! Operations: what has been begun, and how it ends.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{OwnedBuffer, OwnedWork, Ticket};

use crate::coop;
use crate::driver::{self, End};
use crate::error::Result;
use crate::group::Shared;
use crate::ring::Channels;

/// An operation that has begun: a future of its result and its buffer.
///
/// It was posted when it was made, or stands in line for a place in its queue; to await it is only
/// to learn how it ended. It may be polled from any task, put down and polled again: with a timeout
/// around `&mut operation` it can be waited for anew when that has passed. After 64 operations of a
/// thread that were ready at once, one is not, and wakes its task: others have a turn then.
///
/// Dropping it abandons the operation, not the memory: while the card may touch the buffer the
/// channel keeps it, and returns it to its pool, or frees it, at the completion. What is still in
/// line is not posted any more. A message that an abandoned receive takes is lost: whoever wants it
/// keeps the operation.
#[must_use = "dropping an operation abandons it"]
pub struct Operation {
    begun: Begun,
}

/// A batch that has begun: a future of its result and its work, as it was given.
///
/// As an [`Operation`], for many work requests with one completion.
#[must_use = "dropping a batch abandons it"]
pub struct Batch {
    begun: Begun,
}

/// Something that was begun and whose outcome has not been taken.
struct Begun {
    shared: Arc<Shared>,
    // `None` once the outcome has been taken.
    at: Option<driver::Begun<Ticket>>,
}

impl Operation {
    #[inline(always)]
    pub(crate) const fn new(shared: Arc<Shared>, begun: driver::Begun<Ticket>) -> Self {
        Self {
            begun: Begun::new(shared, begun),
        }
    }
}

impl Operation {
    /// Polls it for a stream, which counts what it is itself polled for.
    pub(crate) fn poll_uncounted(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(Result<WorkSuccess>, OwnedBuffer)> {
        self.begun.poll::<false, _>(cx)
    }
}

impl Batch {
    pub(crate) const fn new(shared: Arc<Shared>, begun: driver::Begun<Ticket>) -> Self {
        Self {
            begun: Begun::new(shared, begun),
        }
    }
}

impl Begun {
    #[inline(always)]
    const fn new(shared: Arc<Shared>, begun: driver::Begun<Ticket>) -> Self {
        let at = Some(begun);
        Self { shared, at }
    }

    /// Polls it, and counts that for its task if it is the task's own.
    // In one place: an outcome that passes through two functions is copied twice.
    #[inline(always)]
    fn poll<const IS_COUNTED: bool, E: End<Channels>>(&mut self, cx: &mut Context<'_>) -> Poll<E> {
        if IS_COUNTED && coop::is_over(cx) {
            return Poll::Pending;
        }
        let at = self.at.as_ref();
        let at = at.expect("an operation that is done is not polled again");
        if let Some(taken) = self.shared.driver.take::<E>(at) {
            self.at = None;
            if IS_COUNTED {
                coop::spend();
            }
            return Poll::Ready(taken.into());
        }
        self.poll_slowly::<IS_COUNTED, E>(cx)
    }

    #[inline(never)]
    fn poll_slowly<const IS_COUNTED: bool, E: End<Channels>>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<E> {
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

impl Drop for Begun {
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
fn abandon(shared: &Shared, at: driver::Begun<Ticket>) {
    shared.driver.abandon(at);
}

impl Future for Operation {
    /// How it ended, and the buffer.
    ///
    /// The buffer is empty, with a capacity of 0, in one case: the driver refused to destroy the
    /// queue pair, and so to take the buffer from the card.
    type Output = (Result<WorkSuccess>, OwnedBuffer);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.begun.poll::<true, _>(cx)
    }
}

impl Future for Batch {
    /// How it ended, and its work. The first failure in it is the batch's.
    type Output = (Result<()>, Vec<OwnedWork>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.begun.poll::<true, _>(cx)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Operation").field(&self.begun.at).finish()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Batch").field(&self.begun.at).finish()
    }
}
