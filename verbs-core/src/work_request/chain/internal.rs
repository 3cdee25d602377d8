//! Chains for layers above: of any requests, whose posts have one completion.
#![expect(unsafe_code, reason = "reads the elements of a request")]

use std::ops::Range;

use verbs_sys::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, ibv_send_wr,
};

use super::{ChainRequest, RequestChain};
use crate::codes::WcOpcode;
use crate::error::Result;
use crate::memory::total_len;
use crate::work_request::{INLINE, SIGNALED, WorkRequest};

/// The needs of a request: its bytes, its elements, whether it is inline, and the opcode of its
/// completion.
#[inline]
pub fn needs<R: ChainRequest<Wr = ibv_send_wr>>(
    chain: &mut RequestChain<R>,
    index: usize,
) -> Option<(u64, usize, bool, WcOpcode)> {
    let request = chain.block.get(index)?;
    let count = request.num_sge.unsigned_abs() as usize;
    // SAFETY: `num_sge` elements at `sg_list` are in the same block, which is borrowed.
    let total = unsafe { total_len(request.sg_list, count) };
    let is_inline = request.send_flags & INLINE != 0;
    let opcode = match request.opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
        IBV_WR_RDMA_READ => WcOpcode::RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
        _ => WcOpcode::SEND,
    };
    Some((total, count, is_inline, opcode))
}

/// Gives the requests of a range IDs: `last` to the last, which is signalled, and `first`,
/// `first + step` and so on to those before it, which are not.
#[inline]
pub fn number<R: ChainRequest<Wr = ibv_send_wr>>(
    chain: &mut RequestChain<R>,
    part: Range<usize>,
    first: u64,
    step: u64,
    last: u64,
) {
    let Some((end, others)) = chain.block.range(part).split_last_mut() else {
        return;
    };
    let mut wr_id = first;
    for request in others {
        request.wr_id = wr_id;
        request.send_flags &= !SIGNALED;
        wr_id = wr_id.wrapping_add(step);
    }
    end.wr_id = last;
    end.send_flags |= SIGNALED;
}

/// A chain of requests of any kind, each of one element at most. They are empty sends until they are
/// [put](put_request).
///
/// # Errors
///
/// [`Error::OutOfRange`](crate::Error::OutOfRange) for a length of 0, or one that C cannot count.
pub fn of_any(len: usize) -> Result<RequestChain<WorkRequest<'static>>> {
    RequestChain::of(IBV_WR_SEND, len, 1)
}

/// Puts a copy of a request in its place, with a copy of its element. It is not signalled.
///
/// `false` if there is no such place, or the request has several elements.
#[inline]
pub fn put_request(
    chain: &mut RequestChain<WorkRequest<'static>>,
    index: usize,
    request: &WorkRequest<'_>,
) -> bool {
    let from = &request.wr;
    let Some((place, first)) = chain.block.with_first(index) else {
        return false;
    };
    match from.num_sge {
        0 => {}
        // SAFETY: the request has one element, in its list, which it borrows.
        1 => *first = unsafe { from.sg_list.read() },
        _ => return false,
    }
    place.num_sge = from.num_sge;
    place.opcode = from.opcode;
    place.send_flags = from.send_flags & !SIGNALED;
    place.__bindgen_anon_1.imm_data = from.imm_data;
    // SAFETY: no byte of a union has to be initialised.
    place.wr = unsafe { from.wr.assume_init() };
    true
}

/// Sets the ID in a request's completion, and C's flags.
#[inline]
pub const fn set_options(request: &mut WorkRequest<'_>, wr_id: u64, send_flags: u32) {
    request.wr.wr_id = wr_id;
    request.wr.send_flags = send_flags;
}
