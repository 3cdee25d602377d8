//! Making channels.

use std::os::unix::net::UnixStream;

use verbs_core::ProtectionDomain;

use super::prepared::PreparedChannel;
use crate::channel::Channel;
use crate::config::{ChannelBuilder, Config, channel_builder};
use crate::error::Result;
use crate::exchange::ExchangeError;

/// `pd.create_channel()`: [`Channel::builder`] where other objects of a protection domain are made.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_channel::{CreateChannel as _, verbs_core::Context};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let prepared = pd.create_channel().max_send_wr(16).build()?;
/// # Ok(())
/// # }
/// ```
pub trait CreateChannel: sealed::Sealed {
    /// Begins a channel on this protection domain.
    fn create_channel(&self) -> ChannelBuilder<channel_builder::Empty>;
}

impl CreateChannel for ProtectionDomain {
    fn create_channel(&self) -> ChannelBuilder<channel_builder::Empty> {
        Channel::builder(self)
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "seals `CreateChannel`")]
    pub trait Sealed {}
    impl Sealed for verbs_core::ProtectionDomain {}
}

impl Channel {
    /// Begins a channel on a protection domain, whose regions it works on.
    ///
    /// Without a hint it works on InfiniBand and on RoCE; see
    /// [`QueuePair::builder`](verbs_core::QueuePair::builder) for what is chosen.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let prepared = Channel::builder(&pd).timeout(Duration::from_secs(5)).build()?;
    /// let mut channel = prepared.connect("server:7471", Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn builder(pd: &ProtectionDomain) -> ChannelBuilder<channel_builder::Empty> {
        Config::of(pd.clone())
    }

    /// A connected pair within this process, with default settings: for tests and first steps. Each
    /// watches the other, as two that have met over TCP do.
    ///
    /// # Errors
    ///
    /// Those of [`ChannelBuilder::build`] and [`PreparedChannel::handshake`].
    pub fn loopback(pd: &ProtectionDomain) -> Result<(Self, Self)> {
        let left = Self::builder(pd).build()?;
        let right = Self::builder(pd).build()?;
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, mut right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
        let (to_right, to_left) = UnixStream::pair().map_err(ExchangeError::not_watched)?;
        left.watch_peer(to_right)?;
        right.watch_peer(to_left)?;
        Ok((left, right))
    }

    /// Prepares a channel with the same settings, to be connected anew. This one is closed by it:
    /// what was in flight is aborted; the results of owned buffers can still be taken from it.
    ///
    /// # Errors
    ///
    /// Those of [`ChannelBuilder::build`].
    pub fn reset(&mut self) -> Result<PreparedChannel> {
        PreparedChannel::alone(self.close().clone())
    }
}

impl<S: channel_builder::IsComplete> ChannelBuilder<S> {
    /// Makes the channel, prepared to be connected.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::builder`](verbs_core::QueuePair::builder) and
    /// [`CompletionQueue::create`](verbs_core::CompletionQueue::create): a capacity above the
    /// device's limits, a path that cannot be.
    pub fn build(self) -> Result<PreparedChannel> {
        let config = self.into_config();
        PreparedChannel::alone(config)
    }
}
