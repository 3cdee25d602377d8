//! Connected channels join an engine, get a place there, and are removed.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::{iter, mem};

use verbs_core::QueuePair;
use verbs_core::error::Rejected;
#[cfg(feature = "rdmacm")]
use verbs_core::rdmacm::Connection;

use super::member::{Credits, SlotList};
use super::{Afterwards, Claim, Engine, Link, Member, Shared, Ticket};
use crate::buffer::OwnedBuffer;
use crate::channel_id::ChannelId;
use crate::error::{DownReason, Error, RejectReason, Result};
use crate::exchange::ExchangeError;
use crate::request::OwnedRequest;

/// A connected channel that can [join](Engine::join) the engine, or the
/// [group](crate::ChannelGroup::join), that it was prepared for.
#[derive(Debug)]
pub struct ConnectedMember {
    // `None` once it has joined.
    qp: Option<QueuePair>,
    receives: Vec<OwnedBuffer>,
    link: Option<Link>,
    parts: MemberParts,
}

/// The parts of a connected channel other than its queue pair, after which they are dropped.
#[derive(Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct MemberParts {
    /// Requested depths of its send queue and its receive queue: its credits.
    pub(crate) capacities: [u32; 2],
    pub(crate) peer_timeout: Option<Duration>,
    /// `Some` for a queue pair on a shared receive queue.
    pub(crate) claim: Option<Claim>,
}

impl ConnectedMember {
    pub(crate) fn new(qp: QueuePair, parts: MemberParts, receives: Vec<OwnedBuffer>) -> Self {
        Self {
            qp: Some(qp),
            receives,
            link: None,
            parts,
        }
    }

