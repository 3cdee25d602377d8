//! Connecting, and what ends it.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use verbs_core::codes::{QpState, WcStatus};
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::{Connected, Connector, Listener, Pending};
use verbs_core::{
    AccessFlags, AckTimeout, Device, Error, MaxAckRetries, ReceiveWorkRequest, SendWorkRequest,
};
use verbs_harness::drops::{drop_in, orders};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::pair::{End, Side, works};
use verbs_harness::{PATIENCE, begin, device_name, peer_name, until, wait_for};

use super::{Server, both, client, client_by, connected, readable, resolved};

const SECOND: Duration = Duration::from_secs(1);

#[test]
#[ignore = "needs an RDMA device"]
fn peers_connect_exchange_messages_and_disconnect() {
    let test = begin!();
    for device in [device_name(), peer_name()] {
        let Some(mut server) = Server::new(&test, &device) else {
            return;
        };
        let (side, route) = client(server.addr);
        assert_eq!(route.peer_addr(), Some(server.addr));
        assert!(route.is_on(side.pd.context()));
        let asks = route.connect(side.prepared(), b"please").unwrap();
        let request = server.request();
        assert_eq!(request.private_data().message(), Some(&b"please"[..]));
        assert!(request.is_on(server.side.pd.context()));
        let answers = request.accept(server.side.prepared(), b"gladly").unwrap();
        let [mut asked, mut answered] = both(asks, answers);
        assert_eq!(asked.private_data.message(), Some(&b"gladly"[..]));

        let (ours, theirs) = (&asked.queue_pair, &answered.queue_pair);
        // iWARP does not exchange them.
        if !is_iwarp() {
            assert_eq!(ours.remote_endpoint().qp_num(), theirs.qp_num());
            assert_eq!(theirs.remote_endpoint().qp_num(), ours.qp_num());
        }
        assert!(ours.max_rd_atomic() > 0 && theirs.max_rd_atomic() > 0);
        let ends = [(asked.queue_pair, side), (answered.queue_pair, server.side)];
        let [one, other] = ends.map(|(qp, side)| End { qp, side });
        works(&one, &other);
        works(&other, &one);
        assert!(!answered.connection.poll_disconnected().unwrap());
        asked.connection.disconnect().unwrap();
        let ended = answered.connection.wait_disconnected(Some(PATIENCE));
        assert!(ended.unwrap());
        // The other side is told when this one has disconnected, too.
        answered.connection.disconnect().unwrap();
        assert!(asked.connection.wait_disconnected(Some(PATIENCE)).unwrap());
        assert!(asked.connection.poll_disconnected().unwrap());
        if is_iwarp() {
            // The queue pairs end with their connection: what is posted is flushed, or rejected.
            for end in [&one, &other] {
                // SAFETY: the request names no memory.
                let posted = unsafe { end.qp.post_receive(&mut [ReceiveWorkRequest::empty()]) };
                assert!(posted.is_err() || end.receive_status() == WcStatus::WR_FLUSH_ERR);
            }
        } else {
            // The queue pairs do not.
            works(&one, &other);
            works(&other, &one);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn receives_posted_before_connecting_take_the_first_message() {
    let test = begin!();
    let mut server = server!(test);
    let (side, route) = client(server.addr);
    let mut inboxes = [&side, &server.side].map(|side| side.pd.reg_mr(vec![0_u8; 5]).unwrap());
    let mut posted = inboxes
        .iter_mut()
        .zip([&side, &server.side])
        .map(|(inbox, side)| {
            let qp = side.prepared();
            let mut room = inbox.scatter_element(..).unwrap();
            // SAFETY: the request completes below, or the queue pair is destroyed before the region.
            unsafe { qp.post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
            qp
        });
    let (asking, answering) = (posted.next().unwrap(), posted.next().unwrap());
    drop(posted);
    let asks = route.connect(asking, b"").unwrap();
    let answers = server.request().accept(answering, b"").unwrap();
    let [asked, answered] = both(asks, answers);
    for (end, side) in [(&asked, &side), (&answered, &server.side)] {
        let first = side.pd.reg_mr(b"first".to_vec()).unwrap();
        let mut element = first.gather_element(..).unwrap();
        let mut request = SendWorkRequest::new(&mut element);
        // SAFETY: the request completes before the region goes, or the test fails.
        unsafe { end.queue_pair.post_send(&mut request) }.unwrap();
        wait_for(&side.send_cq, 1)[0].result().unwrap();
    }
    for side in [&side, &server.side] {
        assert_eq!(
            wait_for(&side.recv_cq, 1)[0].result().unwrap().byte_len(),
            5
        );
    }
    drop((asked, answered));
    assert!(inboxes.iter().all(|inbox| inbox[..] == *b"first"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn dropping_a_connection_disconnects_its_peer() {
    let test = begin!();
    let mut server = server!(test);
    let (asked, mut answered) = connected(&mut server);
    drop(asked);
    let ended = answered.connection.wait_disconnected(Some(PATIENCE));
    assert!(ended.unwrap());
}

/// But for the traffic class, which is the manager's if they have none.
#[test]
#[ignore = "needs an RDMA device"]
fn queue_pairs_keep_the_access_timeouts_and_traffic_class_of_their_settings() {
    let test = begin!(iwarp lacks "timeouts and traffic classes of queue pairs");
    let mut server = server!(test);
    let builder = |side: &Side| {
        side.builder()
            .qp_access_flags(AccessFlags::LOCAL_WRITE)
            .timeout(AckTimeout::new(9).unwrap())
            .retry_cnt(MaxAckRetries::new(2).unwrap())
    };
    let mut connector = Connector::new().unwrap();
    connector.set_tos(0x20).unwrap();
    let (side, route) = client_by(connector, server.addr);
    let asks = route.connect(builder(&side).build().unwrap(), b"");
    let theirs = builder(&server.side).traffic_class(104);
    let theirs = theirs.flow_label(0x1_2345).build().unwrap();
    let answers = server.request().accept(theirs, b"").unwrap();
    let ends = both(asks.unwrap(), answers);
    for (end, path) in ends.iter().zip([(0x20, None), (104, Some(0x1_2345))]) {
        let attr = end.queue_pair.query().unwrap();
        assert_eq!(attr.qp_state(), QpState::RTS);
        let remote = AccessFlags::REMOTE | AccessFlags::REMOTE_ATOMIC;
        assert!(!attr.qp_access_flags().intersects(remote), "{attr:?}");
        assert_eq!((attr.timeout(), attr.retry_cnt()), (9, 2));
        let grh = attr.ah_attr().as_raw().grh;
        assert_eq!(grh.traffic_class, path.0);
        assert!(path.1.is_none_or(|label| label == grh.flow_label));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn queue_pair_of_another_device_is_rejected_and_so_is_the_peer() {
    let test = begin!();
    let mut server = server!(test);
    let (_, route) = client(server.addr);
    let names = [device_name(), peer_name()];
    let Some(other) = names.iter().find(|name| **name != route.device_name()) else {
        return test.skip("there is one device only");
    };
    let error = route.connect(Side::new(other).prepared(), b"").unwrap_err();
    assert!(matches!(error, Error::ForeignContext { .. }), "{error}");

    let other = Side::here();
    if server.side.context.device().name() == other.context.device().name() {
        return;
    }
    let (side, route) = client(server.addr);
    let asks = route.connect(side.prepared(), b"").unwrap();
    let error = server.request().accept(other.prepared(), b"").unwrap_err();
    assert!(matches!(error, Error::ForeignContext { .. }), "{error}");
    let error = asks.wait(Some(PATIENCE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionManager, "{error}");
    // The listener goes on.
    drop(connected(&mut server));
}

#[test]
#[ignore = "needs an RDMA device"]
fn parts_of_a_connection_end_in_any_order() {
    let test = begin!();
    for order in orders(3) {
        let mut server = server!(test);
        let ((side, mut asked), answered) = connected(&mut server);
        // An event that is never taken.
        asked.connection.disconnect().unwrap();
        assert!(until(PATIENCE, || readable(&answered.connection)));
        let (qp, connection) = (answered.queue_pair, answered.connection);
        drop_in(
            order,
            [Box::new(qp), Box::new(connection), Box::new(server)],
        );
        drop((asked, side));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn request_that_nothing_listens_for_is_rejected_at_once() {
    let test = begin!();
    let server = server!(test);
    let Server { addr, listener, .. } = server;
    drop(listener);
    let (side, route) = client(addr);
    let started = Instant::now();
    let step = route.connect(side.prepared(), b"");
    let error = step.and_then(|step| step.wait(Some(PATIENCE))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "connecting failed: rejected: no program listens at this address and port; is the server started?"
    );
    assert_eq!(error.kind(), ErrorKind::ConnectionManager);
    assert!(started.elapsed() < PATIENCE);
}

#[test]
#[ignore = "needs an RDMA device"]
fn address_behind_no_device_is_an_error() {
    let test = begin!();
    let Some(_server) = Server::new(&test, &peer_name()) else {
        return;
    };
    // An address of a network for documentation, which no host has.
    let connector = Connector::new().unwrap();
    let step = connector.resolve_addr("192.0.2.1:7471".parse().unwrap(), SECOND);
    let error = step.and_then(|step| step.wait(Some(PATIENCE))).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENETUNREACH), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_never_accepts_is_given_up_at_the_deadline() {
    let test = begin!();
    let mut server = server!(test);
    let (side, route) = client(server.addr);
    let step = route.connect(side.prepared(), b"").unwrap();
    let request = server.request();
    let error = step.wait(Some(Duration::from_millis(100))).unwrap_err();
    assert_eq!(error.to_string(), "connecting did not end within 100ms");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_gone(request.accept(server.side.prepared(), b""));
}

/// The peer has given up: accepting fails, now or when it is waited for.
fn assert_gone(late: verbs_core::Result<Pending<Connected>>) {
    match late.and_then(|step| step.wait(Some(PATIENCE))) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionManager);
            let text = error.to_string();
            assert!(text.ends_with("failed: the peer has given up"), "{text}");
        }
        // On iWARP the answer may just fit in a TCP connection that has not been reset yet.
        Ok(mut connected) => {
            assert!(is_iwarp(), "accepted");
            let ended = connected.connection.wait_disconnected(Some(PATIENCE));
            assert!(ended.unwrap(), "the connection ends at once");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn dropped_request_and_dropped_listener_reject_their_peers() {
    let test = begin!();
    for takes in [true, false] {
        let mut server = server!(test);
        let (side, route) = client(server.addr);
        let step = route.connect(side.prepared(), b"").unwrap();
        if takes {
            drop(server.request());
        } else {
            // It has arrived, and was not taken.
            let fd = server.listener.as_fd().try_clone_to_owned().unwrap();
            let arrived = until(PATIENCE, || readable(&fd));
            assert!(arrived);
            drop(server.listener);
        }
        let error = step.wait(Some(PATIENCE)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionManager, "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn options_are_accepted_and_bind_gives_an_address() {
    let test = begin!();
    let mut server = server!(test);
    let mut connector = Connector::new().unwrap();
    connector.set_tos(0x20).unwrap();
    connector.set_reuse_addr(true).unwrap();
    connector.set_ack_timeout(AckTimeout::default()).unwrap();
    let ip = server.addr.ip();
    connector.bind((ip, 0).into()).unwrap();
    let bound = connector.local_addr().unwrap();
    assert_eq!(bound.ip(), ip);
    let (side, route) = client_by(connector, server.addr);
    assert_eq!(route.local_addr().unwrap().ip(), ip);
    let asks = route.connect(side.prepared(), b"").unwrap();
    let request = server.request();
    assert_eq!(request.peer_addr().unwrap().ip(), ip);
    both(asks, request.accept(server.side.prepared(), b"").unwrap());
    // An address of no RDMA device.
    let error = Listener::bind("192.0.2.1:0".parse().unwrap(), 1).unwrap_err();
    assert!(error.errno().is_some(), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn local_address_of_a_device_leads_to_it() {
    let test = begin!();
    if Server::new(&test, &peer_name()).is_none() {
        return;
    }
    for name in [device_name(), peer_name()] {
        let context = Device::by_name(&name).unwrap().open().unwrap();
        let addr = context.local_addr().unwrap();
        let listener = Listener::bind(addr, 1).unwrap();
        let addr = listener.local_addr().unwrap();
        assert!(
            resolved(Connector::new().unwrap(), addr).is_on(&context),
            "{name}: {addr}"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn listener_with_options_shares_its_port_by_family_only() {
    let test = begin!();
    let server = server!(test);
    let listens = |addr: &str, port, ipv6_only| {
        let mut connector = Connector::new().unwrap();
        if ipv6_only {
            connector.set_ipv6_only(true).unwrap();
        }
        connector.set_reuse_addr(true).unwrap();
        let addr: IpAddr = addr.parse().unwrap();
        connector.bind((addr, port).into())?;
        connector.listen(0)
    };
    let both = listens("::", 0, false).unwrap();
    let port = both.local_addr().unwrap().port();
    let error = listens("0.0.0.0", port, false).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL), "{error}");
    let error = Listener::bind((server.addr.ip(), server.addr.port()).into(), 1).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRINUSE), "{error}");
    drop(both);
    let six = listens("::", port, true).unwrap();
    let mut four = listens("0.0.0.0", port, false).unwrap();
    // The request of an IPv4 address is for the one of IPv4.
    let (side, route) = client((server.addr.ip(), port).into());
    let asks = route.connect(side.prepared(), b"").unwrap();
    let request = four.request(Some(PATIENCE)).unwrap().unwrap();
    request.reject(b"").unwrap();
    let error = asks.wait(Some(PATIENCE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionManager);
    drop(six);
}
