//! The engine under every channel, for layers that wait in their own way.
//!
//! One [`Engine`] drives one completion queue and the channels on it: one for a
//! [`Channel`](crate::Channel), many for a [`ChannelGroup`](crate::ChannelGroup). It posts, polls,
//! dispatches completions to their operations, and ends operations that do not complete. It never
//! waits, reads no clock and has no callbacks, loggers and destructors of others included: see
//! [`next_afterwards`](Engine::next_afterwards). Where time matters it is an argument, so any clock can drive it. `Channel` and `ChannelGroup` add waiting; `verbs-async` adds wakers.
//!
//! ```text
//! start ──► gate ──► credits and a slot ──► driver ──► device
//!                                                        │
//! take ◄── completed, in its slot ◄── dispatch ◄── poll ◄┘
//! ```
//!
//! These hold whatever a program drops, forgets or panics in:
//!
//! - *An operation has one home.* It has a slot from before the post until its outcome is taken. Owned buffers go into
//!   the slot right after the post, before any other code can run; the outcome follows (`flight`). The `wr_id` is the
//!   slot and its generation, so that a completion finds its operation or none (`complete`).
//! - *No queue overruns.* A post takes credits of its queue and of the completion queue; the completion returns them once
//!   (`member::credits`). With [`in_flight`](crate::ChannelConfig::in_flight), credits beyond a channel's share come from a
//!   budget that all channels share (`member::budget`).
//! - *Memory outlives the device's use of it.* An operation ends when its completion was polled, or its queue pair is
//!   destroyed. If neither happens, owned buffers are leaked, and with borrowed ones the process is aborted (`teardown`).
//! - *Outcomes of owned buffers are ready in the order of their completions* (`flight`).
//! - *No code of others runs while the engine is borrowed*: what may run some is queued (`afterwards`).
//! - *Channels do not slow each other down*: posting, completing and ending one costs the same whatever the others have in
//!   flight (`flight`, `member`).
//! - *A child of a fork does nothing to the device of its parent*: each way to the driver looks at the process.
//!
//! The methods that only `verbs-async` needs are hidden, and may change in any release.
//!
//! The layer above arms the queue and waits for its events itself, on the completion channel that it
//! passed to [`ChannelConfig::engine`](crate::ChannelConfig::engine):
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::{Duration, Instant};
//! use verbs_channel::verbs_core::Context;
//! use verbs_channel::verbs_core::completion::CompletionChannel;
//! use verbs_channel::{BufferPool, Channel, Outgoing};
//!
//! let pd = Context::first_active()?.alloc_pd()?;
//! let events = CompletionChannel::create(pd.context())?;
//! let (mut engine, factory) = Channel::builder(&pd).config().engine(100, &events)?;
//! let prepared = factory.prepare()?;
//! let channel = engine.join(prepared.connect("server:7471", Duration::from_secs(5))?.channel)?;
//!
//! let pool = BufferPool::new(&pd, 4096, 16)?;
//! let mut request = Outgoing::send(pool.take().ok_or("an empty pool")?).into();
//! let ticket = engine.start(channel, &mut request)?;
//! loop {
//!     if let Some(completed) = engine.poll(ticket)? {
//!         completed.result?;
//!         break;
//!     }
//!     engine.check_peers(Instant::now());
//!     // Nothing has completed: arm, poll once more, and wait. At each timeout, look at the device.
//!     // SAFETY: the queue is armed, and nothing else.
//!     unsafe { engine.cq() }.req_notify(false)?;
//!     if engine.drive() == 0 && events.get_cq_event(Some(Duration::from_millis(100)))?.is_none() {
//!         engine.probe(Instant::now());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use verbs_core::__private::Process;
use verbs_core::{CompletionQueue, Error, PollSlot, ProtectionDomain};

use crate::buffer::PdTag;
use crate::channel_id::ChannelId;
use crate::error::DownReason;
pub(crate) use afterwards::Afterwards;
use afterwards::Queued;
use flight::Flight;
pub use flight::{Completed, Ticket};
pub(crate) use flight::{Id, Outcome, SlotBuffer};

pub(crate) use crate::lease::Lender;
pub(crate) use closing::{Closed, Closing};
use counters::Places;
pub use counters::{Counters, Counts};
pub use joining::ConnectedMember;
pub(crate) use joining::MemberParts;
pub(crate) use leak::Leak;
pub(crate) use leak::abort_with;
pub(crate) use member::{BufferOwner, Member, Reservation, Shares};
pub use messages::Message;
pub(crate) use peer::Link;
use peer::Peers;
pub(crate) use shared::{Claim, Shared, SharedQueue};
pub(crate) use transfer::Ended;
pub use transfer::{Transfer, TransferError, TransferOutcome};

