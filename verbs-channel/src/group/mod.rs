//! Groups: many channels on one completion queue and one poller.

mod shared_receives;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_core::completion::CompletionChannel;
use verbs_core::error::Rejected;
use verbs_core::{CompletionQueue, ProtectionDomain, WorkSuccess};

use crate::buffer::OwnedBuffer;
use crate::channel::{Channel, ChannelConfig, InGroup};
use crate::channel_id::ChannelId;
use crate::connect::PreparedChannel;
use crate::engine::{
    Completed, ConnectedMember, Counters, Engine, Message, SharedQueue, Ticket, Transfer,
    TransferError,
};
use crate::error::{DownReason, Error, Queue, Result};
use crate::waiting::{Poller, Steps as _};
pub use shared_receives::SharedReceivesConfig;

/// Many channels that share one completion queue, one slot table and one poller.
///
/// Created by [`ChannelConfig::group`](crate::ChannelConfig::group). The cost of a completion does
/// not depend on the number of channels. Results come in the order of completion, so no channel
/// starves another.
///
/// A send and its completion take the same number of instructions in a group of 1 and of 4,096
/// channels (`cargo xtask bench --only instructions` counts them: `group4096`). On soft-RoCE in an emulated
/// machine, each of 1,000 channels with 4 sends and shared receives takes 12 to 14 KiB of the
/// process, including the driver's queues. The median time to join is 42 µs, and to be removed 200
/// µs. (The server of the example `many_clients` prints these.)
///
/// ```no_run
/// # fn main() -> verbs_channel::Result<()> {
/// use std::time::{Duration, Instant};
/// use verbs_channel::{BufferPool, Channel, verbs_core::Context};
///
/// # let pd = Context::first_active()?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, 4096, 1024)?;
/// let mut group = Channel::builder(&pd).max_recv_wr(8).group(100)?;
/// # let listener = std::net::TcpListener::bind("0.0.0.0:7471").unwrap();
/// let member = group.prepare()?.accept(&listener, Duration::from_secs(5))?.channel;
/// let id = group.join(member)?;
/// # let block = pool.take().unwrap();
/// let ticket = group.channel(id)?.start_receive(block)?;
/// if let Some(completed) = group.wait_completed(Duration::from_secs(1)) {
///     println!("{}: {:?}", completed.channel, completed.result);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # A server
///
/// Connecting takes a while, so another thread does it. The loop below sleeps while nothing happens,
/// and new channels wait for at most 50 ms. To wait for completions and new channels at once, drive
/// an [`Engine`]: it never waits, and its events are on your own completion channel, whose
/// descriptor can be polled.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::net::TcpListener;
/// use std::sync::mpsc;
/// use std::thread;
/// use std::time::{Duration, Instant};
/// use verbs_channel::verbs_core::Context;
/// use verbs_channel::error::ErrorChain;
/// use verbs_channel::{BufferPool, Channel, DownReason, PollStrategy};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, 4096, 1600)?;
/// let sleeps = PollStrategy::Notify { after: 1000 };
/// let mut group = Channel::builder(&pd).max_recv_wr(8).strategy(sleeps).group(100)?;
///
/// let listener = TcpListener::bind("0.0.0.0:7471")?;
/// let factory = group.factory();
/// let (connected, arrivals) = mpsc::channel();
/// thread::spawn(move || {
///     loop {
///         let prepared = factory.prepare();
///         match prepared.and_then(|channel| channel.accept(&listener, Duration::from_secs(60))) {
///             Ok(met) => connected.send(met.channel).expect("the server runs"),
///             Err(error) => eprintln!("no peer: {}", ErrorChain::new(&error)),
///         }
///     }
/// });
///
/// loop {
///     // Without a channel there is nothing to wait for but the first peer.
///     let first = if group.is_empty() { Some(arrivals.recv()?) } else { None };
///     for member in first.into_iter().chain(arrivals.try_iter()) {
///         let id = match group.join(member) {
///             Ok(id) => id,
///             Err(full) => {
///                 eprintln!("rejected: {}", ErrorChain::new(full.error()));
///                 continue;
///             }
///         };
///         for block in std::iter::from_fn(|| pool.take()).take(8) {
///             if group.channel(id)?.start_receive(block).is_err() {
///                 group.remove(id)?; // The peer has left already.
///                 break;
///             }
///         }
///     }
///     let Some(completed) = group.wait_completed(Duration::from_millis(50)) else {
///         continue;
///     };
///     let id = completed.channel;
///     match (completed.message(), &completed.result) {
///         (Some(message), _) => println!("{} bytes", message.len()),
///         // The first failure removes the channel. Its other operations fail, too.
///         (None, Err(error)) => {
///             if !error.down_reason().is_some_and(DownReason::is_peer_closed) {
///                 eprintln!("{id}: {}", ErrorChain::new(error));
///             }
///             let _closed_before = group.remove(id);
///         }
///         (None, Ok(_)) => {}
///     }
///     if let (Ok(mut channel), Some(block)) = (group.channel(id), completed.buffer) {
///         // It is rejected if the channel is down: a failure comes with another receive.
///         drop(channel.start_receive(block));
///     }
/// }
/// # }
/// ```
pub struct ChannelGroup {
    poller: Poller,
    factory: MemberFactory,
}

