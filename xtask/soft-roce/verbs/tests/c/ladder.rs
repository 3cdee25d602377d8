//! A device with objects, as a program in C makes them.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::time::{Duration, Instant};

use soft_verbs as _;
use verbs_core::verbs_sys::*;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Asserts that C's function has returned 0.
pub(crate) fn ok(result: c_int) {
    assert_eq!(result, 0);
}

/// The errno of this thread.
pub(crate) fn errno() -> i32 {
    unsafe { *libc::__errno_location() }
}

/// A device that is open, a domain, and a completion queue on a channel.
pub(crate) struct Ladder {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq: *mut ibv_cq,
}

impl Ladder {
    pub(crate) fn new() -> Self {
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            let channel = ibv_create_comp_channel(context);
            Self {
                context,
                pd: ibv_alloc_pd(context),
                channel,
                cq: ibv_create_cq(context, 16, ptr::null_mut(), channel, 0),
            }
        }
    }

    /// Ends what `new` has made; all else has to have ended.
    pub(crate) fn end(self) {
        unsafe {
            ok(ibv_destroy_cq(self.cq));
            ok(ibv_destroy_comp_channel(self.channel));
            ok(ibv_dealloc_pd(self.pd));
            ok(ibv_close_device(self.context));
        }
    }

    pub(crate) fn attributes(&self) -> ibv_qp_init_attr {
        let mut init: ibv_qp_init_attr = unsafe { zeroed() };
        (init.send_cq, init.recv_cq) = (self.cq, self.cq);
        init.qp_type = IBV_QPT_RC;
        init.sq_sig_all = 1;
        init.cap = ibv_qp_cap {
            max_send_wr: 7,
            max_recv_wr: 7,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        init
    }

    /// A queue pair that is connected to itself.
    pub(crate) fn queue_pair(&self) -> *mut ibv_qp {
        let qp = unsafe { ibv_create_qp(self.pd, &mut self.attributes()) };
        let own = unsafe { (*qp).qp_num };
        connect(qp, own);
        qp
    }

    pub(crate) fn register(&self, memory: &mut [u8], access: ibv_access_flags) -> *mut ibv_mr {
        let (address, length) = (memory.as_mut_ptr().cast(), memory.len());
        let access = c_int::try_from(access.0).unwrap();
        let mr = unsafe { ibv_reg_mr(self.pd, address, length, access) };
        assert!(!mr.is_null());
        mr
    }

    /// Polls until there is a completion.
    pub(crate) fn completion(&self) -> ibv_wc {
        let mut wc: ibv_wc = unsafe { zeroed() };
        let start = Instant::now();
        while unsafe { ibv_poll_cq(self.cq, 1, &raw mut wc) } == 0 {
            assert!(start.elapsed() < PATIENCE, "no completion");
        }
        wc
    }

    /// Polls a completion, which is a success.
    pub(crate) fn success(&self) -> ibv_wc {
        let wc = self.completion();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        wc
    }
}

/// Connects a reliable queue pair to one of the same device.
pub(crate) fn connect(qp: *mut ibv_qp, peer: u32) {
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.port_num = 1;
    let remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr.qp_access_flags = remote.0;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    ok(unsafe { ibv_query_gid((*qp).context, 1, 0, &raw mut attr.ah_attr.grh.dgid) });
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (1, 1);
    (
        attr.min_rnr_timer,
        attr.timeout,
        attr.retry_cnt,
        attr.rnr_retry,
    ) = (1, 10, 2, 2);
    let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let rtr = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    let rts = IBV_QP_STATE
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC;
    for (state, mask) in [(IBV_QPS_INIT, init), (IBV_QPS_RTR, rtr), (IBV_QPS_RTS, rts)] {
        attr.qp_state = state;
        let mask = c_int::try_from(mask.0).unwrap();
        ok(unsafe { ibv_modify_qp(qp, &raw mut attr, mask) });
    }
}

/// Posts a receive without memory.
pub(crate) fn receive(qp: *mut ibv_qp) {
    let mut wr: ibv_recv_wr = unsafe { zeroed() };
    let mut bad = ptr::null_mut();
    ok(unsafe { ibv_post_recv(qp, &raw mut wr, &raw mut bad) });
}

/// Posts a send without bytes.
pub(crate) fn send(qp: *mut ibv_qp) {
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    wr.opcode = IBV_WR_SEND;
    post(qp, &mut wr);
}

/// Posts a request, with this element if there is one.
pub(crate) fn post(qp: *mut ibv_qp, wr: &mut ibv_send_wr) {
    let mut bad = ptr::null_mut();
    ok(unsafe { ibv_post_send(qp, wr, &raw mut bad) });
}

/// An element that names the beginning of a region.
pub(crate) fn element(mr: *mut ibv_mr, length: u32) -> ibv_sge {
    let mr = unsafe { &*mr };
    ibv_sge {
        addr: mr.addr.addr() as u64,
        length,
        lkey: mr.lkey,
    }
}
