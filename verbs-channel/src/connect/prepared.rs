//! Prepared channels: not connected yet.

use std::fmt;
use std::os::fd::OwnedFd;

use verbs_core::completion::CompletionChannel;
use verbs_core::error::Rejected;
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;
use verbs_core::{CompletionQueue, Context, PreparedQueuePair, QueuePair, QueuePairEndpoint};

use super::options::Connect;
use super::thread_domain;
use crate::buffer::{OwnedBuffer, PdTag};
use crate::channel::{Channel, ChannelConfig};
use crate::engine::Engine;
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::Error;
use crate::error::{RejectReason, Result};
use crate::exchange::{Exchange, Side};
use crate::waiting::Poller;

/// A channel that is not connected yet.
///
/// [`connect`](Self::connect) and [`accept`](Self::accept) connect it over TCP, by `rdma_cm` or over datagrams, and
/// [`exchange`](Self::exchange) over a TCP connection that there is. To connect it in another way, send its [`endpoint`](Self::endpoint) to the peer, receive the peer's endpoint,
/// and call [`handshake`](Self::handshake). Neither side may send before both have done this.
///
/// On iWARP queue pairs are connected by `rdma_cm` only, which needs the feature `rdmacm`. With it, connecting
/// over TCP works as on other devices: the accepting side sends an address of its device over TCP, and the
/// other side connects there. Only [`handshake`](Self::handshake) does not work.
///
/// ```no_run
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// use verbs_channel::verbs_core::QueuePairEndpoint;
/// use verbs_channel::{Channel, PreparedChannel};
///
/// fn connect(
///     prepared: PreparedChannel,
///     mut stream: UnixStream,
/// ) -> Result<Channel, Box<dyn std::error::Error>> {
///     stream.write_all(&prepared.endpoint().to_bytes())?;
///     let mut bytes = [0; QueuePairEndpoint::BYTES];
///     stream.read_exact(&mut bytes)?;
///     let mut channel = prepared.handshake(&QueuePairEndpoint::from_bytes(&bytes)?)?;
///     // Each side waits until the other one is connected, too.
///     stream.write_all(&[1])?;
///     stream.read_exact(&mut [0])?;
///     channel.watch_peer(stream)?;
///     Ok(channel)
/// }
/// ```
///
/// Once connected, it becomes a `T`: a [`Channel`], or a
/// [`ConnectedMember`](crate::engine::ConnectedMember), which can [join](crate::ChannelGroup::join) its
/// group. It does not borrow the group, so another thread can connect it while the group is in use.
pub struct PreparedChannel<T: Connected = Channel> {
    qp: PreparedQueuePair,
    rest: T::Rest,
    // Posted when it is connected, or joins its group.
    receives: Vec<OwnedBuffer>,
}

/// The type that a [`PreparedChannel`] becomes.
pub trait Connected: sealed::Connected {}

pub(crate) mod sealed {
    use std::os::fd::OwnedFd;

    use verbs_core::QueuePair;
    #[cfg(feature = "rdmacm")]
    use verbs_core::rdmacm::Connection;

    use crate::buffer::OwnedBuffer;
    use crate::error::{Queue, RejectReason, Result};

    #[expect(unnameable_types, reason = "seals `Connected`")]
    pub trait Connected: Sized {
        /// Its parts other than the queue pair.
        type Rest;

        /// Receives in flight at once.
        fn max_recv_wr(rest: &Self::Rest) -> u32;

        /// Why no receive can be started beyond those.
        fn no_receive(rest: &Self::Rest) -> RejectReason {
            RejectReason::full(Queue::Receive, Self::max_recv_wr(rest) as usize)
        }

        /// Its queue pair is about to be connected, and may receive from then on.
        fn begin(_rest: &mut Self::Rest) {}

        /// With receives to be posted before anything else.
        fn assemble(qp: QueuePair, rest: Self::Rest, receives: Vec<OwnedBuffer>) -> Result<Self>;

        /// Watches the peer through this descriptor.
        fn watch(&mut self, descriptor: OwnedFd) -> Result<()>;

        /// Watches the peer through the connection of `rdma_cm`.
        #[cfg(feature = "rdmacm")]
        fn watch_connection(&mut self, connection: Connection) -> Result<()>;
    }
}

/// The parts of a channel that does not belong to a group, other than its queue pair.
#[derive(Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Alone {
    cq: CompletionQueue,
    completion_channel: Option<CompletionChannel>,
    config: ChannelConfig,
}

impl Connected for Channel {}

impl sealed::Connected for Channel {
    type Rest = Alone;

    fn max_recv_wr(rest: &Alone) -> u32 {
        rest.config.max_recv_wr
    }

    fn assemble(qp: QueuePair, rest: Alone, receives: Vec<OwnedBuffer>) -> Result<Self> {
        let Alone {
            cq,
            completion_channel,
            config,
        } = rest;
        let mut engine = Engine::new(
            config.pd.clone(),
            cq,
            config.engine_limits(1, config.max_recv_wr),
            config.lender()?,
        );
        let id = engine.add(qp, [config.max_send_wr, config.max_recv_wr]);
        engine.start_prepared(id, receives)?;
        let poller = Poller::new(engine, config.waits(), completion_channel);
        Ok(Self::new(poller, config))
    }

    fn watch(&mut self, descriptor: OwnedFd) -> Result<()> {
        self.watch_peer(descriptor)
    }

    #[cfg(feature = "rdmacm")]
    fn watch_connection(&mut self, connection: Connection) -> Result<()> {
        Self::watch_connection(self, connection)
    }
}

