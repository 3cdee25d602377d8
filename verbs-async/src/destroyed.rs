//! Queue pairs that helper threads destroy, and the tasks that wait for them.

use std::mem;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;
use crate::wake;

/// The channels whose queue pairs helper threads have, and the wakers of the tasks that wait: all are woken
/// whenever one has been destroyed.
pub(crate) struct Destroyed<C> {
    state: Mutex<State<C>>,
}

struct State<C> {
    pending: Vec<C>,
    wakers: Vec<Waker>,
}

impl<C: PartialEq> Destroyed<C> {
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
    /// tasks: what they wait for may be there.
    pub(crate) fn finish(&self, channel: &C) {
        let mut state = self.state.lock();
        state.pending.retain(|other| other != channel);
        let wakers = mem::take(&mut state.wakers);
        drop(state);
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

    /// Whether `ready` returns something. If not, the task is woken when that may have changed. A future
    /// that is dropped leaves its waker here until then.
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        if let Some(value) = ready() {
            return Poll::Ready(value);
        }
        let spare = self.add(cx.waker().clone());
        wake::drop_guarded(spare);
        // Again: what happened before the waker was here has not woken the task.
        ready().map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the waker if the task has one here.
    fn add(&self, waker: Waker) -> Option<Waker> {
        let mut state = self.state.lock();
        if state.wakers.iter().any(|other| other.will_wake(&waker)) {
            return Some(waker);
        }
        state.wakers.push(waker);
        None
    }
}