/// Prepares channels for a group without borrowing it, since creating a queue pair takes a while.
///
/// Created by [`ChannelGroup::factory`]. Cloning is cheap. It keeps only the group's completion
/// queue alive.
#[derive(Clone, Debug)]
pub struct MemberFactory {
    config: ChannelConfig,
    cq: CompletionQueue,
    // `Some` in a group whose channels share their receives.
    shared: Option<Arc<SharedQueue>>,
}

impl ChannelGroup {
    pub(crate) const fn new(poller: Poller, factory: MemberFactory) -> Self {
        Self { poller, factory }
    }

    /// Prepares one more channel.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::builder`](verbs_core::QueuePair::builder).
    pub fn prepare(&self) -> Result<PreparedChannel<ConnectedMember>> {
        self.factory.prepare()
    }

    /// A handle that prepares channels for this group, for another thread.
    #[must_use]
    pub fn factory(&self) -> MemberFactory {
        self.factory.clone()
    }

    /// Adds a connected channel, and returns its id in the group. Its
    /// [prepared receives](PreparedChannel::start_receive) are posted.
    ///
    /// If the driver rejects one of them, the channel joins but is down, with that reason.
    ///
    /// # Errors
    ///
    /// The channel is handed back, with the reason: the group is full and [does not grow](ChannelConfig::group), or
    /// [has failed](Error::GroupFailed), another group prepared the channel, or its peer cannot be watched.
    #[expect(clippy::result_large_err, reason = "gives back the channel")]
    pub fn join(
        &mut self,
        member: ConnectedMember,
    ) -> Result<ChannelId, Rejected<ConnectedMember, Error>> {
        let joined = self.poller.engine.join(member);
        // A queue that has grown may not be armed any more.
        self.poller.disarm();
        self.poller.run_afterwards();
        joined
    }

    /// Closes a channel, and aborts its operations in flight.
    ///
    /// Their outcomes can still be taken. Its place in the group is reused only after all of them have
    /// been taken.
    /// Closing it again has no effect.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`].
    pub fn remove(&mut self, channel: ChannelId) -> Result<()> {
        let removed = self.poller.engine.remove(channel);
        self.poller.run_afterwards();
        self.poller.engine.rebuild_if_unused();
        removed
    }

