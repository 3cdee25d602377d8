//! Extended completion queues and queue pairs, and queries.

use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::Duration;

use soft_verbs::{Fabric, Profile};
use verbs_core::verbs_sys::*;

use crate::ladder::{Ladder, connect, errno, ok, receive};

fn attributes(ladder: &Ladder, operations: ibv_qp_create_send_ops_flags) -> ibv_qp_init_attr_ex {
    let basic = ladder.attributes();
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    (init.send_cq, init.recv_cq) = (basic.send_cq, basic.recv_cq);
    (init.cap, init.qp_type, init.pd) = (basic.cap, basic.qp_type, ladder.pd);
    init.comp_mask = IBV_QP_INIT_ATTR_PD.0 | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    init.send_ops_flags = u64::from(operations.0);
    init
}

fn queue_pair(ladder: &Ladder) -> *mut ibv_qp_ex {
    let operations = IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let mut init = attributes(ladder, operations);
    let qp = unsafe { ibv_create_qp_ex(ladder.context, &raw mut init) };
    assert!(!qp.is_null());
    connect(qp, unsafe { (*qp).qp_num });
    unsafe { ibv_qp_to_qp_ex(qp) }
}

#[test]
fn requests_that_are_made_by_calls_are_posted_together() {
    let ladder = Ladder::new();
    let qp = queue_pair(&ladder);
    receive(qp.cast());
    let mut memory = vec![0; 8];
    let mr = ladder.register(
        &mut memory,
        ibv_access_flags(IBV_ACCESS_LOCAL_WRITE.0 | IBV_ACCESS_REMOTE_ATOMIC.0),
    );
    let mut before = vec![9; 8];
    let sink = ladder.register(&mut before, IBV_ACCESS_LOCAL_WRITE);
    let (address, sink_address) = unsafe { ((*mr).addr.addr() as u64, (*sink).addr.addr() as u64) };
    unsafe {
        ibv_wr_start(qp);
        ((*qp).wr_id, (*qp).wr_flags) = (1, IBV_SEND_SIGNALED.0);
        ibv_wr_send_imm(qp, __be32(7_u32.to_be()));
        ibv_wr_set_inline_data(qp, ptr::null_mut(), 0);
        ((*qp).wr_id, (*qp).wr_flags) = (2, IBV_SEND_SIGNALED.0);
        ibv_wr_atomic_fetch_add(qp, (*mr).rkey, address, 5);
        ibv_wr_set_sge(qp, (*sink).lkey, sink_address, 8);
        ok(ibv_wr_complete(qp));
    }
    let found = [(); 3].map(|()| ladder.success());
    let of = |opcode| found.iter().find(|wc| wc.opcode == opcode).unwrap();
    assert_eq!(of(IBV_WC_FETCH_ADD).wr_id, 2);
    assert_eq!(
        unsafe { of(IBV_WC_RECV).__bindgen_anon_1.imm_data.0 },
        7_u32.to_be()
    );
    assert_eq!(
        (&memory[..], &before[..]),
        (&5_u64.to_ne_bytes()[..], &[0; 8][..])
    );
    unsafe {
        ok(ibv_destroy_qp(qp.cast()));
        ok(ibv_dereg_mr(mr));
        ok(ibv_dereg_mr(sink));
    }
    ladder.end();
}

#[test]
fn nothing_is_posted_if_one_request_is_refused_or_all_are_aborted() {
    let ladder = Ladder::new();
    let qp = queue_pair(&ladder);
    let mut none: ibv_wc = unsafe { zeroed() };
    unsafe {
        (*qp).wr_flags = IBV_SEND_SIGNALED.0;
        ibv_wr_start(qp);
        ibv_wr_send(qp);
        ibv_wr_send(qp);
        let mut long = [0_u8; 65];
        ibv_wr_set_inline_data(qp, long.as_mut_ptr().cast(), 65);
        assert_eq!(ibv_wr_complete(qp), libc::EINVAL);
        ibv_wr_start(qp);
        (0..8).for_each(|_| ibv_wr_send(qp));
        assert_eq!(ibv_wr_complete(qp), libc::ENOMEM, "there is room for seven");
        ibv_wr_start(qp);
        ibv_wr_send(qp);
        ibv_wr_abort(qp);
        assert_eq!(ibv_poll_cq(ladder.cq, 1, &raw mut none), 0);
        ok(ibv_destroy_qp(qp.cast()));
    }
    ladder.end();
}

