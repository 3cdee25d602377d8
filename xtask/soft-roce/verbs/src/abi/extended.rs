//! Extended completion queues and queue pairs: objects with their own verbs.

use std::ffi::{c_int, c_uint, c_void};

use super::object::{ibv_ah, ibv_cq, ibv_mw, ibv_qp};
use super::request::{ibv_mw_bind_info, ibv_sge};

/// C repeats the fields of `ibv_cq` at the beginning.
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) cq: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut Self, *mut ibv_poll_cq_attr) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) read_opcode: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_vendor_err: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_byte_len: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_imm_data: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_qp_num: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_src_qp: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_wc_flags: Option<unsafe extern "C" fn(*mut Self) -> c_uint>,
    pub(crate) read_slid: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_sl: Option<unsafe extern "C" fn(*mut Self) -> u8>,
    pub(crate) read_dlid_path_bits: Option<unsafe extern "C" fn(*mut Self) -> u8>,
    pub(crate) read_completion_ts: Option<unsafe extern "C" fn(*mut Self) -> u64>,
    pub(crate) read_cvlan: Option<unsafe extern "C" fn(*mut Self) -> u16>,
    pub(crate) read_flow_tag: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn(*mut Self, *mut c_void)>,
    pub(crate) read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut Self) -> u64>,
}

#[repr(C)]
pub(crate) struct ibv_poll_cq_attr {
    pub(crate) comp_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) qp_base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64)>,
    pub(crate) wr_bind_mw:
        Option<unsafe extern "C" fn(*mut Self, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub(crate) wr_local_inv: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub(crate) wr_send_tso: Option<unsafe extern "C" fn(*mut Self, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(*mut Self, *mut ibv_ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(*mut Self, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut Self, usize, *const ibv_data_buf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(*mut Self, usize, *const ibv_sge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    pub(crate) wr_abort: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(*mut Self, u32, u64, *const c_void)>,
}
