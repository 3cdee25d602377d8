//! Who waits for what, and what is kept for those who have not asked yet.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::task::Waker;

use slab::Slab;
use verbs_channel::DownReason;
use verbs_channel::verbs_core::{CompletionQueue, EventType, PollError, PollSlot, WorkCompletion};

use crate::deferred::Deferred;
use crate::error::Error;
use crate::events::Subscription;

/// What stands behind a queue's lock.
pub(super) struct State {
    cq: CompletionQueue,
    subscription: Subscription,
    // Not asked for yet; in their order.
    pub(super) kept: VecDeque<Polled>,
    // How many have been polled.
    polled: u64,
    pub(super) waiters: Slab<Waiter>,
    // How many of them take any.
    take_any: usize,
    // Those who wait for a work request, in their order.
    by_wr_id: HashMap<u64, Line>,
    pub(super) armed: bool,
    pub(super) failed: Option<Failure>,
    room: [PollSlot; ROOM],
    // To be woken when the lock is free.
    pub(super) deferred: Deferred,
}

/// A completion, and its place among all that were polled.
#[derive(Clone, Copy)]
pub(super) struct Polled {
    place: u64,
    completion: WorkCompletion,
}

pub(super) enum Waiter {
    Any(Option<Waker>),
    One {
        wr_id: u64,
        waker: Option<Waker>,
        found: Option<Polled>,
        // Who stands before and behind, while it waits.
        before: Option<usize>,
        behind: Option<usize>,
    },
}

/// Those who wait for the same, by the first and the last.
#[derive(Clone, Copy)]
struct Line {
    first: usize,
    last: usize,
}

/// Why nothing comes any more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Io(io::ErrorKind),
    Poll(PollError),
    Event(EventType),
}

impl State {
    pub(super) fn new(cq: CompletionQueue, subscription: Subscription) -> Self {
        Self {
            subscription,
            kept: VecDeque::with_capacity(cq.min_capacity() as usize),
            cq,
            polled: 0,
            waiters: Slab::new(),
            take_any: 0,
            by_wr_id: HashMap::new(),
            armed: false,
            failed: None,
            room: [const { PollSlot::new() }; ROOM],
            deferred: Deferred::new(),
        }
    }

    /// Polls until the queue is empty; if that was not enough, arms it and does so once more.
    pub(super) fn turn(&mut self, is_enough: impl Fn(&Self) -> bool) {
        loop {
            while self.poll() > 0 {}
            if is_enough(self) || self.armed || self.failed.is_some() {
                return;
            }
            self.armed = true;
            if let Err(error) = self.subscription.arm() {
                let kind = io::Error::from(error).kind();
                self.fail(Failure::Io(kind));
            }
        }
    }

    /// Polls once, and files what is found.
    fn poll(&mut self) -> usize {
        let found = match self.cq.poll(&mut self.room) {
            Ok(found) => found.len(),
            Err(error) => {
                self.fail(Failure::Poll(error));
                return 0;
            }
        };
        for at in 0..found {
            let Some(completion) = PollSlot::completions(&self.room).get(at).copied() else {
                break;
            };
            let place = self.polled;
            self.polled += 1;
            self.file(Polled { place, completion });
        }
        found
    }

