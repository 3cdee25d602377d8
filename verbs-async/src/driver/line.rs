//! Lines: the operations of one queue that wait for a place, first come, first served.

use super::{Op, Ring, State};

/// A line, by its two ends: links stand in the operations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    head: Option<usize>,
    tail: Option<usize>,
}

/// A place in a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(super) channel: usize,
    pub(super) queue: usize,
    before: Option<usize>,
    behind: Option<usize>,
}

impl Line {
    pub(super) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    pub(super) const fn head(&self) -> Option<usize> {
        self.head
    }
}

impl Place {
    pub(super) const fn new(channel: usize, queue: usize) -> Self {
        Self {
            channel,
            queue,
            before: None,
            behind: None,
        }
    }
}

impl<R: Ring> State<R> {
    /// Puts an operation that waits at the end of its line.
    pub(super) fn join_line(&mut self, key: usize) {
        let Some(&mut Place { channel, queue, .. }) = self.place(Some(key)) else {
            return;
        };
        let line = &mut self.channel(channel).lines[queue];
        let last = line.tail.replace(key);
        if last.is_none() {
            line.head = Some(key);
        }
        if let Some(place) = self.place(Some(key)) {
            place.before = last;
        }
        if let Some(place) = self.place(last) {
            place.behind = Some(key);
        }
    }

    /// Closes the gap that an operation leaves.
    pub(super) fn leave_line(&mut self, gap: Place) {
        match self.place(gap.before) {
            Some(before) => before.behind = gap.behind,
            None => self.channel(gap.channel).lines[gap.queue].head = gap.behind,
        }
        match self.place(gap.behind) {
            Some(behind) => behind.before = gap.before,
            None => self.channel(gap.channel).lines[gap.queue].tail = gap.before,
        }
    }

    fn place(&mut self, key: Option<usize>) -> Option<&mut Place> {
        match self.ops.get_mut(key?)? {
            Op::Waiting { place, .. } => Some(place),
            _ => None,
        }
    }
}
