//! The context, with the verbs that are inline functions in C.
//!
//! A caller sees a null for a verb that the device lacks, and fails with `EOPNOTSUPP`; some call it without a look.

use std::ffi::{c_int, c_void};

use libc::pthread_mutex_t;

use super::object::ibv_device;

/// A function, or null for a verb that is not in this table, or not there.
pub(crate) type Verb = *const c_void;

/// C's pointer to a context, which is open, or null in an object that is not made yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(transparent)]
pub(crate) struct Open(pub(crate) *mut ibv_context);

structures! {
    (Clone, Copy)
    ibv_context_ops {
        compat_first: [Verb; 7];
        alloc_mw bind_mw dealloc_mw compat_create_cq poll_cq req_notify_cq: Verb;
        compat_middle: [Verb; 7];
        post_srq_recv: Verb;
        compat_qp: [Verb; 4];
        post_send post_recv: Verb;
        compat_last: [Verb; 5];
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
        query_port advise_mr alloc_null_mr: Verb;
        counters: [Verb; 4];
        device_memory flow_actions: [Verb; 3];
        modify_qp_rate_limit alloc_parent_domain dealloc_td alloc_td modify_cq post_srq_ops: Verb;
        work_queues: [Verb; 5];
        query_rt_values create_cq_ex: Verb;
        priv_: *mut c_void;
        query_device_ex: Verb;
        flows: [Verb; 4];
        open_qp create_qp_ex get_srq_num create_srq_ex: Verb;
        xrc: [Verb; 2];
        placeholder: u64;
        sz: usize;
        context: ibv_context;
    }
}

/// `__VERBS_ABI_IS_EXTENDED`: the context is the end of a `verbs_context`.
pub(crate) const EXTENDED: usize = usize::MAX;
