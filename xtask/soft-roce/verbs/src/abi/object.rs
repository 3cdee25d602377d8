//! Objects.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::context::Open;

structures! {
    (Clone, Copy)
    ibv_device {
        ops: [*mut c_void; 2];
        node_type transport_type: u32;
        name dev_name: [c_char; 64];
        dev_path ibdev_path: [c_char; 256];
    }
    ibv_pd { context: Open; handle: u32; }
    ibv_mr {
        context: Open;
        pd: *mut ibv_pd;
        addr: *mut c_void;
        length: usize;
        handle lkey rkey: u32;
    }
    ibv_mw { context: Open; pd: *mut ibv_pd; rkey handle type_: u32; }
    ibv_srq {
        context: Open;
        srq_context: *mut c_void;
        pd: *mut ibv_pd;
        handle: u32;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        events_completed: u32;
    }
    ibv_ah { context: Open; pd: *mut ibv_pd; handle: u32; }
}

structures! {
    ()
    ibv_cq {
        context: Open;
        channel: *mut ibv_comp_channel;
        cq_context: *mut c_void;
        handle: u32;
        /// Resized while other threads use the queue.
        cqe: Cell<c_int>;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        comp_events_completed async_events_completed: u32;
    }
    ibv_qp {
        context: Open;
        qp_context: *mut c_void;
        pd: *mut ibv_pd;
        send_cq recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        handle qp_num: u32;
        /// Modified while other threads use the queue pair.
        state: AtomicU32;
        qp_type: u32;
        mutex: pthread_mutex_t;
        cond: pthread_cond_t;
        events_completed: u32;
    }
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: Open,
    pub(crate) fd: c_int,
    /// Queues that use the channel.
    pub(crate) refcnt: AtomicI32,
}
