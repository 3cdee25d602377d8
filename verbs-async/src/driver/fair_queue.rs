//! The line for the room that all channels share: first come, first served.
//!
//! The queue of a channel is in the line while the head of its backlog finds no such room. When it is
//! the first and there is room for its head, that is posted, and the queue goes to the end of the line
//! if its next operation finds none. So a channel with a long backlog delays the others by one
//! operation each.
//!
//! While there is a line, the engine holds the shared room back, and none overtakes it. A request
//! that finds room in its own channel's share is posted at once.

use verbs_channel::error::Queue;

use super::backlog::Links;
use super::request::QUEUES;

/// Result of trying the head of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// It has left the backlog: it was posted.
    Left,
    /// It has left the backlog: it was rejected.
    Rejected,
    /// There is no room for it in its queue.
    Full,
    /// There is no room for it that the channels share.
    Short,
}

/// The queues in the line, linked with one another: joining and leaving allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Line {
    // Neighbours of each queue of each channel while it is in the line.
    places: Vec<Option<Links>>,
    first: Option<usize>,
    last: Option<usize>,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            first: None,
            last: None,
        }
    }

    /// Makes room for the queues of `channels` channels.
    pub(super) fn resize(&mut self, channels: usize) {
        self.places.resize(channels * QUEUES.len(), None);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Puts a channel's queue at the end, unless it is in the line.
    pub(super) fn push(&mut self, index: usize, queue: Queue) {
        let (key, prev) = (key(index, queue), self.last);
        let Some(place @ None) = self.places.get_mut(key) else {
            return;
        };
        *place = Some(Links { prev, next: None });
        self.last = Some(key);
        match self.links(prev) {
            Some(prev) => prev.next = Some(key),
            None => self.first = Some(key),
        }
    }

    /// Takes a channel's queue out of the line. Returns whether it was in it.
    pub(super) fn remove(&mut self, index: usize, queue: Queue) -> bool {
        let place = self.places.get_mut(key(index, queue));
        let Some(Links { prev, next }) = place.and_then(Option::take) else {
            return false;
        };
        match self.links(prev) {
            Some(prev) => prev.next = next,
            None => self.first = next,
        }
        match self.links(next) {
            Some(next) => next.prev = prev,
            None => self.last = prev,
        }
        true
    }

    /// The first queue.
    pub(super) fn first(&self) -> Option<(usize, Queue)> {
        let first = self.first?;
        Some((first / QUEUES.len(), QUEUES[first % QUEUES.len()]))
    }

    fn links(&mut self, key: Option<usize>) -> Option<&mut Links> {
        self.places.get_mut(key?)?.as_mut()
    }
}

fn key(index: usize, queue: Queue) -> usize {
    index * QUEUES.len() + queue as usize
}

#[cfg(test)]
mod tests {
    use super::{Line, Queue};

    #[test]
    fn queues_leave_in_the_order_in_which_they_joined() {
        let mut line = Line::new();
        line.resize(3);
        let all = [(2, Queue::Send), (0, Queue::Receive), (2, Queue::Receive)];
        for (index, queue) in all {
            line.push(index, queue);
        }
        // It keeps its place.
        line.push(2, Queue::Send);
        for (index, queue) in all {
            assert_eq!(line.first(), Some((index, queue)));
            assert!(line.remove(index, queue));
            assert!(!line.remove(index, queue));
        }
        assert!(line.is_empty() && line.first().is_none());
    }

    #[test]
    fn queue_that_leaves_from_the_middle_or_the_end_leaves_the_others_in_order() {
        let mut line = Line::new();
        line.resize(4);
        for index in 0..4 {
            line.push(index, Queue::Send);
        }
        assert!(line.remove(1, Queue::Send) && line.remove(3, Queue::Send));
        line.push(1, Queue::Send);
        for index in [0, 2, 1] {
            assert_eq!(line.first(), Some((index, Queue::Send)));
            assert!(line.remove(index, Queue::Send));
        }
        assert!(line.is_empty());
    }
}
