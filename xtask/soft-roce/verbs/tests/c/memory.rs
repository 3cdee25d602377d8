//! Registration, and memory that is not there.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use soft_verbs::{Fabric, Profile};
use verbs_core::verbs_sys::*;
use verbs_harness::child::fork;

use crate::ladder::{Ladder, connect, element, errno, ok, post};

fn map(length: usize) -> *mut libc::c_void {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // Far from where memory is mapped by itself: other threads do not get the place when it is unmapped.
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 32);
    let place = NEXT.fetch_add(1 << 20, Ordering::Relaxed);
    let place = ptr::without_provenance_mut(place);
    unsafe { libc::mmap(place, length, protection, flags, -1, 0) }
}

/// A write of an element's bytes to this distance from them.
fn write(list: &mut ibv_sge, distance: u64, rkey: u32) -> ibv_send_wr {
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (list.addr + distance, rkey);
    (wr.opcode, wr.sg_list, wr.num_sge) = (IBV_WR_RDMA_WRITE, list, 1);
    wr
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
fn a_region_is_registered_anew_with_other_memory_and_access_or_stays() {
    let ladder = Ladder::new();
    let (mut first, mut second) = ([1_u8; 64], [2_u8; 32]);
    let mr = ladder.register(&mut first, IBV_ACCESS_LOCAL_WRITE);
    let before = unsafe { (*mr).lkey };
    let anew = |flags: u32, memory: *mut u8, length, access| unsafe {
        let flags = c_int::try_from(flags).unwrap();
        ibv_rereg_mr(mr, flags, ladder.pd, memory.cast(), length, access)
    };
    assert_eq!(anew(8, ptr::null_mut(), 0, 0), -1, "a flag that is none");
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(anew(4, ptr::null_mut(), 0, 2), -4, "remote write alone");
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(unsafe { ((*mr).lkey, (*mr).length) }, (before, 64));
    ok(anew(1, second.as_mut_ptr(), 32, 0));
    ok(anew(4, ptr::null_mut(), 0, 1 | 2));
    let found = unsafe { &*mr };
    assert_eq!((found.addr, found.length), (second.as_mut_ptr().cast(), 32));
    assert!(found.lkey != before && found.rkey != 0);
    // The keys before are none, and those now reach the other memory.
    let qp = ladder.queue_pair();
    let mut list = element(mr, 16);
    let mut wr = write(&mut list, 16, found.rkey);
    second[..16].fill(3);
    post(qp, &mut wr);
    ladder.success();
    assert_eq!(second, [3; 32]);
    unsafe { (*wr.sg_list).lkey = before };
    post(qp, &mut wr);
    assert_ne!(ladder.completion().status, IBV_WC_SUCCESS);
    ok(unsafe { ibv_destroy_qp(qp) });
    ok(unsafe { ibv_dereg_mr(mr) });
    ladder.end();
}

#[test]
fn a_parent_domain_is_its_domain_and_holds_it_up() {
    let profile = Profile {
        thread_domains: true,
        ..Profile::default()
    };
    let host = Fabric::real_time(1).host_with("a", profile);
    host.enter(parent_domain);
}

fn parent_domain() {
    let ladder = Ladder::new();
    let mut attributes: ibv_td_init_attr = unsafe { zeroed() };
    let td = unsafe { ibv_alloc_td(ladder.context, &raw mut attributes) };
    let mut attributes: ibv_parent_domain_init_attr = unsafe { zeroed() };
    assert!(unsafe { ibv_alloc_parent_domain(ladder.context, &raw mut attributes) }.is_null());
    assert_eq!(errno(), libc::EINVAL, "of no domain");
    (attributes.pd, attributes.td) = (ladder.pd, td);
    let parent = unsafe { ibv_alloc_parent_domain(ladder.context, &raw mut attributes) };
    assert_eq!(unsafe { ibv_dealloc_td(td) }, libc::EBUSY);
    assert_eq!(unsafe { ibv_dealloc_pd(ladder.pd) }, libc::EBUSY);
    // A queue pair of the one reaches memory of the other.
    let mut memory = [1, 2, 3, 4, 0, 0, 0, 0];
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    let mr = ladder.register(&mut memory, access);
    let mut init = ladder.attributes();
    let qp = unsafe { ibv_create_qp(parent, &raw mut init) };
    connect(qp, unsafe { (*qp).qp_num });
    let mut list = element(mr, 4);
    let mut wr = write(&mut list, 4, unsafe { (*mr).rkey });
    post(qp, &mut wr);
    ladder.success();
    assert_eq!(memory, [1, 2, 3, 4, 1, 2, 3, 4]);
    ok(unsafe { ibv_destroy_qp(qp) });
    ok(unsafe { ibv_dereg_mr(mr) });
    ok(unsafe { ibv_dealloc_pd(parent) });
    ok(unsafe { ibv_dealloc_td(td) });
    ladder.end();
}

/// A bad access of the program's own is a crash, as it would be without this library.
#[test]
fn a_fault_outside_of_the_card_ends_the_process() {
    let ladder = Ladder::new();
    let mr = ladder.register(&mut [0_u8; 64], IBV_ACCESS_LOCAL_WRITE);
    let nothing = unsafe { libc::mmap(ptr::null_mut(), 4096, 0, 0x22, -1, 0) };
    let child = fork();
    if child == 0 {
        unsafe { nothing.cast::<u8>().read_volatile() };
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV, "{status}");
    ok(unsafe { ibv_dereg_mr(mr) });
    ladder.end();
}

/// A region whose pages another thread takes away while the card writes to them is written, or an error.
#[test]
fn memory_that_is_taken_away_meanwhile_is_written_or_an_error() {
    const LENGTH: usize = 1 << 20;
    for round in 0..100 {
        let ladder = Ladder::new();
        let qp = ladder.queue_pair();
        let mut source = vec![1_u8; LENGTH];
        let from = ladder.register(&mut source, IBV_ACCESS_LOCAL_WRITE);
        let memory = map(LENGTH);
        let into = unsafe { ibv_reg_mr(ladder.pd, memory, LENGTH, 1 | 2) };
        let address = memory.expose_provenance();
        // The addresses stay taken, so that no other memory is there.
        let takes = std::thread::spawn(move || {
            (0..round * 1000).for_each(|_| std::hint::spin_loop());
            let memory = ptr::with_exposed_provenance_mut(address);
            ok(unsafe { libc::mprotect(memory, LENGTH, libc::PROT_NONE) });
        });
        let mut list = element(from, u32::try_from(LENGTH).unwrap());
        let mut wr = write(&mut list, 0, unsafe { (*into).rkey });
        wr.wr.rdma.remote_addr = address as u64;
        post(qp, &mut wr);
        // Written, or an error that ends the queue pair, which is its own peer.
        let status = ladder.completion().status;
        assert!([IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR].contains(&status));
        takes.join().unwrap();
        ok(unsafe { libc::munmap(memory, LENGTH) });
        ok(unsafe { ibv_destroy_qp(qp) });
        ok(unsafe { ibv_dereg_mr(from) });
        ok(unsafe { ibv_dereg_mr(into) });
        ladder.end();
    }
}
