//! Requests, completions and events.

use std::ffi::{c_int, c_uint, c_void};

use super::object::{ibv_ah, ibv_mr, ibv_mw};

structures! {
    (Clone, Copy)
    ibv_sge { addr: u64; length lkey: u32; }
    ibv_recv_wr { wr_id: u64; next: *mut Self; sg_list: *mut ibv_sge; num_sge: c_int; }
    ibv_send_wr {
        wr_id: u64;
        next: *mut Self;
        sg_list: *mut ibv_sge;
        num_sge: c_int;
        opcode: u32;
        send_flags: c_uint;
        /// Immediate data in the order of the network, or a key.
        imm_data: [u8; 4];
        wr: Remote;
        remote_srqn: u32;
        /// C has a union here; the other part is for segmentation by the device, which there is not.
        bind_mw: BindWindow;
    }
    Rdma { remote_addr: u64; rkey: u32; }
    Atomic { remote_addr compare_add swap: u64; rkey: u32; }
    Datagram { ah: *mut ibv_ah; remote_qpn remote_qkey: u32; }
    BindWindow { mw: *mut ibv_mw; rkey: u32; bind_info: ibv_mw_bind_info; }
    ibv_mw_bind_info { mr: *mut ibv_mr; addr length: u64; mw_access_flags: c_uint; }
    ibv_mw_bind { wr_id: u64; send_flags: c_uint; bind_info: ibv_mw_bind_info; }
    ibv_wc {
        wr_id: u64;
        status opcode vendor_err byte_len: u32;
        /// Immediate data in the order of the network, or a key.
        imm_data: [u8; 4];
        qp_num src_qp: u32;
        wc_flags: c_uint;
        pkey_index slid: u16;
        sl dlid_path_bits: u8;
    }
    ibv_async_event {
        /// A pointer to the object, or the number of the port.
        element: *mut c_void;
        event_type: u32;
    }
}

/// The part of a request that depends on its opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Remote {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Datagram,
}

pub(crate) const IBV_SEND_FENCE: u32 = 1;
pub(crate) const IBV_SEND_SIGNALED: u32 = 1 << 1;
pub(crate) const IBV_SEND_SOLICITED: u32 = 1 << 2;
pub(crate) const IBV_SEND_INLINE: u32 = 1 << 3;
