//! Extended completion queues and queue pairs: objects with their own verbs.

use std::ffi::{c_int, c_uint, c_void};

use super::context::Verb;
use super::object::{ibv_ah, ibv_cq, ibv_mw, ibv_qp};
use super::request::{ibv_mw_bind_info, ibv_sge};

structures! {
    /// C repeats the fields of `ibv_cq` at the beginning.
    ibv_cq_ex {
        cq: ibv_cq;
        comp_mask status: u32;
        wr_id: u64;
        start_poll: Verb<unsafe extern "C" fn(*mut Self, *mut ibv_poll_cq_attr) -> c_int>;
        next_poll: Verb<unsafe extern "C" fn(*mut Self) -> c_int>;
        end_poll: Verb<unsafe extern "C" fn(*mut Self)>;
        read_opcode read_vendor_err read_byte_len read_imm_data read_qp_num read_src_qp:
            Verb<unsafe extern "C" fn(*mut Self) -> u32>;
        read_wc_flags: Verb<unsafe extern "C" fn(*mut Self) -> c_uint>;
        read_slid: Verb<unsafe extern "C" fn(*mut Self) -> u32>;
        read_sl read_dlid_path_bits: Verb<unsafe extern "C" fn(*mut Self) -> u8>;
        read_completion_ts: Verb<unsafe extern "C" fn(*mut Self) -> u64>;
        read_cvlan: Verb<unsafe extern "C" fn(*mut Self) -> u16>;
        read_flow_tag: Verb<unsafe extern "C" fn(*mut Self) -> u32>;
        read_tm_info: Verb<unsafe extern "C" fn(*mut Self, *mut c_void)>;
        read_completion_wallclock_ns: Verb<unsafe extern "C" fn(*mut Self) -> u64>;
    }
    ibv_poll_cq_attr { comp_mask: u32; }
    ibv_data_buf { addr: *mut c_void; length: usize; }
    ibv_qp_ex {
        qp_base: ibv_qp;
        comp_mask wr_id: u64;
        wr_flags: c_uint;
        wr_atomic_cmp_swp: Verb<unsafe extern "C" fn(*mut Self, u32, u64, u64, u64)>;
        wr_atomic_fetch_add: Verb<unsafe extern "C" fn(*mut Self, u32, u64, u64)>;
        wr_bind_mw: Verb<unsafe extern "C" fn(*mut Self, *mut ibv_mw, u32, *const ibv_mw_bind_info)>;
        wr_local_inv: Verb<unsafe extern "C" fn(*mut Self, u32)>;
        wr_rdma_read wr_rdma_write: Verb<unsafe extern "C" fn(*mut Self, u32, u64)>;
        wr_rdma_write_imm: Verb<unsafe extern "C" fn(*mut Self, u32, u64, u32)>;
        wr_send: Verb<unsafe extern "C" fn(*mut Self)>;
        wr_send_imm wr_send_inv: Verb<unsafe extern "C" fn(*mut Self, u32)>;
        wr_send_tso: Verb<unsafe extern "C" fn(*mut Self, *mut c_void, u16, u16)>;
        wr_set_ud_addr: Verb<unsafe extern "C" fn(*mut Self, *mut ibv_ah, u32, u32)>;
        wr_set_xrc_srqn: Verb<unsafe extern "C" fn(*mut Self, u32)>;
        wr_set_inline_data: Verb<unsafe extern "C" fn(*mut Self, *mut c_void, usize)>;
        wr_set_inline_data_list: Verb<unsafe extern "C" fn(*mut Self, usize, *const ibv_data_buf)>;
        wr_set_sge: Verb<unsafe extern "C" fn(*mut Self, u32, u64, u32)>;
        wr_set_sge_list: Verb<unsafe extern "C" fn(*mut Self, usize, *const ibv_sge)>;
        wr_start: Verb<unsafe extern "C" fn(*mut Self)>;
        wr_complete: Verb<unsafe extern "C" fn(*mut Self) -> c_int>;
        wr_abort: Verb<unsafe extern "C" fn(*mut Self)>;
        wr_atomic_write: Verb<unsafe extern "C" fn(*mut Self, u32, u64, *const c_void)>;
    }
}