    /// Borrows one of the channels, which has all operations of a [`Channel`].
    ///
    /// If it is [removed](Engine::remove) meanwhile, by its [`engine_mut`](Channel::engine_mut), it is down, and rejects
    /// all requests, even if another channel has its place.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`].
    #[inline]
    pub fn channel(&mut self, channel: ChannelId) -> Result<Channel<InGroup<'_>>> {
        let _at = self.poller.engine.place_of(channel)?;
        Ok(Channel::in_group(&mut self.poller, channel))
    }

    /// Takes the outcome and the buffer of an operation on any of the channels if it has completed.
    /// Polls once if it has not.
    ///
    /// # Errors
    ///
    /// [`Error::StaleTicket`]: they were taken before, or the ticket belongs to another group.
    #[inline]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        self.poller.poll_ticket(ticket.channel().at(), ticket)
    }

    /// Waits for an operation on any of the channels, and returns its success with the buffer.
    ///
    /// It waits up to the group's [`timeout`](crate::ChannelConfig::timeout), as
    /// [`Channel::wait_success`] does. After a timeout the operation continues.
    ///
    /// # Errors
    ///
    /// As [`Channel::wait_success`].
    pub fn wait_success(&mut self, ticket: Ticket) -> Result<(WorkSuccess, OwnedBuffer)> {
        self.poller.wait_success(ticket.channel().at(), ticket)
    }

    /// Takes the oldest completed operation on an owned buffer, of all channels. Polls if there is
    /// none.
    ///
    /// `None` means that no operation has completed, and that the completion queue was empty.
    #[must_use = "it has the buffer and the outcome"]
    pub fn next_completed(&mut self) -> Option<Completed> {
        self.poller.next_completed()
    }

    /// Like [`next_completed`](Self::next_completed), but waits; `None` if `timeout` passes first.
    ///
    /// Without a timeout it waits until an operation has completed. If none is in flight on an owned
    /// buffer, it returns `None` at once, since nothing would end the wait. With a timeout it does so only if the group
    /// has [failed](Self::group_failure).
    #[must_use = "it has the buffer and the outcome"]
    pub fn wait_completed(&mut self, timeout: impl Into<Option<Duration>>) -> Option<Completed> {
        self.poller.wait_completed(timeout.into())
    }

    /// Takes the oldest message of all channels, if their receives are
    /// [shared](ChannelConfig::shared_receives). Polls if there is none.
    ///
    /// `None` means that no message has arrived, and that the completion queue was empty.
    #[must_use = "it has the message"]
    pub fn next_message(&mut self) -> Option<Message> {
        self.poller.next_message()
    }

    /// Like [`next_message`](Self::next_message), but waits; `None` if `timeout` passes first.
    ///
    /// Without a timeout it waits until a message has arrived or a channel has ended. It returns `None` at
    /// once if no message can come: no channel is open whose end was not returned before, or the receives are not
    /// shared. With a timeout it does so only if the group has [failed](Self::group_failure), or the receives are not
    /// shared.
    #[must_use = "it has the message"]
    pub fn wait_message(&mut self, timeout: impl Into<Option<Duration>>) -> Option<Message> {
        self.poller.wait_message(timeout.into())
    }

    /// Carries out a [`Transfer`] on channels of the group, and returns when the device is done with all of its memory.
    ///
    /// It posts the operations as room becomes available, and waits for all of them until `deadline`, or for the
    /// group's own timeout if that is `None`. The outcomes are in the transfer.
    ///
    /// If the deadline passes, the channels that still have operations of the set are aborted, with
    /// all that is in flight on them: each queue pair is moved to `ERR`, and destroyed if it is not
    /// flushed within the drain timeout. So this returns by the deadline, plus the sum of 16 posts, the drain
    /// timeout and the time that `ibv_destroy_qp` takes for each of them. An operation that fails
    /// takes its channel down, and the other operations of the set on that channel fail with it.
    /// The other channels are not affected. If the last operations succeed while their channel is
    /// being aborted, this returns `Ok` and that channel is down.
    ///
    /// # Errors
    ///
    /// - [`TransferError::Failed`]: at least one operation was not posted or
    ///   did not succeed. All memory can be reused.
    /// - [`TransferError::Stuck`]: the device may still access some of the memory,
    ///   in most cases because the driver failed to destroy a queue pair.
    /// - [`TransferError::LeasesStuck`]: the peer may still access memory of [leases](Transfer::lend).
    pub fn transfer(
        &mut self,
        transfer: &mut Transfer,
        deadline: Option<Instant>,
    ) -> Result<(), TransferError> {
        self.transfer_with(transfer, deadline, |_, _| {})
    }

    /// Like [`transfer`](Self::transfer), and calls `each` for each operation that ends before the
    /// deadline, with its index and whether it succeeded.
    ///
    /// The device is then done with the memory of that operation. If `each` panics, the remaining
    /// operations are aborted as after a deadline, before the panic continues.
    ///
    /// # Errors
    ///
    /// As [`transfer`](Self::transfer).
    pub fn transfer_with(
        &mut self,
        transfer: &mut Transfer,
        deadline: Option<Instant>,
        mut each: impl FnMut(usize, bool),
    ) -> Result<(), TransferError> {
        self.poller.transfer(transfer, deadline, &mut each)
    }

    /// How many of the shared receives queue pairs have taken and not completed, while a whole queue of later ones
    /// has completed: as [`Engine::stalled_receives`].
    #[must_use]
    pub fn stalled_receives(&self) -> usize {
        self.poller.engine.stalled_receives()
    }

    /// Why no channel can [join](Self::join): as [`Engine::group_failure`].
    #[must_use]
    pub const fn group_failure(&self) -> Option<DownReason> {
        self.poller.engine.group_failure()
    }

    /// The counters of all channels together, those included that were removed.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.poller.engine.counters()
    }

    /// The ids of the channels that are open: their queue pairs have not been destroyed.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.poller.engine.channels()
    }

    /// How many channels are open.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.poller.engine.len()
    }

    /// Whether no channel is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The protection domain of the channels, whose regions they can use.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        self.poller.engine.pd()
    }

    /// The completion channel of its [completion queue](Engine::cq), if it was created with
    /// [`PollStrategy::Notify`](crate::PollStrategy::Notify).
    #[must_use]
    pub const fn completion_channel(&self) -> Option<&CompletionChannel> {
        self.poller.completion_channel()
    }

    /// The engine that drives the channels, for layers above.
    #[must_use]
    pub const fn engine_mut(&mut self) -> &mut Engine {
        &mut self.poller.engine
    }
}

