//! Queue pairs that helper threads destroy, and the tasks that wait for them.

use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::task::sync::Mutex;
use crate::task::wake;

/// The channels whose queue pairs helper threads have, and the wakers of the tasks that wait, each for one of
/// them or for any.
pub(crate) struct Destroyed<C> {
    state: Mutex<State<C>>,
}

struct State<C> {
    pending: Vec<C>,
    // Keyed by waiter: no waker after it was woken, until it is polled again.
    wakers: Slab<(Option<C>, Option<Waker>)>,
}

impl<C: Copy + PartialEq> Destroyed<C> {
    pub(crate) fn new() -> Self {
        let (pending, wakers) = (Vec::new(), Slab::new());
        Self {
            state: Mutex::new(State { pending, wakers }),
        }
    }

    /// A helper thread is given the queue pair of this channel.
    pub(crate) fn start(&self, channel: C) {
        self.state.lock().pending.push(channel);
    }

    /// It has been destroyed, its operations have ended, and the thread has nothing of its group. Wakes the
    /// tasks that wait for it, or for any: what they wait for may be there.
    pub(crate) fn finish(&self, channel: &C) {
        let mut state = self.state.lock();
        // One only: channels that have not joined have the same.
        let mut pending = state.pending.iter();
        if let Some(at) = pending.position(|other| other == channel) {
            state.pending.swap_remove(at);
        }
        drop(state);
        self.wake(Some(channel));
    }

    /// Wakes the tasks that wait for any, and those that wait for this one.
    pub(crate) fn wake(&self, channel: Option<&C>) {
        let mut state = self.state.lock();
        let waiting = state.wakers.iter_mut().map(|(_, waiting)| waiting);
        let of_it = waiting.filter(|(of, _)| of.is_none() || of.as_ref() == channel);
        let woken: Vec<_> = of_it.filter_map(|(_, waker)| waker.take()).collect();
        drop(state);
        wake::wake_all(woken);
    }

    /// Whether a helper thread has the queue pair of this channel, or of any.
    pub(crate) fn is_pending(&self, channel: Option<&C>) -> bool {
        let state = self.state.lock();
        match channel {
            Some(channel) => state.pending.contains(channel),
            None => !state.pending.is_empty(),
        }
    }

    /// A wait for the queue pair of this channel to be destroyed, or for any.
    pub(crate) const fn waits_for(&self, channel: Option<C>) -> Waiting<'_, C> {
        Waiting {
            destroyed: self,
            channel,
            key: None,
        }
    }
}

/// A task that waits, until this is dropped.
pub(crate) struct Waiting<'a, C: Copy + PartialEq> {
    destroyed: &'a Destroyed<C>,
    channel: Option<C>,
    key: Option<usize>,
}

impl<C: Copy + PartialEq> Waiting<'_, C> {
    /// Whether `ready` returns something. If not, the task is woken when this queue pair has been destroyed, or
    /// any.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        let replaced = self.sleep(cx.waker().clone());
        wake::drop_guarded(replaced);
        // Again: what happened before the waker was here has not woken the task.
        ready().map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the previous waker.
    fn sleep(&mut self, waker: Waker) -> Option<Waker> {
        let mut state = self.destroyed.state.lock();
        let wakers = &mut state.wakers;
        let key = *self
            .key
            .get_or_insert_with(|| wakers.insert((self.channel, None)));
        wakers.get_mut(key)?.1.replace(waker)
    }
}

impl<C: Copy + PartialEq> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let removed = self.destroyed.state.lock().wakers.try_remove(key);
            wake::drop_guarded(removed.and_then(|(_, waker)| waker));
        }
    }
}
