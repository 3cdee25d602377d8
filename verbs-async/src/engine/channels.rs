//! The ring that the driver drives: an engine of verbs-channel.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::Instant;

use verbs_channel::engine::{Closing, Engine, Failure};
use verbs_channel::verbs_core::{ErrorChain, WorkSuccess};
use verbs_channel::{
    ChannelId, Completed, DownReason, Message, OwnedBuffer, OwnedChain, OwnedRequest, Queue,
    RejectReason, Ticket,
};

use crate::driver::{self, End, Ring, SharedReceives, Started};
use crate::error::{Error, Result};
use crate::events::Subscription;
use crate::task::deferred::LogLine;

/// An engine, and the registration for the events of its queue.
pub(crate) struct Channels {
    // First: the registration is dropped before the queue.
    pub(crate) subscription: Subscription,
    pub(crate) engine: Engine,
    // When busy tasks check the peers next; `None` for at once.
    pub(crate) next_check: Option<Instant>,
    // When the channel in each place has joined.
    pub(crate) joined: Vec<Instant>,
    // The owner of the ring.
    pub(crate) owner: Weak<dyn Destroys>,
}

/// Makes helper threads work for a ring.
pub(crate) trait Destroys: Send + Sync {
    /// Has a helper thread destroy a queue pair.
    fn destroy_elsewhere(self: Arc<Self>, closing: Closing);

    /// Has a helper thread continue with waking. Returns whether one will.
    fn wake_elsewhere(self: Arc<Self>) -> bool;
}

/// A queue pair that is to be destroyed: a helper thread does so when this is dropped.
pub(crate) struct DestroyOnDrop {
    owner: Weak<dyn Destroys>,
    // `None` once it was handed to the thread.
    closing: Option<Closing>,
}

impl Drop for DestroyOnDrop {
    fn drop(&mut self) {
        if let (Some(closing), Some(owner)) = (self.closing.take(), self.owner.upgrade()) {
            owner.destroy_elsewhere(closing);
        }
    }
}

/// A request, a batch or a chain.
#[derive(Debug)]
pub(crate) enum Request {
    One(OwnedRequest),
    Batch(Vec<OwnedRequest>),
    Chain(Option<OwnedChain>),
}

/// The result, and what was given to the operation.
#[derive(Debug)]
pub(crate) struct Outcome {
    result: Result<WorkSuccess, Failure>,
    buffer: OwnedBuffer,
    batch: Vec<OwnedRequest>,
    chain: Option<OwnedChain>,
}

impl Channels {
    /// Why a request was not posted. Reserves more slots if it was for lack of them, so outcomes that
    /// are not taken delay no operation.
    #[cold]
    #[inline(never)]
    fn not_posted(&mut self, at: ChannelId, queue: Queue, reason: RejectReason) -> Started<Self> {
        let more = self.engine.credits(at, queue).min(Engine::MAX_RESERVE);
        if reason == RejectReason::Untaken && self.engine.reserve(at, more).is_ok() {
            Started::RoomMade
        } else if let RejectReason::Budget(_) = reason {
            Started::Short
        } else if reason.is_backpressure() {
            Started::Full
        } else {
            Started::Rejected(reason)
        }
    }
}

impl driver::Request<Channels> for OwnedRequest {
    #[inline(always)]
    fn queue(&self) -> Queue {
        Self::queue(self)
    }

    #[inline(always)]
    fn post(&mut self, ring: &mut Channels, at: ChannelId) -> Started<Channels> {
        match ring.engine.start(at, self) {
            Ok(ticket) => Started::Posted(ticket),
            Err(reason) => ring.not_posted(at, Self::queue(self), reason),
        }
    }

    fn rejected(&mut self, reason: RejectReason) -> Outcome {
        let mut outcome = Outcome::rejected(reason);
        outcome.buffer = mem::take(self.buffer_mut());
        outcome
    }
}

impl driver::Request<Channels> for Vec<OwnedRequest> {
    fn queue(&self) -> Queue {
        Queue::Send
    }

    fn post(&mut self, ring: &mut Channels, at: ChannelId) -> Started<Channels> {
        match ring.engine.start_batch(at, mem::take(self)) {
            Ok(ticket) => Started::Posted(ticket),
            Err(rejected) => {
                let (reason, requests) = rejected.into_parts();
                *self = requests;
                ring.not_posted(at, Queue::Send, reason)
            }
        }
    }

