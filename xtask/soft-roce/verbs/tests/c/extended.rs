//! Extended completion queues and queue pairs, and queries.

use std::mem::{size_of, zeroed};
use std::time::Duration;

use soft_verbs::{Fabric, Profile};
use verbs_core::verbs_sys::*;

use crate::ladder::{Ladder, errno, ok};

fn attributes(ladder: &Ladder, operations: ibv_qp_create_send_ops_flags) -> ibv_qp_init_attr_ex {
    let basic = ladder.attributes();
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    (init.send_cq, init.recv_cq) = (basic.send_cq, basic.recv_cq);
    (init.cap, init.qp_type, init.pd) = (basic.cap, basic.qp_type, ladder.pd);
    init.comp_mask = IBV_QP_INIT_ATTR_PD.0 | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    init.send_ops_flags = u64::from(operations.0);
    init
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
