//! The task that waits for messages of receives that channels share.

use std::task::{Context, Poll, Waker};

use super::Driver;
use super::source::{Ring, SharedReceives};
use super::state::DriverState;
use crate::task::wake;

impl<R: SharedReceives> Driver<R> {
    /// Waits for the oldest message: one task at a time. `None` if there are no more. While it is pending, also
    /// returns whether receives are missing for lack of blocks.
    pub(crate) fn poll_message(&self, cx: &Context<'_>) -> (Poll<Option<R::Message>>, bool) {
        let waker = cx.waker().clone();
        let mut state = self.state.lock();
        // Before driving, which arms the queue only if a task waits.
        let replaced = state.wait_for_message(waker);
        let mut message = state.ring.next_message();
        if message.is_none() {
            state.drive(None);
            if state.ring.has_message() {
                message = state.ring.next_message();
            }
        }
        let is_ready = message.is_some() || state.ring.has_no_more_messages();
        let own = is_ready.then(|| state.stop_messages()).flatten();
        let needs_blocks = state.ring.needs_blocks();
        self.unlock(state);
        wake::drop_guarded(replaced);
        wake::drop_guarded(own);
        let polled = if is_ready {
            Poll::Ready(message)
        } else {
            Poll::Pending
        };
        (polled, needs_blocks)
    }

    /// No task waits for messages any more.
    pub(crate) fn stop_messages(&self) {
        if self.is_in_child() {
            return;
        }
        let mut state = self.state.lock();
        let waker = state.stop_messages();
        self.unlock(state);
        wake::drop_guarded(waker);
    }
}

impl<R: Ring> DriverState<R> {
    /// Whether there is something to do for the shared receives.
    // Not inlined: the path without waiters stays short.
    #[cold]
    #[inline(never)]
    pub(super) fn has_news(&self) -> bool {
        self.is_message_due() || self.ring.has_failed()
    }

    /// Whether the task that waits for a message is to be woken.
    fn is_message_due(&self) -> bool {
        self.message_waker.is_some()
            && (self.ring.has_message() || self.ring.has_no_more_messages())
    }

    /// Wakes that task if there is a message, or there are no more.
    pub(super) fn wake_for_message(&mut self) {
        if self.is_message_due()
            && let Some(waker) = self.stop_messages()
        {
            self.deferred.wake(waker);
        }
    }

    fn wait_for_message(&mut self, waker: Waker) -> Option<Waker> {
        let replaced = self.message_waker.replace(waker);
        self.waiters += usize::from(replaced.is_none());
        replaced
    }

    fn stop_messages(&mut self) -> Option<Waker> {
        let waker = self.message_waker.take()?;
        self.waiters -= 1;
        Some(waker)
    }
}
