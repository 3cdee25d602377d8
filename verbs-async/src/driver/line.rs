//! Lines: the operations of one queue that wait for a place, first come, first served.

use super::state::{Op, Stage, State};
use super::work::Ring;

/// A line, by its two ends: links stand in the operations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    head: Option<usize>,
    tail: Option<usize>,
}

/// A place in a line: who stands before and behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
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

impl<R: Ring> State<R> {
    /// Puts an operation at the end of its line.
    pub(super) fn join_line(&mut self, key: usize) {
        let line = self.line(key);
        let before = line.tail.replace(key);
        if before.is_none() {
            line.head = Some(key);
        }
        let behind = None;
        self.ops[key].stage = Stage::Waiting(Place { before, behind });
        if let Some(place) = self.place(before) {
            place.behind = Some(key);
        }
    }

    /// Closes the gap that an operation leaves.
    pub(super) fn leave_line(&mut self, key: usize) {
        let Some(&mut gap) = self.place(Some(key)) else {
            return;
        };
        match self.place(gap.before) {
            Some(before) => before.behind = gap.behind,
            None => self.line(key).head = gap.behind,
        }
        match self.place(gap.behind) {
            Some(behind) => behind.before = gap.before,
            None => self.line(key).tail = gap.before,
        }
    }

    fn line(&mut self, key: usize) -> &mut Line {
        let Op { channel, queue, .. } = self.ops[key];
        &mut self.channel(channel).lines[queue]
    }

    fn place(&mut self, key: Option<usize>) -> Option<&mut Place> {
        match &mut self.ops.get_mut(key?)?.stage {
            Stage::Waiting(place) => Some(place),
            _ => None,
        }
    }
}
