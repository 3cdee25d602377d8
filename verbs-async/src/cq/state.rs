//! The waiters of a queue, and the completions that no task has asked for yet.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Weak};
use std::task::Waker;

use slab::Slab;
use verbs_channel::verbs_core::error::PollError;
use verbs_channel::verbs_core::{CompletionQueue, PollSlot, WorkCompletion};
use verbs_channel::{DownReason, RejectReason};

use crate::error::Error;
use crate::events::Subscription;
use crate::task::deferred::{Deferred, Defers, Lock, Owner};
use crate::{notifier, threads};

/// State shared by the clones of a queue.
pub(super) struct SharedCq {
    pub(super) state: Lock<CqState>,
    pub(super) cq: CompletionQueue,
}

/// The state behind the lock of a queue.
pub(super) struct CqState {
    cq: CompletionQueue,
    pub(super) subscription: Subscription,
    // Not taken yet, in the order of their polls.
    pub(super) kept: VecDeque<Polled>,
    // How many completions have been polled.
    polled: u64,
    pub(super) waiters: Slab<Waiter>,
    // How many waiters take any completion.
    take_any: usize,
    // The waiters for a `wr_id` that have no completion yet, by that, and in the order of their calls.
    waiting: VecDeque<(u64, usize)>,
    pub(super) armed: bool,
    pub(super) failed: Option<Failure>,
    slots: [PollSlot; POLL_BATCH],
    // Wake-ups for when the lock is free.
    deferred: Deferred<Infallible>,
    owner: Weak<SharedCq>,
}

/// A completion, and its index among all that were polled.
#[derive(Clone, Copy)]
pub(super) struct Polled {
    index: u64,
    completion: WorkCompletion,
}

pub(super) enum Waiter {
    Any(Option<Waker>),
    One {
        wr_id: u64,
        waker: Option<Waker>,
        found: Option<Polled>,
    },
}

/// Why there are no more completions.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Io(Arc<io::Error>),
    Poll(PollError),
    Down(DownReason),
}

impl CqState {
    pub(super) fn new(
        cq: CompletionQueue,
        subscription: Subscription,
        owner: Weak<SharedCq>,
    ) -> Self {
        Self {
            subscription,
            kept: VecDeque::with_capacity(cq.min_capacity() as usize),
            cq,
            polled: 0,
            waiters: Slab::new(),
            take_any: 0,
            waiting: VecDeque::new(),
            armed: false,
            failed: None,
            slots: [const { PollSlot::new() }; POLL_BATCH],
            deferred: Deferred::new(),
            owner,
        }
    }

    /// Polls until the queue is empty. If that was not enough, arms it and polls once more.
    pub(super) fn drive(&mut self, is_enough: impl Fn(&Self) -> bool) {
        loop {
            while self.poll() > 0 {}
            if is_enough(self) || self.armed || self.failed.is_some() {
                return;
            }
            self.armed = true;
            if let Err(error) = self.subscription.arm() {
                self.fail(Failure::Io(Arc::new(error.into())));
            }
        }
    }

    /// Polls once, and dispatches the completions.
    fn poll(&mut self) -> usize {
        let found = match self.cq.poll(&mut self.slots) {
            Ok(found) => found.len(),
            Err(error) => {
                self.fail(Failure::Poll(error));
                return 0;
            }
        };
        for at in 0..found {
            let Some(completion) = PollSlot::completions(&self.slots).get(at).copied() else {
                break;
            };
            let index = self.polled;
            self.polled += 1;
            self.dispatch(Polled { index, completion });
        }
        found
    }

    /// Delivers a completion to its waiter. If there is none, keeps it and wakes the waiters for
    /// any.
    fn dispatch(&mut self, polled: Polled) {
        if let Some(first) = self.take_waiting(polled.wr_id(), None) {
            if let Some(Waiter::One { waker, found, .. }) = self.waiters.get_mut(first) {
                *found = Some(polled);
                self.deferred.extend(waker.take());
            }
            return;
        }
        // At the end, unless a waiter that was dropped returns it.
        let at = self.kept.partition_point(|kept| kept.index < polled.index);
        self.kept.insert(at, polled);
        if self.take_any == 0 {
            return;
        }
        for (_, waiter) in &mut self.waiters {
            if let Waiter::Any(waker) = waiter {
                self.deferred.extend(waker.take());
            }
        }
    }

    pub(super) fn take_kept(&mut self, slots: &mut [PollSlot]) -> usize {
        let count = slots.len().min(self.kept.len());
        for (slot, polled) in slots.iter_mut().zip(self.kept.drain(..count)) {
            slot.set(polled.completion);
        }
        count
    }

