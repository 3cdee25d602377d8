//! Extended completion queues and queue pairs: objects with their own verbs.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

use super::context::Verb;
use super::object::{ibv_cq, ibv_qp};

structures! {
    (Clone, Copy)
    ibv_poll_cq_attr { comp_mask: u32; }
    ibv_data_buf { addr: *mut c_void; length: usize; }
}

structures! {
    ()
    /// C repeats the fields of `ibv_cq` at the beginning.
    ibv_cq_ex {
        cq: ibv_cq;
        comp_mask: u32;
        /// Set by the thread that polls, while others use the queue.
        status: Cell<u32>;
        wr_id: Cell<u64>;
        start_poll next_poll end_poll read_opcode read_vendor_err read_byte_len read_imm_data read_qp_num read_src_qp
            read_wc_flags read_slid read_sl read_dlid_path_bits read_completion_ts read_cvlan read_flow_tag read_tm_info
            read_completion_wallclock_ns: Verb;
    }
    ibv_qp_ex {
        qp_base: ibv_qp;
        comp_mask wr_id: u64;
        wr_flags: c_uint;
        wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv wr_rdma_read wr_rdma_write wr_rdma_write_imm
            wr_send wr_send_imm wr_send_inv wr_send_tso wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data
            wr_set_inline_data_list wr_set_sge wr_set_sge_list wr_start wr_complete wr_abort wr_atomic_write: Verb;
    }
}
