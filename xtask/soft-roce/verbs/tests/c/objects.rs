//! Objects in use are not destroyed, and wrong arguments are refused.

use std::mem::zeroed;
use std::ptr;

use verbs_core::verbs_sys::*;

use crate::ladder::{Ladder, connect, element, errno, ok, post};

#[test]
fn destroying_an_object_in_use_is_busy() {
    let ladder = Ladder::new();
    let Ladder {
        pd, channel, cq, ..
    } = ladder;
    let mut grh_of: ibv_ah_attr = unsafe { zeroed() };
    (grh_of.is_global, grh_of.port_num) = (1, 1);
    let ah = unsafe { ibv_create_ah(pd, &raw mut grh_of) };
    assert_eq!(
        unsafe { ibv_dealloc_pd(pd) },
        libc::EBUSY,
        "an address handle"
    );
    ok(unsafe { ibv_destroy_ah(ah) });
    let qp = ladder.queue_pair();
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, libc::EBUSY, "a queue pair");
    assert_eq!(unsafe { ibv_dealloc_pd(pd) }, libc::EBUSY, "a queue pair");
    assert_eq!(
        unsafe { ibv_destroy_comp_channel(channel) },
        libc::EBUSY,
        "a queue"
    );
    ok(unsafe { ibv_destroy_qp(qp) });
    ladder.end();
}

#[test]
fn a_closed_device_s_objects_serve_no_peer_and_can_be_destroyed() {
    let (left, other) = (Ladder::new(), Ladder::new());
    let mut memory = [0; 8];
    let mr = left.register(
        &mut memory,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
    );
    let queue_pair = |of: &Ladder| unsafe { ibv_create_qp(of.pd, &mut of.attributes()) };
    let [served, serves] = [&other, &left].map(queue_pair);
    connect(served, unsafe { (*serves).qp_num });
    connect(serves, unsafe { (*served).qp_num });
    ok(unsafe { ibv_close_device(left.context) });
    let mut write: ibv_send_wr = unsafe { zeroed() };
    (write.opcode, write.num_sge) = (IBV_WR_RDMA_WRITE, 1);
    let mut bytes = [1; 8];
    let from = other.register(&mut bytes, IBV_ACCESS_LOCAL_WRITE);
    let mut element = element(from, 8);
    write.sg_list = &raw mut element;
    write.wr.rdma.remote_addr = memory.as_ptr().addr() as u64;
    write.wr.rdma.rkey = unsafe { (*mr).rkey };
    post(served, &mut write);
    assert_eq!(other.completion().status, IBV_WC_RETRY_EXC_ERR);
    assert_eq!(memory, [0; 8]);
    ok(unsafe { ibv_destroy_qp(serves) });
    ok(unsafe { ibv_dereg_mr(mr) });
    ok(unsafe { ibv_destroy_qp(served) });
    ok(unsafe { ibv_dereg_mr(from) });
    other.end();
}

#[test]
fn arguments_that_c_refuses_are_refused() {
    let ladder = Ladder::new();
    let Ladder { context, pd, .. } = ladder;
    let none = ptr::null_mut();
    for (capacity, vector) in [(0, 0), (-1, 0), (1 << 20, 0), (16, 1), (16, -1)] {
        assert!(
            unsafe { ibv_create_cq(context, capacity, none, ptr::null_mut(), vector) }.is_null()
        );
        assert_eq!(errno(), libc::EINVAL);
    }
    let mut raw = ladder.attributes();
    raw.qp_type = IBV_QPT_RAW_PACKET;
    assert!(unsafe { ibv_create_qp(pd, &raw mut raw) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);
    let mut without_cq = ladder.attributes();
    without_cq.recv_cq = ptr::null_mut();
    assert!(unsafe { ibv_create_qp(pd, &raw mut without_cq) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
    let mut gid: ibv_gid = unsafe { zeroed() };
    for index in [-1, 16] {
        assert_eq!(
            unsafe { ibv_query_gid(context, 1, index, &raw mut gid) },
            -1
        );
    }
    let mut entry: ibv_gid_entry = unsafe { zeroed() };
    assert_eq!(
        unsafe { ibv_query_gid_ex(context, 1, 9, &raw mut entry, 0) },
        libc::ENODATA
    );
    assert_eq!(
        unsafe { ibv_query_gid_ex(context, 1, 0, &raw mut entry, 1) },
        libc::EINVAL
    );
    let room = unsafe { ibv_query_gid_table(context, &raw mut entry, 1, 0) };
    assert_eq!(room, -libc::EINVAL as isize, "there are two");
    ladder.end();
}
