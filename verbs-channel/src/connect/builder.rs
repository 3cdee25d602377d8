//! Creating channels.

use std::os::unix::net::UnixStream;

use verbs_core::ProtectionDomain;

use super::prepared::{Connected, PreparedChannel};
use crate::channel::channel_builder;
use crate::channel::{Channel, ChannelBuilder, ChannelConfig};
use crate::error::Result;
use crate::exchange::ExchangeError;

/// [`Channel::builder`] as a method of the protection domain: `pd.create_channel()`.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_channel::{verbs_core::Context, CreateChannel as _};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let prepared = pd.create_channel().max_send_wr(16).build()?;
/// # Ok(())
/// # }
/// ```
pub trait CreateChannel: sealed::Sealed {
    /// A builder for a channel on this protection domain.
    fn create_channel(&self) -> ChannelBuilder;
}

impl CreateChannel for ProtectionDomain {
    fn create_channel(&self) -> ChannelBuilder {
        Channel::builder(self)
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "seals `CreateChannel`")]
    pub trait Sealed {}
    impl Sealed for verbs_core::ProtectionDomain {}
}

impl Channel {
    /// A builder for a channel on a protection domain, whose regions it can use.
    ///
    /// The defaults work on InfiniBand and on RoCE: see
    /// [`QueuePair::builder`](verbs_core::QueuePair::builder).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let prepared = Channel::builder(&pd).timeout(Duration::from_secs(5)).build()?;
    /// let mut channel = prepared.connect("server:7471", Duration::from_secs(10))?.channel;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn builder(pd: &ProtectionDomain) -> ChannelBuilder {
        ChannelConfig::with_defaults(pd.clone())
    }

    /// Two connected channels in this process, with default settings: for tests and first steps.
    ///
    /// Each watches the other as its peer, as channels that were connected over TCP do. On iWARP they
    /// are connected by `rdma_cm`, which needs the feature `rdmacm`.
    ///
    /// # Errors
    ///
    /// Those of [`ChannelConfig::build`] and [`PreparedChannel::handshake`].
    pub fn loopback(pd: &ProtectionDomain) -> Result<(Self, Self)> {
        Self::builder(pd).loopback()
    }

    /// Closes this channel, and prepares a new one with the same settings.
    ///
    /// Operations in flight are aborted. The outcomes of those on owned buffers can still be taken from this
    /// channel.
    ///
    /// # Errors
    ///
    /// Those of [`ChannelConfig::build`].
    pub fn reset(&mut self) -> Result<PreparedChannel> {
        PreparedChannel::alone(self.destroyed().clone())
    }
}

impl<S: channel_builder::IsComplete> ChannelBuilder<S> {
    /// Creates a channel: as [`ChannelConfig::build`].
    ///
    /// # Errors
    ///
    /// Those of [`ChannelConfig::build`].
    pub fn build(self) -> Result<PreparedChannel> {
        self.config().build()
    }

    /// Creates two channels that are connected to each other: as [`ChannelConfig::loopback`].
    ///
    /// # Errors
    ///
    /// Those of [`ChannelConfig::loopback`].
    pub fn loopback(self) -> Result<(Channel, Channel)> {
        self.config().loopback()
    }
}

impl ChannelConfig {
    /// Creates a channel, which is then ready to be connected.
    ///
    /// # Errors
    ///
    /// - [`Error::Core`](crate::Error::Core) with those of
    ///   [`QueuePairConfig::build`](verbs_core::queue_pair::QueuePairConfig::build) and
    ///   [`CompletionQueue::create`](verbs_core::CompletionQueue::create), for example a capacity above
    ///   the device's limit.
    /// - [`Error::Capacity`](crate::Error::Capacity): a completion queue cannot have that many
    ///   entries.
    /// - [`Error::PeerTimeout`](crate::Error::PeerTimeout): the [`peer_timeout`](ChannelConfig::peer_timeout) is
    ///   shorter than 2 s.
    pub fn build(&self) -> Result<PreparedChannel> {
        PreparedChannel::alone(self.clone())
    }

    /// Creates two channels that are connected to each other in this process: for tests and first
    /// steps.
    ///
    /// Each watches the other as its peer, as channels that were connected over TCP do. On iWARP they
    /// are connected by `rdma_cm`, which needs the feature `rdmacm`.
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build) and [`PreparedChannel::handshake`]; on iWARP [`Error::Exchange`] if
    /// a step of `rdma_cm` fails.
    ///
    /// [`Error::Exchange`]: crate::Error::Exchange
    pub fn loopback(&self) -> Result<(Channel, Channel)> {
        self.build()?.pair(self.build()?)
    }
}

impl<T: Connected> PreparedChannel<T> {
    /// Connects two channels of this process to each other. Each watches the other.
    #[doc(hidden)]
    pub fn pair(self, other: Self) -> Result<(T, T)> {
        #[cfg(feature = "rdmacm")]
        if self.context().device().needs_rdma_cm() {
            let pair = super::cm::CmExchange::pair(self, other, PATIENCE)?;
            let [one, other] = [pair.0, pair.1].map(|(mut connected, connection)| {
                connected.watch_connection(connection)?;
                Ok::<_, crate::error::Error>(connected)
            });
            return Ok((one?, other?));
        }
        let (to_one, to_other) = (self.endpoint(), other.endpoint());
        let (mut one, mut other) = (self.handshake(&to_other)?, other.handshake(&to_one)?);
        let (to_other, to_one) = UnixStream::pair().map_err(ExchangeError::not_watched)?;
        one.watch(to_other.into())?;
        other.watch(to_one.into())?;
        Ok((one, other))
    }
}

/// How long two channels of one process may take to connect by `rdma_cm`.
#[cfg(feature = "rdmacm")]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
