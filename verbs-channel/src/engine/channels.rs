//! Operations of a layer above on one of the channels, by its id.
#![expect(
    unsafe_code,
    reason = "hands the contract of the queue on to the caller"
)]

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, slice};

#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;
use verbs_core::{CompletionQueue, ProtectionDomain, QueuePair, QueuePairEndpoint};

#[cfg(feature = "rdmacm")]
use super::{Afterwards, Link};
use super::{Counters, Engine, Member};
use crate::channel_id::ChannelId;
use crate::duration::Readable;
use crate::error::{CloseError, DownReason, Error, Queue, Result};
use crate::request::OwnedRequest;

/// Ending a channel.
impl Engine {
    /// Takes a channel down without waiting: the operations in flight complete as flushed.
    ///
    /// If the queue pair cannot be moved to `ERR`, it is destroyed, as [`destroy`](Self::destroy) does.
    /// `reason` is the channel's, unless it was down before. `destroy` ends operations that are not flushed.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`].
    pub fn flush(&mut self, channel: ChannelId, reason: DownReason) -> Result<()> {
        let at = self.place_of(channel)?;
        self.flush_or_destroy(at, reason);
        Ok(())
    }

    /// Destroys a channel's queue pair: everything in flight has ended when this returns.
    ///
    /// There is one exception: if the device refuses with `EIO`, as one does that is being removed, it ends in the
    /// call of [`check_peers`](Self::check_peers) that finds the device
    /// [removed](verbs_core::Context::is_removed), or comes the drain timeout later.
    ///
    /// Outcomes can still be taken. The channel keeps its place: see [`remove`](Self::remove).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`].
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(&mut self, channel: ChannelId, reason: DownReason) -> Result<()> {
        let at = self.place_of(channel)?;
        self.destroy_at(at, reason);
        Ok(())
    }

    /// Like [`destroy`](Self::destroy), but another channel can get its place afterwards.
    ///
    /// That happens once all outcomes of the channel have been taken. Removing it again has no effect.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`].
    pub fn remove(&mut self, channel: ChannelId) -> Result<()> {
        let at = self.place_of(channel)?;
        self.destroy_at(at, DownReason::Closed);
        self.remove_at(at);
        Ok(())
    }

    /// Whether the device is done with all memory of a channel, as its queue pair was destroyed;
    /// `None` if it has not been, or there is no such channel.
    ///
    /// # Errors
    ///
    /// [`CloseError::Stuck`]: the driver failed to destroy it.
    #[doc(hidden)]
    #[must_use]
    pub fn destroyed(&self, channel: ChannelId) -> Option<Result<(), CloseError>> {
        let member = self.place(channel).and_then(|at| self.member(at));
        member.and_then(Member::destroyed)
    }

    /// The next call that is to be made when nothing borrows the engine, and no lock is held; and whether it may take
    /// seconds, as the end of a connection of `rdma_cm` does.
    ///
    /// It logs a report of buffers that had to be leaked, or drops what is left of a destroyed queue pair, or the
    /// socket or connection of a peer. An engine does none of that itself, as it runs code of others, or takes time.
    /// It makes the calls that are left when it is dropped. So take them after each call that may end an operation.
    #[must_use = "to be called"]
    pub fn next_afterwards(&mut self) -> Option<(impl FnOnce() + Send + use<>, bool)> {
        let next = self.afterwards.pop()?;
        let is_slow = next.is_slow();
        Some((move || next.run(), is_slow))
    }
}

/// Capacity.
impl Engine {
    /// The most slots that [`reserve`](Self::reserve) adds in one call: 128 bytes each.
    pub const MAX_RESERVE: u32 = 1 << 20;

    /// Adds slots to a channel, for layers that do not take outcomes at once.
    ///
    /// An operation has its slot until its outcome is taken, and a channel has a slot for each
    /// operation that can be in flight on it. When none is free, requests are rejected with
    /// [`RejectReason::Untaken`](crate::RejectReason::Untaken).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`], or [`verbs_core::Error::OutOfRange`] if `outcomes` is above
    /// [`MAX_RESERVE`](Self::MAX_RESERVE).
    #[doc(hidden)]
    pub fn reserve(&mut self, channel: ChannelId, outcomes: u32) -> Result<()> {
        let at = self.place_of(channel)?;
        if outcomes > Self::MAX_RESERVE {
            return Err(Error::Core(verbs_core::Error::OutOfRange {
                what: "outcomes",
                value: outcomes.into(),
                min: 0,
                max: Self::MAX_RESERVE.into(),
            }));
        }
        if !self.limits.shares.are_of_a_budget() {
            self.flight.grow(at, outcomes);
        } else if let Some(member) = self.flight.member_mut(at) {
            // Common slots are added when they are needed.
            member.credits.slots.allow_common(outcomes);
        }
        Ok(())
    }

