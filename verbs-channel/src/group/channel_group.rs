//! Groups: many channels on one completion queue and one poller.
#![expect(
    unsafe_code,
    reason = "passes the contract of the queue on to the caller"
)]

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, ProtectionDomain, QueuePair, Rejected, WorkSuccess,
};

use crate::buffer::OwnedBuffer;
use crate::channel::{Channel, InGroup};
use crate::channel_id::ChannelId;
use crate::config::{ChannelBuilder, Config, PollStrategy, channel_builder};
use crate::connect::{Connected, PreparedChannel, sealed};
use crate::engine::{Completed, Engine, Leak, Link, Peer, Ticket};
use crate::error::{DownReason, Error, Refusal, Result};
use crate::exchange::ExchangeError;
use crate::request::OwnedWork;

/// Many channels that share one completion queue, one slot table and one poller.
///
/// Created by [`ChannelBuilder::group`](crate::ChannelBuilder::group). The cost of a completion does
/// not depend on the number of channels. Results come in the order of completion, so no channel
/// starves another.
///
/// ```no_run
/// # fn main() -> verbs_channel::Result<()> {
/// use std::time::Duration;
/// use verbs_channel::{BufferPool, Channel, verbs_core::Context};
///
/// # let pd = Context::first_active()?.alloc_pd()?;
/// let pool = BufferPool::new(&pd, 4096, 1024)?;
/// let mut group = Channel::builder(&pd).max_recv_wr(8).group(100)?;
/// # let listener = std::net::TcpListener::bind("0.0.0.0:7471").unwrap();
/// let member = group.prepare()?.accept(&listener, Duration::from_secs(5))?;
/// let at = group.join(member)?;
/// # let block = pool.take().unwrap();
/// let ticket = group.channel(at)?.start_receive(block)?;
/// if let Some(completed) = group.wait_completed(Some(Duration::from_secs(1))) {
///     println!("channel {}: {:?}", completed.channel, completed.result);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ChannelGroup {
    pub(super) engine: Engine,
    preparer: Preparer,
    max_channels: u32,
}

/// Prepares channels for a group without borrowing it, as creating a queue pair takes a while.
///
/// Created by [`ChannelGroup::preparer`]. Cloning is cheap. It keeps only the group's completion
/// queue alive.
#[derive(Clone, Debug)]
pub struct Preparer {
    config: Config,
    cq: CompletionQueue,
}

/// A connected channel that can [join](ChannelGroup::join) its group.
#[derive(Debug)]
pub struct ConnectedMember {
    qp: QueuePair,
    peer_timeout: Option<Duration>,
    link: Option<Link>,
}

impl ChannelGroup {
    pub(crate) fn new(
        config: Config,
        cq: CompletionQueue,
        completion_channel: Option<CompletionChannel>,
        max_channels: u32,
    ) -> Self {
        let engine = Engine::new(
            config.pd.clone(),
            cq.clone(),
            completion_channel,
            config.waits(),
        );
        Self {
            engine,
            preparer: Preparer { config, cq },
            max_channels,
        }
    }

    /// Prepares one more channel.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::builder`].
    pub fn prepare(&self) -> Result<PreparedChannel<ConnectedMember>> {
        self.preparer.prepare()
    }

    /// A handle that prepares channels for this group, for another thread.
    #[must_use]
    pub fn preparer(&self) -> Preparer {
        self.preparer.clone()
    }

