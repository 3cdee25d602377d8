//! Verbs that are not there yet, and private functions of rdma-core: they fail with `EOPNOTSUPP`, and a line in the log.
#![expect(unsafe_code, reason = "C's functions")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::abi::context::verbs_context;
use crate::errno::fail;

fn lacks<T>(verb: &str, answer: T) -> T {
    log::warn!("soft-verbs has no {verb} yet");
    fail(libc::EOPNOTSUPP, answer)
}

/// Functions that ignore their arguments, which C's calling convention lets them; by their type and answer.
macro_rules! missing {
    ($($type:ty = $answer:expr => $($verb:ident)*;)*) => {
        $($(
            #[unsafe(no_mangle)]
            extern "C" fn $verb() -> $type {
                lacks(stringify!($verb), $answer)
            }
        )*)*
    };
}

/// Pointers to functions that stand for inline verbs of C's. An object and an errno are returned in the same register.
macro_rules! absent {
    ($($verb:ident = $answer:ident)*) => {
        [$({
            extern "C" fn absent() -> usize {
                lacks(stringify!($verb), $answer)
            }
            // Miri wants each argument to be named: there, C's inline functions find none to call.
            if cfg!(miri) { ptr::null() } else { absent as *const c_void }
        }),*]
    };
}

type Object = *mut c_void;
const NONE: Object = ptr::null_mut();

missing! {
    Object = NONE =>
        ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm ibv_reg_dmabuf_mr ibv_reg_mr_ex ibv_alloc_dmah
        ibv_alloc_buf ibv_reg_buf_mr ibv_create_comp_cntr;
    () = () => ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm;
    c_int = libc::EOPNOTSUPP =>
        ibv_dealloc_dmah ibv_query_port_speed ibv_free_buf ibv_destroy_comp_cntr ibv_set_comp_cntr
        ibv_set_err_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr
        ibv_qp_attach_comp_cntr _ibv_query_comp_cntr_caps ibv_set_ece ibv_query_ece;
    c_int = -1 => ibv_dm_export_dmabuf_fd ibv_export_buf_dmabuf_fd ibv_resolve_eth_l2_from_gid ibv_read_sysfs_file;
    *const c_char = c"/nonexistent".as_ptr() => ibv_get_sysfs_path;
}

#[cfg(feature = "rdmacm")]
missing! {
    c_int = -1 =>
        rdma_create_srq_ex rdma_get_remote_ece rdma_reject_ece rdma_set_local_ece rdma_resolve_addrinfo
        rdma_query_addrinfo rdma_write_cm_event;
}

/// Fills the places of verbs that a context lacks.
pub(crate) fn fill(verbs: &mut verbs_context) {
    const NULL: usize = 0;
    const ERRNO: usize = libc::EOPNOTSUPP as usize;
    [verbs.alloc_null_mr] = absent!(ibv_alloc_null_mr = NULL);
    verbs.counters = absent! {
        ibv_read_counters = ERRNO ibv_attach_counters_point_flow = ERRNO ibv_create_counters = NULL
        ibv_destroy_counters = ERRNO
    };
    verbs.device_memory = absent!(ibv_reg_dm_mr = NULL ibv_alloc_dm = NULL ibv_free_dm = ERRNO);
    verbs.flow_actions = absent! {
        ibv_modify_flow_action_esp = ERRNO ibv_destroy_flow_action = ERRNO ibv_create_flow_action_esp = NULL
    };
    [verbs.modify_qp_rate_limit] = absent!(ibv_modify_qp_rate_limit = ERRNO);
    [verbs.modify_cq, verbs.post_srq_ops] = absent!(ibv_modify_cq = ERRNO ibv_post_srq_ops = ERRNO);
    verbs.work_queues = absent! {
        ibv_destroy_rwq_ind_table = ERRNO ibv_create_rwq_ind_table = NULL ibv_destroy_wq = ERRNO ibv_modify_wq = ERRNO
        ibv_create_wq = NULL
    };
    [verbs.flows[0], verbs.flows[2]] = absent!(ibv_destroy_flow = ERRNO ibv_create_flow = NULL);
    [verbs.open_qp, verbs.get_srq_num] = absent!(ibv_open_qp = NULL ibv_get_srq_num = ERRNO);
    verbs.xrc = absent!(ibv_open_xrcd = NULL ibv_close_xrcd = ERRNO);
}

/// A provider that is loaded announces itself; the name that it calls has the version of its rdma-core in it.
#[unsafe(no_mangle)]
const extern "C" fn verbs_register_driver() {}

// Functions that rdma-core's libraries call in each other, and no program does. The loader wants them for a program that
// is linked with a provider's library, as perftest is with libmlx5. A version of rdma-core has them in a stanza of its
// own, `IBVERBS_PRIVATE_34` for one, which the shared library follows.
missing! {
    Object = NONE => _verbs_init_and_alloc_context verbs_open_device;
    *const c_char = c"unknown".as_ptr() => ibv_wr_opcode_str;
    c_int = libc::EOPNOTSUPP =>
        ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
        __ioctl_final_num_attrs __verbs_log execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah
        ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
        ibv_cmd_create_comp_cntr ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
        ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2
        ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw
        ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters
        ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp
        ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd
        ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
        ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
        ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send
        ibv_cmd_post_srq_recv ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context
        ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed ibv_cmd_query_qp
        ibv_cmd_query_srq ibv_cmd_read_comp_cntr ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr
        ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
        ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init
        ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free ibv_read_ibdev_sysfs_file verbs_allow_disassociate_destroy
        verbs_init_cq verbs_set_ops verbs_uninit_context;
}
