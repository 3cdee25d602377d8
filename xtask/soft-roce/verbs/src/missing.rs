//! Verbs that are not there yet: they fail with `EOPNOTSUPP`, and a line in the log.
#![expect(unsafe_code, reason = "C's functions")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::abi::context::verbs_context;
use crate::errno::fail;

pub(crate) fn lacks<T>(verb: &str, answer: T) -> T {
    log::warn!("soft-verbs has no {verb} yet");
    fail(libc::EOPNOTSUPP, answer)
}

/// Functions that ignore their arguments, which C's calling convention lets them.
macro_rules! missing {
    ($($(#[$has:meta])? $verb:ident -> $type:ty = $answer:expr;)*) => {
        $(
            $(#[$has])?
            #[unsafe(no_mangle)]
            extern "C" fn $verb() -> $type {
                lacks(stringify!($verb), $answer)
            }
        )*
    };
}

/// A pointer to a function that stands for an inline verb of C's.
macro_rules! absent {
    ($verb:literal -> object) => {
        absent!($verb, Object, NONE)
    };
    ($verb:literal -> errno) => {
        absent!($verb, c_int, libc::EOPNOTSUPP)
    };
    ($verb:literal, $type:ty, $answer:expr) => {{
        extern "C" fn absent() -> $type {
            lacks($verb, $answer)
        }
        // Miri wants each argument to be named: there, C's inline functions find none to call.
        if cfg!(miri) {
            ptr::null()
        } else {
            absent as *const c_void
        }
    }};
}

type Object = *mut c_void;
const NONE: Object = ptr::null_mut();

missing! {
    #[cfg(feature = "rdmacm")] rdma_create_srq_ex -> c_int = -1;
    #[cfg(feature = "rdmacm")] rdma_get_remote_ece -> c_int = -1;
    #[cfg(feature = "rdmacm")] rdma_reject_ece -> c_int = -1;
    #[cfg(feature = "rdmacm")] rdma_set_local_ece -> c_int = -1;
    #[cfg(feature = "rdmacm")] rdma_resolve_addrinfo -> c_int = -1;
    #[cfg(feature = "rdmacm")] rdma_query_addrinfo -> c_int = -1;
    #[cfg(feature = "rdmacm")] rdma_write_cm_event -> c_int = -1;
    ibv_import_device -> Object = NONE;
    ibv_import_pd -> Object = NONE;
    ibv_import_mr -> Object = NONE;
    ibv_import_dm -> Object = NONE;
    ibv_unimport_pd -> () = ();
    ibv_unimport_mr -> () = ();
    ibv_unimport_dm -> () = ();
    ibv_reg_dmabuf_mr -> Object = NONE;
    ibv_reg_mr_ex -> Object = NONE;
    ibv_alloc_dmah -> Object = NONE;
    ibv_dealloc_dmah -> c_int = libc::EOPNOTSUPP;
    ibv_dm_export_dmabuf_fd -> c_int = -1;
    ibv_query_port_speed -> c_int = libc::EOPNOTSUPP;
    ibv_alloc_buf -> Object = NONE;
    ibv_free_buf -> c_int = libc::EOPNOTSUPP;
    ibv_reg_buf_mr -> Object = NONE;
    ibv_export_buf_dmabuf_fd -> c_int = -1;
    ibv_create_comp_cntr -> Object = NONE;
    ibv_destroy_comp_cntr -> c_int = libc::EOPNOTSUPP;
    ibv_set_comp_cntr -> c_int = libc::EOPNOTSUPP;
    ibv_set_err_comp_cntr -> c_int = libc::EOPNOTSUPP;
    ibv_inc_comp_cntr -> c_int = libc::EOPNOTSUPP;
    ibv_inc_err_comp_cntr -> c_int = libc::EOPNOTSUPP;
    ibv_read_comp_cntr -> c_int = libc::EOPNOTSUPP;
    ibv_read_err_comp_cntr -> c_int = libc::EOPNOTSUPP;
    ibv_qp_attach_comp_cntr -> c_int = libc::EOPNOTSUPP;
    _ibv_query_comp_cntr_caps -> c_int = libc::EOPNOTSUPP;
    ibv_resolve_eth_l2_from_gid -> c_int = -1;
    ibv_read_sysfs_file -> c_int = -1;
    ibv_get_sysfs_path -> *const c_char = c"/nonexistent".as_ptr();
    ibv_set_ece -> c_int = libc::EOPNOTSUPP;
    ibv_query_ece -> c_int = libc::EOPNOTSUPP;
}

/// Fills the places of verbs that a context lacks.
pub(crate) fn fill(verbs: &mut verbs_context) {
    verbs.alloc_null_mr = absent!("ibv_alloc_null_mr" -> object);
    verbs.counters = [
        absent!("ibv_read_counters" -> errno),
        absent!("ibv_attach_counters_point_flow" -> errno),
        absent!("ibv_create_counters" -> object),
        absent!("ibv_destroy_counters" -> errno),
    ];
    verbs.device_memory = [
        absent!("ibv_reg_dm_mr" -> object),
        absent!("ibv_alloc_dm" -> object),
        absent!("ibv_free_dm" -> errno),
    ];
    verbs.flow_actions = [
        absent!("ibv_modify_flow_action_esp" -> errno),
        absent!("ibv_destroy_flow_action" -> errno),
        absent!("ibv_create_flow_action_esp" -> object),
    ];
    verbs.modify_qp_rate_limit = absent!("ibv_modify_qp_rate_limit" -> errno);
    verbs.modify_cq = absent!("ibv_modify_cq" -> errno);
    verbs.post_srq_ops = absent!("ibv_post_srq_ops" -> errno);
    verbs.work_queues = [
        absent!("ibv_destroy_rwq_ind_table" -> errno),
        absent!("ibv_create_rwq_ind_table" -> object),
        absent!("ibv_destroy_wq" -> errno),
        absent!("ibv_modify_wq" -> errno),
        absent!("ibv_create_wq" -> object),
    ];
    verbs.flows = [
        absent!("ibv_destroy_flow" -> errno),
        ptr::null(),
        absent!("ibv_create_flow" -> object),
        ptr::null(),
    ];
    verbs.open_qp = absent!("ibv_open_qp" -> object);
    verbs.get_srq_num = absent!("ibv_get_srq_num" -> errno);
    verbs.xrc = [
        absent!("ibv_open_xrcd" -> object),
        absent!("ibv_close_xrcd" -> errno),
    ];
}
