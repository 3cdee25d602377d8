//! The ring that the driver drives: a group of channels.

use std::mem;

use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{
    ChannelGroup, Completed, DownReason, OwnedBuffer, OwnedWork, Queue, Refusal, Ticket,
    TransportError,
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

/// Work in flight, and on which channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct On {
    channel: usize,
    ticket: Ticket,
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
    type Ticket = On;

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
    fn start(&mut self, at: usize, work: &mut Work) -> Started<Self> {
        let started = match (self.group.channel(at), &mut *work) {
            (Err(_gone), _) => Err(Refusal::Down(DownReason::Closed)),
            (Ok(mut channel), Work::One(work)) => channel.start_from(work),
            (Ok(mut channel), Work::Batch(works)) => {
                let started = channel.start_batch(mem::take(works));
                started.map_err(|rejected| {
                    let refusal = rejected.refusal();
                    *works = rejected.into_given();
                    refusal
                })
            }
        };
        match started {
            Ok(ticket) => Started::Posted(On {
                channel: at,
                ticket,
            }),
            Err(refusal) => refused(refusal, work),
        }
    }

    #[inline]
    fn slot(on: On) -> usize {
        on.ticket.slot()
    }

    #[inline(always)]
    fn take(&mut self, on: On) -> Option<Outcome> {
        // The ticket is good: the driver takes each once.
        let completed = self
            .group
            .channel(on.channel)
            .ok()?
            .poll(on.ticket)
            .ok()??;
        Some(completed.into())
    }

    #[inline]
    fn has_done(&self) -> bool {
        self.group.has_completed()
    }

    fn next_done(&mut self) -> Option<Done<Self>> {
        let completed = self.group.next_completed()?;
        let channel = completed.channel;
        let ticket = completed.ticket;
        Some(Done {
            ticket: On { channel, ticket },
            outcome: completed.into(),
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

impl From<Completed> for Outcome {
    #[inline(always)]
    fn from(completed: Completed) -> Self {
        Self {
            result: completed.result.map_err(Failure::Transport),
            buffer: completed.buffer.unwrap_or_default(),
            batch: completed.batch,
        }
    }
}

#[cold]
fn refused(refusal: Refusal, work: &mut Work) -> Started<Channels> {
    if refusal.is_backpressure() {
        return Started::Full;
    }
    let (buffer, batch) = match work {
        Work::One(work) => (mem::take(work.buffer_mut()), Vec::new()),
        Work::Batch(works) => (OwnedBuffer::empty(), mem::take(works)),
    };
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