    /// How many slots its channels have together: the [slot](super::Ticket::slot) of each operation is
    /// below it. It grows when a channel joins or [reserves](Self::reserve) more, and where channels
    /// share a budget, while they use it.
    #[doc(hidden)]
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.flight.len()
    }

    /// How many more requests fit into one of the channel's queues, and into the
    /// [budget](crate::ChannelConfig::in_flight); 0 if there is no such channel.
    #[must_use]
    pub fn credits(&self, channel: ChannelId, queue: Queue) -> u32 {
        let member = self.member_of(channel);
        member.map_or(0, |member| member.credits.free(queue, &self.flight.budget))
    }

    /// How many requests of one of the channel's queues can be in flight at once: its depth, or what the
    /// [budget](crate::ChannelConfig::in_flight) permits; 0 if there is no such channel.
    #[doc(hidden)]
    #[must_use]
    pub fn capacity(&self, channel: ChannelId, queue: Queue) -> u32 {
        self.member_of(channel).map_or(0, |member| {
            member.credits.capacity(queue, &self.flight.budget)
        })
    }

    /// Whether the channel takes this request for its send queue, as soon as there is room.
    pub(crate) fn admits(&self, channel: ChannelId, request: &OwnedRequest) -> bool {
        let Some(member) = self.member_of(channel) else {
            return false;
        };
        let OwnedRequest { buffer, op } = request;
        let Ok(mut element) = buffer.element(self.pd_tag, op.is_inline()) else {
            return false;
        };
        let elements = slice::from_mut(&mut element);
        let needs = op.needs(elements, false);
        let is_possible = op.build(elements, 0, &mut MaybeUninit::uninit()).is_ok();
        is_possible && member.limits.check(Queue::Send, &needs).is_ok()
    }

    /// The longest message of the channel; `None` if there is no such channel.
    pub(crate) fn max_message(&self, channel: ChannelId) -> Option<usize> {
        let max = self.member_of(channel)?.limits.max_msg_sz();
        usize::try_from(max).ok().filter(|max| *max > 0)
    }

    /// How many requests of one of the channel's queues are in flight; 0 if there is no such channel: as
    /// [`Channel::in_flight`](crate::Channel::in_flight).
    #[must_use]
    pub fn in_flight(&self, channel: ChannelId, queue: Queue) -> u32 {
        let member = self.member_of(channel);
        member.map_or(0, |member| member.credits.in_flight(queue))
    }
}

/// The budget.
impl Engine {
    /// Keeps the common room of the [budget](crate::ChannelConfig::in_flight) for requests that wait
    /// for it in a layer above.
    ///
    /// After a call with `true`, a request that its channel's share has no room for is rejected with
    /// [`RejectReason::Budget`](crate::RejectReason::Budget). So it overtakes none of those that wait. A call with `false` ends this.
    #[doc(hidden)]
    pub const fn hold_room(&mut self, is_held: bool) {
        self.flight.budget.hold(is_held);
    }

    /// How many requests the [budget](crate::ChannelConfig::in_flight) has common room for; 0 without
    /// a budget.
    ///
    /// Room that is [held](Self::hold_room) counts. So does that of closed channels whose completions
    /// could not be polled yet.
    #[doc(hidden)]
    #[must_use]
    pub const fn common_room(&self) -> u32 {
        self.flight.budget.left()
    }
}

/// Peers.
impl Engine {
    /// Watches the channel's peer through this descriptor: as
    /// [`Channel::watch_peer`](crate::Channel::watch_peer).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`], otherwise as [`Channel::watch_peer`](crate::Channel::watch_peer).
    pub fn watch_peer(&mut self, channel: ChannelId, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let at = self.place_of(channel)?;
        self.watch_peer_at(at, descriptor.into())
    }

    /// Watches the channel's peer through this connection of `rdma_cm`, which is dropped
    /// [afterwards](Self::next_afterwards) when the channel ends: that may block. Needs the feature `rdmacm`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownChannel`], otherwise as [`Channel::watch_peer`](crate::Channel::watch_peer).
    #[doc(hidden)]
    #[cfg(feature = "rdmacm")]
    pub fn watch_connection(&mut self, channel: ChannelId, connection: Connection) -> Result<()> {
        match self.place_of(channel) {
            Ok(at) => self.watch_connection_at(at, connection),
            Err(error) => {
                let unused = Link::of_manager(connection, false);
                self.afterwards.push(Afterwards::Link(unused));
                Err(error)
            }
        }
    }

    /// The address of the channel's peer: as [`Channel::peer_addr`](crate::Channel::peer_addr).
    #[must_use]
    pub fn peer_addr(&self, channel: ChannelId) -> Option<SocketAddr> {
        self.member_of(channel)?.peer.address()
    }

