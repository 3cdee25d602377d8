//! The ring that the driver drives: a group of channels.

use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{
    ChannelGroup, Completed, DownReason, OwnedBuffer, OwnedWork, Queue, Refusal, TransportError,
};

use crate::driver::{Done, Ring, Started};
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
    pub(crate) result: Result<WorkSuccess, Failure>,
    pub(crate) buffer: OwnedBuffer,
    pub(crate) batch: Vec<OwnedWork>,
}

/// Why it did not succeed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Refused(Refusal),
    Transport(TransportError),
}

impl Ring for Channels {
    type Work = Work;
    type Outcome = Outcome;

    #[inline]
    fn queue(work: &Work) -> usize {
        let first = match work {
            Work::One(work) => Some(work),
            Work::Batch(works) => works.first(),
        };
        match first.map(OwnedWork::queue) {
            Some(Queue::Receive) => 1,
            _ => 0,
        }
    }

    #[inline]
    fn start(&mut self, channel: usize, work: Work) -> Started<Self> {
        let mut channel = match self.group.channel(channel) {
            Ok(channel) => channel,
            Err(_gone) => return refused(Refusal::Down(DownReason::Closed), work),
        };
        match work {
            Work::One(work) => match channel.start(work) {
                Ok(ticket) => Started::Posted(ticket.slot()),
                Err(rejected) => again(rejected.refusal(), Work::One(rejected.into_given())),
            },
            Work::Batch(works) => match channel.start_batch(works) {
                Ok(ticket) => Started::Posted(ticket.slot()),
                Err(rejected) => again(rejected.refusal(), Work::Batch(rejected.into_given())),
            },
        }
    }

    #[inline]
    fn next_done(&mut self) -> Option<Done<Outcome>> {
        let completed: Completed = self.group.next_completed()?;
        Some(Done {
            slot: completed.ticket.slot(),
            channel: completed.channel,
            outcome: Outcome {
                result: completed.result.map_err(Failure::Transport),
                buffer: completed.buffer.unwrap_or_default(),
                batch: completed.batch,
            },
        })
    }

    #[cold]
    fn arm(&mut self) {
        if let Err(error) = self.subscription.arm() {
            log::error!("cannot have completions announced, closing all channels: {error}");
            self.group.give_up(DownReason::Unannounced);
        }
    }
}

#[cold]
fn again(refusal: Refusal, work: Work) -> Started<Channels> {
    if refusal.is_backpressure() {
        Started::Full(work)
    } else {
        refused(refusal, work)
    }
}

#[cold]
fn refused(refusal: Refusal, work: Work) -> Started<Channels> {
    let result = Err(Failure::Refused(refusal));
    let (buffer, batch) = match work {
        Work::One(work) => (work.into_buffer(), Vec::new()),
        Work::Batch(works) => (OwnedBuffer::default(), works),
    };
    Started::Refused(Outcome {
        result,
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