    /// Watches the peer through this descriptor, once the channel has joined: as
    /// [`Channel::watch_peer`](crate::Channel::watch_peer).
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`] if keepalive cannot be set on it.
    #[doc(hidden)]
    pub fn watch_peer(&mut self, descriptor: impl Into<OwnedFd>) -> Result<()> {
        let link = Link::new(descriptor.into(), self.parts.peer_timeout);
        let link = link.map_err(ExchangeError::not_watched)?;
        match &mut self.link {
            Some(before) => drop(before.replace(link)),
            none => *none = Some(link),
        }
        Ok(())
    }

    /// Watches the peer through this connection of `rdma_cm`, once the channel has joined. Needs the feature
    /// `rdmacm`.
    ///
    /// The connection is dropped [afterwards](Engine::next_afterwards) when the channel ends: that may block.
    #[doc(hidden)]
    #[cfg(feature = "rdmacm")]
    pub fn watch_connection(&mut self, connection: Connection) {
        let is_watched = self.parts.peer_timeout.is_some();
        self.link = Some(Link::of_manager(connection, is_watched));
    }

    /// Whether the peer is watched once the channel has joined.
    #[doc(hidden)]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_watched)
    }
}

impl Drop for ConnectedMember {
    fn drop(&mut self) {
        if let (Some(qp), Some(claim)) = (self.qp.take(), self.parts.claim.take()) {
            claim.end_connected(qp);
        }
    }
}

impl Engine {
    /// Adds a connected channel, and returns its id. Its
    /// [prepared receives](crate::PreparedChannel::start_receive) are posted.
    ///
    /// If the driver rejects one of those, the channel is down, with that reason. Its buffer, and those of the
    /// others that were not posted, are dropped [afterwards](Self::next_afterwards).
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the channel: [`Error::GroupFull`] if the completion queue has no room for it and does not
    /// [grow](crate::ChannelConfig::group), or [`Error::ForeignMember`] if it was
    /// prepared for another engine, or [`Error::GroupFailed`], with the engine's [`group_failure`](Self::group_failure).
    #[expect(clippy::result_large_err, reason = "gives back the channel")]
    pub fn join(
        &mut self,
        mut member: ConnectedMember,
    ) -> Result<ChannelId, Rejected<ConnectedMember, Error>> {
        let is_its = |qp: &QueuePair| qp.send_cq().is(&self.cq);
        if !member.qp.as_ref().is_some_and(is_its) {
            return Err(Rejected::new(Error::ForeignMember, member));
        }
        // With shared receives, also the messages that came before the channel.
        if self.undrained > 0 || self.has_shared() {
            self.dispatch_all();
        }
        if let Some(reason) = self.failure {
            return Err(Rejected::new(Error::GroupFailed(reason), member));
        }
        if let Err(error) = self.make_room() {
            return Err(Rejected::new(Error::GroupFull(error), member));
        }
        let mut peer = self.peers.unwatched();
        if let Some(link) = member.link.take()
            && let Err((error, link)) = self.peers.watch(&mut peer, link)
        {
            member.link = Some(link);
            let error = ExchangeError::not_watched(error).into();
            return Err(Rejected::new(error, member));
        }
        let Some(qp) = member.qp.take() else {
            return Err(Rejected::new(Error::ForeignMember, member));
        };
        let qp_num = qp.qp_num();
        let id = self.add(qp, member.parts.capacities);
        // First: a channel that may not join closes its connection.
        if let Some(member) = self.flight.members.get_mut(id.index()) {
            member.peer = peer;
        }
        self.join_shared(qp_num, id);
        let receives = mem::take(&mut member.receives);
        if let Err(reason) = self.start_prepared(id, receives) {
            let reason = match reason {
                RejectReason::Post(error) => DownReason::Post(error),
                // Nothing else rejects them: there is room for all, and each is one element.
                _ => DownReason::Abandoned,
            };
            self.destroy_at(id.at(), reason);
        }
        Ok(id)
    }

    /// Makes the completion queue longer if it has no room for one more channel.
    fn make_room(&self) -> verbs_core::Result<()> {
        // The room of a stuck channel is never free again, and that of one that is gone when the queue was empty.
        let channels = self.open + self.stuck + self.undrained + 1;
        let shared = self.shared.as_deref().map_or(0, Shared::places);
        let needed = self.limits.shares.total(channels).saturating_add(shared);
        let capacity = self.cq.min_capacity();
        if needed <= capacity {
            return Ok(());
        }
        // Twice as long, if the device permits that: most channels find room.
        let max = self.pd.context().query_device()?.max_cqe();
        let twice = needed.max(capacity.saturating_mul(2).min(max));
        self.cq.resize(twice).or_else(|_| self.cq.resize(needed))
    }

    /// Posts the receives of a channel that was just added. At the first rejection it stops.
    pub(crate) fn start_prepared(
        &mut self,
        channel: ChannelId,
        receives: Vec<OwnedBuffer>,
    ) -> Result<(), RejectReason> {
        if receives.is_empty() {
            return Ok(());
        }
        let mut tickets = Vec::with_capacity(receives.len());
        let mut started = Ok(());
        let mut receives = receives.into_iter();
        while let Some(buffer) = receives.next() {
            let mut request = OwnedRequest::receive(buffer);
            match self.start(channel, &mut request) {
                Ok(ticket) => tickets.push(ticket),
                Err(reason) => {
                    started = Err(reason);
                    let rejected = iter::once(request.into_buffer()).chain(receives).collect();
                    self.afterwards.push(Afterwards::Receives(rejected));
                    break;
                }
            }
        }
        // Those of channels whose place another one has are of no use any more.
        let mut prepared = mem::take(&mut self.prepared);
        prepared.retain(|(channel, _)| self.place(*channel).is_some());
        prepared.push((channel, tickets));
        self.prepared = prepared;
        started
    }

    /// Takes the tickets of a channel's [prepared receives](crate::PreparedChannel::start_receive), in
    /// the order of their posts. A second call returns no tickets.
    pub fn prepared_receives(&mut self, channel: ChannelId) -> Vec<Ticket> {
        let mut prepared = self.prepared.iter();
        let at = prepared.position(|(of, _)| *of == channel);
        at.map_or_else(Vec::new, |at| self.prepared.swap_remove(at).1)
    }
}

/// Places: each member has one in its engine, and an id that is not reused.
impl Engine {
    /// Adds a queue pair. Returns its id. Its credits are the requested capacities of its send queue
    /// and its receive queue, or its shares of them.
    pub(crate) fn add(&mut self, qp: QueuePair, max: [u32; 2]) -> ChannelId {
        self.open += 1;
        self.afterwards.reserve(self.open);
        self.refused.reserve(self.open as usize);
        let share = self.limits.shares.of(max);
        let peer = self.peers.unwatched();
        if let Some(at) = self.vacant()
            && let Some(place) = self.flight.member_mut(at)
        {
            let cells = Arc::clone(&place.credits.cells);
            let credits = Credits::new(place.credits.slots, max, share, cells);
            *place = Member::new(ChannelId::new(at), qp, credits, peer);
            return place.id;
        }
        let at = self.places().end;
        let id = ChannelId::new(at);
        let mut slots = SlotList::new();
        slots.allow_common(max[0] - share[0] + max[1] - share[1]);
        let credits = Credits::new(slots, max, share, self.counters.cells(at));
        self.flight.members.push(Member::new(id, qp, credits, peer));
        self.flight.grow(at, share[0].saturating_add(share[1]));
        id
    }

    /// The place of a removed member that has no untaken result, and no queue pair that is being
    /// destroyed elsewhere.
    fn vacant(&mut self) -> Option<u32> {
        // A few, not all: many may have results that are never taken.
        for _ in 0..self.removed.len().min(4) {
            let at = self.removed.pop_front()?;
            let member = self.member(at)?;
            if self.flight.first(at).is_none() && !member.is_closing() {
                return Some(at);
            }
            self.removed.push_back(at);
        }
        None
    }

    /// Removes a member: another gets its place once its results have been taken.
    pub(crate) fn remove_at(&mut self, at: u32) {
        if let Some(member) = self.flight.member_mut(at)
            && !mem::replace(&mut member.is_removed, true)
        {
            self.removed.push_back(at);
        }
    }

    /// The places of all members, those included that were removed.
    pub(super) fn places(&self) -> Range<u32> {
        0..u32::try_from(self.flight.members.len()).unwrap_or(u32::MAX)
    }

    /// The id of the member at this place; that of no channel, if there is none.
    #[inline]
    pub(crate) fn id_at(&self, at: u32) -> ChannelId {
        self.member(at).map_or(ChannelId::NONE, |member| member.id)
    }

    /// The place of the member with this id; one that no member has, if it is none of this engine's.
    #[inline(always)]
    pub(crate) fn place_or_none(&self, id: ChannelId) -> u32 {
        self.place(id).unwrap_or(ChannelId::NONE.at())
    }

    /// The place of the member with this id, if it is one of this engine's.
    #[inline(always)]
    pub(crate) fn place(&self, id: ChannelId) -> Option<u32> {
        let member = self.flight.members.get(id.index())?;
        (member.id == id).then_some(id.at())
    }
}
