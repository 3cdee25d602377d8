//! Broken promises that Miri has to report: otherwise, passing the other tests would
//! prove nothing. `cargo xtask miri` runs each by name and expects undefined behaviour.

use std::hint::black_box;
use std::ptr::NonNull;

use fake_libibverbs::{connected, with};
use verbs_core::verbs_sys::ibv_wc;
use verbs_core::{AccessFlags, PollSlot, QueuePair, ReceiveWorkRequest, Sge};

/// Posts a receive for these bytes.
fn post(qp: &QueuePair, sge: Sge) {
    let mut list = [sge];
    let mut request = [ReceiveWorkRequest::new(&mut list).wr_id(1)];
    // SAFETY: broken below.
    unsafe { qp.post_receive(&mut request) }.unwrap();
}

/// The receive completes: the device writes.
fn complete(qp: &QueuePair) {
    let done = ibv_wc {
        wr_id: 1,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
    let mut slots = [const { PollSlot::new() }];
    assert_eq!(qp.recv_cq().poll(&mut slots).unwrap().len(), 1);
}

#[test]
#[ignore = "breaks a promise"]
fn a_buffer_is_freed_while_it_is_posted() {
    let qp = connected();
    let mut region = qp.pd().reg_mr(vec![0_u8; 16]).unwrap();
    let element = region.scatter_element(..).unwrap().into_gather();
    post(&qp, element.into());
    drop(region);
    complete(&qp);
}

#[test]
#[ignore = "breaks a promise"]
fn a_buffer_is_borrowed_while_it_is_posted() {
    let qp = connected();
    let mut region = qp.pd().reg_mr(vec![0_u8; 16]).unwrap();
    let element = region.scatter_element(..).unwrap().into_gather();
    post(&qp, element.into());
    let bytes = black_box(&mut region[..]);
    bytes[0] = 1;
    complete(&qp);
    assert_eq!(bytes[0], 1);
}

#[test]
#[ignore = "breaks a promise"]
fn a_box_is_moved_after_its_address_was_taken() {
    let qp = connected();
    let mut buffer = vec![0_u8; 16].into_boxed_slice();
    let (start, access) = (NonNull::from(&mut buffer[..]), AccessFlags::LOCAL_WRITE);
    // SAFETY: the memory is valid; that nothing else claims it is what is broken.
    let region = unsafe { qp.pd().register_raw(start.cast(), buffer.len(), access, ()) }.unwrap();
    let moved = black_box(buffer);
    post(&qp, region.sge(..).unwrap());
    complete(&qp);
    drop(moved);
}
