//! Memberships in multicast groups: which of them end, and when the queue pair is detached.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fake_libibverbs::with;
use fake_librdmacm::{Arrival, alive, arrive};
use verbs_channel::__private::CmDatagrams;
use verbs_channel::Datagrams;
use verbs_channel::verbs_core::Device;
use verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
use verbs_channel::verbs_core::rdmacm::MulticastGroup;
use verbs_channel::verbs_core::verbs_sys::RDMA_CM_EVENT_MULTICAST_ERROR;
use verbs_harness::until;

use super::AsyncDatagrams;
use super::memberships::Joined;
use crate::events::CqEvents;

/// Only what hangs takes so long.
const LONG: Duration = Duration::from_secs(20);

/// Runs a test with an endpoint. Everything that is its own ends after that.
fn check(test: impl FnOnce(&AsyncDatagrams)) {
    let _shared = (fake_libibverbs::share(), fake_librdmacm::share());
    {
        let context = Device::by_name("fake0").unwrap().open().unwrap();
        fake_librdmacm::with(|manager| {
            manager.context = context.as_ptr();
            manager.joins = true;
        });
        let pd = context.alloc_pd().unwrap();
        let events = CqEvents::create_thread(&context).unwrap();
        let builder = Datagrams::builder(&pd).qkey(QKey::RDMA_UDP);
        test(&AsyncDatagrams::create(builder, &events).unwrap());
    }
    assert!(until(LONG, || alive() == 0));
    fake_librdmacm::assert_all_is_well();
    fake_libibverbs::assert_all_is_well();
}

/// A group that the port has joined: the same in each call.
fn group(datagrams: &AsyncDatagrams) -> (DatagramEndpoint, MulticastGroup) {
    let [local, group] = [[192, 0, 2, 1], [239, 1, 2, 3]].map(IpAddr::from);
    let (pd, port_num) = (datagrams.pd().clone(), datagrams.port_num());
    let ours = CmDatagrams::new(pd, port_num, datagrams.endpoint());
    let joining = ours.join(local, group);
    let group = joining.unwrap().wait(Some(LONG)).unwrap();
    let (endpoint, _handle) = ours.joined(&group).unwrap();
    (endpoint, group)
}

fn join(datagrams: &AsyncDatagrams) -> Joined {
    let (endpoint, group) = group(datagrams);
    Joined::new(Arc::clone(&datagrams.shared), endpoint, group).unwrap()
}

/// Leaves the group. Returns whether the endpoint was a member.
fn leaves(datagrams: &AsyncDatagrams, joined: &DatagramEndpoint) -> bool {
    let was_attached = is_attached();
    let has_left = datagrams.shared.leave(joined, ..).unwrap();
    assert_eq!((was_attached, is_attached()), (has_left, false));
    has_left
}

fn is_attached() -> bool {
    with(|library| library.attached.len() == 1)
}

#[test]
fn join_that_is_undone_ends_no_other_membership() {
    check(|datagrams| {
        let [first, second] = [join(datagrams), join(datagrams)];
        let endpoint = first.endpoint();
        drop(first);
        assert_eq!(alive(), 1);
        second.keep();
        drop(join(datagrams));
        assert_eq!(alive(), 1);
        assert!(leaves(datagrams, &endpoint));
        drop(join(datagrams));
        assert!(!leaves(datagrams, &endpoint));
    });
}

#[test]
fn join_that_is_kept_replaces_those_before_it() {
    check(|datagrams| {
        let [first, second, third] = [(); 3].map(|()| join(datagrams));
        let endpoint = first.endpoint();
        second.keep();
        // A helper thread leaves the first.
        assert!(until(LONG, || alive() == 2));
        drop(first);
        third.keep();
        assert!(until(LONG, || alive() == 1));
        assert!(leaves(datagrams, &endpoint));
        assert_eq!(alive(), 0);
    });
}

#[test]
fn leaving_ends_what_is_being_joined_too() {
    check(|datagrams| {
        let [first, second] = [join(datagrams), join(datagrams)];
        let endpoint = first.endpoint();
        assert!(leaves(datagrams, &endpoint));
        first.keep();
        drop(second);
        assert!(!leaves(datagrams, &endpoint));
    });
}

#[test]
fn membership_that_the_network_ends_is_left_alone() {
    check(|datagrams| {
        join(datagrams).keep();
        let second = join(datagrams);
        let endpoint = second.endpoint();
        arrive(
            0,
            Arrival::of(RDMA_CM_EVENT_MULTICAST_ERROR, -libc::ENETRESET),
        );
        let (ended, number) = datagrams.ended_group().unwrap().unwrap();
        assert_eq!(ended, endpoint);
        for has_left in [true, false] {
            let left = datagrams.shared.leave(&ended, number..=number);
            assert_eq!(left.unwrap(), has_left);
        }
        assert!(datagrams.ended_group().unwrap().is_none());
        second.keep();
        assert!(leaves(datagrams, &endpoint));
    });
}

#[test]
fn refused_leave_leaves_the_endpoint_a_member() {
    check(|datagrams| {
        let first = join(datagrams);
        let endpoint = first.endpoint();
        first.keep();
        with(|library| library.refuse.push(("ibv_detach_mcast", libc::EBUSY)));
        datagrams.shared.leave(&endpoint, ..).unwrap_err();
        assert!(leaves(datagrams, &endpoint));
        // A join that is undone later still ends its own.
        let undone = join(datagrams);
        with(|library| library.refuse.push(("ibv_detach_mcast", libc::EBUSY)));
        datagrams.shared.leave(&endpoint, ..).unwrap_err();
        drop(undone);
        assert!(!leaves(datagrams, &endpoint));
    });
}
