//! Memberships in multicast groups: which of them end, and when the queue pair is detached.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use soft_verbs::{Fabric, Host};
use verbs_channel::__private::CmDatagrams;
use verbs_channel::Datagrams;
use verbs_channel::verbs_core::Context;
use verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
use verbs_channel::verbs_core::rdmacm::MulticastGroup;
use verbs_channel::verbs_core::verbs_sys::RDMA_CM_EVENT_MULTICAST_ERROR;
use verbs_harness::until;

use super::AsyncDatagrams;
use super::memberships::Joined;
use crate::events::CqEvents;

/// Only what hangs takes so long.
const LONG: Duration = Duration::from_secs(20);

/// An endpoint of a host.
struct Test {
    host: Host,
    datagrams: AsyncDatagrams,
    /// How often its queue pair was attached and not detached.
    attached: Arc<AtomicUsize>,
}

/// Runs a test with an endpoint. It ends, and so do its memberships.
fn check(test: impl FnOnce(&Test)) {
    let host = Fabric::real_time(1).host("a");
    let attached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attached);
    host.before(move |verb| {
        match verb {
            "ibv_attach_mcast" => count.fetch_add(1, Ordering::Relaxed),
            "ibv_detach_mcast" => count.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    });
    host.enter(|| {
        let context = Context::first_active().unwrap();
        let events = CqEvents::create_thread(&context).unwrap();
        let pd = context.alloc_pd().unwrap();
        let builder = Datagrams::builder(&pd).qkey(QKey::RDMA_UDP);
        test(&Test {
            host: host.clone(),
            datagrams: AsyncDatagrams::create(builder, &events).unwrap(),
            attached,
        });
    });
    assert!(until(LONG, || host.cm_ids() == 0));
}

impl Test {
    /// A group that the port has joined: the same in each call.
    fn group(&self) -> (DatagramEndpoint, MulticastGroup) {
        let [local, group] = [[10, 0, 0, 1], [239, 1, 2, 3]].map(IpAddr::from);
        let datagrams = &self.datagrams;
        let (pd, port_num) = (datagrams.pd().clone(), datagrams.port_num());
        let ours = CmDatagrams::new(pd, port_num, datagrams.endpoint());
        let joining = ours.join(local, group);
        let group = joining.unwrap().wait(Some(LONG)).unwrap();
        let (endpoint, _handle) = ours.joined(&group).unwrap();
        (endpoint, group)
    }

    fn join(&self) -> Joined {
        let (endpoint, group) = self.group();
        Joined::new(Arc::clone(&self.datagrams.shared), endpoint, group).unwrap()
    }

    /// Leaves the group. Returns whether the endpoint was a member.
    fn leaves(&self, joined: &DatagramEndpoint) -> bool {
        let is_attached = || self.attached.load(Ordering::Relaxed) == 1;
        let was_attached = is_attached();
        let has_left = self.datagrams.shared.leave(joined, ..).unwrap();
        assert_eq!((was_attached, is_attached()), (has_left, false));
        has_left
    }

    /// The driver does not let it leave.
    fn is_kept(&self, joined: &DatagramEndpoint) {
        self.host.refuse("ibv_detach_mcast", libc::EBUSY);
        self.datagrams.shared.leave(joined, ..).unwrap_err();
        self.attached.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until this number of memberships is left.
    fn are_left(&self, count: usize) {
        assert!(until(LONG, || self.host.cm_ids() == count));
    }
}

#[test]
fn join_that_is_undone_ends_no_other_membership() {
    check(|test| {
        let [first, second] = [test.join(), test.join()];
        let endpoint = first.endpoint();
        drop(first);
        assert_eq!(test.host.cm_ids(), 1);
        second.keep();
        drop(test.join());
        assert_eq!(test.host.cm_ids(), 1);
        assert!(test.leaves(&endpoint));
        drop(test.join());
        assert!(!test.leaves(&endpoint));
    });
}

#[test]
fn join_that_is_kept_replaces_those_before_it() {
    check(|test| {
        let [first, second, third] = [(); 3].map(|()| test.join());
        let endpoint = first.endpoint();
        second.keep();
        // A helper thread leaves the first.
        test.are_left(2);
        drop(first);
        third.keep();
        test.are_left(1);
        assert!(test.leaves(&endpoint));
        assert_eq!(test.host.cm_ids(), 0);
    });
}

#[test]
fn leaving_ends_what_is_being_joined_too() {
    check(|test| {
        let [first, second] = [test.join(), test.join()];
        let endpoint = first.endpoint();
        assert!(test.leaves(&endpoint));
        first.keep();
        drop(second);
        assert!(!test.leaves(&endpoint));
    });
}

#[test]
fn membership_that_the_network_ends_is_left_alone() {
    check(|test| {
        test.join().keep();
        let error = RDMA_CM_EVENT_MULTICAST_ERROR.0;
        test.host.cm_event(error, -libc::ENETRESET, b"");
        let second = test.join();
        let endpoint = second.endpoint();
        let (ended, number) = test.datagrams.ended_group().unwrap().unwrap();
        assert_eq!(ended, endpoint);
        for has_left in [true, false] {
            let left = test.datagrams.shared.leave(&ended, number..=number);
            assert_eq!(left.unwrap(), has_left);
        }
        assert!(test.datagrams.ended_group().unwrap().is_none());
        second.keep();
        assert!(test.leaves(&endpoint));
    });
}

#[test]
fn refused_leave_leaves_the_endpoint_a_member() {
    check(|test| {
        let first = test.join();
        let endpoint = first.endpoint();
        first.keep();
        test.is_kept(&endpoint);
        assert!(test.leaves(&endpoint));
        // A join that is undone later still ends its own.
        let undone = test.join();
        test.is_kept(&endpoint);
        drop(undone);
        assert!(!test.leaves(&endpoint));
    });
}
