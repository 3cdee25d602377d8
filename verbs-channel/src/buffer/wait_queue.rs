//! The tasks that wait for an item of a pool, in the order in which they came.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

/// The tasks that wait for an item: each is given one in its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    // In the order of their numbers. Those that were given an item come first.
    queue: VecDeque<Waiter>,
    given: usize,
    next: u64,
}

/// A task that waits.
#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
    // The index of the item that it was given.
    item: Option<usize>,
}

impl Waiting {
    pub(super) const fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            given: 0,
            next: 0,
        }
    }

    /// Whether no task waits that has not been given an item.
    pub(super) fn is_over(&self) -> bool {
        self.given == self.queue.len()
    }

    /// Adds a task, which comes last. Returns its number.
    pub(super) fn add(&mut self, waker: Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.queue.push_back(Waiter {
            number,
            waker,
            item: None,
        });
        number
    }

    /// Gives an item to the first task that has none, if there is one: its waker.
    pub(super) fn give(&mut self, item: usize) -> Option<Waker> {
        let waiter = self.queue.get_mut(self.given)?;
        waiter.item = Some(item);
        self.given += 1;
        Some(mem::replace(&mut waiter.waker, Waker::noop().clone()))
    }

    /// Whether the task has been given an item. If it has not, it has this waker from now on, and the
    /// old one is left in its place.
    pub(super) fn is_given(&mut self, number: u64, waker: &mut Waker) -> bool {
        let at = self.place(number);
        match at.and_then(|at| self.queue.get_mut(at)) {
            Some(waiter) if waiter.item.is_none() => {
                mem::swap(&mut waiter.waker, waker);
                false
            }
            _ => true,
        }
    }

    /// Removes a task. Returns the item that it was given, and its waker.
    pub(super) fn remove(&mut self, number: u64) -> Option<(Option<usize>, Waker)> {
        let waiter = self.queue.remove(self.place(number)?)?;
        self.given -= usize::from(waiter.item.is_some());
        Some((waiter.item, waiter.waker))
    }

    fn place(&self, number: u64) -> Option<usize> {
        let found = self
            .queue
            .binary_search_by_key(&number, |waiter| waiter.number);
        found.ok()
    }
}
