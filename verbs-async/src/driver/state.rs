//! The state of a driver, which only its lock's holder has.

use std::mem;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::line::{InLine, Line, Stage};
use super::work::{Begun, Ring, Started, Work};
use crate::noted::Noted;

/// What stands behind the lock.
pub(super) struct State<R: Ring> {
    pub(super) ring: R,
    // What has to be announced: who sleeps, what is in line, and what is abandoned in flight.
    pub(super) wanted: usize,
    // Of that: what is in line, and who waits until nothing is left.
    pub(super) lined: usize,
    pub(super) armed: bool,
    // By the ring's slots: who waits for what is in flight.
    waits: Vec<Option<Wait>>,
    pub(super) in_line: Slab<InLine<R>>,
    pub(super) channels: Vec<Channel<R>>,
    // How long an operation polls before it goes to sleep.
    pub(super) busy_poll: Duration,
    // To be woken when the lock is free.
    pub(super) noted: Noted,
    // To be dropped then, one by one: two that panic at once would end the process.
    pub(super) spent: Vec<Spent<R>>,
}

/// Who waits for work that is in flight.
pub(super) enum Wait {
    Task(Waker),
    /// Nobody: its outcome is to be dropped.
    Abandoned,
}

/// A channel's two lines, and whoever waits until nothing is left in some of its queues.
pub(super) struct Channel<R: Ring> {
    pub(super) lines: [Line; 2],
    // Of its two queues.
    drained: Option<Drained<R>>,
}

/// Who waits until nothing is left, on which channel, and in which of its queues.
pub(super) type Drained<R> = (Waker, <R as Ring>::Channel, [bool; 2]);

impl<R: Ring> State<R> {
    pub(super) const fn new(ring: R) -> Self {
        Self {
            ring,
            wanted: 0,
            lined: 0,
            armed: false,
            waits: Vec::new(),
            in_line: Slab::new(),
            channels: Vec::new(),
            busy_poll: Duration::ZERO,
            noted: Noted::new(),
            spent: Vec::new(),
        }
    }

    /// Posts work: nothing is due by that. Or puts it in line, or has it refused, and then something
    /// may be.
    #[inline(always)]
    pub(super) fn start<W: Work<R>>(
        &mut self,
        channel: R::Channel,
        mut work: W,
        backlog: usize,
    ) -> Begun<R::Ticket> {
        let started = if self.lined > 0 && self.has_line(R::index(channel), work.queue()) {
            Started::Full
        } else {
            work.post(&mut self.ring, channel)
        };
        match started {
            Started::Posted(ticket) => Begun::Posted(ticket),
            Started::Full => Begun::InLine(self.queue(channel, work, backlog)),
            Started::Refused(refusal) => Begun::InLine(self.refused(channel, work, refusal)),
        }
    }

    fn has_line(&self, index: usize, queue: usize) -> bool {
        let here = self.channels.get(index);
        here.is_some_and(|here| !here.lines[queue].is_empty())
    }

    /// Puts work in line, unless as much is there already.
    #[cold]
    #[inline(never)]
    fn queue<W: Work<R>>(&mut self, channel: R::Channel, work: W, backlog: usize) -> usize {
        let queue = work.queue();
        if self.line(R::index(channel), queue).len() >= backlog {
            return self.refused(channel, work, R::full(queue));
        }
        let key = self.join_line(channel, work.queue(), work.into());
        // What makes room has to be announced; and it may have ended by now.
        self.turn(None);
        key
    }

    /// Keeps the outcome of work that was refused.
    #[cold]
    #[inline(never)]
    fn refused<W: Work<R>>(
        &mut self,
        channel: R::Channel,
        mut work: W,
        refusal: R::Refusal,
    ) -> usize {
        self.in_line.insert(InLine {
            channel,
            queue: work.queue(),
            stage: Stage::Refused(work.refused(refusal)),
            waker: None,
        })
    }

