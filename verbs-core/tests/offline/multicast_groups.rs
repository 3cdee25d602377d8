//! Memberships of multicast groups that end by themselves.

use fake_librdmacm::{Arrival, alive, arrive};
use verbs_core::rdmacm::MulticastGroup;
use verbs_core::verbs_sys::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_MULTICAST_ERROR,
    RDMA_CM_EVENT_MULTICAST_JOIN,
};

use crate::rdmacm::{NOW, all_is_well, device};

#[test]
fn membership_that_ends_is_reported_until_it_is_dropped() {
    let context = device();
    for end in [RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_DEVICE_REMOVAL] {
        let step = MulticastGroup::join([192, 0, 2, 1].into(), [239, 1, 2, 3].into()).unwrap();
        arrive(0, Arrival::of(RDMA_CM_EVENT_MULTICAST_JOIN, 0));
        let mut group = step.wait(NOW).unwrap();
        assert!(!group.poll_ended().unwrap());
        arrive(0, Arrival::of(RDMA_CM_EVENT_ADDR_CHANGE, 0));
        assert!(!group.poll_ended().unwrap());
        arrive(0, Arrival::of(end, -libc::ENETRESET));
        assert!(group.poll_ended().unwrap());
        assert!(group.poll_ended().unwrap());
        drop(group);
        assert_eq!(alive(), 0);
    }
    drop(context);
    all_is_well();
}
