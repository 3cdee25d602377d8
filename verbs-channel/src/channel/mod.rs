//! Channels: one connected endpoint, and all that can be done on it.

use std::time::Duration;

use crate::config::{Config, PollStrategy};
use crate::engine::Completed;
use crate::engine::Engine;
use crate::error::DownReason;
pub use scope::{Loan, PollingScope, ScopedPendingWork};

mod operations;
mod owned;
mod scope;

/// A connected endpoint whose safe API cannot misuse memory.
///
/// Five ways to use it, from the simplest on: [blocking](Self::send), [scoped](Self::scope), with
/// [loans](PollingScope::lend) in a scope, with [owned buffers](Self::start), in
/// [batches](PollingScope::post_batch). They mix. See the crate's documentation for which to pick.
///
/// After a failure, or an operation that was aborted, it is *down*: it takes no more work, and
/// [`down_reason`](Self::down_reason) says why. [`reset`](Self::reset) prepares a new one like it.
///
/// Dropping it does not wait: the queue pair is destroyed, and then what it owns is released.
///
/// A channel of a [`ChannelGroup`](crate::ChannelGroup) does all of this, too: `H` is what holds the
/// engine that drives it, [`Owned`] by the channel itself unless it says otherwise, or [`InGroup`].
#[derive(Debug)]
pub struct Channel<H: Hold = Owned> {
    holder: H,
}

/// Holds the engine of a channel of its own.
#[derive(Debug)]
pub struct Owned {
    engine: Engine,
    config: Config,
}

/// Borrows the engine of a group for one of its channels: see
/// [`ChannelGroup::channel`](crate::ChannelGroup::channel).
#[derive(Debug)]
pub struct InGroup<'g> {
    engine: &'g mut Engine,
    at: u32,
}

/// What holds the engine of a [`Channel`]: [`Owned`] or [`InGroup`].
pub trait Hold: sealed::Hold {}

impl Hold for Owned {}
impl Hold for InGroup<'_> {}

mod sealed {
    use crate::engine::Engine;

    #[expect(unnameable_types, reason = "seals `Hold`")]
    pub trait Hold {
        /// The engine, and the channel's place in it.
        fn shared(&self) -> (&Engine, u32);

        /// The same, to post and poll.
        fn parts(&mut self) -> (&mut Engine, u32);
    }
}

impl sealed::Hold for Owned {
    #[inline(always)]
    fn shared(&self) -> (&Engine, u32) {
        (&self.engine, 0)
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Engine, u32) {
        (&mut self.engine, 0)
    }
}

impl sealed::Hold for InGroup<'_> {
    #[inline(always)]
    fn shared(&self) -> (&Engine, u32) {
        (self.engine, self.at)
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Engine, u32) {
        (self.engine, self.at)
    }
}

impl<H: Hold> Channel<H> {
    #[inline(always)]
    pub(crate) fn shared(&self) -> (&Engine, u32) {
        self.holder.shared()
    }

    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut Engine, u32) {
        self.holder.parts()
    }
}

impl Channel {
    /// How long operations on borrowed buffers wait before the channel is aborted; `None` forever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.holder.engine.waits.timeout = timeout;
    }

    /// What to do between polls that find nothing. To sleep
    /// ([`PollStrategy::Notify`]), the channel must have been made with that strategy; else it
    /// yields.
    pub fn set_strategy(&mut self, strategy: PollStrategy) {
        self.holder.engine.waits.strategy = strategy;
    }

    /// The operation on an owned buffer that has been done for longest. If there is none it polls:
    /// `None` means that none is done, and that the completion queue was found empty.
    #[must_use = "the buffer is in it, and whether the operation failed"]
    pub fn next_completed(&mut self) -> Option<Completed> {
        self.holder.engine.next_ready()
    }

    /// The same, waited for; `None` if `timeout` passes first. Without a timeout it waits until
    /// something is done, and returns `None` at once if no owned buffer is left here.
    #[must_use = "the buffer is in it, and whether the operation failed"]
    pub fn wait_completed(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        self.holder.engine.wait_ready(timeout)
    }

    /// Closes it; what it was made with.
    pub(crate) fn close(&mut self) -> &Config {
        self.holder.engine.destroy_all(DownReason::Closed);
        &self.holder.config
    }

    pub(crate) const fn new(engine: Engine, config: Config) -> Self {
        let holder = Owned { engine, config };
        Self { holder }
    }
}

impl<'g> Channel<InGroup<'g>> {
    pub(crate) const fn in_group(engine: &'g mut Engine, at: u32) -> Self {
        let holder = InGroup { engine, at };
        Self { holder }
    }
}