#[test]
fn operations_that_the_device_lacks_are_refused() {
    let ladder = Ladder::new();
    let mut init = attributes(&ladder, IBV_QP_EX_WITH_TSO);
    assert!(unsafe { ibv_create_qp_ex(ladder.context, &raw mut init) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let basic = ladder.queue_pair();
    assert!(
        unsafe { ibv_qp_to_qp_ex(basic) }.is_null(),
        "it has no calls"
    );
    ok(unsafe { ibv_destroy_qp(basic) });
    ladder.end();
}

#[test]
fn completions_are_read_field_by_field() {
    let ladder = Ladder::new();
    let mut wanted: ibv_cq_init_attr_ex = unsafe { zeroed() };
    wanted.cqe = 8;
    wanted.wc_flags = 1 << 7;
    let stamped = unsafe { ibv_create_cq_ex(ladder.context, &raw mut wanted) };
    assert!(
        stamped.is_null() && errno() == libc::EOPNOTSUPP,
        "no time stamps"
    );
    wanted.wc_flags = 0x7f;
    let cq = unsafe { ibv_create_cq_ex(ladder.context, &raw mut wanted) };
    let mut init = ladder.attributes();
    (init.send_cq, init.recv_cq) = (cq.cast(), cq.cast());
    let qp = unsafe { ibv_create_qp(ladder.pd, &raw mut init) };
    connect(qp, unsafe { (*qp).qp_num });
    receive(qp);
    let mut bytes = *b"hello";
    let mut list = ibv_sge {
        addr: bytes.as_mut_ptr().addr() as u64,
        length: 0,
        lkey: 0,
    };
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.wr_id, wr.opcode, wr.sg_list, wr.num_sge) = (3, IBV_WR_SEND_WITH_IMM, &raw mut list, 1);
    wr.send_flags = IBV_SEND_INLINE.0;
    wr.__bindgen_anon_1.imm_data = __be32(9_u32.to_be());
    crate::ladder::post(qp, &mut wr);
    let mut attr: ibv_poll_cq_attr = unsafe { zeroed() };
    let mut seen = Vec::new();
    unsafe {
        ok(ibv_start_poll(cq, &raw mut attr));
        loop {
            assert_eq!((*cq).status, IBV_WC_SUCCESS);
            assert_eq!(ibv_wc_read_qp_num(cq), (*qp).qp_num);
            let flags = ibv_wc_read_wc_flags(cq);
            seen.push((
                ibv_wc_read_opcode(cq),
                (*cq).wr_id,
                flags,
                ibv_wc_read_imm_data(cq).0,
            ));
            let next = ibv_next_poll(cq);
            if next == libc::ENOENT {
                break;
            }
            ok(next);
        }
        ibv_end_poll(cq);
        assert_eq!(ibv_start_poll(cq, &raw mut attr), libc::ENOENT);
    }
    seen.sort_by_key(|(opcode, ..)| opcode.0);
    let received = (IBV_WC_RECV, 0, IBV_WC_WITH_IMM.0, 9_u32.to_be());
    assert_eq!(seen, [(IBV_WC_SEND, 3, 0, 0), received]);
    ok(unsafe { ibv_destroy_qp(qp) });
    ok(unsafe { ibv_destroy_cq(cq.cast()) });
    ladder.end();
}

#[test]
fn a_shorter_structure_of_an_older_header_is_not_overrun() {
    let ladder = Ladder::new();
    let mut room = [0xa5_u8; size_of::<ibv_port_attr>()];
    let exported: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> i32 = {
        unsafe extern "C" {
            fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr)
            -> i32;
        }
        ibv_query_port
    };
    ok(unsafe { exported(ladder.context, 1, room.as_mut_ptr().cast()) });
    assert_eq!(room[..4], 4_u32.to_ne_bytes(), "active");
    assert_eq!(room.last(), Some(&0xa5));
    ladder.end();
}

#[test]
fn the_clock_of_a_device_is_that_of_its_time_stamps() {
    let clock = |ladder: &Ladder| unsafe {
        let mut values: ibv_values_ex = zeroed();
        values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK.0;
        ok(ibv_query_rt_values_ex(ladder.context, &raw mut values));
        (values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK.0).then_some(values.raw_clock.tv_nsec)
    };
    assert_eq!(clock(&Ladder::new()), None);
    let fabric = Fabric::seeded(1);
    let host = fabric.host_with("clock", Profile::hostile());
    host.enter(|| {
        let ladder = Ladder::new();
        fabric.run_for(Duration::from_millis(5));
        let now = fabric.now().as_nanos();
        assert_eq!(
            clock(&ladder).map(i64::cast_unsigned),
            u64::try_from(now).ok()
        );
        assert!(now >= 5_000_000);
    });
}