    fn rejected(&mut self, reason: RejectReason) -> Outcome {
        let mut outcome = Outcome::rejected(reason);
        outcome.batch = mem::take(self);
        outcome
    }
}

/// A chain, which is there until it is posted.
impl driver::Request<Channels> for Option<OwnedChain> {
    fn queue(&self) -> Queue {
        Queue::Send
    }

    fn post(&mut self, ring: &mut Channels, at: ChannelId) -> Started<Channels> {
        let Some(chain) = self.take() else {
            return Started::Rejected(RejectReason::EmptyBatch);
        };
        match ring.engine.start_chain(at, chain) {
            Ok(ticket) => Started::Posted(ticket),
            Err(rejected) => {
                let (reason, chain) = rejected.into_parts();
                *self = Some(chain);
                ring.not_posted(at, Queue::Send, reason)
            }
        }
    }

    fn rejected(&mut self, reason: RejectReason) -> Outcome {
        let mut outcome = Outcome::rejected(reason);
        outcome.chain = self.take();
        outcome
    }
}

impl driver::Request<Channels> for Request {
    fn queue(&self) -> Queue {
        match self {
            Self::One(request) => driver::Request::queue(request),
            Self::Batch(requests) => requests.queue(),
            Self::Chain(chain) => chain.queue(),
        }
    }

    #[cold]
    fn post(&mut self, ring: &mut Channels, at: ChannelId) -> Started<Channels> {
        match self {
            Self::One(request) => request.post(ring, at),
            Self::Batch(requests) => requests.post(ring, at),
            Self::Chain(chain) => chain.post(ring, at),
        }
    }

    fn rejected(&mut self, reason: RejectReason) -> Outcome {
        match self {
            Self::One(request) => request.rejected(reason),
            Self::Batch(requests) => requests.rejected(reason),
            Self::Chain(chain) => chain.rejected(reason),
        }
    }
}

impl From<OwnedRequest> for Request {
    fn from(request: OwnedRequest) -> Self {
        Self::One(request)
    }
}

impl From<Vec<OwnedRequest>> for Request {
    fn from(requests: Vec<OwnedRequest>) -> Self {
        Self::Batch(requests)
    }
}

impl From<Option<OwnedChain>> for Request {
    fn from(chain: Option<OwnedChain>) -> Self {
        Self::Chain(chain)
    }
}

/// The rejection by a channel that is closed.
const CLOSED: RejectReason = RejectReason::Down(DownReason::Closed);

impl Ring for Channels {
    type Request = Request;
    type Outcome = Outcome;
    type Ticket = Ticket;
    type RejectReason = RejectReason;
    type Channel = ChannelId;
    type Closing = DestroyOnDrop;
    type Owner = Arc<dyn Destroys>;

    #[inline]
    fn slot(ticket: Ticket) -> usize {
        ticket.slot()
    }

    fn slots(&self) -> usize {
        self.engine.slots()
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
        self.engine.has_completed()
    }

    fn next_completed(&mut self) -> Option<Ticket> {
        self.engine.next_ticket()
    }

    fn take(&mut self, ticket: Ticket) -> Option<Outcome> {
        match self.engine.take(ticket) {
            Ok(completed) => completed.map(Outcome::from),
            // It has no slot, so it would never complete.
            Err(_stale) => Some(Outcome::rejected(CLOSED)),
        }
    }

    fn full(queue: Queue) -> RejectReason {
        RejectReason::Backpressure(queue)
    }

    fn hold_room(&mut self, is_held: bool) {
        self.engine.hold_room(is_held);
    }

    fn has_common_room(&self) -> bool {
        self.engine.common_room() > 0
    }

    fn has_message(&self) -> bool {
        self.engine.has_message()
    }

    fn has_no_more_messages(&self) -> bool {
        self.engine.has_no_more_messages()
    }

    fn has_failed(&self) -> bool {
        self.engine.has_failed()
    }

    fn next_failed(&mut self) -> Option<ChannelId> {
        self.engine.next_failed()
    }

    fn is_idle(&mut self, channel: ChannelId, queue: Queue) -> bool {
        // Nobody waits for the operations of a channel that is down: the device may never flush them.
        self.engine.down_reason(channel).is_some() || self.engine.in_flight(channel, queue) == 0
    }

