//! Queueing: what finds no room waits in a backlog, and is posted when there is.

use super::backlog::{Backlog, Place, Queued, Stage};
use super::state::{State, Wait};
use super::work::{Ring, Started, Work as _};

impl<R: Ring> State<R> {
    /// Puts work at the end of its backlog.
    pub(super) fn enqueue(&mut self, channel: R::Channel, queue: usize, work: R::Work) -> usize {
        let index = R::index(channel);
        let (before, behind) = (self.backlog_of(index, queue).tail, None);
        let key = self.queued.insert(Queued {
            channel,
            queue,
            stage: Stage::Waiting(work, Place { before, behind }),
            waker: None,
        });
        self.waiters += 1;
        self.queued_or_draining += 1;
        let line = self.backlog_of(index, queue);
        line.tail = Some(key);
        line.len += 1;
        match self.place(before) {
            Some(before) => before.behind = Some(key),
            None => self.backlog_of(index, queue).head = Some(key),
        }
        key
    }

    /// Posts from the heads of a channel's backlogs, as long as there is room.
    pub(super) fn advance(&mut self, index: usize) {
        for queue in 0..2 {
            while let Some(here) = self.channels.get(index)
                && let Some(key) = here.backlogs[queue].head
                && self.post_head(key)
            {}
        }
    }

    /// Posts the head of a backlog. `false` if there is no room for it yet.
    fn post_head(&mut self, key: usize) -> bool {
        let Some(head) = self.queued.get_mut(key) else {
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
                    // Nothing has waited for it before.
                    let _none = self.wait(ticket, Wait::Task(waker));
                }
            }
            Started::Refused(refusal) => {
                head.stage = Stage::Refused(work.refused(refusal));
                self.deferred.extend(head.waker.take());
            }
        }
        self.dequeue(R::index(channel), queue, gap);
        true
    }

    /// Closes the gap that an operation has left.
    pub(super) fn dequeue(&mut self, index: usize, queue: usize, gap: Place) {
        self.waiters -= 1;
        self.queued_or_draining -= 1;
        match self.place(gap.before) {
            Some(before) => before.behind = gap.behind,
            None => self.backlog_of(index, queue).head = gap.behind,
        }
        match self.place(gap.behind) {
            Some(behind) => behind.before = gap.before,
            None => self.backlog_of(index, queue).tail = gap.before,
        }
        let Self {
            channels, deferred, ..
        } = self;
        let Some(here) = channels.get_mut(index) else {
            return;
        };
        let line = &mut here.backlogs[queue];
        line.len -= 1;
        if line.room.sleeping > 0 && line.len <= line.room.wakes_at {
            line.room.sleeping = 0;
            let waiters = line.room.waiters.iter_mut();
            deferred.extend(waiters.filter_map(|(_, waiter)| waiter.take()));
        }
    }

    pub(super) fn backlog_of(&mut self, index: usize, queue: usize) -> &mut Backlog {
        &mut self.channel(index).backlogs[queue]
    }

    fn place(&mut self, key: Option<usize>) -> Option<&mut Place> {
        match &mut self.queued.get_mut(key?)?.stage {
            Stage::Waiting(_, place) => Some(place),
            _ => None,
        }
    }
}