    /// Adds a connected channel, and returns its id in the group.
    ///
    /// # Errors
    ///
    /// The channel is handed back, with the reason: the group is full, the channel was prepared by
    /// another group, or its peer cannot be watched.
    #[expect(clippy::result_large_err, reason = "gives back the channel")]
    pub fn join(
        &mut self,
        mut member: ConnectedMember,
    ) -> Result<ChannelId, Rejected<ConnectedMember, Error>> {
        if !member.qp.send_cq().is(self.engine.cq()) {
            return Err(Rejected::new(Error::ForeignMember, member));
        }
        let live = self.len() + self.engine.stuck as usize;
        if live >= self.max_channels as usize {
            return Err(Rejected::new(Error::GroupFull(self.max_channels), member));
        }
        let peer = match member.link.take() {
            None => Peer::default(),
            Some(link) => match self.engine.peers.watch(link) {
                Ok(peer) => peer,
                Err((error, link)) => {
                    member.link = Some(link);
                    let error = ExchangeError::not_watched(error).into();
                    return Err(Rejected::new(error, member));
                }
            },
        };
        let id = self
            .engine
            .add(member.qp, self.preparer.config.capacities());
        if let Some(member) = self.engine.members.get_mut(id.index()) {
            member.peer = peer;
        }
        Ok(id)
    }

    /// Closes a channel, and aborts its operations in flight.
    ///
    /// Its results can still be taken. Its place in the group is reused only after all of them were.
    /// Closing it again has no effect.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`].
    pub fn remove(&mut self, channel: ChannelId) -> Result<()> {
        let at = self.place(channel)?;
        self.engine.destroy(at, DownReason::Closed);
        self.engine.remove(at);
        Ok(())
    }

    /// Destroys the queue pairs of all channels.
    ///
    /// All operations in flight have ended when this returns; their results can still be taken. The
    /// channels are down for this reason, except for those that were down before.
    pub fn destroy_all(&mut self, reason: DownReason) {
        self.engine.destroy_all(reason);
    }

    /// Queues reports of leaked buffers instead of logging them.
    ///
    /// For callers that use the group under a lock: they take the reports by
    /// [`next_leak`](Self::next_leak), and log them after unlocking.
    pub fn queue_leaks(&mut self) {
        self.engine.leaks.get_or_insert_default();
    }

    /// The next report of leaked buffers, if reports are [queued](Self::queue_leaks).
    #[must_use = "the report is not logged elsewhere"]
    pub fn next_leak(&mut self) -> Option<Leak> {
        self.engine.leaks.as_mut()?.pop()
    }

    /// Whether reports of leaked buffers are queued.
    #[must_use]
    #[inline]
    pub fn has_leaks(&self) -> bool {
        self.engine
            .leaks
            .as_ref()
            .is_some_and(|held| !held.is_empty())
    }

    /// A descriptor that is readable when [`check_peers`](Self::check_peers) has something to do.
    ///
    /// For layers that wait in their own way: after this call, waits and polls of the group do not
    /// check the peers any more.
    ///
    /// # Errors
    ///
    /// `EMFILE` and the like.
    pub fn peers_descriptor(&mut self) -> io::Result<OwnedFd> {
        self.engine.peers_descriptor()
    }

    /// Takes the channels down whose peer has left, after everything that it sent was delivered.
    ///
    /// It does not wait. While something remains to be done, the
    /// [descriptor](Self::peers_descriptor) becomes readable again.
    pub fn check_peers(&mut self) {
        self.engine.look_at_peers();
    }

    /// How soon the death of a peer's host is noticed; `None` if no peers are watched.
    #[must_use]
    pub const fn peer_timeout(&self) -> Option<Duration> {
        self.engine.waits.peer_timeout
    }

