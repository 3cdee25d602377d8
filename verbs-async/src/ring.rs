//! The ring that the driver drives: a group of channels.

use std::mem;

use verbs_channel::verbs_core::{ErrorChain, WorkSuccess};
use verbs_channel::{
    ChannelGroup, ChannelId, Completed, DownReason, OwnedBuffer, OwnedWork, Queue, Refusal, Ticket,
    TransportError,
};

use crate::deferred::LogLine;
use crate::driver::{self, End, Ring, Started};
use crate::error::{Error, Result};
use crate::events::Subscription;

/// A group of channels whose completions are announced.
#[derive(Debug)]
pub(crate) struct Channels {
    // First: what is announced ends before the queue does.
    pub(crate) subscription: Subscription,
    pub(crate) group: ChannelGroup,
}

/// What to do: one thing or a batch.
#[derive(Debug)]
pub(crate) enum Work {
    One(OwnedWork),
    Batch(Vec<OwnedWork>),
}

/// How it ended, and what it was given.
#[derive(Debug)]
pub(crate) struct Outcome {
    result: Result<WorkSuccess, Failure>,
    buffer: OwnedBuffer,
    batch: Vec<OwnedWork>,
}

/// Why it did not succeed.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Refused(Refusal),
    Transport(TransportError),
}

impl Channels {
    #[inline(always)]
    fn start(&mut self, at: ChannelId, work: &mut OwnedWork) -> Result<Ticket, Refusal> {
        self.group.start_from(at, work)
    }

    fn start_batch(
        &mut self,
        at: ChannelId,
        works: &mut Vec<OwnedWork>,
    ) -> Result<Ticket, Refusal> {
        let Ok(mut channel) = self.group.channel(at) else {
            return Err(GONE);
        };
        channel.start_batch(mem::take(works)).map_err(|rejected| {
            let refusal = *rejected.error();
            *works = rejected.into_given();
            refusal
        })
    }

    /// Makes room for results, if it is for lack of that and not of places in the queue that nothing
    /// was posted: those that were not taken delay no operation.
    #[cold]
    fn make_room(&mut self, at: ChannelId, queue: Queue, refusal: Refusal) -> bool {
        if refusal != Refusal::Untaken {
            return false;
        }
        let channel = self.group.channel(at);
        let credits = channel.map_or(0, |channel| channel.credits(queue));
        let more = credits.min(ChannelGroup::MAX_RESERVE);
        self.group.reserve(at, more).is_ok()
    }
}

impl driver::Work<Channels> for OwnedWork {
    #[inline(always)]
    fn queue(&self) -> usize {
        Self::queue(self) as usize
    }

    #[inline(always)]
    fn post(&mut self, ring: &mut Channels, at: ChannelId) -> Started<Channels> {
        match ring.start(at, self) {
            Ok(ticket) => Started::Posted(ticket),
            Err(refusal) => not_posted(refusal, self, ring, at),
        }
    }

    fn refused(&mut self, refusal: Refusal) -> Outcome {
        Outcome::refused(refusal, mem::take(self.buffer_mut()), Vec::new())
    }
}

impl driver::Work<Channels> for Vec<OwnedWork> {
    fn queue(&self) -> usize {
        Queue::Send as usize
    }

    fn post(&mut self, ring: &mut Channels, at: ChannelId) -> Started<Channels> {
        let mut started = ring.start_batch(at, self);
        if let Err(refusal) = started
            && ring.make_room(at, Queue::Send, refusal)
        {
            started = ring.start_batch(at, self);
        }
        match started {
            Ok(ticket) => Started::Posted(ticket),
            Err(refusal) if refusal.is_backpressure() => Started::Full,
            Err(refusal) => Started::Refused(refusal),
        }
    }

    fn refused(&mut self, refusal: Refusal) -> Outcome {
        Outcome::refused(refusal, OwnedBuffer::empty(), mem::take(self))
    }
}

impl driver::Work<Channels> for Work {
    fn queue(&self) -> usize {
        match self {
            Self::One(work) => driver::Work::queue(work),
            Self::Batch(works) => works.queue(),
        }
    }

    #[cold]
    fn post(&mut self, ring: &mut Channels, at: ChannelId) -> Started<Channels> {
        match self {
            Self::One(work) => work.post(ring, at),
            Self::Batch(works) => works.post(ring, at),
        }
    }

    fn refused(&mut self, refusal: Refusal) -> Outcome {
        match self {
            Self::One(work) => work.refused(refusal),
            Self::Batch(works) => works.refused(refusal),
        }
    }
}

impl From<OwnedWork> for Work {
    fn from(work: OwnedWork) -> Self {
        Self::One(work)
    }
}

impl From<Vec<OwnedWork>> for Work {
    fn from(works: Vec<OwnedWork>) -> Self {
        Self::Batch(works)
    }
}

