//! The line for the room that all channels share: first come, first served.
//!
//! The queue of a channel is in the line while the head of its backlog finds no such room. When it is
//! the first and there is room for its head, that is posted, and the queue goes to the end of the line
//! if its next operation finds none. So a channel with a long backlog delays the others by one
//! operation each.
//!
//! While there is a line, the ring holds the shared room back, and none overtakes it. What finds room in
//! its own channel's share does not need it, and is posted at once.

use std::collections::BTreeMap;

use verbs_channel::Queue;

/// What has become of the head of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// It has left the backlog: it was posted or rejected.
    Left,
    /// There is no room for it in its queue.
    Full,
    /// There is no room for it that the channels share.
    Short,
}

/// The queues in the line, by their place, and the place of the next.
#[derive(Debug, Default)]
pub(super) struct Line {
    queues: BTreeMap<u64, (usize, Queue)>,
    next: u64,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self {
            queues: BTreeMap::new(),
            next: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Puts a channel's queue at the end. Returns its place.
    pub(super) fn push(&mut self, index: usize, queue: Queue) -> u64 {
        let place = self.next;
        self.next += 1;
        self.queues.insert(place, (index, queue));
        place
    }

    /// Takes the queue at this place out.
    pub(super) fn remove(&mut self, place: u64) {
        self.queues.remove(&place);
    }

    /// The first queue.
    pub(super) fn first(&self) -> Option<(usize, Queue)> {
        let (_, queue) = self.queues.first_key_value()?;
        Some(*queue)
    }
}