impl PreparedChannel {
    /// A new queue pair, on a completion queue of its own.
    pub(crate) fn alone(mut config: ChannelConfig) -> Result<Self> {
        config.in_flight = None;
        let (cq, completion_channel) = config.queue(1)?;
        let qp = thread_domain::queue_pair(&config, &cq)?;
        let rest = Alone {
            cq,
            completion_channel,
            config,
        };
        Ok(Self::new(qp, rest))
    }
}

impl<T: Connected> PreparedChannel<T> {
    pub(crate) const fn new(qp: PreparedQueuePair, rest: T::Rest) -> Self {
        Self {
            qp,
            rest,
            receives: Vec::new(),
        }
    }

    /// Its queue pair, to be shown to `rdma_cm`.
    #[cfg(feature = "rdmacm")]
    pub(super) const fn qp_mut(&mut self) -> &mut PreparedQueuePair {
        &mut self.qp
    }

    pub(super) fn context(&self) -> &Context {
        self.qp.pd().context()
    }

    /// The queue pair, the other parts, and the prepared receives.
    #[cfg(feature = "rdmacm")]
    pub(super) fn into_parts(mut self) -> (PreparedQueuePair, T::Rest, Vec<OwnedBuffer>) {
        T::begin(&mut self.rest);
        (self.qp, self.rest, self.receives)
    }

    /// Prepares a receive that is posted as soon as the channel is connected, so that the peer can send at
    /// once.
    ///
    /// - For a [`Channel`], it is posted when the queue pair has been connected, before the peer is sent
    ///   READY. So a peer that sends at once finds the receive. With a [`handshake`](Self::handshake) of
    ///   your own, the peer must not send before `handshake` has returned here. On iWARP, if this side
    ///   connects by `rdma_cm`, the accepting peer must not send before this side
    ///   has sent.
    /// - For a channel of a group, it is posted when the channel [joins](crate::ChannelGroup::join) it. If
    ///   the peer sends before that, its device sends again: see
    ///   [`rnr_retry`](ChannelConfig::rnr_retry).
    ///
    /// The receives are posted in the order of these calls, and before those that are started later. The
    /// channel has their tickets: [`prepared_receives`](Channel::prepared_receives).
    /// [`next_completed`](Channel::next_completed) takes them without a ticket, like all operations. If
    /// the connection fails, or this value is dropped, the buffer is dropped.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{BufferPool, Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let pool = BufferPool::new(&pd, 4096, 8)?;
    /// let mut prepared = Channel::builder(&pd).timeout(Duration::from_secs(5)).build()?;
    /// while let Some(block) = pool.take() {
    ///     prepared.start_receive(block)?;
    /// }
    /// let mut channel = prepared.connect("server:7471", Duration::from_secs(10))?.channel;
    /// for ticket in channel.prepared_receives() {
    ///     let (received, block) = channel.wait_success(ticket)?;
    ///     println!("{:?}", received.message_in(&block));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the buffer: [`RejectReason::Backpressure`] if there are
    /// [`max_recv_wr`](ChannelConfig::max_recv_wr) receives already,
    /// [`RejectReason::ElementTooLong`], or [`RejectReason::OtherDomain`].
    #[doc(alias = "ibv_post_recv")]
    pub fn start_receive(
        &mut self,
        buffer: impl Into<OwnedBuffer>,
    ) -> Result<(), Rejected<OwnedBuffer, RejectReason>> {
        let buffer = buffer.into();
        if let Err(reason) = buffer.element(PdTag::of(self.qp.pd()), false) {
            return Err(Rejected::new(reason, buffer));
        }
        if self.receives.len() >= T::max_recv_wr(&self.rest) as usize {
            return Err(Rejected::new(T::no_receive(&self.rest), buffer));
        }
        self.receives.push(buffer);
        Ok(())
    }

    /// The endpoint of this side, which the peer needs to connect.
    #[must_use]
    pub fn endpoint(&self) -> QueuePairEndpoint {
        self.qp.endpoint()
    }

    /// The exchange over a TCP connection that this side came to in this way.
    #[doc(hidden)]
    pub fn exchange_of(&self, side: Side, options: &Connect) -> Result<Exchange> {
        #[cfg(feature = "rdmacm")]
        if self.context().device().needs_rdma_cm() {
            return Ok(Exchange::by_manager(&options.private_data, side)?);
        }
        let _ = side;
        self.context().device().check_handshake()?;
        Ok(Exchange::new(&self.endpoint(), &options.private_data)?)
    }

    /// Connects to the peer's endpoint. The peer must do the same with the endpoint of this side.
    ///
    /// On RoCE the kernel looks up the peer's GID during this call, which takes about a second if no host
    /// answers. The channel does not [watch its peer](Channel::watch_peer) yet.
    ///
    /// # Errors
    ///
    /// Those of [`PreparedQueuePair::handshake`], on iWARP always
    /// [`NeedsRdmaCm`](verbs_core::Error::NeedsRdmaCm); [`RejectReason::Post`] if the driver rejects a [prepared
    /// receive](Self::start_receive).
    pub fn handshake(mut self, remote: &QueuePairEndpoint) -> Result<T> {
        T::begin(&mut self.rest);
        let qp = self.qp.handshake(remote)?;
        T::assemble(qp, self.rest, self.receives)
    }
}

impl<T: Connected> fmt::Debug for PreparedChannel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PreparedChannel").field(&self.qp).finish()
    }
}
