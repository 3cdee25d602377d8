//! Memory windows.

use std::mem::zeroed;

use verbs_core::verbs_sys::*;

use crate::ladder::{Ladder, element, ok, post};

const ALL: ibv_access_flags =
    ibv_access_flags(IBV_ACCESS_LOCAL_WRITE.0 | IBV_ACCESS_REMOTE_WRITE.0 | IBV_ACCESS_MW_BIND.0);

/// Writes "hello" by a key, and returns how that ended.
fn write(ladder: &Ladder, qp: *mut ibv_qp, to: u64, rkey: u32) -> ibv_wc_status {
    let mut from = *b"hello";
    let mr = ladder.register(&mut from, IBV_ACCESS_LOCAL_WRITE);
    let mut list = element(mr, 5);
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.opcode, wr.sg_list, wr.num_sge) = (IBV_WR_RDMA_WRITE, &raw mut list, 1);
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = rkey;
    post(qp, &mut wr);
    let status = ladder.completion().status;
    ok(unsafe { ibv_dereg_mr(mr) });
    status
}

fn info(mr: *mut ibv_mr, length: u64) -> ibv_mw_bind_info {
    ibv_mw_bind_info {
        mr,
        addr: unsafe { (*mr).addr }.addr() as u64,
        length,
        mw_access_flags: IBV_ACCESS_REMOTE_WRITE.0,
    }
}

#[test]
fn a_window_of_type_1_gives_access_until_it_is_bound_to_nothing() {
    let ladder = Ladder::new();
    let qp = ladder.queue_pair();
    let mut memory = vec![0; 64];
    let mr = ladder.register(&mut memory, ALL);
    let mw = unsafe { ibv_alloc_mw(ladder.pd, IBV_MW_TYPE_1) };
    let unbound = unsafe { (*mw).rkey };
    let bind = |length| {
        let mut bind: ibv_mw_bind = unsafe { zeroed() };
        bind.bind_info = info(mr, length);
        ok(unsafe { ibv_bind_mw(qp, mw, &raw mut bind) });
        assert_eq!(ladder.success().opcode, IBV_WC_BIND_MW);
        unsafe { (*mw).rkey }
    };
    let rkey = bind(5);
    assert_ne!(rkey, unbound);
    assert_eq!(write(&ladder, qp, info(mr, 0).addr, rkey), IBV_WC_SUCCESS);
    assert_eq!(memory[..5], *b"hello");
    assert_ne!(unsafe { ibv_dereg_mr(mr) }, 0, "a window is bound to it");
    bind(0);
    assert_ne!(write(&ladder, qp, info(mr, 0).addr, rkey), IBV_WC_SUCCESS);
    ok(unsafe { ibv_dealloc_mw(mw) });
    ok(unsafe { ibv_dereg_mr(mr) });
    ok(unsafe { ibv_destroy_qp(qp) });
    ladder.end();
}

#[test]
fn a_window_of_type_2_is_bound_by_a_request_and_invalidated_by_another() {
    let ladder = Ladder::new();
    let qp = ladder.queue_pair();
    let mut memory = vec![0; 64];
    let mr = ladder.register(&mut memory, ALL);
    let mw = unsafe { ibv_alloc_mw(ladder.pd, IBV_MW_TYPE_2) };
    let mut type_1: ibv_mw_bind = unsafe { zeroed() };
    type_1.bind_info = info(mr, 64);
    assert_eq!(
        unsafe { ibv_bind_mw(qp, mw, &raw mut type_1) },
        libc::EINVAL
    );
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    wr.opcode = IBV_WR_BIND_MW;
    let rkey = unsafe { ibv_inc_rkey((*mw).rkey) };
    wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
        mw,
        rkey,
        bind_info: info(mr, 64),
    };
    post(qp, &mut wr);
    ladder.success();
    assert_eq!(write(&ladder, qp, info(mr, 0).addr, rkey), IBV_WC_SUCCESS);
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.__bindgen_anon_1.invalidate_rkey = rkey;
    post(qp, &mut wr);
    assert_eq!(ladder.success().opcode, IBV_WC_LOCAL_INV);
    assert_ne!(write(&ladder, qp, info(mr, 0).addr, rkey), IBV_WC_SUCCESS);
    // The window is known by its handle, whatever its key is now.
    ok(unsafe { ibv_dealloc_mw(mw) });
    ok(unsafe { ibv_dereg_mr(mr) });
    ok(unsafe { ibv_destroy_qp(qp) });
    ladder.end();
}
