//! Backlogs: the operations of one queue that wait for room, first come, first served.

use std::task::Waker;

use slab::Slab;

use super::work::Ring;

/// A backlog, by its two ends: the links are in its operations.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) head: Option<usize>,
    pub(super) tail: Option<usize>,
    pub(super) len: usize,
    pub(super) room: Room,
}

/// The tasks that wait until less is queued.
#[derive(Debug, Default)]
pub(super) struct Room {
    // `None` for one that was woken and has not polled since.
    pub(super) waiters: Slab<Option<Waker>>,
    pub(super) sleeping: usize,
    // The length of the backlog at which they are woken.
    pub(super) wakes_at: usize,
}

/// An operation that is queued; or was, and has not been polled since.
pub(super) struct Queued<R: Ring> {
    pub(super) channel: R::Channel,
    pub(super) queue: usize,
    pub(super) stage: Stage<R>,
    pub(super) waker: Option<Waker>,
}

/// How far it has come.
pub(super) enum Stage<R: Ring> {
    Waiting(R::Work, Place),
    Posted(R::Ticket),
    /// It was not posted and will not be.
    Refused(R::Outcome),
}

/// A place in a backlog: the neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) before: Option<usize>,
    pub(super) behind: Option<usize>,
}

impl Backlog {
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// How many operations are queued.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Has the task woken when there is room; the waker from before is the caller's to drop.
    ///
    /// That is when half of the backlog is gone, so that many waiters are not woken for each place.
    pub(super) fn wait_for_room(
        &mut self,
        key: &mut Option<usize>,
        backlog: usize,
        waker: Waker,
    ) -> Option<Waker> {
        let room = &mut self.room;
        room.wakes_at = backlog / 2;
        let key = *key.get_or_insert_with(|| room.waiters.insert(None));
        let waiter = room.waiters.get_mut(key)?;
        let replaced = waiter.replace(waker);
        room.sleeping += usize::from(replaced.is_none());
        replaced
    }

    /// Stops waiting for room; the waker is the caller's to drop.
    pub(super) fn forget_room(&mut self, key: usize) -> Option<Waker> {
        let waker = self.room.waiters.try_remove(key)?;
        self.room.sleeping -= usize::from(waker.is_some());
        waker
    }
}
