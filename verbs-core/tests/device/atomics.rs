//! Atomics on the peer's memory.

use std::sync::atomic::Ordering;

use verbs_core::codes::{WcOpcode, WcStatus};
use verbs_core::device::AtomicCap;
use verbs_core::work_request::{AtomicWorkRequest, WorkRequest};
use verbs_core::{AccessFlags, MemoryRegion, SharedRegion};
use verbs_harness::pair::{End, Pair};
use verbs_harness::{Test, begin};

pub(crate) fn can(test: &Test) -> bool {
    let can = verbs_harness::context()
        .query_device()
        .unwrap()
        .atomic_cap()
        != AtomicCap::NONE;
    if !can {
        test.skip("the device has no atomics");
    }
    can
}

fn counter(end: &End, values: &[u64]) -> SharedRegion<Vec<u64>> {
    let access = AccessFlags::REMOTE_ATOMIC | AccessFlags::REMOTE_READ;
    end.given(values.to_vec(), access)
}

fn before(region: &MemoryRegion<Vec<u64>>) -> u64 {
    region[0]
}

#[test]
#[ignore = "needs an RDMA device"]
fn fetch_and_add_adds_and_returns_the_previous_value() {
    let test = begin!();
    if !can(&test) {
        return;
    }
    for pair in Pair::everywhere() {
        let counter = counter(&pair.b, &[77, 40, 77]);
        let place = counter.remote().slice(8..16).unwrap();
        let mut result = pair.a.pd().reg_mr(vec![0_u64]).unwrap();
        for (add, was) in [(2, 40), (u64::MAX, 42), (0, 41)] {
            let mut element = result.scatter_element(..).unwrap();
            pair.a
                .post_one(AtomicWorkRequest::fetch_and_add(&mut element, &place, add).unwrap());
            let done = pair.a.sent();
            assert_eq!((done.opcode(), done.byte_len()), (WcOpcode::FETCH_ADD, 8));
            assert_eq!(before(&result), was);
        }
        let now = [0, 8, 16].map(|at| counter.atomic_u64(at).unwrap().load(Ordering::Acquire));
        assert_eq!(now, [77, 41, 77]);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn compare_and_swap_swaps_only_what_is_equal() {
    let test = begin!();
    if !can(&test) {
        return;
    }
    for pair in Pair::everywhere() {
        let counter = counter(&pair.b, &[5]);
        let mut result = pair.a.pd().reg_mr(vec![0_u64]).unwrap();
        for (compare, swap, was, is) in [(5, 9, 5, 9), (5, 1, 9, 9), (9, u64::MAX, 9, u64::MAX)] {
            let mut element = result.scatter_element(..).unwrap();
            let remote = counter.remote();
            let request = AtomicWorkRequest::compare_and_swap(&mut element, &remote, compare, swap);
            pair.a.post_one(request.unwrap());
            assert_eq!(pair.a.sent().opcode(), WcOpcode::COMP_SWAP);
            let now = counter.atomic_u64(0).unwrap().load(Ordering::Acquire);
            assert_eq!((before(&result), now), (was, is));
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_fenced_write_waits_for_the_atomic_before_it() {
    let test = begin!();
    if can(&test) {
        Pair::everywhere().iter().for_each(fenced);
    }
}

/// Writes what an atomic brings, right behind it.
pub(crate) fn fenced(pair: &Pair) {
    let access = AccessFlags::REMOTE_ATOMIC | AccessFlags::REMOTE_WRITE;
    let target = pair.b.given(vec![3_u64, 0], access);
    let mut result = pair.a.pd().reg_mr(vec![0_u64]).unwrap();
    let mut element = result.scatter_element(..).unwrap();
    // Sends on what the atomic brings: without the fence it may be sent before it is there.
    let mut list = [verbs_core::memory::Sge::from(element.as_gather())];
    let place = target.remote().slice(8..).unwrap();
    let write = verbs_core::WriteWorkRequest::new(&mut list, &place).unwrap();
    let mut chain: [WorkRequest<'_>; 2] = [
        AtomicWorkRequest::fetch_and_add(&mut element, &target.remote().slice(..8).unwrap(), 4)
            .unwrap()
            .into(),
        write.fence().into(),
    ];
    pair.a.post(&mut chain).unwrap();
    let done = pair.a.sends(2);
    assert!(
        done.iter().all(|done| done.status() == WcStatus::SUCCESS),
        "{done:?}"
    );
    let now = [0, 8].map(|at| target.atomic_u64(at).unwrap().load(Ordering::Acquire));
    assert_eq!(now, [7, 3]);
}