    /// Gives a completion to who waits for it; else it is kept, and those are woken who take any.
    fn file(&mut self, polled: Polled) {
        if let Some(Line { first, .. }) = self.by_wr_id.get(&polled.wr_id()).copied() {
            self.leave_line(polled.wr_id(), first);
            if let Some(Waiter::One { waker, found, .. }) = self.waiters.get_mut(first) {
                *found = Some(polled);
                self.deferred.extend(waker.take());
            }
            return;
        }
        // Last, unless somebody had it and gives it back.
        let at = self.kept.partition_point(|kept| kept.place < polled.place);
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

    /// Takes in somebody who waits. What is kept for him he gets at once.
    pub(super) fn join(&mut self, mut waiter: Waiter) -> usize {
        let mut wanted = None;
        if let Waiter::One { wr_id, found, .. } = &mut waiter {
            let at = self.kept.iter().position(|kept| kept.wr_id() == *wr_id);
            *found = at.and_then(|at| self.kept.remove(at));
            wanted = found.is_none().then_some(*wr_id);
        }
        self.take_any += usize::from(matches!(waiter, Waiter::Any(_)));
        let key = self.waiters.insert(waiter);
        if let Some(wr_id) = wanted {
            self.stand_behind(wr_id, key);
        }
        key
    }

    /// Puts somebody at the end of those who wait for the same.
    fn stand_behind(&mut self, wr_id: u64, key: usize) {
        let line = self.by_wr_id.entry(wr_id).or_insert(Line {
            first: key,
            last: key,
        });
        let last = std::mem::replace(&mut line.last, key);
        if last == key {
            return;
        }
        if let Some(Waiter::One { behind, .. }) = self.waiters.get_mut(last) {
            *behind = Some(key);
        }
        if let Some(Waiter::One { before, .. }) = self.waiters.get_mut(key) {
            *before = Some(last);
        }
    }

    /// Takes somebody out from among those who wait for the same.
    fn leave_line(&mut self, wr_id: u64, key: usize) {
        if let Some(Waiter::One { before, behind, .. }) = self.waiters.get_mut(key) {
            let gap = (before.take(), behind.take());
            self.close_gap(wr_id, key, gap);
        }
    }

    /// Closes the gap that somebody has left between these two.
    fn close_gap(&mut self, wr_id: u64, key: usize, gap: (Option<usize>, Option<usize>)) {
        let (left, right) = gap;
        if let Some(Waiter::One { behind, .. }) = left.and_then(|left| self.waiters.get_mut(left)) {
            *behind = right;
        }
        let right_one = right.and_then(|right| self.waiters.get_mut(right));
        if let Some(Waiter::One { before, .. }) = right_one {
            *before = left;
        }
        let Some(line) = self.by_wr_id.get_mut(&wr_id) else {
            return;
        };
        match gap {
            // Alone, or not there any more: it was found.
            (None, None) if line.first == key => drop(self.by_wr_id.remove(&wr_id)),
            (None, Some(right)) => line.first = right,
            (Some(left), None) => line.last = left,
            _ => {}
        }
    }

    /// Lets somebody go, and gives back what he has not taken. What has to be dropped, where nothing
    /// is locked.
    pub(super) fn part(&mut self, key: usize) -> Option<Waiter> {
        let mut waiter = self.waiters.try_remove(key)?;
        self.take_any -= usize::from(matches!(waiter, Waiter::Any(_)));
        if let Waiter::One {
            wr_id,
            found,
            before,
            behind,
            ..
        } = &mut waiter
        {
            let (wr_id, gap) = (*wr_id, (before.take(), behind.take()));
            match found.take() {
                Some(found) => self.file(found),
                None => self.close_gap(wr_id, key, gap),
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

    /// The waker from before is the caller's to drop.
    pub(super) fn set_waker(&mut self, key: usize, new: Waker) -> Option<Waker> {
        match self.waiters.get_mut(key) {
            Some(Waiter::Any(waker) | Waiter::One { waker, .. }) => waker.replace(new),
            None => Some(new),
        }
    }

    /// Nothing comes any more: all are told.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failed.get_or_insert(failure);
        for (_, waiter) in &mut self.waiters {
            let (Waiter::Any(waker) | Waiter::One { waker, .. }) = waiter;
            self.deferred.extend(waker.take());
        }
    }
}

impl Polled {
    fn wr_id(&self) -> u64 {
        self.completion.wr_id()
    }
}

impl Waiter {
    pub(super) const fn sleeps(&self) -> bool {
        let (Self::Any(waker) | Self::One { waker, .. }) = self;
        waker.is_some()
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io(kind) => Self::Io(kind.into()),
            Failure::Poll(error) => Self::Poll(error),
            Failure::Event(event) => Self::Down(DownReason::Event(event)),
        }
    }
}

/// Completions to take at once.
const ROOM: usize = 16;
