//! Channels: one connected endpoint and its operations.

use std::time::{Duration, Instant};

use crate::channel_id::ChannelId;
use crate::engine::{Completed, Engine, Transfer, TransferError};
use crate::error::DownReason;
pub use crate::waiting::AbortHandle;
use crate::waiting::{PollStrategy, Poller, Steps as _};
pub(crate) use builder::channel_builder;
pub use builder::{ChannelBuilder, ChannelConfig};
pub use pending::ScopedPendingWork;
pub use scope::PollingScope;

mod builder;
mod operations;
mod owned;
mod pending;
mod scope;
mod status;

// Last: rustdoc lists the methods of a channel in the order of the modules.
mod close;
mod leases;

/// A connected endpoint whose safe API cannot misuse memory.
///
/// There are two ways to use it. Buffers are borrowed, by [blocking](Self::send) calls or in a
/// [scope](Self::scope), or they are [owned](Self::start) by the channel until the operation has ended.
/// Both can be mixed, and both have batches. The [documentation of the crate](crate) compares them.
///
/// After a failure or an abort the channel is *down*: it rejects all requests, and
/// [`down_reason`](Self::down_reason) is the first failure. [`reset`](Self::reset) prepares a new
/// channel with the same settings.
///
/// Dropping a channel does not wait: it destroys the queue pair, then releases the buffers that it owns.
/// [`close`](Self::close) lets sends finish first, and reports whether the device is done with all memory.
///
/// `H` is [`InGroup`] for a channel of a [`ChannelGroup`](crate::ChannelGroup), and otherwise [`Exclusive`], the
/// default. Both have the same operations.
pub struct Channel<H: Hold = Exclusive> {
    holder: H,
}

/// The parameter of a [`Channel`] that does not belong to a group: the default.
#[derive(Debug)]
pub struct Exclusive {
    poller: Poller,
    config: ChannelConfig,
}

/// The parameter of a [`Channel`] of a group, which borrows the group: see
/// [`ChannelGroup::channel`](crate::ChannelGroup::channel).
#[derive(Debug)]
pub struct InGroup<'g> {
    poller: &'g mut Poller,
    // Not its place: after `engine_mut`, that may be another channel's.
    id: ChannelId,
}

/// The parameter of a [`Channel`]: [`Exclusive`], or [`InGroup`] if it belongs to a group.
///
/// It is sealed: types of other crates cannot implement it.
pub trait Hold: sealed::Hold {}

impl Hold for Exclusive {}
impl Hold for InGroup<'_> {}

mod sealed {
    use crate::waiting::Poller;

    #[expect(unnameable_types, reason = "seals `Hold`")]
    pub trait Hold {
        /// The poller that drives the channel, and the channel's place there; a place that no channel has if it was removed.
        fn shared(&self) -> (&Poller, u32);

        /// As `shared`, mutably.
        fn parts(&mut self) -> (&mut Poller, u32);
    }
}

impl sealed::Hold for Exclusive {
    #[inline(always)]
    fn shared(&self) -> (&Poller, u32) {
        (&self.poller, 0)
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Poller, u32) {
        (&mut self.poller, 0)
    }
}

impl sealed::Hold for InGroup<'_> {
    #[inline(always)]
    fn shared(&self) -> (&Poller, u32) {
        (self.poller, self.poller.engine.place_or_none(self.id))
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Poller, u32) {
        let at = self.poller.engine.place_or_none(self.id);
        (self.poller, at)
    }
}

impl<H: Hold> Channel<H> {
    #[inline(always)]
    pub(crate) fn shared(&self) -> (&Engine, u32) {
        let (poller, at) = self.holder.shared();
        (&poller.engine, at)
    }

    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut Poller, u32) {
        self.holder.parts()
    }
}

impl Channel {
    /// Sets how long operations on borrowed buffers wait before the channel is aborted; `None` is
    /// forever.
    pub fn set_timeout(&mut self, timeout: impl Into<Option<Duration>>) {
        self.holder.poller.config.timeout = timeout.into();
    }

    /// Sets what to do between polls that find no completion.
    ///
    /// [`PollStrategy::Notify`] sleeps only if the channel was created with that strategy, and yields
    /// otherwise.
    pub fn set_strategy(&mut self, strategy: PollStrategy) {
        self.holder.poller.config.strategy = strategy;
    }

    /// Takes the oldest completed operation on an owned buffer. Polls if there is none.
    ///
    /// `None` means that no operation has completed, and that the completion queue was empty.
    #[must_use = "it has the buffer and the outcome"]
    pub fn next_completed(&mut self) -> Option<Completed> {
        self.holder.poller.next_completed()
    }

    /// Like [`next_completed`](Self::next_completed), but waits; `None` if `timeout` passes first.
    ///
    /// Without a timeout it waits until an operation has completed. If none is in flight on an owned
    /// buffer, it returns `None` at once, since nothing would end the wait.
    #[must_use = "it has the buffer and the outcome"]
    pub fn wait_completed(&mut self, timeout: impl Into<Option<Duration>>) -> Option<Completed> {
        self.holder.poller.wait_completed(timeout.into())
    }

    /// Carries out a [`Transfer`], and returns when the device is done with all of its memory.
    ///
    /// It posts the operations as room becomes available, and waits for all of them until `deadline`, or for the
    /// channel's own timeout if that is `None`. The outcomes are in the transfer.
    ///
    /// If the deadline passes before all operations of the set have ended, their channel is
    /// aborted, with everything in flight on it: its queue pair is moved to `ERR`, and destroyed
    /// if it is not flushed within the drain timeout. The clock is read for every eighth post, and not within a chain. So this returns
    /// by the deadline, plus the sum of 16 posts, the drain timeout and the time that `ibv_destroy_qp` takes.
    /// An operation that fails takes its channel down, and the other operations of the set on that channel fail with it.
    /// If the last operations succeed while the channel is being aborted, this returns `Ok` and the
    /// channel is down.
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
        self.holder.poller.transfer(transfer, deadline, &mut each)
    }

    /// Destroys the queue pair, and returns the settings.
    pub(crate) fn destroyed(&mut self) -> &ChannelConfig {
        let (poller, at) = self.parts();
        poller.engine.destroy_now(at, DownReason::Closed);
        poller.finish_destroying();
        &self.holder.config
    }

    pub(crate) const fn new(poller: Poller, config: ChannelConfig) -> Self {
        let holder = Exclusive { poller, config };
        Self { holder }
    }
}

impl<'g> Channel<InGroup<'g>> {
    pub(crate) const fn in_group(poller: &'g mut Poller, id: ChannelId) -> Self {
        let holder = InGroup { poller, id };
        Self { holder }
    }
}
