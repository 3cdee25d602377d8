//! Channels: one connected endpoint, and all that can be done on it.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use verbs_core::ProtectionDomain;

use crate::builder::{ChannelBuilder, Config, PreparedChannel, channel_builder};
use crate::engine::Engine;
use crate::error::{DownReason, Result};
use crate::exchange::ExchangeError;
use crate::owned::Completed;
#[expect(unused_imports, reason = "named in documentation")]
use crate::scope::PollingScope;
use crate::wait::PollStrategy;

/// A connected endpoint whose safe API cannot misuse memory.
///
/// Five ways to use it, from the simplest on: [blocking](Self::send), [scoped](Self::scope), with
/// [loans](PollingScope::lend) in a scope, with [owned buffers](Self::start), in
/// [batches](PollingScope::post_batch). They mix. See the crate's documentation for which to pick.
///
/// After a failure, or an operation that was aborted, it is *down*: it takes no more work, and
/// [`down_reason`](Self::down_reason) says why. [`reset`](Self::reset) prepares a new one like it.
///
/// Dropping it waits for nobody: the queue pair is destroyed, and then what it owns is released.
#[derive(Debug)]
pub struct Channel {
    engine: Engine,
    config: Config,
}

/// A channel of a [`ChannelGroup`](crate::ChannelGroup): everything that a [`Channel`] can do.
#[derive(Debug)]
pub struct ChannelMut<'g> {
    engine: &'g mut Engine,
    at: u32,
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
        self.engine.destroy_all(DownReason::Closed);
        let (cq, announcer) = self.config.queue(1)?;
        self.config.clone().prepare(cq, announcer)
    }

    /// How long operations on borrowed buffers wait before the channel is aborted; `None` for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.engine.patience.timeout = timeout;
    }

    /// What to do between polls that find nothing. To sleep
    /// ([`PollStrategy::Notify`]), the channel must have been made with that strategy; else it
    /// yields.
    pub fn set_strategy(&mut self, strategy: PollStrategy) {
        self.engine.patience.strategy = strategy;
    }

    pub(crate) const fn new(engine: Engine, config: Config) -> Self {
        Self { engine, config }
    }

    pub(crate) const fn parts(&mut self) -> (&mut Engine, u32) {
        (&mut self.engine, 0)
    }

    pub(crate) const fn shared(&self) -> (&Engine, u32) {
        (&self.engine, 0)
    }
}

impl<'g> ChannelMut<'g> {
    pub(crate) const fn new(engine: &'g mut Engine, at: u32) -> Self {
        Self { engine, at }
    }

    pub(crate) const fn parts(&mut self) -> (&mut Engine, u32) {
        (self.engine, self.at)
    }

    pub(crate) const fn shared(&self) -> (&Engine, u32) {
        (self.engine, self.at)
    }
}

impl Channel {
    /// The operation on an owned buffer that has been done for longest. If there is none it polls:
    /// `None` means that none is done, and that the completion queue was found empty.
    #[must_use = "the buffer is in it, and whether the operation failed"]
    pub fn next_completed(&mut self) -> Option<Completed> {
        self.engine.next_ready()
    }

    /// The same, waited for; `None` if `timeout` passes first. Without a timeout it waits until
    /// something is done, and returns `None` at once if no owned buffer is left here.
    #[must_use = "the buffer is in it, and whether the operation failed"]
    pub fn wait_completed(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.engine.wait_ready(timeout)
    }
}
