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
pub(super) type Verb<T> = Option<T>;

structures! {
    ibv_context_ops {
        compat_first: [Absent; 7];
        alloc_mw: Verb<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mw>;
        bind_mw: Verb<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>;
        dealloc_mw: Verb<unsafe extern "C" fn(*mut ibv_mw) -> c_int>;
        compat_create_cq: Absent;
        poll_cq: Verb<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>;
        req_notify_cq: Verb<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>;
        compat_middle: [Absent; 7];
        post_srq_recv: Verb<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
        compat_qp: [Absent; 4];
        post_send: Verb<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>;
        post_recv: Verb<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
        compat_last: [Absent; 5];
    }
    ibv_context {
        device: *mut ibv_device;
        ops: ibv_context_ops;
        cmd_fd async_fd num_comp_vectors: c_int;
        mutex: pthread_mutex_t;
        abi_compat: *mut c_void;
    }
    ibv_query_device_ex_input { comp_mask: u32; }
    ibv_values_ex { comp_mask: u32; raw_clock: libc::timespec; }
    verbs_context {
        query_port: Verb<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>;
        advise_mr: Verb<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int>;
        alloc_null_mr: Absent;
        counters: [Absent; 4];
        device_memory flow_actions: [Absent; 3];
        modify_qp_rate_limit: Absent;
        thread_domains: [Absent; 3];
        modify_cq post_srq_ops: Absent;
        work_queues: [Absent; 5];
        query_rt_values: Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>;
        create_cq_ex: Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>;
        priv_: *mut c_void;
        query_device_ex: Verb<unsafe extern "C" fn(*mut ibv_context, *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex, usize) -> c_int>;
        flows: [Absent; 4];
        open_qp: Absent;
        create_qp_ex: Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>;
        get_srq_num: Absent;
        create_srq_ex: Verb<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>;
        xrc: [Absent; 2];
        placeholder: u64;
        sz: usize;
        context: ibv_context;
    }
}

/// `__VERBS_ABI_IS_EXTENDED`: the context is the end of a `verbs_context`.
pub(crate) const EXTENDED: usize = usize::MAX;
