//! Polling: what comes out of whatever the driver returns.

use std::ptr;

use fake_libibverbs::{ladder, with};
use verbs_core::PollSlot;
use verbs_core::error::ErrorKind;
use verbs_core::verbs_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use verbs_harness::assert_says;

fn done(wr_ids: std::ops::Range<u64>) {
    let of = |wr_id| ibv_wc {
        wr_id,
        qp_num: 0x11,
        ..Default::default()
    };
    with(|library| library.done.extend(wr_ids.map(of)));
}

#[test]
fn moderation_without_driver_support_is_unsupported() {
    let (_, _, cq) = ladder();
    let error = cq.moderate(16, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_says(&error, "ibv_modify_cq");
}

#[test]
fn polling_without_slots_takes_nothing() {
    let (_, _, cq) = ladder();
    done(0..1);
    assert!(cq.poll(&mut []).unwrap().is_empty());
    let mut slots = [const { PollSlot::new() }];
    assert_eq!(cq.poll(&mut slots).unwrap()[0].wr_id(), 0);
}

#[test]
fn unknown_codes_survive() {
    let (_, _, cq) = ladder();
    let failed = ibv_wc {
        wr_id: 3,
        status: ibv_wc_status(77),
        vendor_err: 0xdead,
        ..Default::default()
    };
    let odd = ibv_wc {
        opcode: ibv_wc_opcode(4711),
        ..Default::default()
    };
    with(|library| library.done.extend([failed, odd]));
    let mut slots = [const { PollSlot::new() }; 2];
    let polled = cq.poll(&mut slots).unwrap();
    let error = polled[0].result().unwrap_err();
    assert_eq!(
        (error.status.as_raw(), error.vendor_err, error.wr_id),
        (77, 0xdead, 3)
    );
    assert_says(&error, "ibv_wc_status(77)");
    assert_eq!(polled[1].result().unwrap().opcode().as_raw(), 4711);
}

#[test]
#[cfg_attr(miri, ignore = "100 GiB of addresses")]
fn slots_beyond_the_range_of_c_are_polled_in_part() {
    let (_, _, cq) = ladder();
    done(0..1);
    let count = usize::try_from(i32::MAX).unwrap() + 2;
    let len = count * size_of::<PollSlot>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, pages of which exist once they are touched.
    let slots = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    assert_ne!(slots, libc::MAP_FAILED, "100 GiB of addresses");
    let many = ptr::slice_from_raw_parts_mut(slots.cast::<PollSlot>(), count);
    // SAFETY: it is mapped, and a slot has no invalid bits.
    let polled = cq.poll(unsafe { &mut *many }).unwrap();
    assert_eq!(polled.len(), 1);
    assert_eq!(with(|library| library.rooms.clone()), [i32::MAX]);
    // SAFETY: it was mapped above, and is not used any more.
    unsafe { libc::munmap(slots, len) };
}
