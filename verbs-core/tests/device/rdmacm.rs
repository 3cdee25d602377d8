//! Connecting by the connection manager: to an IP address of an RDMA device.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use verbs_core::rdmacm::{
    AddrResolved, CmEventType, ConnectRequest, Connected, Connector, Listener, MulticastGroup,
    Pending, RouteResolved,
};
use verbs_core::{
    AccessFlags, DatagramQueuePair, DatagramWorkRequest, Error, ErrorKind, GidType, Grh, PollSlot,
    QpState, QueuePair, ReceiveWorkRequest,
};
use verbs_harness::pair::{End, Side, works};
use verbs_harness::{PATIENCE, Test, begin, peer_name, until};

const SECOND: Duration = Duration::from_secs(1);

/// The address of a side's device: that of a GID for RoCE v2 that is an IPv4 address.
fn ip(side: &Side) -> Option<IpAddr> {
    let context = side.pd.context();
    let port = context.active_port().unwrap()?;
    let table = context.gid_table(port).unwrap();
    let entries = table
        .iter()
        .filter(|entry| entry.gid_type() == GidType::ROCE_V2);
    let mut v4 = entries.filter_map(|entry| Ipv6Addr::from(entry.gid().raw()).to_ipv4_mapped());
    v4.next().map(IpAddr::from)
}

/// A side that listens, and the address.
struct Server {
    side: Side,
    listener: Listener,
    addr: SocketAddr,
}

impl Server {
    fn new(test: &Test, device: &str) -> Option<Self> {
        let side = Side::new(device);
        let Some(ip) = ip(&side) else {
            test.skip("the device has no IPv4 address");
            return None;
        };
        let listener = match Listener::bind((ip, 0).into(), 16) {
            Err(error) if error.errno() == Some(libc::ENODEV) => {
                test.skip(format!("the kernel has no connection manager: {error}"));
                return None;
            }
            listener => listener.unwrap(),
        };
        let addr = listener.local_addr().unwrap();
        assert_ne!(addr.port(), 0);
        Some(Self {
            side,
            listener,
            addr,
        })
    }

    fn request(&mut self) -> ConnectRequest {
        self.listener.request(Some(PATIENCE)).unwrap().unwrap()
    }
}

fn resolved(addr: SocketAddr) -> AddrResolved {
    let connector = Connector::new().unwrap();
    let resolving = connector.resolve_addr(addr, PATIENCE).unwrap();
    resolving.wait(Some(PATIENCE)).unwrap()
}

fn route(addr: SocketAddr) -> RouteResolved {
    let resolving = resolved(addr).resolve_route(PATIENCE).unwrap();
    resolving.wait(Some(PATIENCE)).unwrap()
}

/// The side of a client: the route chooses the device.
fn client(addr: SocketAddr) -> (Side, RouteResolved) {
    let route = route(addr);
    (Side::new(&route.device_name()), route)
}

/// Ends both steps, whichever is first.
fn both(mut one: Pending<Connected>, mut other: Pending<Connected>) -> [Connected; 2] {
    let mut ends = [None, None];
    let connected = until(PATIENCE, || {
        for (end, step) in ends.iter_mut().zip([&mut one, &mut other]) {
            if end.is_none() {
                *end = step.poll().unwrap();
            }
        }
        ends.iter().all(Option::is_some)
    });
    assert!(connected, "the peers connect");
    ends.map(Option::unwrap)
}

fn connected(server: &mut Server) -> ((Side, Connected), Connected) {
    let (side, route) = client(server.addr);
    let asks = route.connect(side.prepared(), b"please").unwrap();
    let request = server.request();
    let answers = request.accept(server.side.prepared(), b"gladly").unwrap();
    let [asked, answered] = both(asks, answers);
    ((side, asked), answered)
}

