//! The granted limits of each queue pair: a request beyond them fails before its bytes are accessed.
//!
//! Drivers need not do so: what they do with such a request is undefined. So it is recorded as a broken
//! rule of C's, too, in [`Library::wrong`].

use std::ffi::c_int;

use verbs_core::verbs_sys::{
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_PORT, IBV_QP_STATE, IBV_QPS_RESET,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_srq, ibv_srq_attr,
};

use super::Library;
use super::data::Posted;

/// Capacity of a queue pair, or of a shared receive queue.
pub(super) struct Limits {
    queue: usize,
    cap: ibv_qp_cap,
    max_msg_sz: u32,
    max_rd_atomic: u8,
    /// Its part of the device's `max_res_rd_atom`.
    max_dest_rd_atomic: u8,
    is_datagram: bool,
}

const INLINE: u32 = 8;
/// RDMA read, compare and swap, fetch and add.
const READ_REMOTELY: [u32; 3] = [4, 5, 6];

impl Library {
    /// A queue pair was made.
    pub(super) fn granted(&mut self, qp: *mut ibv_qp, cap: ibv_qp_cap, is_datagram: bool) {
        self.limits.push(Limits {
            queue: qp.addr(),
            cap,
            max_msg_sz: u32::MAX,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            is_datagram,
        });
    }

    /// Takes what a queue pair asks for of the device's `max_res_rd_atom`, if the device has one. It is given back in
    /// `RESET`.
    pub(super) fn shares(
        &mut self,
        qp: *mut ibv_qp,
        attr: &ibv_qp_attr,
        mask: u32,
    ) -> Result<(), c_int> {
        let asks = mask & IBV_QP_MAX_DEST_RD_ATOMIC.0 != 0;
        let is_reset = mask & IBV_QP_STATE.0 != 0 && attr.qp_state == IBV_QPS_RESET;
        let asked = if asks { attr.max_dest_rd_atomic } else { 0 };
        let others = self
            .limits
            .iter()
            .filter(|limits| limits.queue != qp.addr());
        let taken: i32 = others
            .map(|limits| i32::from(limits.max_dest_rd_atomic))
            .sum();
        let shared = self.attr.max_res_rd_atom;
        if shared > 0 && asked > 0 && taken + i32::from(asked) > shared {
            return Err(libc::EINVAL);
        }
        let mut limits = self.limits.iter_mut();
        if let Some(limits) = limits.find(|limits| limits.queue == qp.addr())
            && (asks || is_reset)
        {
            limits.max_dest_rd_atomic = asked;
        }
        Ok(())
    }

    /// A queue pair was modified.
    pub(super) fn changed(&mut self, qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: u32) {
        let port = usize::from(attr.port_num).checked_sub(1);
        let port = port.and_then(|index| self.ports.get(index));
        let port = port.map(|port| (port.attr.max_msg_sz, 128 << port.attr.active_mtu.0));
        let mut limits = self.limits.iter_mut();
        let Some(limits) = limits.find(|limits| limits.queue == qp.addr()) else {
            return;
        };
        let max_msg_sz = port.map(|(all, packet)| if limits.is_datagram { packet } else { all });
        if mask & IBV_QP_PORT.0 != 0
            && let Some(max_msg_sz) = max_msg_sz
        {
            limits.max_msg_sz = max_msg_sz;
        }
        if mask & IBV_QP_MAX_QP_RD_ATOMIC.0 != 0 {
            limits.max_rd_atomic = attr.max_rd_atomic;
        }
    }

    /// A shared receive queue was made.
    pub(super) fn granted_shared(&mut self, srq: *mut ibv_srq, attr: ibv_srq_attr) {
        self.limits.push(Limits {
            queue: srq.addr(),
            cap: ibv_qp_cap {
                max_recv_wr: attr.max_wr,
                max_recv_sge: attr.max_sge,
                ..Default::default()
            },
            max_msg_sz: u32::MAX,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            is_datagram: false,
        });
    }

    /// The capacity of a shared receive queue, and its elements in a receive.
    pub(super) fn shared_cap(&self, srq: *mut ibv_srq) -> (u32, u32) {
        let mut limits = self.limits.iter();
        let limits = limits.find(|limits| limits.queue == srq.addr());
        limits.map_or((0, 0), |limits| {
            (limits.cap.max_recv_wr, limits.cap.max_recv_sge)
        })
    }

    /// A queue pair, or a shared receive queue, is gone.
    pub(super) fn revoked<Q>(&mut self, queue: *mut Q) {
        self.limits.retain(|limits| limits.queue != queue.addr());
    }

    /// Whether a request is more than its queue pair takes.
    pub(super) fn exceeds(&mut self, queue: usize, is_send: bool, posted: &Posted) -> bool {
        let mut limits = self.limits.iter();
        let Some(limits) = limits.find(|limits| limits.queue == queue) else {
            return false;
        };
        let len: u64 = posted.list.iter().map(|(_, len, _)| u64::from(*len)).sum();
        let max_len = match is_send {
            true => limits.max_msg_sz,
            // There may be room for more than comes.
            false => u32::MAX,
        };
        let max_inline = match posted.send_flags & INLINE {
            0 => u32::MAX,
            _ => limits.cap.max_inline_data,
        };
        let max_sge = match is_send {
            true => limits.cap.max_send_sge,
            false => limits.cap.max_recv_sge,
        };
        let elements = posted.list.len() as u64;
        let reads = is_send && READ_REMOTELY.contains(&posted.opcode);
        let wrong = if len > max_len.into() {
            format!("{len} bytes, and at most {max_len} fit in a message")
        } else if len > max_inline.into() {
            format!("{len} bytes inline, and {max_inline} were granted")
        } else if elements > max_sge.into() {
            format!("{elements} elements, and {max_sge} were granted")
        } else if limits.is_datagram && is_send && !self.handles.contains(&posted.ah) {
            "a datagram, with an address handle that is not alive".into()
        } else if reads && limits.max_rd_atomic == 0 {
            "a read or an atomic, with a max_rd_atomic of 0".into()
        } else {
            return false;
        };
        self.wrong.push(format!("a request was posted of {wrong}"));
        true
    }
}
