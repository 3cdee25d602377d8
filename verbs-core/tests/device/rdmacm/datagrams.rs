//! Datagram services, found by their addresses and ports.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use verbs_core::completion::Grh;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::ErrorKind;
use verbs_core::path::{AhAttr, QKey};
use verbs_core::rdmacm::{
    CmEventType, DatagramConnector, DatagramListener, DatagramRequest, DatagramService, Message,
    Pending,
};
use verbs_core::work_request::DatagramWorkRequest;
use verbs_core::{Error, ReceiveWorkRequest};
use verbs_harness::pair::Side;
use verbs_harness::{PATIENCE, Test, assert_says, begin, peer_name, wait_for};

/// A side with a listener, and the address.
struct Service {
    side: Side,
    listener: DatagramListener,
    addr: SocketAddr,
}

impl Service {
    fn new(test: &Test, device: &str) -> Option<Self> {
        let side = Side::new(device);
        let Some(ip) = verbs_harness::ip(&side.context) else {
            test.skip("the device has no IPv4 address");
            return None;
        };
        let listener = DatagramListener::bind((ip, 0).into(), 16).unwrap();
        let addr = listener.local_addr().unwrap();
        assert_ne!(addr.port(), 0);
        Some(Self {
            side,
            listener,
            addr,
        })
    }

    /// The request of a peer that waits; the peer goes on until it has asked.
    fn asked(&mut self, finding: &mut Pending<DatagramService>) -> DatagramRequest {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            assert!(finding.poll().unwrap().is_none(), "nothing has answered");
            if let Some(request) = self.listener.poll_request().unwrap() {
                return request;
            }
            assert!(std::time::Instant::now() < deadline, "no request");
            std::thread::yield_now();
        }
    }
}

fn queue_pair(side: &Side, qkey: QKey) -> DatagramQueuePair {
    DatagramQueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
        .qkey(qkey)
        .build()
        .unwrap()
}

fn find<'m>(addr: SocketAddr, message: impl Into<Message<'m>>) -> Pending<DatagramService> {
    DatagramService::find(addr, PATIENCE, message).unwrap()
}

