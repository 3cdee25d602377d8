//! Multicast groups, joined by their IP addresses.

use std::net::IpAddr;
use std::time::Duration;

use verbs_core::completion::Grh;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::EndpointError;
use verbs_core::path::DatagramEndpoint;
use verbs_core::rdmacm::MulticastGroup;
use verbs_core::work_request::DatagramWorkRequest;
use verbs_core::{Error, PollSlot, ReceiveWorkRequest};
use verbs_harness::pair::Side;
use verbs_harness::{PATIENCE, begin, peer_name, until};

#[test]
#[ignore = "needs an RDMA device"]
fn datagram_to_a_multicast_group_arrives_at_its_member() {
    let test = begin!(iwarp lacks "datagrams");
    // On the wire between the two devices.
    let sides = [Side::here(), Side::new(&peer_name())];
    let [Some(from), Some(to)] =
        [&sides[0], &sides[1]].map(|side| verbs_harness::ip(&side.context))
    else {
        return test.skip("the devices have no IPv4 addresses");
    };
    if from == to {
        return test.skip("there is one device only");
    }
    let group = IpAddr::from([239, 1, 2, 3]);
    let joined = |local| {
        let joined = MulticastGroup::join(local, group).unwrap();
        joined.wait(Some(PATIENCE)).unwrap()
    };
    let groups = [joined(from), joined(to)];
    let qps = [0, 1].map(|at| {
        let (side, group): (&Side, &MulticastGroup) = (&sides[at], &groups[at]);
        assert!(group.is_on(&side.context));
        DatagramQueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
            .qkey(group.qkey())
            .build()
            .unwrap()
    });
    let attachment = groups[1].attach(&qps[1]).unwrap();
    assert_eq!(attachment.gid(), groups[1].gid());
    let error = groups[1].attach(&qps[0]).unwrap_err();
    assert!(matches!(error, Error::ForeignContext { .. }), "{error}");

    let ah = sides[0].pd.create_ah(&groups[0].ah_attr()).unwrap();
    let all = groups[0].endpoint();
    assert_eq!((all.qp_num(), all.qkey()), (0xff_ffff, groups[0].qkey()));
    assert_eq!(all.gid(), Some(groups[0].gid()));
    let error = DatagramEndpoint::from_bytes(&all.to_bytes()).unwrap_err();
    assert!(
        matches!(error, EndpointError::Number { what: "qp_num", .. }),
        "{error}"
    );
    let message = sides[0].pd.reg_mr(b"to all".to_vec()).unwrap();
    let mut inbox = sides[1].pd.reg_mr(vec![0_u8; 100]).unwrap();
    let mut room = inbox.scatter_element(..).unwrap();
    // SAFETY: the request completes below, or the queue pair is destroyed before the region.
    unsafe { qps[1].post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
    let mut slots = [const { PollSlot::new() }; 1];
    let mut came = false;
    for _ in 0..20 {
        let mut element = message.gather_element(..).unwrap();
        let (qp_num, qkey) = (groups[0].qp_num(), groups[0].qkey());
        let mut request = DatagramWorkRequest::new(&mut element, &ah, qp_num, qkey);
        // SAFETY: the request completes below, before the region and the handle go.
        unsafe { qps[0].post_send(&mut request) }.unwrap();
        verbs_harness::wait_for(&sides[0].send_cq, 1)[0]
            .result()
            .unwrap();
        // A network may take a moment until it forwards a new group.
        let cq = &sides[1].recv_cq;
        let patience = Duration::from_millis(250);
        came = until(patience, || !cq.poll(&mut slots).unwrap().is_empty());
        if came {
            break;
        }
    }
    drop(attachment);
    drop(qps);
    if let Some(reason) = verbs_harness::drops_multicast().filter(|_| !came) {
        return test.skip(reason);
    }
    assert!(came, "the datagram arrives");
    assert_eq!(&inbox[Grh::LEN..Grh::LEN + 6], b"to all");
}
