//! Backlogs: the operations of one queue that wait for room, first come, first served.

use std::task::Waker;

use slab::Slab;
use verbs_channel::error::Queue;
use verbs_channel::{ChannelId, Ticket};

use super::request::{Outcome, Request};
use crate::task::line::Line;

/// The keys of operations that wait.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) line: Line<usize>,
    pub(super) room: RoomWaiters,
}

/// The tasks that wait until the backlog is shorter.
#[derive(Debug, Default)]
pub(super) struct RoomWaiters {
    // `None` after it was woken, until it polls again.
    pub(super) waiters: Slab<Option<Waker>>,
    pub(super) sleeping: usize,
    // The length of the backlog at which they are woken.
    pub(super) wakes_at: usize,
}

/// An operation that was queued, and whose outcome has not been taken.
pub(super) struct Queued {
    pub(super) channel: ChannelId,
    pub(super) queue: Queue,
    pub(super) stage: Stage,
    pub(super) waker: Option<Waker>,
}

/// The stage of a queued operation.
pub(super) enum Stage {
    /// It is in the backlog, with this number.
    Waiting(Request, u64),
    /// It was posted from the backlog.
    Posted(Ticket),
    /// It was not posted, and will not be.
    Rejected(Outcome),
}

impl Backlog {
    /// Wakes the task when there is room. Returns the previous waker, for the caller to drop.
    ///
    /// Waiters are woken when half of the backlog has been posted, so that not all of them are
    /// woken for each operation that is posted.
    pub(super) fn add_room_waiter(
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

    /// Stops waiting for room. Returns the waker, for the caller to drop.
    pub(super) fn cancel_room(&mut self, key: usize) -> Option<Waker> {
        let waker = self.room.waiters.try_remove(key)?;
        self.room.sleeping -= usize::from(waker.is_some());
        waker
    }
}
