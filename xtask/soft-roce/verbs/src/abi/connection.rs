//! librdmacm's structures.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use super::attributes::ibv_ah_attr;
use super::context::ibv_context;
use super::object::{ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_srq};
use crate::sockaddr::Name;

structures! {
    (Clone, Copy)
    rdma_event_channel { fd: c_int; }
    rdma_route {
        source destination: Name;
        ibaddr: [u64; 5];
        path_rec: *mut c_void;
        num_paths: c_int;
    }
    rdma_conn_param {
        private_data: *const c_void;
        private_data_len responder_resources initiator_depth flow_control retry_count rnr_retry_count srq: u8;
        qp_num: u32;
    }
    rdma_ud_param {
        private_data: *const c_void;
        private_data_len: u8;
        ah_attr: ibv_ah_attr;
        qp_num qkey: u32;
    }
    rdma_cm_event { id listen_id: *mut rdma_cm_id; event: u32; status: c_int; param: rdma_param; }
    rdma_addrinfo {
        ai_flags ai_family ai_qp_type ai_port_space: c_int;
        ai_src_len ai_dst_len: socklen_t;
        ai_src_addr ai_dst_addr: *mut sockaddr;
        names: [*mut c_void; 2];
        route connect: [usize; 2];
        ai_next: *mut Self;
    }
    rdma_cm_join_mc_attr_ex { comp_mask join_flags: u32; addr: *mut sockaddr; }
}

structures! {
    ()
    /// C's identifier, whose fields change while the program has it.
    rdma_cm_id {
        verbs: Cell<*mut ibv_context>;
        channel: Cell<*mut rdma_event_channel>;
        context: *mut c_void;
        qp: Cell<*mut ibv_qp>;
        route: Cell<rdma_route>;
        ps: u32;
        port_num: Cell<u8>;
        event: Cell<*mut rdma_cm_event>;
        send_cq_channel: Cell<*mut ibv_comp_channel>;
        send_cq: Cell<*mut ibv_cq>;
        recv_cq_channel: Cell<*mut ibv_comp_channel>;
        recv_cq: Cell<*mut ibv_cq>;
        srq: Cell<*mut ibv_srq>;
        pd: Cell<*mut ibv_pd>;
        qp_type: u32;
    }
}

// SAFETY: only the thread of the call or event that has the parameters follows their pointer.
unsafe impl Send for rdma_conn_param {}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union rdma_param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
}
