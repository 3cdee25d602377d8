//! Multicast groups whose membership the network ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use soft_verbs::Host;
use verbs_channel::Datagrams;
use verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
use verbs_channel::verbs_core::verbs_sys::RDMA_CM_EVENT_MULTICAST_ERROR;

use super::{in_virtual_time, pd};

/// Runs a test with an endpoint, whose queue pair is attached to no group afterwards.
fn with_an_endpoint(test: impl FnOnce(&Host, &mut Datagrams)) {
    let attached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attached);
    in_virtual_time(|host, _| {
        host.before(move |verb| {
            match verb {
                "ibv_attach_mcast" => count.fetch_add(1, Ordering::Relaxed),
                "ibv_detach_mcast" => count.fetch_sub(1, Ordering::Relaxed),
                _ => 0,
            };
        });
        let builder = Datagrams::builder(&pd()).qkey(QKey::RDMA_UDP);
        let mut datagrams = builder.build().unwrap();
        test(host, &mut datagrams);
        assert_eq!(attached.load(Ordering::Relaxed), 0);
    });
}

fn join(datagrams: &mut Datagrams) -> DatagramEndpoint {
    let [local, address] = [[10, 0, 0, 1], [239, 1, 2, 3]].map(Into::into);
    let joined = datagrams.join_cm(local, address, Duration::from_secs(1));
    joined.unwrap()
}

#[test]
fn membership_that_the_network_ends_is_returned_once_and_can_be_joined_again() {
    with_an_endpoint(|host, datagrams| {
        for _ in 0..2 {
            let group = join(datagrams);
            assert_eq!(datagrams.ended_group_cm().unwrap(), None);
            host.cm_event(RDMA_CM_EVENT_MULTICAST_ERROR.0, -libc::ENETRESET, b"");
            assert_eq!(datagrams.ended_group_cm().unwrap(), Some(group));
            assert_eq!(host.cm_ids(), 0, "the group was left");
            assert_eq!(datagrams.ended_group_cm().unwrap(), None);
            assert!(!datagrams.leave_cm(&group).unwrap());
        }
    });
}

#[test]
fn group_that_is_joined_again_is_left_once() {
    with_an_endpoint(|host, datagrams| {
        let joined = [(); 2].map(|()| {
            let joined = join(datagrams);
            assert_eq!(host.cm_ids(), 1, "it replaces the former membership");
            joined
        });
        assert!(datagrams.leave_cm(&joined[0]).unwrap());
        assert!(!datagrams.leave_cm(&joined[1]).unwrap());
        assert_eq!(host.cm_ids(), 0);
    });
}
