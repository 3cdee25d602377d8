//! The context, with the verbs that are inline functions in C.
//!
//! A caller sees a null for a verb that the device lacks, and fails with `EOPNOTSUPP`; some call it without a look.

use std::ffi::{c_int, c_void};

use libc::pthread_mutex_t;

use super::attributes::{
    ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_port_attr, ibv_qp_init_attr_ex,
    ibv_srq_init_attr_ex,
};
use super::extended::ibv_cq_ex;
use super::object::{ibv_cq, ibv_device, ibv_mw, ibv_pd, ibv_qp, ibv_srq};
use super::request::{ibv_mw_bind, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};

/// A verb that is not in this table, or not there.
pub(crate) type Absent = *const c_void;
type Verb<T> = Option<T>;

#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) compat_first: [Absent; 7],
    pub(crate) alloc_mw: Verb<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mw>,
    pub(crate) bind_mw:
        Verb<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub(crate) dealloc_mw: Verb<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub(crate) compat_create_cq: Absent,
    pub(crate) poll_cq: Verb<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Verb<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) compat_middle: [Absent; 7],
    pub(crate) post_srq_recv:
        Verb<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) compat_qp: [Absent; 4],
    pub(crate) post_send:
        Verb<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv:
        Verb<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) compat_last: [Absent; 5],
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// `__VERBS_ABI_IS_EXTENDED`: the context is the end of a `verbs_context`.
pub(crate) const EXTENDED: usize = usize::MAX;

#[repr(C)]
pub(crate) struct ibv_query_device_ex_input {
    pub(crate) comp_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_values_ex {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}

#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) query_port:
        Verb<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub(crate) advise_mr:
        Verb<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int>,
    pub(crate) alloc_null_mr: Absent,
    pub(crate) counters: [Absent; 4],
    pub(crate) device_memory: [Absent; 3],
    pub(crate) flow_actions: [Absent; 3],
    pub(crate) modify_qp_rate_limit: Absent,
    pub(crate) thread_domains: [Absent; 3],
    pub(crate) modify_cq: Absent,
    pub(crate) post_srq_ops: Absent,
    pub(crate) work_queues: [Absent; 5],
    pub(crate) query_rt_values:
        Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub(crate) create_cq_ex:
        Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub(crate) priv_: *mut c_void,
    pub(crate) query_device_ex: Verb<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub(crate) flows: [Absent; 4],
    pub(crate) open_qp: Absent,
    pub(crate) create_qp_ex:
        Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub(crate) get_srq_num: Absent,
    pub(crate) create_srq_ex:
        Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub(crate) xrc: [Absent; 2],
    pub(crate) placeholder: u64,
    pub(crate) sz: usize,
    pub(crate) context: ibv_context,
}
