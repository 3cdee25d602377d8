//! The tasks that wait for an item of a pool, in the order in which they came.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

/// The tasks that wait for an item: each is given one in its turn.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    // In the order of their numbers. Those that were given an item come first.
    queue: VecDeque<Waiter<T>>,
    given: usize,
    next: u64,
}

/// A task that waits.
#[derive(Debug)]
struct Waiter<T> {
    number: u64,
    waker: Waker,
    // That it was given.
    item: Option<T>,
}

impl<T> Waiting<T> {
    pub(super) const fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            given: 0,
            next: 0,
        }
    }

    /// How many tasks wait that have not been given an item.
    pub(super) fn len(&self) -> usize {
        self.queue.len() - self.given
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

    /// Gives an item to the first task that has none, if there are both: its waker.
    pub(super) fn give(&mut self, item: impl FnOnce() -> Option<T>) -> Option<Waker> {
        let waiter = self.queue.get_mut(self.given)?;
        waiter.item = Some(item()?);
        self.given += 1;
        Some(mem::replace(&mut waiter.waker, Waker::noop().clone()))
    }

    /// The task has this waker from now on. Returns the one before.
    pub(super) fn replace_waker(&mut self, number: u64, waker: Waker) -> Option<Waker> {
        let at = self.place(number)?;
        Some(mem::replace(&mut self.queue.get_mut(at)?.waker, waker))
    }

    /// Removes a task if it was given an item. Returns that, and its waker.
    pub(super) fn remove_given(&mut self, number: u64) -> Option<(T, Waker)> {
        let is_given = self.place(number)? < self.given;
        let (item, waker) = is_given.then(|| self.remove(number))??;
        Some((item?, waker))
    }

    /// Removes a task. Returns the item that it was given, and its waker.
    pub(super) fn remove(&mut self, number: u64) -> Option<(Option<T>, Waker)> {
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
