//! Requests of operations, and their outcomes.

use std::mem;

use verbs_channel::engine::Engine;
use verbs_channel::error::Queue;
use verbs_channel::lease::LeaseRequest;
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::WorkSuccess;
use verbs_channel::{
    ChannelId, Completed, DownReason, OwnedBuffer, OwnedRequest, RejectReason, Ticket,
    TransportError,
};

/// A request, a batch, a chain, or that of a lease.
#[derive(Debug)]
pub(crate) enum Request {
    One(OwnedRequest),
    Batch(Vec<OwnedRequest>),
    // `None` once it was posted: an empty chain would be allocated.
    Chain(Option<OwnedChain>),
    Lease(LeaseRequest),
}

/// The result, and what was given to the operation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<WorkSuccess, TransportError>,
    pub(crate) buffer: OwnedBuffer,
    pub(crate) batch: Vec<OwnedRequest>,
    pub(crate) chain: Option<OwnedChain>,
}

/// The result of posting a request.
#[derive(Clone, Copy)]
pub(super) enum Started {
    /// It is in flight.
    Posted(Ticket),
    /// There is no room until another operation of its queue completes.
    Full,
    /// There is no room in what the channels share until an operation of any of them completes.
    Short,
    /// It cannot be posted.
    Rejected(RejectReason),
}

/// Where to find an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Submission {
    /// In its slot: in flight or completed.
    Posted(Ticket),
    /// In the driver's table: in the backlog, or posted from it, or rejected.
    Queued(usize),
}

/// The queues of a channel.
pub(super) const QUEUES: [Queue; 2] = [Queue::Send, Queue::Receive];

impl Request {
    /// The queue of the channel that it is for.
    pub(super) fn queue(&self) -> Queue {
        match self {
            Self::One(request) => request.queue(),
            Self::Batch(_) | Self::Chain(_) | Self::Lease(_) => Queue::Send,
        }
    }

    /// Posts the request. Its contents are taken if it is posted, and left if not.
    pub(super) fn start(&mut self, engine: &mut Engine, at: ChannelId) -> Started {
        match self.post(engine, at) {
            Ok(ticket) => Started::Posted(ticket),
            Err(reason) => self.not_posted(engine, at, reason),
        }
    }

    /// The result of a post that was rejected. If it was for lack of slots, more are reserved, so outcomes that
    /// are not taken delay no operation.
    pub(super) fn not_posted(
        &mut self,
        engine: &mut Engine,
        at: ChannelId,
        mut reason: RejectReason,
    ) -> Started {
        if reason == RejectReason::Untaken {
            let more = engine.credits(at, self.queue()).min(Engine::MAX_RESERVE);
            if engine.reserve(at, more).is_ok() {
                match self.post(engine, at) {
                    Ok(ticket) => return Started::Posted(ticket),
                    Err(again) => reason = again,
                }
            }
        }
        match reason {
            RejectReason::Budget(_) => Started::Short,
            reason if reason.is_backpressure() => Started::Full,
            reason => Started::Rejected(reason),
        }
    }

    fn post(&mut self, engine: &mut Engine, at: ChannelId) -> Result<Ticket, RejectReason> {
        match self {
            Self::One(request) => engine.start(at, request),
            Self::Batch(requests) => {
                engine
                    .start_batch(at, mem::take(requests))
                    .map_err(|rejected| {
                        let (reason, given) = rejected.into_parts();
                        *requests = given;
                        reason
                    })
            }
            Self::Lease(request) => engine.start_lease(at, request),
            Self::Chain(chain) => {
                let given = chain.take().ok_or(RejectReason::EmptyBatch)?;
                engine.start_chain(at, given).map_err(|rejected| {
                    let (reason, given) = rejected.into_parts();
                    *chain = Some(given);
                    reason
                })
            }
        }
    }

    /// The outcome of a rejected request, with its contents.
    pub(super) fn rejected(&mut self, reason: RejectReason) -> Outcome {
        let mut outcome = Outcome::rejected(reason);
        match self {
            Self::One(request) => outcome.buffer = mem::take(request.buffer_mut()),
            Self::Batch(requests) => outcome.batch = mem::take(requests),
            Self::Chain(chain) => outcome.chain = chain.take(),
            Self::Lease(_) => {}
        }
        outcome
    }
}

impl Outcome {
    /// The result, and the buffer or the chain.
    pub(crate) fn into_parts(
        self,
    ) -> (
        Result<WorkSuccess, TransportError>,
        (OwnedBuffer, Option<OwnedChain>),
    ) {
        (self.result, (self.buffer, self.chain))
    }

    /// Takes the outcome of an operation if it is known to have completed. Does not poll.
    pub(super) fn take(engine: &mut Engine, ticket: Ticket) -> Option<Self> {
        match engine.take(ticket) {
            Ok(completed) => completed.map(Self::from),
            // It has no slot, so it would never complete.
            Err(_stale) => Some(Self::rejected(CLOSED)),
        }
    }

    /// Takes the outcome of an operation if it has completed. Polls once at most.
    pub(crate) fn poll(engine: &mut Engine, ticket: Ticket) -> Option<Self> {
        let completed = engine.poll(ticket).ok()??;
        Some(Self::from(completed))
    }

    /// Without what was given.
    const fn rejected(reason: RejectReason) -> Self {
        Self {
            result: Err(TransportError::Rejected(reason)),
            buffer: OwnedBuffer::empty(),
            batch: Vec::new(),
            chain: None,
        }
    }
}

/// The rejection by a channel that is closed.
const CLOSED: RejectReason = RejectReason::Down(DownReason::Closed);

impl From<Completed> for Outcome {
    fn from(completed: Completed) -> Self {
        Self {
            result: completed.result,
            buffer: completed.buffer.unwrap_or_default(),
            batch: completed.batch.unwrap_or_default(),
            chain: completed.chain,
        }
    }
}
