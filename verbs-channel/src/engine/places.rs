//! Members join and are removed: each has a place in its engine, and an id that is not reused.

use std::mem;
use std::sync::Arc;

use verbs_core::QueuePair;

use super::Engine;
use super::member::{Credits, Member, SlotList};
use crate::channel_id::ChannelId;

impl Engine {
    /// Adds a queue pair. Returns its id. Its credits are the requested capacities of its send queue
    /// and its receive queue, or its shares of them.
    pub(crate) fn add(&mut self, qp: QueuePair, max: [u32; 2]) -> ChannelId {
        self.open += 1;
        self.afterwards.reserve(self.open);
        self.refused.reserve(self.open as usize);
        let shares = self.limits.shares;
        let share = shares.map_or(max, |shares| shares.of(max));
        let peer = self.peers.unwatched();
        if let Some(at) = self.vacant()
            && let Some(place) = self.flight.members.get_mut(at as usize)
        {
            let cells = Arc::clone(&place.credits.cells);
            let credits = Credits::new(place.credits.slots, max, share, cells);
            *place = Member::new(ChannelId::new(at), qp, credits, peer);
            return place.id;
        }
        let at = u32::try_from(self.flight.members.len()).unwrap_or(u32::MAX);
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

    /// Adds slots to a member's.
    pub(super) fn reserve_at(&mut self, at: u32, results: u32) {
        if self.limits.shares.is_none() {
            self.flight.grow(at, results);
        } else if let Some(member) = self.flight.members.get_mut(at as usize) {
            // Common slots are added when they are needed.
            member.credits.slots.allow_common(results);
        }
    }

    /// Removes a member: another gets its place once its results have been taken.
    pub(crate) fn remove_at(&mut self, at: u32) {
        if let Some(member) = self.flight.members.get_mut(at as usize)
            && !mem::replace(&mut member.is_removed, true)
        {
            self.removed.push_back(at);
        }
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
