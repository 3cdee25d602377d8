//! Posts of chains that were built once: one doorbell, one slot, one completion.
#![expect(unsafe_code, reason = "hands the contract of a post on to the caller")]

use std::ops::Range;

use verbs_core::__private::{needs, number};
use verbs_core::codes::WcOpcode;
use verbs_core::error::Rejected;
use verbs_core::verbs_sys::{IBV_SEND_INLINE, ibv_send_wr};
use verbs_core::work_request::{ChainRequest, RequestChain};

use crate::channel_id::ChannelId;
use crate::engine::flight::NEXT;
use crate::engine::member::Limits;
use crate::engine::{BufferOwner, Engine, Reservation, SlotBuffer, Ticket};
use crate::error::{Queue, RejectReason};
use crate::request::{Needs, Opcodes, OwnedChain};

impl Engine {
    /// # Safety
    ///
    /// As for [`Channel::post_chain_unpolled`](crate::Channel::post_chain_unpolled).
    pub(crate) unsafe fn post_chain_at<R: ChainRequest<Wr = ibv_send_wr>>(
        &mut self,
        at: u32,
        chain: &mut RequestChain<R>,
        part: Range<usize>,
    ) -> Result<Ticket, RejectReason> {
        let Some(member) = self.member(at) else {
            return Err(RejectReason::GONE);
        };
        let (opcodes, bytes) = check(chain, part.clone(), &member.limits)?;
        // SAFETY: the caller promises that the buffers stay until the operation is done.
        let posted =
            unsafe { self.post_checked_at(at, BufferOwner::Caller, chain, part, opcodes, bytes) };
        posted.or_else(|reason| self.end_half_posted(reason).ok_or(reason))
    }

    /// Posts a chain of requests on owned buffers: as
    /// [`Channel::start_chain`](crate::Channel::start_chain).
    ///
    /// # Errors
    ///
    /// As [`Channel::start_chain`](crate::Channel::start_chain), and [`RejectReason::Down`] if there is no
    /// such channel.
    pub fn start_chain(
        &mut self,
        channel: ChannelId,
        mut chain: OwnedChain,
    ) -> Result<Ticket, Rejected<OwnedChain, RejectReason>> {
        let at = self.place_or_none(channel);
        let posted = self.post_owned(at, &mut chain);
        if posted.is_ok() {
            chain.posted();
        }
        self.keep(posted, || SlotBuffer::Chain(chain))
            .map_err(|(reason, given)| match given {
                Some(SlotBuffer::Chain(chain)) => Rejected::new(reason, chain),
                _ => Rejected::new(reason, OwnedChain::default()),
            })
    }

    fn post_owned(&mut self, at: u32, chain: &mut OwnedChain) -> Result<Ticket, RejectReason> {
        let Some(member) = self.member(at) else {
            return Err(RejectReason::GONE);
        };
        let (limits, pd) = (member.limits, self.pd_tag);
        let is_admitted = chain.is_admitted(pd, |needs| limits.admit(needs));
        if !is_admitted {
            chain.build_for(pd)?;
        }
        let bytes = chain.bytes();
        let Some((built, range)) = chain.built() else {
            return Err(RejectReason::EmptyBatch);
        };
        if !is_admitted {
            let _known = check(built, range.clone(), &limits)?;
        }
        let opcodes = Opcodes::IN_BUFFERS;
        // SAFETY: the slot keeps the buffers until the last is done, and so all are, and leaks them if
        // the queue pair cannot be destroyed; moving a chain does not move their bytes.
        unsafe { self.post_checked_at(at, BufferOwner::Slot, built, range, opcodes, bytes) }
    }

    /// Posts requests of a chain that pass the gate.
    ///
    /// # Safety
    ///
    /// - They do.
    /// - The buffers that the requests name stay as [`QueuePair::post`](verbs_core::QueuePair::post) wants
    ///   them until the slot is done.
    #[inline]
    unsafe fn post_checked_at<R: ChainRequest<Wr = ibv_send_wr>>(
        &mut self,
        at: u32,
        owner: BufferOwner,
        chain: &mut RequestChain<R>,
        part: Range<usize>,
        opcodes: Opcodes,
        bytes: u64,
    ) -> Result<Ticket, RejectReason> {
        if part.is_empty() {
            return Err(RejectReason::EmptyBatch);
        }
        let reservation = Reservation::batch(at, part.len(), opcodes, owner)?;
        let Some((ticket, qp, cells)) = self.flight.take(reservation) else {
            return Err(self.rejection(at, Queue::Send, reservation.credits));
        };
        cells.post(reservation.credits, bytes);
        let id = ticket.id;
        number(chain, part.clone(), id.unsignaled_wr_id(), NEXT, id.wr_id());
        // SAFETY: the caller promises that the buffers stay until the operation has ended; when the last
        // of a chain has, so have the others.
        let posted = unsafe { qp.post_chain(chain, part) };
        self.settle(ticket, posted.map_err(RejectReason::Post), bytes)
    }
}

/// Checks each request of a part of a chain. Returns their opcodes and bytes.
fn check<R: ChainRequest<Wr = ibv_send_wr>>(
    chain: &mut RequestChain<R>,
    part: Range<usize>,
    limits: &Limits,
) -> Result<(Opcodes, u64), RejectReason> {
    let (mut opcodes, mut bytes) = (Opcodes::IN_BUFFERS, 0);
    for index in part {
        // A request that the chain does not have is an error of the post.
        let Some((len, elements, is_inline, opcode)) = needs(chain, index) else {
            break;
        };
        bytes += len;
        opcodes = opcodes.or(Opcodes::of(opcode));
        let needs = Needs {
            len,
            elements,
            // Not in the chain: the caller has checked it.
            is_shared: false,
            is_read: !matches!(opcode, WcOpcode::SEND | WcOpcode::RDMA_WRITE),
            flags: if is_inline { IBV_SEND_INLINE.0 } else { 0 },
        };
        limits.check(Queue::Send, &needs)?;
    }
    Ok((opcodes, bytes))
}
