//! Polls, and requests for events.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;

use soft_nic::Completion;

use super::CompletionQueue;
use crate::abi::request::ibv_wc;
use crate::errno::{code, refused};

pub(crate) unsafe extern "C" fn poll_cq(
    cq: &CompletionQueue,
    room: c_int,
    to: *mut ibv_wc,
) -> c_int {
    let card = &cq.context().card;
    let room = usize::try_from(room).unwrap_or(0);
    let polled = card.verb("ibv_poll_cq", |locked| {
        let mut count = 0;
        while count < room
            && let Some(done) = locked.poll_cq(cq.id())
        {
            let to = to.wrapping_add(count);
            // SAFETY: the caller has room for `room` completions.
            unsafe { to.write(completion(&done)) };
            count += 1;
        }
        Ok(count)
    });
    match polled {
        Ok(0) if room > 0 => {
            card.idle();
            0
        }
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(errno) => -errno,
    }
}

pub(crate) extern "C" fn req_notify_cq(cq: &CompletionQueue, solicited_only: c_int) -> c_int {
    code(cq.context().card.verb("ibv_req_notify_cq", |locked| {
        let armed = locked.nic.req_notify_cq(cq.id(), solicited_only != 0);
        armed.map_err(refused)
    }))
}

/// `IBV_WC_GRH`, `IBV_WC_WITH_IMM`, `IBV_WC_WITH_INV`.
pub(super) fn flags(done: &Completion) -> u32 {
    let flag = |is_set, bit: u32| if is_set { bit } else { 0 };
    flag(done.has_grh, 1)
        | flag(done.immediate.is_some(), 1 << 1)
        | flag(done.invalidated.is_some(), 1 << 3)
}

/// The immediate data, in the order of the network, or the key that a peer invalidated.
pub(super) fn immediate(done: &Completion) -> [u8; 4] {
    done.immediate
        .unwrap_or_else(|| done.invalidated.unwrap_or(0).to_ne_bytes())
}

fn completion(done: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: done.wr_id,
        status: done.status as u32,
        opcode: done.opcode as u32,
        byte_len: done.byte_len,
        imm_data: immediate(done),
        qp_num: done.queue_pair,
        src_qp: done.source_queue_pair,
        wc_flags: flags(done),
        ..ibv_wc::default()
    }
}