    /// Adds a waiter. A kept completion that it waits for is delivered at once.
    pub(super) fn add_waiter(&mut self, mut waiter: Waiter) -> usize {
        let mut wanted = None;
        if let Waiter::One { wr_id, found, .. } = &mut waiter {
            let at = self.kept.iter().position(|kept| kept.wr_id() == *wr_id);
            *found = at.and_then(|at| self.kept.remove(at));
            wanted = found.is_none().then_some(*wr_id);
        }
        self.take_any += usize::from(matches!(waiter, Waiter::Any(_)));
        let key = self.waiters.insert(waiter);
        if let Some(wr_id) = wanted {
            let behind = self.waiting.partition_point(|(of, _)| *of <= wr_id);
            self.waiting.insert(behind, (wr_id, key));
        }
        key
    }

    /// Takes the first waiter for a `wr_id` off the list, or the one with this key. `None` if it is not there.
    fn take_waiting(&mut self, wr_id: u64, key: Option<usize>) -> Option<usize> {
        let first = self.waiting.partition_point(|(of, _)| *of < wr_id);
        let all = self.waiting.range(first..);
        let mut its = all.take_while(|(of, _)| *of == wr_id);
        let place = its.position(|(_, of)| key.is_none_or(|key| *of == key))?;
        self.waiting.remove(first + place).map(|(_, key)| key)
    }

    /// Removes a waiter, and dispatches its completion anew if it has not been taken. Returns the
    /// waiter, to be dropped without the lock.
    pub(super) fn remove_waiter(&mut self, key: usize) -> Option<Waiter> {
        let mut waiter = self.waiters.try_remove(key)?;
        self.take_any -= usize::from(matches!(waiter, Waiter::Any(_)));
        if let Waiter::One { wr_id, found, .. } = &mut waiter {
            match found.take() {
                Some(found) => self.dispatch(found),
                None => drop(self.take_waiting(*wr_id, Some(key))),
            }
        }
        Some(waiter)
    }

    pub(super) fn has_found(&self, key: usize) -> bool {
        matches!(
            self.waiters.get(key),
            Some(Waiter::One { found: Some(_), .. })
        )
    }

    pub(super) fn take_found(&mut self, key: usize) -> Option<WorkCompletion> {
        match self.waiters.get_mut(key)? {
            Waiter::One { found, .. } => found.take().map(|polled| polled.completion),
            Waiter::Any(_) => None,
        }
    }

    /// Sets the waker. Returns the previous one, for the caller to drop.
    pub(super) fn set_waker(&mut self, key: usize, new: Waker) -> Option<Waker> {
        match self.waiters.get_mut(key) {
            Some(Waiter::Any(waker) | Waiter::One { waker, .. }) => waker.replace(new),
            None => Some(new),
        }
    }

    /// Records that there are no more completions, and wakes all waiters.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failed.get_or_insert(failure);
        for (_, waiter) in &mut self.waiters {
            let (Waiter::Any(waker) | Waiter::One { waker, .. }) = waiter;
            self.deferred.extend(waker.take());
        }
    }
}

impl Defers for CqState {
    type Garbage = Infallible;

    fn deferred(&mut self) -> &mut Deferred<Infallible> {
        &mut self.deferred
    }

    fn is_due(&self) -> bool {
        self.deferred.is_due()
    }

    fn defer_due(&mut self) {}

    fn owner(&self) -> Option<Arc<dyn Owner>> {
        let owner: Arc<dyn Owner> = self.owner.upgrade()?;
        Some(owner)
    }
}

impl Owner for SharedCq {
    fn run_due(&self) {
        self.state.run_due();
    }

    fn settle_elsewhere(self: Arc<Self>) -> bool {
        threads::try_detach(move || self.state.settle())
    }
}

impl Polled {
    fn wr_id(&self) -> u64 {
        self.completion.wr_id()
    }
}

impl Waiter {
    pub(super) const fn is_sleeping(&self) -> bool {
        let (Self::Any(waker) | Self::One { waker, .. }) = self;
        waker.is_some()
    }
}

impl From<&Failure> for Error {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Io(error) => Self::Io(notifier::copy_of(error)),
            Failure::Poll(error) => Self::Poll(*error),
            Failure::Down(reason) => RejectReason::Down(*reason).into(),
        }
    }
}

/// The most completions that are polled at once.
const POLL_BATCH: usize = 16;
