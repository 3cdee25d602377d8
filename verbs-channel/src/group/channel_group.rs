//! Groups: many channels on one completion queue and one poller.
#![expect(
    unsafe_code,
    reason = "hands the contract of the queue on to the caller"
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
/// Made by [`ChannelBuilder::group`](crate::ChannelBuilder::group). What a completion costs does not
/// depend on how many channels there are; results come in the order of completion, so no channel
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

/// Prepares channels for a group that goes on meanwhile: to make a queue pair takes a while.
///
/// Made by [`ChannelGroup::preparer`]. Cloning is cheap; it keeps the group's completion queue, and
/// nothing else of it.
#[derive(Clone, Debug)]
pub struct Preparer {
    config: Config,
    cq: CompletionQueue,
}

/// A channel of a group that is connected, and can [join](ChannelGroup::join).
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
        announcer: Option<CompletionChannel>,
        max_channels: u32,
    ) -> Self {
        let engine = Engine::new(config.pd.clone(), cq.clone(), announcer, config.waits());
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

    /// What prepares its channels, for another thread.
    #[must_use]
    pub fn preparer(&self) -> Preparer {
        self.preparer.clone()
    }

    /// Takes in a channel that is connected; what it is called in the group from now on.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the channel: the group is full, or the channel was prepared by another.
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

    /// Closes a channel: what is in flight on it is aborted, and its results can still be taken. Its
    /// place is given to another channel when they have been. To close it again does nothing.
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

    /// Gives all channels up at once: their queue pairs are destroyed, and everything in flight has
    /// ended when this returns. Its results can still be taken. Those that were not down yet are
    /// down for this reason.
    pub fn give_up(&mut self, reason: DownReason) {
        self.engine.destroy_all(reason);
    }

    /// Has [`next_leak`](Self::next_leak) tell what would be logged, under a lock of the caller's
    /// perhaps: that buffers had to be leaked. Whoever calls this says it, where nothing is locked.
    pub fn hold_leaks(&mut self) {
        self.engine.leaks.get_or_insert_default();
    }

    /// The next report of leaked buffers, if reports are [held](Self::hold_leaks).
    #[must_use = "nobody else says it"]
    pub fn next_leak(&mut self) -> Option<Leak> {
        self.engine.leaks.as_mut()?.pop()
    }

    /// Whether [`next_leak`](Self::next_leak) has something.
    #[must_use]
    #[inline]
    pub fn has_leaks(&self) -> bool {
        self.engine
            .leaks
            .as_ref()
            .is_some_and(|held| !held.is_empty())
    }

    /// A descriptor for layers that wait in their own way: readable when
    /// [`look_at_peers`](Self::look_at_peers) has something to do. From then on the group's own waits
    /// and polls do not look at the peers.
    ///
    /// # Errors
    ///
    /// `EMFILE` and the like.
    pub fn peers_descriptor(&mut self) -> io::Result<OwnedFd> {
        self.engine.peers_descriptor()
    }

    /// Takes those channels down whose peer has left, when everything that it sent is delivered. It
    /// waits for nothing: what cannot be done yet makes the
    /// [descriptor](Self::peers_descriptor) readable again.
    pub fn look_at_peers(&mut self) {
        self.engine.look_at_peers();
    }

    /// How soon it is noticed that a peer's host has died; `None` if no peers are watched.
    #[must_use]
    pub const fn peer_timeout(&self) -> Option<Duration> {
        self.engine.waits.peer_timeout
    }

    /// How long operations on borrowed buffers wait before their channel is aborted; `None` forever.
    /// It holds for all channels.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.engine.waits.timeout = timeout;
    }

    /// What to do between polls that find nothing: as
    /// [`Channel::set_strategy`](crate::Channel::set_strategy).
    pub fn set_strategy(&mut self, strategy: PollStrategy) {
        self.engine.waits.strategy = strategy;
    }

    /// One of the channels, to use as if it were alone.
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
    /// As there; [`Refusal::Down`] if there is no such channel.
    #[inline(always)]
    pub fn start_from(
        &mut self,
        channel: ChannelId,
        work: &mut OwnedWork,
    ) -> Result<Ticket, Refusal> {
        match self.engine.place(channel) {
            Some(at) => self.engine.start(at, work),
            None => Err(Refusal::GONE),
        }
    }

    /// The result and the buffer of an operation on any of the channels, if it is done; polls once if
    /// it is not.
    ///
    /// # Errors
    ///
    /// [`Error::StaleTicket`] if they were taken before, or the ticket is another group's.
    #[inline]
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        self.engine.poll_ticket(ticket)
    }

    /// [`poll`](Self::poll) for the rule, and nothing else: the operation is of one buffer, and has
    /// succeeded. `None` for all others, which `poll` tells apart.
    #[inline(always)]
    pub fn poll_success(&mut self, ticket: Ticket) -> Option<(&WorkSuccess, OwnedBuffer)> {
        self.engine.poll_success(ticket)
    }

    /// The result and the buffer of an operation on any of the channels, if it is known to be done;
    /// polls nothing.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn take(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
        self.engine.take_ticket(ticket)
    }

    /// The operation on an owned buffer that has been done for longest, of all channels. If there is
    /// none it polls: `None` means that none is done, and that the completion queue was found empty.
    #[must_use = "the buffer is in it, and whether the operation failed"]
    pub fn next_completed(&mut self) -> Option<Completed> {
        self.engine.next_ready()
    }

    /// [`next_completed`](Self::next_completed) for layers that tell others what is done: names the
    /// operation, and leaves its result and buffer where they are, until they are
    /// [taken](Self::take). It is named once, and `next_completed` passes over it from then on.
    #[must_use = "it is not named again"]
    pub fn next_ticket(&mut self) -> Option<Ticket> {
        self.engine.next_ticket()
    }

    /// Makes room for so many more results of a channel that nobody has taken: an operation has its
    /// slot until then, and there are as many as operations can be in flight. Without it, results that
    /// stay keep others from being posted, with [`Untaken`](crate::Refusal::Untaken).
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

    /// Whether [`next_completed`](Self::next_completed) has something without a poll.
    #[must_use]
    pub fn has_completed(&self) -> bool {
        self.engine.slots.first_ready().is_some()
    }

    /// The same, waited for; `None` if `timeout` passes first. Without a timeout it waits until
    /// something is done, and returns `None` at once if no owned buffer is left here.
    #[must_use = "the buffer is in it, and whether the operation failed"]
    pub fn wait_completed(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.engine.wait_ready(timeout)
    }

    /// The open channel whose queue pair has this number: whom a device event is about. It looks at
    /// all of them.
    #[must_use]
    pub fn channel_of(&self, qp_num: u32) -> Option<ChannelId> {
        let is_it = |qp: &QueuePair| qp.qp_num() == qp_num;
        let mut members = self.engine.members.iter();
        let member = members.find(|member| member.qp().is_some_and(is_it))?;
        Some(member.id)
    }

    /// The channels that are open.
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

    /// The protection domain whose regions the channels work on.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        self.engine.pd()
    }

    /// The queue that their work completes on, to have arrivals announced, and to know it by.
    ///
    /// # Safety
    ///
    /// Through it and all of its clones:
    ///
    /// - nothing polls it: the operation of a completion taken there is waited for until its deadline;
    /// - nothing makes it smaller, or has other queue pairs complete on it: it would overrun.
    #[must_use]
    pub const unsafe fn cq(&self) -> &CompletionQueue {
        self.engine.cq()
    }

    /// What announces completions, with [`PollStrategy::Notify`](crate::PollStrategy::Notify).
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
    /// Makes a group of at most `max_channels` such channels, which share a completion queue.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::Limit`] if a completion queue for that many is above the device's
    /// limits.
    pub fn group(self, max_channels: u32) -> Result<ChannelGroup> {
        let config = self.into_config();
        let (cq, announcer) = config.queue(max_channels)?;
        Ok(ChannelGroup::new(config, cq, announcer, max_channels))
    }

    /// Makes a group whose completions are announced on this completion channel, which others may
    /// share: for a layer that waits there by itself. The group's own waits do not sleep on it.
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
    /// Prepares one more channel, which can [join](ChannelGroup::join) its group.
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
    /// Has the group watch the peer by this descriptor: as
    /// [`Channel::watch_peer`](crate::Channel::watch_peer).
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`] if keepalive cannot be set on it.
    pub fn watch_peer(&mut self, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let link = Link::new(descriptor.into(), self.peer_timeout);
        self.link = Some(link.map_err(ExchangeError::not_watched)?);
        Ok(())
    }

    /// Whether its peer is watched once it has joined.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_watched)
    }
}