#[test]
#[ignore = "needs an RDMA device"]
fn peers_connect_exchange_messages_and_disconnect() {
    let test = begin!();
    for device in [verbs_harness::device_name(), peer_name()] {
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
        assert_eq!(ours.remote_endpoint().qp_num(), theirs.qp_num());
        assert_eq!(theirs.remote_endpoint().qp_num(), ours.qp_num());
        assert!(ours.max_rd_atomic() > 0 && theirs.max_rd_atomic() > 0);
        assert!(!answered.connection.poll_disconnected().unwrap());
        asked.connection.disconnect().unwrap();
        let ended = answered.connection.wait_disconnected(Some(PATIENCE));
        assert!(ended.unwrap());
        // The other side is told when this one has disconnected, too.
        answered.connection.disconnect().unwrap();
        assert!(asked.connection.wait_disconnected(Some(PATIENCE)).unwrap());
        assert!(asked.connection.poll_disconnected().unwrap());
        // The queue pairs do not end with their connection.
        let ends = [(asked.queue_pair, side), (answered.queue_pair, server.side)];
        let [one, other] = ends.map(|(qp, side)| End { qp, side });
        works(&one, &other);
        works(&other, &one);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn dropping_a_connection_disconnects_its_peer() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let (asked, mut answered) = connected(&mut server);
    drop(asked);
    let ended = answered.connection.wait_disconnected(Some(PATIENCE));
    assert!(ended.unwrap());
}

#[test]
#[ignore = "needs an RDMA device"]
fn queue_pairs_get_no_access_that_their_settings_deny() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let (side, route) = client(server.addr);
    let denies = |side: &Side| {
        QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
            .qp_access_flags(AccessFlags::LOCAL_WRITE)
            .build()
            .unwrap()
    };
    let asks = route.connect(denies(&side), b"").unwrap();
    let answers = server.request().accept(denies(&server.side), b"").unwrap();
    for end in both(asks, answers) {
        let attr = end.queue_pair.query().unwrap();
        assert_eq!(attr.qp_state(), QpState::RTS);
        let remote = AccessFlags::REMOTE | AccessFlags::REMOTE_ATOMIC;
        assert!(!attr.qp_access_flags().intersects(remote), "{attr:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn request_that_nothing_listens_for_is_rejected_at_once() {
    let test = begin!();
    let Some(server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let Server { addr, listener, .. } = server;
    drop(listener);
    let (side, route) = client(addr);
    let started = Instant::now();
    let step = route.connect(side.prepared(), b"").unwrap();
    let error = step.wait(Some(PATIENCE)).unwrap_err();
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
    // Of a network for documentation: no host has it.
    let connector = Connector::new().unwrap();
    let step = connector.resolve_addr("192.0.2.1:7471".parse().unwrap(), SECOND);
    let error = step.and_then(|step| step.wait(Some(PATIENCE))).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENETUNREACH), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_never_accepts_is_given_up_at_the_deadline() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let (side, route) = client(server.addr);
    let step = route.connect(side.prepared(), b"").unwrap();
    let request = server.request();
    let error = step.wait(Some(Duration::from_millis(100))).unwrap_err();
    assert_eq!(error.to_string(), "connecting did not end within 100ms");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // The peer has gone: accepting fails, now or when it is waited for.
    let late = request.accept(server.side.prepared(), b"");
    let error = late.and_then(|step| step.wait(Some(PATIENCE))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionManager, "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejection_has_the_message_of_the_peer() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let (side, route) = client(server.addr);
    let step = route.connect(side.prepared(), b"").unwrap();
    server.request().reject(b"full").unwrap();
    let error = step.wait(Some(PATIENCE)).unwrap_err();
    let Error::ConnectionManager { failure, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(failure.event(), CmEventType::REJECTED);
    assert_eq!(failure.private_data().message(), Some(&b"full"[..]));
    assert_eq!(failure.to_string(), "the peer has rejected the request");
}

#[test]
#[ignore = "needs an RDMA device"]
fn dropped_request_and_dropped_listener_reject_their_peers() {
    let test = begin!();
    for takes in [true, false] {
        let Some(mut server) = Server::new(&test, &peer_name()) else {
            return;
        };
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

fn readable(fd: &impl std::os::fd::AsRawFd) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: it is one local entry.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_of_every_length_that_fits_arrive() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    for (asked, answered) in [(0, 0), (1, 1), (55, 195)] {
        let bytes: Vec<u8> = (1..=255).collect();
        let (side, route) = client(server.addr);
        let asks = route.connect(side.prepared(), &bytes[..asked]).unwrap();
        let request = server.request();
        assert_eq!(request.private_data().message(), Some(&bytes[..asked]));
        let answers = request.accept(server.side.prepared(), &bytes[..answered]);
        let [asks, _] = both(asks, answers.unwrap());
        assert_eq!(asks.private_data.message(), Some(&bytes[..answered]));
    }
    let (side, route) = client(server.addr);
    let error = route.connect(side.prepared(), &[0; 56]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}

#[test]
#[ignore = "needs an RDMA device"]
fn queue_pair_of_another_device_is_rejected() {
    let test = begin!();
    let (here, peer) = (verbs_harness::device_name(), peer_name());
    if here == peer {
        return test.skip("there is one device only");
    }
    let Some(server) = Server::new(&test, &peer) else {
        return;
    };
    let (_, route) = client(server.addr);
    let other = [here, peer]
        .into_iter()
        .find(|name| *name != route.device_name());
    let other = Side::new(&other.unwrap());
    let error = route.connect(other.prepared(), b"").unwrap_err();
    assert!(matches!(error, Error::ForeignContext { .. }), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn connections_leave_no_descriptor() {
    let test = begin!(alone);
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The first connection opens what librdmacm keeps.
    drop(connected(&mut server));
    let before = open();
    for _ in 0..10 {
        drop(connected(&mut server));
        let (side, route) = client(server.addr);
        let asks = route.connect(side.prepared(), b"").unwrap();
        let request = server.request();
        drop(asks);
        // The peer has gone.
        let late = request.accept(server.side.prepared(), b"");
        let error = late.and_then(|step| step.wait(Some(PATIENCE))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionManager);
        assert!(
            error.to_string().ends_with("failed: the peer has given up"),
            "{error}"
        );
    }
    assert_eq!(open(), before);
}

#[test]
#[ignore = "needs an RDMA device"]
fn options_are_accepted_and_bind_gives_an_address() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let mut connector = Connector::new().unwrap();
    connector.set_tos(0x20).unwrap();
    connector.set_reuse_addr(true).unwrap();
    connector
        .set_ack_timeout(verbs_core::AckTimeout::default())
        .unwrap();
    let ip = server.addr.ip();
    connector.bind((ip, 0).into()).unwrap();
    let bound = connector.local_addr().unwrap();
    assert_eq!(bound.ip(), ip);
    let step = connector.resolve_addr(server.addr, PATIENCE).unwrap();
    let route = step
        .wait(Some(PATIENCE))
        .unwrap()
        .resolve_route(PATIENCE)
        .unwrap();
    let route = route.wait(Some(PATIENCE)).unwrap();
    assert_eq!(route.local_addr().unwrap().ip(), ip);
    let side = Side::new(&route.device_name());
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
fn datagram_to_a_multicast_group_arrives_at_its_member() {
    let test = begin!();
    // On the wire between the two devices.
    let sides = [Side::here(), Side::new(&peer_name())];
    let [Some(from), Some(to)] = [ip(&sides[0]), ip(&sides[1])] else {
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
    let message = sides[0].pd.reg_mr(b"to all".to_vec()).unwrap();
    let mut inbox = sides[1].pd.reg_mr(vec![0_u8; 100]).unwrap();
    let mut room = inbox.scatter_element(..).unwrap();
    // SAFETY: it completes below, or the queue pair is destroyed before the region.
    unsafe { qps[1].post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
    let mut slots = [const { PollSlot::new() }; 1];
    let mut came = false;
    for _ in 0..20 {
        let mut element = message.gather_element(..).unwrap();
        let (qp_num, qkey) = (groups[0].qp_num(), groups[0].qkey());
        let mut request = DatagramWorkRequest::new(&mut element, &ah, qp_num, qkey);
        // SAFETY: it completes below, before the region and the handle go.
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
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    if !came && verbs_harness::is_soft() && kernel.starts_with("6.12.") {
        return test.skip(format!("soft-RoCE of Linux {} drops it", kernel.trim()));
    }
    assert!(came, "the datagram arrives");
    assert_eq!(&inbox[Grh::LEN..Grh::LEN + 6], b"to all");
}