    /// Whether anything is to be done since the outcome of this work was taken.
    #[inline]
    pub(super) fn matters(&self, ticket: R::Ticket) -> bool {
        let waits = self.waits.get(R::slot(ticket));
        self.lined > 0 || waits.is_some_and(Option::is_some) || self.is_due()
    }

    /// Whether something is to be done before the lock is free.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let is_unnoticed = self.wanted > 0 && self.ring.has_ended();
        let is_spent = !self.spent.is_empty() && !self.noted.is_waking();
        let is_noted = self.noted.is_due() || is_spent;
        is_unnoticed || is_noted || self.ring.has_words()
    }

    /// Drives: see the module. It may stop early when `own` has ended: what is left is announced, if
    /// it was armed for.
    pub(super) fn turn(&mut self, own: Option<Begun<R::Ticket>>) {
        let is_wanted = |state: &Self| own.is_some() || state.wanted > 0;
        if !is_wanted(self) || self.collect(own) || self.armed || !is_wanted(self) {
            return;
        }
        match self.ring.arm() {
            Ok(()) => self.armed = true,
            Err(says) => self.noted.push(says),
        }
        self.collect(own);
    }

    /// Polls until the queue is empty, or `own` has ended: then it is `true`.
    pub(super) fn collect(&mut self, own: Option<Begun<R::Ticket>>) -> bool {
        let own = own.and_then(|own| self.posted(own)).map(R::slot);
        while let Some(ended) = self.ring.next_ended() {
            self.notice(ended);
            if own == Some(R::slot(ended)) {
                return true;
            }
        }
        false
    }

    /// Names the operation's work, if it was posted.
    fn posted(&self, begun: Begun<R::Ticket>) -> Option<R::Ticket> {
        match begun {
            Begun::Posted(ticket) => Some(ticket),
            Begun::InLine(key) => match self.in_line.get(key)?.stage {
                Stage::Posted(ticket) => Some(ticket),
                _ => None,
            },
        }
    }

    /// Tells those who wait for it what is known to have ended, without a poll.
    pub(super) fn notice_all(&mut self) {
        while self.ring.has_ended() {
            let Some(ended) = self.ring.next_ended() else {
                return;
            };
            self.notice(ended);
        }
    }

    /// Tells whoever waits for it that work has ended, and goes on with what waits for its place.
    fn notice(&mut self, ended: R::Ticket) {
        match self.unwait(ended) {
            Some(Wait::Task(waker)) => self.noted.push(waker),
            Some(Wait::Abandoned) => {
                let outcome = self.ring.take(ended);
                self.spent.extend(outcome.map(Spent::Outcome));
            }
            None => {}
        }
        self.changed(R::index(R::channel(ended)));
    }

    /// Something of a channel is not in flight any more, or not in line.
    pub(super) fn changed(&mut self, index: usize) {
        if self.lined == 0 {
            return;
        }
        self.advance(index);
        let here = self.channels.get(index);
        if let Some((_, channel, queues)) = here.and_then(|here| here.drained.as_ref())
            && self.is_empty(*channel, *queues)
        {
            let waker = self.set_drained(index, None);
            self.noted.extend(waker);
        }
    }

    /// The outcome of an operation, if it is known.
    pub(super) fn outcome(&mut self, begun: Begun<R::Ticket>) -> Option<R::Outcome> {
        let key = match begun {
            Begun::Posted(ticket) => return self.ring.take(ticket),
            Begun::InLine(key) => key,
        };
        let outcome = match self.in_line.get(key)?.stage {
            Stage::Waiting(..) => return None,
            Stage::Posted(ticket) => Some(self.ring.take(ticket)?),
            Stage::Refused(_) => None,
        };
        match self.in_line.remove(key).stage {
            Stage::Refused(outcome) => Some(outcome),
            _ => outcome,
        }
    }

    /// Has the operation's task woken when it has ended. What it had before is the caller's to drop.
    pub(super) fn set_waker(&mut self, begun: Begun<R::Ticket>, waker: Waker) -> Option<Wait> {
        let ticket = match begun {
            Begun::Posted(ticket) => ticket,
            Begun::InLine(key) => match self.in_line.get_mut(key)? {
                InLine {
                    stage: Stage::Posted(ticket),
                    ..
                } => *ticket,
                waiting => return waiting.waker.replace(waker).map(Wait::Task),
            },
        };
        self.wait(ticket, Wait::Task(waker))
    }

    pub(super) fn wait(&mut self, ticket: R::Ticket, wait: Wait) -> Option<Wait> {
        let slot = R::slot(ticket);
        if slot >= self.waits.len() {
            self.waits.resize_with(slot + 1, || None);
        }
        let replaced = self.waits[slot].replace(wait);
        self.wanted += usize::from(replaced.is_none());
        replaced
    }

    pub(super) fn unwait(&mut self, ticket: R::Ticket) -> Option<Wait> {
        let wait = self.waits.get_mut(R::slot(ticket))?.take()?;
        self.wanted -= 1;
        Some(wait)
    }

    /// Nobody wants the operation's outcome any more.
    pub(super) fn abandon(&mut self, begun: Begun<R::Ticket>) {
        let ticket = match begun {
            Begun::Posted(ticket) => ticket,
            Begun::InLine(key) => {
                let Some(op) = self.in_line.try_remove(key) else {
                    return;
                };
                let waker = op.waker.map(Wait::Task);
                match op.stage {
                    Stage::Posted(ticket) => ticket,
                    Stage::Waiting(work, gap) => {
                        let index = R::index(op.channel);
                        self.leave_line(index, op.queue, gap);
                        // It may have been all that kept the next from its place.
                        self.changed(index);
                        self.spent.push(Spent::Work(work));
                        self.spent.extend(waker.map(Spent::Wait));
                        return;
                    }
                    Stage::Refused(outcome) => {
                        self.spent.push(Spent::Outcome(outcome));
                        self.spent.extend(waker.map(Spent::Wait));
                        return;
                    }
                }
            }
        };
        if let Some(outcome) = self.ring.take(ticket) {
            // Nobody waits for what is known to have ended.
            self.spent.push(Spent::Outcome(outcome));
            return;
        }
        let replaced = self.wait(ticket, Wait::Abandoned);
        self.spent.extend(replaced.map(Spent::Wait));
        // Its buffers are to come back even if nobody waits for anything.
        self.turn(None);
    }

    /// Has this woken when nothing is left in these queues of a channel. The waker from before is the
    /// caller's to drop.
    pub(super) fn set_drained(&mut self, index: usize, waits: Option<Drained<R>>) -> Option<Waker> {
        let added = usize::from(waits.is_some());
        self.wanted += added;
        self.lined += added;
        let here = &mut self.channel(index).drained;
        let (replaced, ..) = mem::replace(here, waits)?;
        self.wanted -= 1;
        self.lined -= 1;
        Some(replaced)
    }

    /// Whether nothing is left in these queues of a channel.
    pub(super) fn is_empty(&mut self, channel: R::Channel, queues: [bool; 2]) -> bool {
        (0..2).all(|queue| {
            let is_left =
                self.has_line(R::index(channel), queue) || !self.ring.is_idle(channel, queue);
            !queues[queue] || !is_left
        })
    }

    /// How many channels have, or had, anything in line or anybody who waits.
    pub(super) const fn channels(&self) -> usize {
        self.channels.len()
    }

    pub(super) fn channel(&mut self, index: usize) -> &mut Channel<R> {
        if index >= self.channels.len() {
            self.channels.resize_with(index + 1, || Channel {
                lines: [Line::default(), Line::default()],
                drained: None,
            });
        }
        &mut self.channels[index]
    }
}

/// What is to be dropped where nothing is locked.
#[expect(dead_code, reason = "it is dropped, and not looked at")]
pub(super) enum Spent<R: Ring> {
    Work(R::Work),
    Outcome(R::Outcome),
    Wait(Wait),
}