mod afterwards;
mod channels;
pub(crate) mod closing;
mod complete;
pub(crate) mod counters;
mod flight;
mod joining;
pub(crate) mod leak;
mod leases;
mod member;
mod messages;
mod peer;
mod peers;
mod probe;
mod shared;
mod submit;
mod take;
mod teardown;
pub(crate) mod transfer;

/// A completion queue, the channels on it, and their operations.
///
/// Created by [`ChannelConfig::engine`](crate::ChannelConfig::engine). The [module](self) documents
/// what it does, and what it leaves to the layer above.
#[derive(Debug)]
pub struct Engine {
    pub(crate) flight: Flight,
    peers: Peers,
    leases: Arc<Lender>,
    // It waits until nothing borrows the engine.
    afterwards: Queued,
    // After the members: their queue pairs are on its queue.
    shared: Option<Box<Shared>>,
    limits: EngineLimits,
    // Why no channel can join any more.
    failure: Option<DownReason>,
    // Queue pairs that could not be destroyed: they may still complete requests on the queue.
    stuck: u32,
    // Queue pairs that were destroyed, and may have left completions in the queue.
    undrained: u32,
    // Members whose queue pair a device that may be removed has refused to destroy, and why; and when that was
    // looked at first.
    refused: Vec<(u32, Error)>,
    refused_since: Option<Instant>,
    // Queue pairs to be destroyed by the layer above.
    closings: Vec<Closing>,
    // When the driver first refused one of those that still exist.
    closings_refused: Weak<OnceLock<Instant>>,
    // Places of members that were removed, some of which may still have outcomes.
    removed: VecDeque<u32>,
    // An operation of which the device may have a part, and which does not have its buffers yet.
    half_posted: Option<Id>,
    // Members whose queue pair has not been destroyed.
    open: u32,
    // The tickets of receives that were posted as a channel joined, until they are taken.
    prepared: Vec<(ChannelId, Vec<Ticket>)>,
    /// Counts what its channels do.
    pub(crate) counters: Arc<Places>,
    cq: CompletionQueue,
    // The member that was probed last.
    probed: usize,
    pd: ProtectionDomain,
    // Domain of the buffers that can be posted.
    pd_tag: PdTag,
    // That its queue pairs belong to.
    process: Process,
    // Created once: that costs more than a poll.
    poll_slots: [PollSlot; MAX_POLLED],
}

/// How much the channels of an engine can have in flight, and how long they take to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineLimits {
    pub(crate) shares: Shares,
    /// How long to wait for flushes.
    pub(crate) drain_timeout: Duration,
    /// How soon it is noticed that a peer's host has died; `None` if no peer is watched.
    pub(crate) peer_timeout: Option<Duration>,
}

impl Engine {
    pub(crate) fn new(
        pd: ProtectionDomain,
        cq: CompletionQueue,
        limits: EngineLimits,
        leases: Arc<Lender>,
    ) -> Self {
        Self {
            flight: Flight::with_common(limits.shares.common),
            afterwards: Queued::new(),
            peers: Peers::default(),
            leases,
            shared: None,
            limits,
            failure: None,
            stuck: 0,
            undrained: 0,
            refused: Vec::new(),
            refused_since: None,
            closings: Vec::new(),
            closings_refused: Weak::new(),
            removed: VecDeque::new(),
            half_posted: None,
            open: 0,
            prepared: Vec::new(),
            counters: Arc::default(),
            cq,
            probed: 0,
            pd_tag: PdTag::of(&pd),
            process: Process::current(),
            pd,
            poll_slots: [const { PollSlot::new() }; MAX_POLLED],
        }
    }

    /// Whether this is the child of a fork: the queue pairs are the parent's. They are not touched where
    /// operations end, and the device has no access to this process's memory.
    #[inline]
    pub(crate) fn is_in_child(&self) -> bool {
        !self.process.is_current()
    }

    /// A member, by its place.
    #[inline]
    pub(crate) fn member(&self, at: u32) -> Option<&Member> {
        self.flight.member(at)
    }
}

/// How many completions a poll takes at most.
const MAX_POLLED: usize = 16;

/// Polls that find something before a search ends: more than any queue needs to be emptied.
pub(crate) const MAX_POLLS: u32 = 1 << 18;
