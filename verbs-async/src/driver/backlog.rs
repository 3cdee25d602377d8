//! The operations that were queued, which wait for room in their backlogs, and the tasks that wait for a channel.

use std::task::Waker;

use verbs_channel::error::Queue;
use verbs_channel::{ChannelId, Ticket};

use super::request::{Outcome, Request};

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

/// The state of a channel that a task waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    /// Nothing is queued or in flight for its send queue, or it is down.
    Drained,
    /// The backlog of this queue is shorter than this. Tasks that sleep are woken when half of it has been posted, so
    /// that not all of them are woken for each operation that is posted.
    Room(Queue, usize),
}

/// A task that sleeps until a channel is in this state.
pub(super) type ChannelWaiter = (Waker, ChannelId, Awaited);
