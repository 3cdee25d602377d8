//! The engine under every channel: posts, polls, counts.
//!
//! One engine drives one completion queue and the queue pairs on it: one for a
//! [`Channel`](crate::Channel), many for a [`ChannelGroup`](crate::ChannelGroup). Each post takes a
//! slot and credits, each completion gives the credits back, so neither queue nor the completion
//! queue can overrun.

use std::collections::VecDeque;

use verbs_core::{CompletionChannel, CompletionQueue, PollSlot, ProtectionDomain, WorkSuccess};

use crate::config::WaitConfig;
use crate::error::TransportError;
pub use leak::Leak;
use member::Member;
use peer::Peers;
pub(crate) use peer::{Link, Peer};
use slots::{Id, Slots};
use ticket::Kept;
pub use ticket::{Completed, Ticket};

mod batch;
mod blocking;
pub(crate) mod gate;
mod leak;
pub(crate) mod member;
mod outcome;
mod owned;
mod pause;
mod peer;
mod peers;
mod places;
mod poll;
mod post;
pub(crate) mod slots;
pub(crate) mod teardown;
mod ticket;
mod waiting;

/// A completion queue, its queue pairs, and what is in flight on them.
#[derive(Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Engine {
    // First: no queue pair may outlive what `slots` keeps for it.
    pub(crate) members: Vec<Member>,
    pub(crate) slots: Slots<WorkSuccess, Kept>,
    pub(crate) waits: WaitConfig,
    pub(crate) peers: Peers,
    // Queue pairs that could not be destroyed: they may still complete work on the queue.
    pub(crate) stuck: u32,
    // Leaks that are not logged yet; `None`: log at once.
    pub(crate) leaks: Option<Vec<Leak>>,
    // Places of members that were removed, some of which may still have results.
    pub(crate) removed: VecDeque<u32>,
    // An operation of which the device may have a part, and which does not have its buffers yet.
    pub(crate) half_posted: Option<Id>,
    // Members whose queue pair has not been destroyed.
    pub(crate) open: u32,
    pub(crate) cq: CompletionQueue,
    pub(crate) announcer: Option<CompletionChannel>,
    // The member that was probed last.
    pub(crate) probed: usize,
    // The next completion raises an event, or has raised one that no wait has taken.
    pub(crate) is_armed: bool,
    pd: ProtectionDomain,
    // Made once: to make it costs more than a poll.
    room: [PollSlot; POLL_ROOM],
}

impl Engine {
    pub(crate) fn new(
        pd: ProtectionDomain,
        cq: CompletionQueue,
        announcer: Option<CompletionChannel>,
        waits: WaitConfig,
    ) -> Self {
        Self {
            members: Vec::new(),
            slots: Slots::new(),
            waits,
            peers: Peers::default(),
            stuck: 0,
            leaks: None,
            removed: VecDeque::new(),
            half_posted: None,
            open: 0,
            cq,
            announcer,
            probed: 0,
            is_armed: false,
            pd,
            room: [const { PollSlot::new() }; POLL_ROOM],
        }
    }

    pub(crate) const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(crate) const fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    pub(crate) const fn announcer(&self) -> Option<&CompletionChannel> {
        self.announcer.as_ref()
    }

    /// Takes the outcome of an operation of a scope that has completed, and frees its slot.
    #[inline(always)]
    pub(crate) fn take_borrowed(
        &mut self,
        at: u32,
        id: Id,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        let member = self.members.get_mut(at as usize)?;
        self.slots.take_borrowed(&mut member.slots, id)
    }

    /// Polls once, if the operation is in flight, and takes its outcome if it has completed by then.
    #[inline(never)]
    pub(crate) fn poll_borrowed(
        &mut self,
        at: u32,
        id: Id,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        if self.slots.is_done(id) == Some(false) && self.drive() == 0 {
            self.glance_at_peers();
        }
        self.take_borrowed(at, id)
    }

    /// Detaches a member's operation: its outcome will not be taken.
    #[inline(always)]
    pub(crate) fn detach(&mut self, at: u32, id: Id) {
        if let Some(member) = self.members.get_mut(at as usize) {
            self.slots.detach(&mut member.slots, id);
        }
    }

    /// Takes the result of a member's operation that is done, and frees its slot.
    #[inline(always)]
    pub(crate) fn release(
        &mut self,
        at: u32,
        id: Id,
    ) -> Option<Result<WorkSuccess, TransportError>> {
        let member = self.members.get_mut(at as usize)?;
        self.slots.release(&mut member.slots, id)
    }

    /// Fails a member's operation that is in flight.
    pub(crate) fn fail(&mut self, at: u32, id: Id, error: TransportError) {
        let Some(member) = self.members.get_mut(at as usize) else {
            return;
        };
        let ended = self.slots.fail(&mut member.slots, id.wr_id(), error);
        if let Some(reservation) = ended {
            member.give_back(reservation, 1);
        }
    }
}

/// Polls that find something before a search ends: more than any queue needs to be emptied.
pub(crate) const MAX_POLLS: u32 = 1 << 18;

/// Completions to take at once.
const POLL_ROOM: usize = 16;
