//! Multicast groups whose membership the network ends.

use std::time::Duration;

use fake_libibverbs::assert_all_is_well;
use fake_librdmacm::{Arrival, alive, arrive, with};
use verbs_channel::Datagrams;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
use verbs_channel::verbs_core::verbs_sys::RDMA_CM_EVENT_MULTICAST_ERROR;

use crate::fake_device::{called, forget_the_past, pd};

/// An endpoint whose joins succeed.
fn that_joins(pd: &ProtectionDomain) -> Datagrams {
    with(|manager| {
        manager.context = pd.context().as_ptr();
        manager.joins = true;
    });
    let builder = Datagrams::builder(pd).qkey(QKey::RDMA_UDP);
    builder.build().unwrap()
}

fn join(datagrams: &mut Datagrams) -> DatagramEndpoint {
    let [local, address] = [[192, 0, 2, 1], [239, 1, 2, 3]].map(Into::into);
    let joined = datagrams.join_cm(local, address, Duration::from_secs(1));
    joined.unwrap()
}

#[test]
fn membership_that_the_network_ends_is_returned_once_and_can_be_joined_again() {
    let pd = pd();
    let mut datagrams = that_joins(&pd);
    let group = join(&mut datagrams);
    assert_eq!(datagrams.ended_group_cm().unwrap(), None);
    for _ in 0..2 {
        forget_the_past();
        let end = Arrival::of(RDMA_CM_EVENT_MULTICAST_ERROR, -libc::ENETRESET);
        arrive(0, end);
        assert_eq!(datagrams.ended_group_cm().unwrap(), Some(group));
        assert!(called("ibv_detach_mcast"));
        assert_eq!(alive(), 0, "the group was left");
        assert_eq!(datagrams.ended_group_cm().unwrap(), None);
        assert!(!datagrams.leave_cm(&group).unwrap());
        assert_eq!(join(&mut datagrams), group);
    }
    drop((datagrams, pd));
    fake_librdmacm::assert_all_is_well();
    assert_all_is_well();
}

#[test]
fn group_that_is_joined_again_is_left_once() {
    let pd = pd();
    let mut datagrams = that_joins(&pd);
    let joined = [(); 2].map(|()| {
        let joined = join(&mut datagrams);
        assert_eq!(alive(), 1, "it replaces the former membership");
        joined
    });
    assert!(datagrams.leave_cm(&joined[0]).unwrap());
    assert!(!datagrams.leave_cm(&joined[1]).unwrap());
    assert_eq!(alive(), 0);
    drop((datagrams, pd));
    fake_librdmacm::assert_all_is_well();
    assert_all_is_well();
}