/// A datagram from one queue pair to another, along a path; returns the path back.
fn arrives(
    (from_side, from): (&Side, &DatagramQueuePair),
    (to_side, to): (&Side, &DatagramQueuePair),
    path: &AhAttr,
) -> AhAttr {
    let message = from_side.pd.reg_mr(b"datagram".to_vec()).unwrap();
    let mut inbox = to_side.pd.reg_mr(vec![0_u8; Grh::LEN + 8]).unwrap();
    let ah = from_side.pd.create_ah(path).unwrap();
    let mut room = inbox.scatter_element(..).unwrap();
    // SAFETY: the request completes below, or the test fails and the queue pair is destroyed.
    unsafe { to.post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
    let mut element = message.gather_element(..).unwrap();
    let mut request = DatagramWorkRequest::new(&mut element, &ah, to.qp_num(), QKey::RDMA_UDP);
    // SAFETY: the request completes below, before the region and the handle go.
    unsafe { from.post_send(&mut request) }.unwrap();
    wait_for(&from_side.send_cq, 1)[0].result().unwrap();
    let received = wait_for(&to_side.recv_cq, 1)[0].result().unwrap();
    assert_eq!(received.datagram_in(&inbox), Some(&b"datagram"[..]));
    assert_eq!(received.src_qp(), from.qp_num());
    let header = inbox[..Grh::LEN].try_into().unwrap();
    AhAttr::from_completion(&to_side.context, to.port_num(), &received, header).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn service_is_found_and_exchanges_datagrams_with_its_peers() {
    let test = begin!(iwarp lacks "datagrams");
    for device in [verbs_harness::device_name(), peer_name()] {
        let Some(mut service) = Service::new(&test, &device) else {
            return;
        };
        let serving = queue_pair(&service.side, QKey::RDMA_UDP);
        // One queue pair for all of them.
        for _ in 0..2 {
            let mut finding = find(service.addr, b"please");
            let request = service.asked(&mut finding);
            assert_eq!(request.private_data().message(), Some(&b"please"[..]));
            assert!(request.is_on(&service.side.context));
            assert!(request.peer_addr().is_some());
            request.accept(&serving, b"gladly").unwrap();
            let found = finding.wait(Some(PATIENCE)).unwrap();
            assert_eq!(found.private_data().message(), Some(&b"gladly"[..]));
            assert_eq!(found.qp_num(), serving.qp_num());
            assert_eq!(found.qkey(), QKey::RDMA_UDP);
            assert_eq!(found.peer_addr(), Some(service.addr));

            let side = Side::new(&found.device_name());
            assert!(found.is_on(&side.context));
            let asking = queue_pair(&side, found.qkey());
            let (here, there) = ((&side, &asking), (&service.side, &serving));
            let back = arrives(here, there, &found.ah_attr());
            // Nothing of the connection manager's is needed any more.
            drop(found);
            arrives(there, here, &back);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn service_that_does_not_answer_with_a_queue_pair_is_an_error() {
    let test = begin!(iwarp lacks "datagrams");
    let Some(mut service) = Service::new(&test, &peer_name()) else {
        return;
    };
    let failure = |finding: Pending<DatagramService>| {
        let error = finding.wait(Some(PATIENCE)).unwrap_err();
        let Error::ConnectionManager { failure, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(failure.event(), CmEventType::UNREACHABLE);
        failure
    };
    let rejected = "the peer has rejected the request";
    let mut finding = find(service.addr, b"");
    service.asked(&mut finding).reject(b"full").unwrap();
    let rejection = failure(finding);
    assert_eq!(rejection.to_string(), rejected);
    assert_eq!(rejection.private_data().message(), Some(&b"full"[..]));

    let mut finding = find(service.addr, b"");
    drop(service.asked(&mut finding));
    assert_eq!(failure(finding).to_string(), rejected);

    // A request that cannot be accepted is rejected.
    let other = queue_pair(&service.side, QKey::new(7).unwrap());
    let mut finding = find(service.addr, b"");
    let error = service.asked(&mut finding).accept(&other, b"").unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    assert_eq!(failure(finding).to_string(), rejected);
    let serving = queue_pair(&service.side, QKey::RDMA_UDP);
    let mut finding = find(service.addr, b"");
    let error = service.asked(&mut finding).accept(&serving, &[0; 136]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(failure(finding).to_string(), rejected);
    if verbs_harness::device_name() != peer_name() {
        let side = Side::here();
        let foreign = queue_pair(&side, QKey::RDMA_UDP);
        let mut finding = find(service.addr, b"");
        let error = service.asked(&mut finding).accept(&foreign, b"");
        assert!(
            matches!(error, Err(Error::ForeignContext { .. })),
            "{error:?}"
        );
        assert_eq!(failure(finding).to_string(), rejected);
    }

    // One that never answers.
    let mut finding = find(service.addr, b"");
    let request = service.asked(&mut finding);
    let error = finding.wait(Some(Duration::from_millis(50))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "finding the datagram service did not end within 50ms"
    );
    drop(request);

    let addr = service.addr;
    drop(service);
    let nothing = failure(find(addr, b""));
    assert_says(&nothing, "no program listens");
}

#[test]
#[ignore = "needs an RDMA device"]
fn datagram_messages_of_every_length_that_fits_arrive() {
    let test = begin!(iwarp lacks "datagrams");
    let Some(mut service) = Service::new(&test, &peer_name()) else {
        return;
    };
    let bytes: Vec<u8> = (1..=255).collect();
    let serving = queue_pair(&service.side, QKey::RDMA_UDP);
    for (asked, answered) in [(0, 0), (179, 135)] {
        let mut finding = find(service.addr, &bytes[..asked]);
        let request = service.asked(&mut finding);
        assert_eq!(request.private_data().message(), Some(&bytes[..asked]));
        request.accept(&serving, &bytes[..answered]).unwrap();
        let found = finding.wait(Some(PATIENCE)).unwrap();
        assert_eq!(found.private_data().message(), Some(&bytes[..answered]));
    }
    let mut finding = find(service.addr, Message::raw(&bytes[..180]));
    let request = service.asked(&mut finding);
    assert_eq!(request.private_data().as_bytes(), &bytes[..180]);
    request.accept(&serving, Message::raw(&bytes[..3])).unwrap();
    let found = finding.wait(Some(PATIENCE)).unwrap();
    let mut padded = [0; 136];
    padded[..3].copy_from_slice(&bytes[..3]);
    assert_eq!(found.private_data().as_bytes(), padded);
    for message in [Message::from(&bytes[..180]), Message::raw(&bytes[..181])] {
        let error = DatagramService::find(service.addr, PATIENCE, message).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn options_of_datagrams_take_effect() {
    let test = begin!(iwarp lacks "datagrams");
    let Some(mut service) = Service::new(&test, &peer_name()) else {
        return;
    };
    let ip = service.addr.ip();
    let bound = |addr: SocketAddr, reuse| {
        let mut connector = DatagramConnector::new().unwrap();
        connector.set_reuse_addr(reuse).unwrap();
        connector.bind(addr).map(|()| connector)
    };
    let mut connector = bound((ip, 0).into(), true).unwrap();
    connector.set_tos(0x68).unwrap();
    let local = connector.local_addr().unwrap();
    drop(bound(local, true).unwrap());
    let error = bound(local, false).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRINUSE), "{error}");

    let serving = queue_pair(&service.side, QKey::RDMA_UDP);
    let mut finding = connector.find(service.addr, PATIENCE, b"").unwrap();
    let request = service.asked(&mut finding);
    assert_eq!(request.peer_addr().unwrap().ip(), ip);
    request.accept_endpoint(&serving.endpoint(), b"").unwrap();
    let found = finding.wait(Some(PATIENCE)).unwrap();
    assert_eq!(found.local_addr(), Some(local));
    assert_eq!(found.ah_attr().as_raw().grh.traffic_class, 0x68);
    let (endpoint, served) = (found.endpoint().unwrap(), serving.endpoint());
    assert_eq!(
        (endpoint.qp_num(), endpoint.qkey(), endpoint.gid()),
        (served.qp_num(), served.qkey(), served.gid())
    );

    // A port of IPv6 alone leaves that of IPv4 free.
    let listens = |addr: &str, port, ipv6_only| {
        let mut connector = DatagramConnector::new().unwrap();
        if ipv6_only {
            connector.set_ipv6_only(true).unwrap();
        }
        let addr: IpAddr = addr.parse().unwrap();
        connector.bind((addr, port).into())?;
        connector.listen(1)
    };
    let six = listens("::", 0, true).unwrap();
    let port = six.local_addr().unwrap().port();
    let _four = listens("0.0.0.0", port, false).unwrap();
    let error = listens("::", port, false).unwrap_err();
    assert!(error.errno().is_some(), "{error}");

    // A group is joined by a port of a device.
    let unbound = DatagramConnector::new().unwrap();
    let error = unbound.join([239, 1, 2, 3].into()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
}