    /// Sets how long operations on borrowed buffers wait before their channel is aborted, for all
    /// channels; `None` is forever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.engine.waits.timeout = timeout;
    }

    /// Sets what to do between polls that find no completion: as
    /// [`Channel::set_strategy`](crate::Channel::set_strategy).
    pub fn set_strategy(&mut self, strategy: PollStrategy) {
        self.engine.waits.strategy = strategy;
    }

    /// Borrows one of the channels, which has all operations of a [`Channel`].
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`].
    #[inline]
    pub fn channel(&mut self, channel: ChannelId) -> Result<Channel<InGroup<'_>>> {
        let at = self.place(channel)?;
        Ok(Channel::in_group(&mut self.engine, at))
    }

    /// [`Channel::start_from`](crate::Channel::start_from) on one of the channels.
    ///
    /// # Errors
    ///
    /// As for [`Channel::start_from`](crate::Channel::start_from); [`Refusal::Down`] if there is no
    /// such channel.
    #[inline(always)]
    pub fn start_from(
        &mut self,
        channel: ChannelId,
        request: &mut OwnedWork,
    ) -> Result<Ticket, Refusal> {
        match self.engine.place(channel) {
            Some(at) => self.engine.start(at, request),
            None => Err(Refusal::GONE),
        }
    }

    /// Takes the result and the buffer of an operation on any of the channels, if it has completed.
    /// Polls once if it has not.
    ///
    /// # Errors
    ///
    /// [`Error::StaleTicket`]: they were taken before, or the ticket belongs to another group.
    #[inline]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        self.engine.poll_ticket(ticket)
    }

    /// The fast path of [`poll`](Self::poll): an operation on one buffer that has succeeded.
    ///
    /// `None` in all other cases, which `poll` distinguishes.
    #[inline(always)]
    pub fn poll_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        self.engine.poll_success(ticket)
    }

    /// [`poll`](Self::poll) without polling the completion queue.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn take(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        self.engine.take_ticket(ticket)
    }

    /// Takes the oldest completed operation on an owned buffer, of all channels. Polls if there is
    /// none.
    ///
    /// `None` means that no operation has completed, and that the completion queue was empty.
    #[must_use = "it has the buffer and the result"]
    pub fn next_completed(&mut self) -> Option<Completed> {
        self.engine.next_ready()
    }

    /// The ticket of the oldest completed operation that this has not returned before.
    ///
    /// For layers that notify other tasks of completions. The result and the buffer stay in the group
    /// until they are [taken](Self::take) by the ticket:
    /// [`next_completed`](Self::next_completed) does not return this operation any more. Polls if
    /// there is none.
    #[must_use = "the ticket is not returned again"]
    pub fn next_ticket(&mut self) -> Option<Ticket> {
        self.engine.next_ticket()
    }

    /// Adds slots to a channel, for results that are taken late.
    ///
    /// An operation has its slot until its result is taken. Without this, a channel has as many slots
    /// as operations can be in flight. So untaken results keep others from being posted, with
    /// [`Untaken`](crate::Refusal::Untaken).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`]; [`verbs_core::Error::Limit`] for more than
    /// [`MAX_RESERVE`](Self::MAX_RESERVE) at once.
    pub fn reserve(&mut self, channel: ChannelId, results: u32) -> Result<()> {
        let at = self.place(channel)?;
        if results > Self::MAX_RESERVE {
            return Err(Error::Core(verbs_core::Error::Limit {
                what: "results",
                asked: results.into(),
                max: Some(Self::MAX_RESERVE.into()),
            }));
        }
        self.engine.reserve(at, results);
        Ok(())
    }

    /// The most results that can be [reserved](Self::reserve) at once: 128 bytes each.
    pub const MAX_RESERVE: u32 = 1 << 20;

    /// Whether [`next_completed`](Self::next_completed) returns an operation without polling.
    #[must_use]
    pub fn has_completed(&self) -> bool {
        self.engine.slots.first_ready().is_some()
    }

    /// [`next_completed`](Self::next_completed), and waits for it; `None` if `timeout` passes first.
    ///
    /// Without a timeout it waits until an operation has completed. It returns `None` at once if the
    /// group has no owned buffer.
    #[must_use = "it has the buffer and the result"]
    pub fn wait_completed(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.engine.wait_ready(timeout)
    }

    /// The open channel whose queue pair has this number, for example that of a device event.
    ///
    /// It searches all channels.
    #[must_use]
    pub fn channel_of(&self, qp_num: u32) -> Option<ChannelId> {
        let is_it = |qp: &QueuePair| qp.qp_num() == qp_num;
        let mut members = self.engine.members.iter();
        let member = members.find(|member| member.qp().is_some_and(is_it))?;
        Some(member.id)
    }

    /// The ids of the channels that are open: their queue pairs have not been destroyed.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        let members = self.engine.members.iter();
        let open = members.filter(|member| member.qp().is_some());
        open.map(|member| member.id)
    }

    /// How many channels are open.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.engine.open as usize
    }

    /// Whether no channel is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The protection domain of the channels, whose regions they can use.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        self.engine.pd()
    }

    /// The completion queue of the group, to arm it or to get its handle.
    ///
    /// # Safety
    ///
    /// Through this queue and its clones:
    ///
    /// - nothing polls: the operation whose completion is taken would never complete;
    /// - nothing makes the queue smaller, and no other queue pair completes on it: it would overrun.
    #[must_use]
    pub const unsafe fn cq(&self) -> &CompletionQueue {
        self.engine.cq()
    }

    /// The completion channel of its completion queue, if it was created with
    /// [`PollStrategy::Notify`](crate::PollStrategy::Notify).
    #[must_use]
    pub const fn completion_channel(&self) -> Option<&CompletionChannel> {
        self.engine.announcer()
    }

    #[inline]
    pub(super) fn place(&self, channel: ChannelId) -> Result<u32> {
        let place = self.engine.place(channel);
        place.ok_or(Error::UnknownChannel(channel))
    }
}

