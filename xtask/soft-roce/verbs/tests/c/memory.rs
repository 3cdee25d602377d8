//! Registration, and memory that is not there.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

use verbs_core::verbs_sys::*;

use crate::ladder::{Ladder, element, errno, ok, post};

fn map(length: usize) -> *mut libc::c_void {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) }
}

#[test]
fn memory_that_is_not_mapped_is_not_registered() {
    let ladder = Ladder::new();
    let memory = map(12288);
    let register = |flags: ibv_access_flags| {
        let flags = c_int::try_from(flags.0).unwrap();
        unsafe { ibv_reg_mr(ladder.pd, memory, 12288, flags) }
    };
    assert!(register(IBV_ACCESS_REMOTE_WRITE).is_null());
    assert_eq!(errno(), libc::EINVAL, "remote write without local write");
    assert!(register(ibv_access_flags(1 << 15)).is_null());
    assert_eq!(errno(), libc::EINVAL, "access that is none");
    ok(unsafe { libc::munmap(memory.wrapping_byte_add(8192), 4096) });
    assert!(register(IBV_ACCESS_LOCAL_WRITE).is_null());
    assert_eq!(errno(), libc::EFAULT);
    ok(unsafe { libc::munmap(memory, 8192) });
    ladder.end();
}

#[test]
fn memory_that_was_unmapped_is_an_error_of_the_operation() {
    let ladder = Ladder::new();
    let qp = ladder.queue_pair();
    let memory = map(4096);
    let mr = unsafe { ibv_reg_mr(ladder.pd, memory, 4096, 1) };
    ok(unsafe { libc::munmap(memory, 4096) });
    let mut list = element(mr, 100);
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.opcode, wr.sg_list, wr.num_sge) = (IBV_WR_SEND, &raw mut list, 1);
    post(qp, &mut wr);
    assert_eq!(ladder.completion().status, IBV_WC_LOC_PROT_ERR);
    ok(unsafe { ibv_destroy_qp(qp) });
    ok(unsafe { ibv_dereg_mr(mr) });
    ladder.end();
}
