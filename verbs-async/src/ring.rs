//! The ring that the driver drives: a group of channels.

use std::mem;
use std::task::Poll;

use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{
    ChannelGroup, Completed, DownReason, OwnedBuffer, OwnedWork, Queue, Refusal, Ticket,
    TransportError,
};

use crate::driver::{self, Done, Ring, Started};
use crate::error::Result;
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
    /// An operation's end, for [`Driver::poll`](crate::driver::Driver::poll).
    #[inline(never)]
    pub(crate) fn take_one(&mut self, ticket: Ticket) -> Poll<(Result<WorkSuccess>, OwnedBuffer)> {
        match self.group.poll_success(ticket) {
            Some((success, buffer)) => Poll::Ready((Ok(success), buffer)),
            None => Poll::Pending,
        }
    }

    /// A batch's end.
    #[inline(always)]
    pub(crate) fn take_batch(&mut self, ticket: Ticket) -> Poll<(Result<()>, Vec<OwnedWork>)> {
        match self.group.poll(ticket) {
            Ok(Some(completed)) => Poll::Ready(Outcome::from(completed).into()),
            _ => Poll::Pending,
        }
    }
}

impl driver::Work<Channels> for OwnedWork {
    #[inline(always)]
    fn queue(&self) -> usize {
        Self::queue(self) as usize
    }

    #[inline(always)]
    fn post(&mut self, ring: &mut Channels, at: usize) -> Started<Channels> {
        let started = match ring.group.channel(at) {
            Ok(mut channel) => channel.start_from(self),
            Err(_gone) => Err(GONE),
        };
        match started {
            Ok(ticket) => Started::Posted(ticket),
            Err(refusal) if refusal.is_backpressure() => Started::Full,
            Err(refusal) => refused(refusal, mem::take(self.buffer_mut()), Vec::new()),
        }
    }
}

impl driver::Work<Channels> for Vec<OwnedWork> {
    fn queue(&self) -> usize {
        Queue::Send as usize
    }

    fn post(&mut self, ring: &mut Channels, at: usize) -> Started<Channels> {
        let given = mem::take(self);
        let Ok(mut channel) = ring.group.channel(at) else {
            return refused(GONE, OwnedBuffer::empty(), given);
        };
        match channel.start_batch(given) {
            Ok(ticket) => Started::Posted(ticket),
            Err(rejected) if rejected.is_backpressure() => {
                *self = rejected.into_given();
                Started::Full
            }
            Err(rejected) => {
                let refusal = rejected.refusal();
                refused(refusal, OwnedBuffer::empty(), rejected.into_given())
            }
        }
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
    fn post(&mut self, ring: &mut Channels, at: usize) -> Started<Channels> {
        match self {
            Self::One(work) => work.post(ring, at),
            Self::Batch(works) => works.post(ring, at),
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

    #[inline]
    fn slot(ticket: Ticket) -> usize {
        ticket.slot()
    }

    #[inline]
    fn has_done(&self) -> bool {
        self.group.has_completed()
    }

    fn next_done(&mut self) -> Option<Done<Self>> {
        let completed = self.group.next_completed()?;
        let ticket = completed.ticket;
        let outcome = completed.into();
        Some(Done { ticket, outcome })
    }

    #[cold]
    fn arm(&mut self) {
        if let Err(error) = self.subscription.arm() {
            crate::wake::say(format_args!(
                "cannot have completions announced, closing all channels: {error}"
            ));
            self.group.give_up(DownReason::Unannounced);
        }
    }
}

impl From<Completed> for Outcome {
    fn from(completed: Completed) -> Self {
        Self {
            result: completed.result.map_err(Failure::Transport),
            buffer: completed.buffer.unwrap_or_default(),
            batch: completed.batch,
        }
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

#[cold]
#[inline(never)]
fn refused(refusal: Refusal, buffer: OwnedBuffer, batch: Vec<OwnedWork>) -> Started<Channels> {
    Started::Refused(Outcome {
        result: Err(Failure::Refused(refusal)),
        buffer,
        batch,
    })
}

impl From<Failure> for crate::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => Self::Refused(refusal),
            Failure::Transport(error) => Self::Transport(error),
        }
    }
}