impl<S: channel_builder::IsComplete> ChannelBuilder<S> {
    /// Creates a group of at most `max_channels` such channels, which share a completion queue.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::Limit`]: a completion queue for that many channels exceeds the device's
    /// limits.
    pub fn group(self, max_channels: u32) -> Result<ChannelGroup> {
        let config = self.into_config();
        let (cq, completion_channel) = config.queue(max_channels)?;
        Ok(ChannelGroup::new(
            config,
            cq,
            completion_channel,
            max_channels,
        ))
    }

    /// [`group`](Self::group) whose completion queue has its events on this completion channel.
    ///
    /// For layers that wait for the events themselves; other queues may share the channel. Waits of
    /// the group do not sleep on it.
    ///
    /// # Errors
    ///
    /// As [`group`](Self::group).
    pub fn group_on(self, max_channels: u32, channel: &CompletionChannel) -> Result<ChannelGroup> {
        let config = self.into_config();
        let cq = config.queue_on(max_channels, Some(channel))?;
        Ok(ChannelGroup::new(config, cq, None, max_channels))
    }
}

impl Preparer {
    /// Prepares one more channel, which can [join](ChannelGroup::join) the group.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::builder`].
    pub fn prepare(&self) -> Result<PreparedChannel<ConnectedMember>> {
        let qp = self.config.queue_pair(&self.cq)?;
        let peer_timeout = self.config.peer_timeout.0;
        Ok(PreparedChannel::new(qp, peer_timeout))
    }
}

impl Connected for ConnectedMember {}

impl sealed::Connected for ConnectedMember {
    // The peer timeout.
    type Rest = Option<Duration>;

    fn assemble(qp: QueuePair, peer_timeout: Option<Duration>) -> Self {
        Self {
            qp,
            peer_timeout,
            link: None,
        }
    }

    fn watch(&mut self, stream: TcpStream) -> Result<()> {
        self.watch_peer(stream)
    }
}

impl ConnectedMember {
    /// Makes the group watch the peer by this descriptor: as
    /// [`Channel::watch_peer`](crate::Channel::watch_peer).
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`]: keepalive cannot be set on the descriptor.
    pub fn watch_peer(&mut self, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let link = Link::new(descriptor.into(), self.peer_timeout);
        self.link = Some(link.map_err(ExchangeError::not_watched)?);
        Ok(())
    }

    /// Whether the peer is watched once this channel has joined.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_watched)
    }
}