/// Why nothing is posted on a channel that is not there.
const GONE: Refusal = Refusal::Down(DownReason::Closed);

impl Ring for Channels {
    type Work = Work;
    type Outcome = Outcome;
    type Ticket = Ticket;
    type Refusal = Refusal;
    type Channel = ChannelId;

    #[inline]
    fn slot(ticket: Ticket) -> usize {
        ticket.slot()
    }

    #[inline]
    fn channel(ticket: Ticket) -> ChannelId {
        ticket.channel()
    }

    #[inline]
    fn index(channel: ChannelId) -> usize {
        channel.index()
    }

    #[inline]
    fn has_completed(&self) -> bool {
        self.group.has_completed()
    }

    fn next_completed(&mut self) -> Option<Ticket> {
        self.group.next_ticket()
    }

    fn take(&mut self, ticket: Ticket) -> Option<Outcome> {
        match self.group.take(ticket) {
            Ok(completed) => completed.map(Outcome::from),
            // It has no slot, so nothing would ever end it.
            Err(_stale) => Some(Outcome::refused(GONE, OwnedBuffer::empty(), Vec::new())),
        }
    }

    fn full(queue: usize) -> Refusal {
        Refusal::Backpressure([Queue::Send, Queue::Receive][queue])
    }

    fn is_idle(&mut self, channel: ChannelId, queue: usize) -> bool {
        let queue = [Queue::Send, Queue::Receive][queue];
        let channel = self.group.channel(channel);
        !channel.is_ok_and(|channel| channel.in_flight(queue) > 0)
    }

    #[inline]
    fn has_log_lines(&self) -> bool {
        self.group.has_leaks()
    }

    fn next_log_line(&mut self) -> Option<LogLine> {
        let leak = self.group.next_leak()?;
        Some(Box::new(leak))
    }

    #[cold]
    fn arm(&mut self) -> Result<(), LogLine> {
        self.subscription.arm().map_err(|error| {
            self.group.give_up(DownReason::Unannounced);
            let error = ErrorChain::new(&error);
            let line: LogLine = Box::new(format!(
                "cannot arm the completion queue, so all channels are closed: {error}"
            ));
            line
        })
    }
}

impl Outcome {
    const fn refused(refusal: Refusal, buffer: OwnedBuffer, batch: Vec<OwnedWork>) -> Self {
        let result = Err(Failure::Refused(refusal));
        Self {
            result,
            buffer,
            batch,
        }
    }
}

impl From<Completed> for Outcome {
    fn from(completed: Completed) -> Self {
        Self {
            result: completed.result.map_err(Failure::Transport),
            buffer: completed.buffer.unwrap_or_default(),
            batch: completed.batch.unwrap_or_default(),
        }
    }
}

/// An operation that has succeeded.
pub(crate) struct Succeeded {
    success: WorkSuccess,
    buffer: OwnedBuffer,
}

impl From<Succeeded> for (Result<WorkSuccess>, OwnedBuffer) {
    #[inline(always)]
    fn from(Succeeded { success, buffer }: Succeeded) -> Self {
        (Ok(success), buffer)
    }
}

/// How an operation ends.
impl End<Channels> for (Result<WorkSuccess>, OwnedBuffer) {
    type Taken = Succeeded;

    #[inline(always)]
    fn poll(ring: &mut Channels, ticket: Ticket) -> Option<Succeeded> {
        let (&success, buffer) = ring.group.poll_success(ticket)?;
        Some(Succeeded { success, buffer })
    }
}

/// How a batch ends.
impl End<Channels> for (Result<()>, Vec<OwnedWork>) {
    type Taken = Outcome;

    fn poll(ring: &mut Channels, ticket: Ticket) -> Option<Outcome> {
        let completed = ring.group.poll(ticket).ok()??;
        Some(Outcome::from(completed))
    }
}

impl From<Outcome> for (Result<WorkSuccess>, OwnedBuffer) {
    fn from(outcome: Outcome) -> Self {
        (outcome.result.map_err(Into::into), outcome.buffer)
    }
}

impl From<Outcome> for (Result<()>, Vec<OwnedWork>) {
    fn from(outcome: Outcome) -> Self {
        (outcome.result.map(drop).map_err(Into::into), outcome.batch)
    }
}

/// What becomes of work that was refused.
#[cold]
#[inline(never)]
fn not_posted(
    mut refusal: Refusal,
    work: &mut OwnedWork,
    ring: &mut Channels,
    at: ChannelId,
) -> Started<Channels> {
    if ring.make_room(at, work.queue(), refusal) {
        match ring.start(at, work) {
            Ok(ticket) => return Started::Posted(ticket),
            Err(again) => refusal = again,
        }
    }
    if refusal.is_backpressure() {
        return Started::Full;
    }
    Started::Refused(refusal)
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => Self::Refused(refusal),
            Failure::Transport(error) => Self::Transport(error),
        }
    }
}
