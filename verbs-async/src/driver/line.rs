//! Lines: the work of one queue that waits for a place, first come, first served.

use std::task::Waker;

use super::state::{State, Wait};
use super::work::{Ring, Started, Work as _};

/// A line, by its two ends: links stand in the work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    head: Option<usize>,
    tail: Option<usize>,
}

/// Work that is in line; or was, and its operation has not looked since.
pub(super) struct InLine<R: Ring> {
    pub(super) channel: R::Channel,
    pub(super) queue: usize,
    pub(super) stage: Stage<R>,
    pub(super) waker: Option<Waker>,
}

/// How far it is.
pub(super) enum Stage<R: Ring> {
    Waiting(R::Work, Place),
    Posted(R::Ticket),
    /// It was not posted and will not be.
    Refused(R::Outcome),
}

/// A place in a line: who stands before and behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    before: Option<usize>,
    behind: Option<usize>,
}

impl Line {
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}

impl<R: Ring> State<R> {
    /// Puts work at the end of its line.
    pub(super) fn join_line(&mut self, channel: R::Channel, queue: usize, work: R::Work) -> usize {
        let index = R::index(channel);
        let (before, behind) = (self.line(index, queue).tail, None);
        let key = self.in_line.insert(InLine {
            channel,
            queue,
            stage: Stage::Waiting(work, Place { before, behind }),
            waker: None,
        });
        self.wanted += 1;
        self.lined += 1;
        self.line(index, queue).tail = Some(key);
        match self.place(before) {
            Some(before) => before.behind = Some(key),
            None => self.line(index, queue).head = Some(key),
        }
        key
    }

    /// Posts from the heads of a channel's lines, as long as there are places.
    pub(super) fn advance(&mut self, index: usize) {
        for queue in 0..2 {
            while let Some(here) = self.channels.get(index)
                && let Some(key) = here.lines[queue].head
                && self.post_head(key)
            {}
        }
    }

    /// Posts the head of a line. `false` if there is no place for it yet.
    fn post_head(&mut self, key: usize) -> bool {
        let Some(head) = self.in_line.get_mut(key) else {
            return false;
        };
        let (channel, queue) = (head.channel, head.queue);
        let Stage::Waiting(work, gap) = &mut head.stage else {
            return false;
        };
        let gap = *gap;
        match work.post(&mut self.ring, channel) {
            Started::Full => return false,
            Started::Posted(ticket) => {
                head.stage = Stage::Posted(ticket);
                if let Some(waker) = head.waker.take() {
                    // Nobody has waited for it before.
                    let _nobody = self.wait(ticket, Wait::Task(waker));
                }
            }
            Started::Refused(refusal) => {
                head.stage = Stage::Refused(work.refused(refusal));
                self.noted.extend(head.waker.take());
            }
        }
        self.leave_line(R::index(channel), queue, gap);
        true
    }

    /// Closes the gap that work has left.
    pub(super) fn leave_line(&mut self, index: usize, queue: usize, gap: Place) {
        self.wanted -= 1;
        self.lined -= 1;
        match self.place(gap.before) {
            Some(before) => before.behind = gap.behind,
            None => self.line(index, queue).head = gap.behind,
        }
        match self.place(gap.behind) {
            Some(behind) => behind.before = gap.before,
            None => self.line(index, queue).tail = gap.before,
        }
    }

    fn line(&mut self, index: usize, queue: usize) -> &mut Line {
        &mut self.channel(index).lines[queue]
    }

    fn place(&mut self, key: Option<usize>) -> Option<&mut Place> {
        match &mut self.in_line.get_mut(key?)?.stage {
            Stage::Waiting(_, place) => Some(place),
            _ => None,
        }
    }
}