    #[inline]
    fn has_deferred(&self) -> bool {
        self.engine.has_deferred()
    }

    fn next_log_line(&mut self) -> Option<LogLine> {
        let leak = self.engine.next_leak()?;
        Some(Box::new(leak))
    }

    fn next_closing(&mut self) -> Option<DestroyOnDrop> {
        let closing = self.engine.next_closing()?;
        Some(DestroyOnDrop {
            owner: Weak::clone(&self.owner),
            closing: Some(closing),
        })
    }

    fn owner(&self) -> Option<Arc<dyn Destroys>> {
        self.owner.upgrade()
    }

    fn continue_elsewhere(owner: Arc<dyn Destroys>) -> bool {
        owner.wake_elsewhere()
    }

    #[cold]
    fn arm(&mut self) -> Result<(), Option<LogLine>> {
        self.subscription.arm().map_err(|error| {
            // Operations of channels that are being closed wait, too.
            let is_up = |at| self.engine.down_reason(at).is_none();
            let has_any = self.engine.channels().any(is_up);
            self.engine.destroy_all(DownReason::NotifierFailed);
            let error = ErrorChain::new(&error);
            let line: LogLine = Box::new(format!(
                "cannot arm the completion queue, taking all channels down: {error}"
            ));
            has_any.then_some(line)
        })
    }
}

impl SharedReceives for Channels {
    type Message = Message;

    fn next_message(&mut self) -> Option<Message> {
        let message = self.engine.next_message();
        if message.is_none() {
            self.engine.refill();
        }
        message
    }

    fn needs_blocks(&self) -> bool {
        self.engine.needs_blocks()
    }
}

impl Outcome {
    /// The result of an operation on one buffer, and the buffer.
    pub(crate) fn into_parts(self) -> (Result<WorkSuccess, Failure>, OwnedBuffer) {
        (self.result, self.buffer)
    }

    /// Without what was given.
    const fn rejected(reason: RejectReason) -> Self {
        Self {
            result: Err(Failure::Rejected(reason)),
            buffer: OwnedBuffer::empty(),
            batch: Vec::new(),
            chain: None,
        }
    }
}

impl From<Completed> for Outcome {
    fn from(completed: Completed) -> Self {
        Self {
            result: completed.result.map_err(Failure::Transport),
            buffer: completed.buffer.unwrap_or_default(),
            batch: completed.batch.unwrap_or_default(),
            chain: completed.chain,
        }
    }
}

/// An operation that has succeeded, with its buffer.
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

/// The output of an operation.
impl End<Channels> for (Result<WorkSuccess>, OwnedBuffer) {
    type Taken = Succeeded;

    #[inline(always)]
    fn poll(ring: &mut Channels, ticket: Ticket) -> Option<Succeeded> {
        let (success, buffer) = ring.engine.poll_success(ticket)?;
        Some(Succeeded { success, buffer })
    }
}

/// The output of a batch.
impl End<Channels> for (Result<()>, Vec<OwnedRequest>) {
    type Taken = Outcome;

    fn poll(ring: &mut Channels, ticket: Ticket) -> Option<Outcome> {
        let completed = ring.engine.poll(ticket).ok()??;
        Some(Outcome::from(completed))
    }
}

/// The output of a chain.
impl End<Channels> for (Result<()>, OwnedChain) {
    type Taken = Outcome;

    fn poll(ring: &mut Channels, ticket: Ticket) -> Option<Outcome> {
        let completed = ring.engine.poll(ticket).ok()??;
        Some(Outcome::from(completed))
    }
}

impl From<Outcome> for (Result<WorkSuccess>, OwnedBuffer) {
    fn from(outcome: Outcome) -> Self {
        (outcome.result.map_err(Into::into), outcome.buffer)
    }
}

impl From<Outcome> for (Result<()>, Vec<OwnedRequest>) {
    fn from(outcome: Outcome) -> Self {
        (outcome.result.map(drop).map_err(Into::into), outcome.batch)
    }
}

impl From<Outcome> for (Result<()>, OwnedChain) {
    fn from(outcome: Outcome) -> Self {
        let chain = outcome.chain.unwrap_or_default();
        (outcome.result.map(drop).map_err(Into::into), chain)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Rejected(reason) => Self::Rejected(reason),
            Failure::Transport(error) => Self::Transport(error),
        }
    }
}