impl fmt::Debug for ChannelGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelGroup")
            .field("device", &self.pd().context().device().name())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A line for the group, and one for each open channel: what an operator wants to see in an incident.
impl fmt::Display for ChannelGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.poller.engine.fmt(f)
    }
}

impl ChannelConfig {
    /// Creates a group of channels that share a completion queue, which has room for this number of them.
    ///
    /// More can join: the queue grows then to twice its length, while the others go on
    /// ([`resize`](CompletionQueue::resize)). Some drivers do not support that, such as those of EFA and of soft-iWARP:
    /// there, and where growing would delay the others too long, create the group for all channels. The most that the
    /// device permits is its [`max_cqe`](verbs_core::device::DeviceAttr::max_cqe).
    /// This is no limit: a server that bounds its clients compares [`len`](ChannelGroup::len) before it joins another.
    /// If the process may run out of address space (`RLIMIT_AS`) on soft-RoCE, create the group for all of its channels,
    /// since a queue that could not be mapped there is lost.
    ///
    /// # Errors
    ///
    /// - [`Error::Capacity`]: a completion queue for that many channels, with an entry for each of
    ///   `max_send_wr + max_recv_wr` requests of each channel, exceeds the device's limits. Soft-RoCE has
    ///   room for 255 channels with the default 64 + 64. More fit a budget: see
    ///   [`in_flight`](Self::in_flight).
    /// - [`verbs_core::Error::Limit`]: the budget exceeds the device's limits.
    /// - [`Error::PeerTimeout`]: the [`peer_timeout`](Self::peer_timeout) is shorter than 2 s.
    pub fn group(&self, channels: u32) -> Result<ChannelGroup> {
        let completion_channel = self.completion_channel()?;
        let cq = self.queue_on(channels, completion_channel.as_ref())?;
        let (engine, factory) = self.engine_on(cq, channels, None)?;
        let poller = Poller::new(engine, self.waits(), completion_channel);
        Ok(ChannelGroup::new(poller, factory))
    }

    /// Creates an [`Engine`] with room for this number of channels, and the handle that prepares them:
    /// for a layer that waits in its own way.
    ///
    /// The events of its completion queue are on this completion channel, which other queues may share. Arm the queue
    /// again after a channel has [joined](Engine::join), since it may have grown.
    ///
    /// # Errors
    ///
    /// As [`group`](Self::group).
    pub fn engine(
        &self,
        channels: u32,
        events: &CompletionChannel,
    ) -> Result<(Engine, MemberFactory)> {
        let cq = self.queue_on(channels, Some(events))?;
        self.engine_on(cq, channels, None)
    }

    /// An engine on this completion queue, and what prepares its channels.
    pub(crate) fn engine_on(
        &self,
        cq: CompletionQueue,
        channels: u32,
        shared: Option<Arc<SharedQueue>>,
    ) -> Result<(Engine, MemberFactory)> {
        let config = self.clone();
        let max_recv_wr = if shared.is_some() {
            0
        } else {
            self.max_recv_wr
        };
        let limits = config.engine_limits(channels, max_recv_wr);
        let engine = Engine::new(config.pd.clone(), cq.clone(), limits, config.lender()?);
        Ok((engine, MemberFactory { config, cq, shared }))
    }
}

impl MemberFactory {
    /// Prepares one more channel.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::builder`](verbs_core::QueuePair::builder).
    pub fn prepare(&self) -> Result<PreparedChannel<ConnectedMember>> {
        let mut parts = self.config.member_parts();
        let Some(shared) = &self.shared else {
            let qp = self.config.queue_pair(&self.cq)?;
            return Ok(PreparedChannel::new(qp, parts));
        };
        let (qp, claim) = shared.prepare(self.config.queue_pairs(self.config.pd(), &self.cq))?;
        parts.capacities[Queue::Receive as usize] = 0;
        parts.claim = Some(claim);
        Ok(PreparedChannel::new(qp, parts))
    }
}
