//! Queue pairs that helper threads destroy, and the tasks that wait for them.

use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;
use crate::wake;

/// The channels whose queue pairs helper threads have, and the wakers of the tasks that wait, each for one of
/// them or for any.
pub(crate) struct Destroyed<C> {
    state: Mutex<State<C>>,
}

struct State<C> {
    pending: Vec<C>,
    wakers: Vec<(Option<C>, Waker)>,
}

impl<C: Copy + PartialEq> Destroyed<C> {
    pub(crate) fn new() -> Self {
        let (pending, wakers) = (Vec::new(), Vec::new());
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
        state.pending.retain(|other| other != channel);
        let of_it = |(of, _): &mut (Option<C>, Waker)| of.is_none_or(|of| of == *channel);
        let woken: Vec<_> = state.wakers.extract_if(.., of_it).collect();
        drop(state);
        let wakers = woken.into_iter().map(|(_, waker)| waker);
        wake::wake_all(wakers);
    }

    /// Whether a helper thread has the queue pair of this channel, or of any.
    pub(crate) fn is_pending(&self, channel: Option<&C>) -> bool {
        let state = self.state.lock();
        match channel {
            Some(channel) => state.pending.contains(channel),
            None => !state.pending.is_empty(),
        }
    }

    /// Whether `ready` returns something. If not, the task is woken when this queue pair has been destroyed, or
    /// any. A future that is dropped leaves its waker here until then.
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        channel: Option<C>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        let spare = self.add(channel, cx.waker().clone());
        wake::drop_guarded(spare);
        // Again: what happened before the waker was here has not woken the task.
        let Some(value) = ready() else {
            return Poll::Pending;
        };
        if channel.is_some() {
            // Nothing takes it out any more: its queue pair has been destroyed.
            let own = self.remove(channel, cx.waker());
            wake::drop_guarded(own);
        }
        Poll::Ready(value)
    }

    fn remove(&self, channel: Option<C>, waker: &Waker) -> Option<Waker> {
        let mut state = self.state.lock();
        let mut wakers = state.wakers.iter();
        let at = wakers.position(|(of, other)| *of == channel && other.will_wake(waker))?;
        Some(state.wakers.swap_remove(at).1)
    }

    /// Returns the waker if the task has one here.
    fn add(&self, channel: Option<C>, waker: Waker) -> Option<Waker> {
        let mut state = self.state.lock();
        let mut wakers = state.wakers.iter();
        if wakers.any(|(of, other)| *of == channel && other.will_wake(&waker)) {
            return Some(waker);
        }
        state.wakers.push((channel, waker));
        None
    }
}