    /// How soon the death of a peer's host is noticed; `None` if no peers are watched.
    #[doc(hidden)]
    #[must_use]
    pub const fn peer_timeout(&self) -> Option<Duration> {
        self.limits.peer_timeout
    }
}

/// Endings.
impl Engine {
    /// How long to wait for flushes: see
    /// [`ChannelConfig::drain_timeout`](crate::ChannelConfig::drain_timeout).
    #[doc(hidden)]
    #[must_use]
    pub const fn drain_timeout(&self) -> Duration {
        self.limits.drain_timeout
    }
}

/// Channels.
impl Engine {
    /// Why no channel can [join](Self::join): what all channels share has failed, and all have been taken down. `None`
    /// if it has not.
    ///
    /// It is the first such reason of [`destroy_all`](Self::destroy_all): a
    /// [`CQ_ERR`](verbs_core::device::EventType::CQ_ERR), [`SRQ_ERR`](verbs_core::device::EventType::SRQ_ERR) or
    /// [`DEVICE_FATAL`](verbs_core::device::EventType::DEVICE_FATAL) event, or [lost receives](DownReason::ReceivesLost). Or the
    /// shared receive queue takes no more receives, or does not answer.
    #[must_use]
    pub const fn group_failure(&self) -> Option<DownReason> {
        self.failure
    }

    /// Why a channel is down; `None` if it is not, and if there is no such channel.
    #[must_use]
    pub fn down_reason(&self, channel: ChannelId) -> Option<DownReason> {
        self.member_of(channel)?.down()
    }

    /// The endpoint of this side of a channel; `None` once its queue pair has been destroyed.
    #[must_use]
    pub fn endpoint(&self, channel: ChannelId) -> Option<&QueuePairEndpoint> {
        self.member_of(channel)?.qp().map(QueuePair::endpoint)
    }

    /// The open channel whose queue pair has this number. It searches all channels.
    ///
    /// A device event names its queue pair by this number.
    #[doc(hidden)]
    #[must_use]
    pub fn channel_of(&self, qp_num: u32) -> Option<ChannelId> {
        let is_it = |qp: &QueuePair| qp.qp_num() == qp_num;
        let mut members = self.flight.members.iter();
        let member = members.find(|member| member.qp().is_some_and(is_it))?;
        Some(member.id)
    }

    /// The channels that are open.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        let members = self.flight.members.iter();
        let open = members.filter(|member| member.qp().is_some());
        open.map(|member| member.id)
    }

    /// How many channels are open.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.open as usize
    }

    /// Whether no channel is open.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// The protection domain of the channels: buffers must be registered in it.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The queue that operations complete on: to arm it, or to compare it with others.
    ///
    /// # Safety
    ///
    /// Through it and all of its clones:
    ///
    /// - nothing polls: the operation whose completion is taken would never complete;
    /// - nothing makes the queue smaller, and no other queue pair completes on it: it would overrun.
    #[must_use]
    pub const unsafe fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// The same, for waits: they arm it.
    pub(crate) const fn queue(&self) -> &CompletionQueue {
        &self.cq
    }

    pub(crate) fn member_of(&self, channel: ChannelId) -> Option<&Member> {
        self.member(self.place(channel)?)
    }

    /// The place of the channel with this id.
    #[inline]
    pub(crate) fn place_of(&self, channel: ChannelId) -> Result<u32> {
        self.place(channel).ok_or(Error::UnknownChannel(channel))
    }
}

/// Counters.
impl Engine {
    /// The counters of a channel, from when it joined on; those of none, if it is gone.
    #[doc(hidden)]
    #[must_use]
    pub fn channel_counters(&self, channel: ChannelId) -> Counters {
        let counted = self.member_of(channel).map(|member| {
            let before = member.counted_before.as_deref().copied();
            (
                Arc::clone(&member.credits.cells),
                before.unwrap_or_default(),
            )
        });
        Counters {
            places: Arc::clone(&self.counters),
            channel: Some(counted.unwrap_or_default()),
        }
    }

    /// The counters of all channels together, those included that were removed.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            places: Arc::clone(&self.counters),
            channel: None,
        }
    }
}

/// All channels, a line each, for an operator.
impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, open) = (self.pd.context().device().name(), self.len());
        let all = self.counters().read();
        write!(f, "{device}: {open} open channels: {all}")?;
        let asleep = Readable(all.asleep);
        write!(f, ", asleep for {asleep}")?;
        if let Some(failure) = self.group_failure() {
            write!(f, ", failed: {failure}")?;
        }
        for id in self.channels() {
            let counts = self.channel_counters(id).read();
            write!(f, "\n{id}: ")?;
            match self.down_reason(id) {
                Some(reason) => write!(f, "down, {reason}: ")?,
                None => write!(f, "up: ")?,
            }
            write!(f, "{counts}")?;
        }
        Ok(())
    }
}
