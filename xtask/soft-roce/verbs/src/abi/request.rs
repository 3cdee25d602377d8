//! Requests, completions and events.

use std::ffi::{c_int, c_uint, c_void};

use super::object::{ibv_ah, ibv_mr, ibv_mw};

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: c_uint,
    /// Immediate data in the order of the network, or a key.
    pub(crate) imm_data: [u8; 4],
    pub(crate) wr: Remote,
    pub(crate) remote_srqn: u32,
    /// C has a union here; the other part is for segmentation by the device, which there is not.
    pub(crate) bind_mw: BindWindow,
}

/// The part of a request that depends on its opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Remote {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Datagram,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BindWindow {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

#[repr(C)]
pub(crate) struct ibv_mw_bind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: ibv_mw_bind_info,
}

pub(crate) const IBV_SEND_FENCE: u32 = 1;
pub(crate) const IBV_SEND_SIGNALED: u32 = 1 << 1;
pub(crate) const IBV_SEND_SOLICITED: u32 = 1 << 2;
pub(crate) const IBV_SEND_INLINE: u32 = 1 << 3;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in the order of the network, or a key.
    pub(crate) imm_data: [u8; 4],
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
pub(crate) struct ibv_async_event {
    /// A pointer to the object, or the number of the port.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: u32,
}
