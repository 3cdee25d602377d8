//! Lines: the work of one queue that waits for a place, first come, first served.

use std::task::Waker;

use slab::Slab;

use super::state::{State, Wait};
use super::work::{Ring, Started, Work as _};

/// A line, by its two ends: links stand in the work.
#[derive(Debug, Default)]
pub(super) struct Line {
    head: Option<usize>,
    tail: Option<usize>,
    len: usize,
    room: Room,
}

/// Those who wait until less is in line.
#[derive(Debug, Default)]
struct Room {
    // `None` for one that was woken and has not looked since.
    waiters: Slab<Option<Waker>>,
    sleeping: usize,
    // How long the line is when they are woken.
    wakes_at: usize,
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

    /// How much is in line.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Has the task woken when there is room; the waker from before is the caller's to drop.
    ///
    /// That is when half of the backlog is gone, so that many who wait are not woken for each place.
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

    /// One of them waits no more; its waker is the caller's to drop.
    pub(super) fn forget_room(&mut self, key: usize) -> Option<Waker> {
        let waker = self.room.waiters.try_remove(key)?;
        self.room.sleeping -= usize::from(waker.is_some());
        waker
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
        let line = self.line(index, queue);
        line.tail = Some(key);
        line.len += 1;
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
        let Self {
            channels, noted, ..
        } = self;
        let Some(here) = channels.get_mut(index) else {
            return;
        };
        let line = &mut here.lines[queue];
        line.len -= 1;
        if line.room.sleeping > 0 && line.len <= line.room.wakes_at {
            line.room.sleeping = 0;
            let waiters = line.room.waiters.iter_mut();
            noted.extend(waiters.filter_map(|(_, waiter)| waiter.take()));
        }
    }

    pub(super) fn line(&mut self, index: usize, queue: usize) -> &mut Line {
        &mut self.channel(index).lines[queue]
    }

    fn place(&mut self, key: Option<usize>) -> Option<&mut Place> {
        match &mut self.in_line.get_mut(key?)?.stage {
            Stage::Waiting(_, place) => Some(place),
            _ => None,
        }
    }
}
