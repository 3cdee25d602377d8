//! Broken promises that Miri has to report: otherwise, passing the other tests would prove nothing.
//! `cargo xtask miri` runs each by name and expects undefined behaviour.
#![expect(
    unsafe_code,
    reason = "registers memory and breaks the promise about it"
)]

use std::hint::black_box;
use std::ptr::NonNull;

use soft_verbs::Fabric;
use verbs_channel::verbs_core::AccessFlags;

use crate::ends::{channels, hosts};

/// Runs a function while a receive is posted for these bytes, for which a message then comes.
fn while_posted<T>(bytes: NonNull<[u8]>, run: impl FnOnce() -> T) -> T {
    let fabric = Fabric::seeded(7);
    let [a, b] = hosts(&fabric);
    let [mut left, mut right] = channels(&a, &b).expect("they connect");
    let (access, length) = (AccessFlags::LOCAL_WRITE, bytes.len());
    // SAFETY: the memory is valid now; `run` breaks the promise that it stays so, and is not used.
    let region = unsafe { right.pd().register_raw(bytes.cast(), length, access, ()) };
    let region = region.expect("it is mapped");
    // SAFETY: `run` breaks the promise that the memory is left to the device.
    let posted = unsafe { right.post_receive_unpolled(region.element(..).expect("all of it")) };
    let receive = posted.expect("there is room");
    let result = run();
    let hello = left.pd().reg_mr(vec![7_u8; length]).expect("it is mapped");
    let list = hello.gather_element(..).expect("all of it");
    a.enter(|| left.send(list)).expect("it is received");
    assert!(matches!(right.wait(receive, None), Ok(Some(_))));
    result
}

#[test]
#[ignore = "breaks a promise"]
fn a_buffer_is_freed_while_it_is_posted() {
    let mut buffer = vec![0_u8; 16];
    while_posted(NonNull::from(&mut buffer[..]), || drop(buffer));
}

#[test]
#[ignore = "breaks a promise"]
fn a_buffer_is_borrowed_while_it_is_posted() {
    let mut buffer = vec![0_u8; 16];
    let posted = NonNull::from(&mut buffer[..]);
    let bytes = while_posted(posted, || black_box(&mut buffer[..]));
    bytes[0] = 1;
}

#[test]
#[ignore = "breaks a promise"]
fn a_box_is_moved_after_its_address_was_taken() {
    let mut buffer = vec![0_u8; 16].into_boxed_slice();
    let posted = NonNull::from(&mut buffer[..]);
    drop(while_posted(posted, || black_box(buffer)));
}
