//! Connecting by a connection manager whose calls fail, and whose events are those that no peer in software sends.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use soft_verbs::{Fabric, Host};
use verbs_core::codes::QpState;
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::{
    AddrResolved, CmFailure, ConnectRequest, Connected, Connector, Listener, MulticastGroup,
    Pending, RouteResolved,
};
use verbs_core::verbs_sys::{
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_DEVICE_REMOVAL,
    RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_MULTICAST_ERROR,
    RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_CM_EVENT_UNREACHABLE, rdma_cm_event_type,
};
use verbs_core::{Device, Error, QueuePair};
#[cfg(not(miri))]
use verbs_harness::child::{fork, in_the_child};

use super::{on, prepared};

const NOW: Option<Duration> = Some(Duration::ZERO);
const SECOND: Duration = Duration::from_secs(1);
const UNKNOWN: rdma_cm_event_type = rdma_cm_event_type(99);

/// Runs a test on a host whose peer is another. Neither has an identifier afterwards.
fn on_hosts(test: impl FnOnce(&Host, &Peer)) {
    let fabric = Fabric::seeded(1);
    let [a, b] = ["a", "b"].map(|name| fabric.host(name));
    on(&a, 0, || test(&a, &Peer(b.clone())));
    assert_eq!((a.cm_ids(), b.cm_ids()), (0, 0));
}

/// The host at `10.0.0.2`.
struct Peer(Host);

impl Peer {
    const ADDRESS: ([u8; 4], u16) = ([10, 0, 0, 2], 7471);

    fn listener(&self) -> Listener {
        let addr = ([0, 0, 0, 0], Self::ADDRESS.1).into();
        self.0.enter(|| Listener::bind(addr, 0)).unwrap()
    }

    fn request(&self, listener: &mut Listener) -> ConnectRequest {
        let request = self.0.enter(|| listener.request(Some(SECOND)));
        request.unwrap().unwrap()
    }

    fn accept(&self, request: ConnectRequest) -> Result<Pending<Connected>, Error> {
        self.0.enter(|| request.accept(prepared(), b""))
    }
}

/// An event that arrives.
#[derive(Clone, Copy)]
struct Arrival(rdma_cm_event_type, i32);

impl Arrival {
    fn at(self, host: &Host) {
        host.cm_event(self.0.0, self.1, b"\x03why");
    }
}

fn resolving() -> Pending<AddrResolved> {
    let connector = Connector::new().unwrap();
    connector
        .resolve_addr(Peer::ADDRESS.into(), SECOND)
        .unwrap()
}

fn routing() -> Pending<RouteResolved> {
    resolving()
        .wait(NOW)
        .unwrap()
        .resolve_route(SECOND)
        .unwrap()
}

fn route() -> RouteResolved {
    routing().wait(NOW).unwrap()
}

fn connecting() -> Pending<Connected> {
    route().connect(prepared(), b"").unwrap()
}

/// Both sides of a connection.
fn connected(peer: &Peer, listener: &mut Listener) -> [Connected; 2] {
    let asks = connecting();
    let answers = peer.accept(peer.request(listener)).unwrap();
    [asks, answers].map(|step| step.wait(Some(SECOND)).unwrap())
}

/// The failure of a step, whose identifier is gone.
fn failure<T: Debug>(result: Result<T, Error>, host: &Host) -> CmFailure {
    assert_eq!(host.cm_ids(), 0);
    match result {
        Err(Error::ConnectionManager { failure, .. }) => *failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_failure_of_a_step_is_an_error_with_its_reason() {
    let (enodev, timed_out) = (-libc::ENODEV, -libc::ETIMEDOUT);
    let addresses = [
        (
            Arrival(RDMA_CM_EVENT_ADDR_ERROR, enodev),
            "address not resolved: No such device",
        ),
        (
            Arrival(RDMA_CM_EVENT_ADDR_RESOLVED, enodev),
            "address resolved: No such device",
        ),
        (Arrival(RDMA_CM_EVENT_DEVICE_REMOVAL, 0), "device removal"),
        (Arrival(UNKNOWN, 0), "99"),
    ];
    let routes = [
        (
            Arrival(RDMA_CM_EVENT_ROUTE_ERROR, timed_out),
            "route not resolved: Connection timed out",
        ),
        (Arrival(RDMA_CM_EVENT_ADDR_RESOLVED, 0), "address resolved"),
    ];
    let connections = [
        (
            Arrival(RDMA_CM_EVENT_CONNECT_RESPONSE, enodev),
            "connect response: No such device",
        ),
        (
            Arrival(RDMA_CM_EVENT_ESTABLISHED, enodev),
            "established: No such device",
        ),
        (
            Arrival(RDMA_CM_EVENT_UNREACHABLE, timed_out),
            "unreachable: Connection timed out",
        ),
        (
            Arrival(RDMA_CM_EVENT_CONNECT_ERROR, enodev),
            "connect error: No such device",
        ),
        (Arrival(RDMA_CM_EVENT_REJECTED, 4), "the peer has given up"),
        (Arrival(RDMA_CM_EVENT_REJECTED, 5), "rejected (reason 5)"),
        (
            Arrival(RDMA_CM_EVENT_REJECTED, 8),
            "rejected: no program listens",
        ),
        (
            Arrival(RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED),
            "rejected: no program listens",
        ),
        (
            Arrival(RDMA_CM_EVENT_REJECTED, 10),
            "rejected: the peer still has a connection",
        ),
        (
            Arrival(RDMA_CM_EVENT_REJECTED, 28),
            "the peer has rejected the request",
        ),
        (
            Arrival(RDMA_CM_EVENT_DISCONNECTED, 0),
            "the peer has given up",
        ),
        (Arrival(RDMA_CM_EVENT_DEVICE_REMOVAL, 0), "device removal"),
        (Arrival(UNKNOWN, 7), "(reason 7)"),
    ];
    on_hosts(|host, _| {
        let check = |failure: CmFailure, arrival: Arrival, text: &str| {
            let shown = failure.to_string();
            let is_begin = shown.starts_with(text) || arrival.0 == UNKNOWN;
            assert!(is_begin && shown.contains(text), "{shown}");
            let event = (failure.event().as_raw(), failure.status());
            assert_eq!(event, (arrival.0.0, arrival.1));
            assert_eq!(failure.private_data().message(), Some(&b"why"[..]));
        };
        for (arrival, text) in addresses {
            let step = resolving();
            arrival.at(host);
            check(failure(step.wait(NOW), host), arrival, text);
        }
        for (arrival, text) in routes {
            let step = routing();
            arrival.at(host);
            check(failure(step.wait(NOW), host), arrival, text);
        }
        for (arrival, text) in connections {
            let step = connecting();
            arrival.at(host);
            check(failure(step.wait(NOW), host), arrival, text);
        }
        let step = joining();
        Arrival(RDMA_CM_EVENT_MULTICAST_ERROR, timed_out).at(host);
        assert_eq!(failure(step.wait(NOW), host).status(), timed_out);
    });
}

fn joining() -> Pending<MulticastGroup> {
    let [local, group] = [[10, 0, 0, 1], [239, 1, 2, 3]].map(IpAddr::from);
    MulticastGroup::join(local, group).unwrap()
}

#[test]
fn hint_that_an_address_has_changed_ends_nothing() {
    on_hosts(|host, peer| {
        let hint = Arrival(RDMA_CM_EVENT_ADDR_CHANGE, 0);
        let mut listener = peer.listener();
        let mut step = connecting();
        hint.at(host);
        assert!(step.poll().unwrap().is_none());
        let request = peer.request(&mut listener);
        let _answers = peer.accept(request).unwrap();
        let mut end = step.wait(Some(SECOND)).unwrap();
        for hint in [hint, Arrival(UNKNOWN, 0), Arrival(UNKNOWN, -1)] {
            hint.at(host);
            assert!(!end.connection.poll_disconnected().unwrap());
        }
        for hint in [hint, Arrival(UNKNOWN, 3)] {
            hint.at(&peer.0);
            assert!(listener.poll_request().unwrap().is_none());
        }
    });
}

#[test]
fn every_event_that_ends_a_connection_is_its_end() {
    on_hosts(|host, peer| {
        let mut listener = peer.listener();
        for event in [
            RDMA_CM_EVENT_DISCONNECTED,
            RDMA_CM_EVENT_DEVICE_REMOVAL,
            RDMA_CM_EVENT_TIMEWAIT_EXIT,
            RDMA_CM_EVENT_CONNECT_ERROR,
            RDMA_CM_EVENT_REJECTED,
        ] {
            let [mut ours, _theirs] = connected(peer, &mut listener);
            assert!(!ours.connection.wait_disconnected(NOW).unwrap());
            Arrival(event, 0).at(host);
            assert!(ours.connection.wait_disconnected(NOW).unwrap());
            // One more comes later, which need not be taken.
            Arrival(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0).at(host);
            assert!(ours.connection.poll_disconnected().unwrap());
            let state = ours.queue_pair.query().unwrap().qp_state();
            assert_eq!(state, QpState::RTS);
        }
        Arrival(RDMA_CM_EVENT_DEVICE_REMOVAL, 0).at(&peer.0);
        let error = listener.poll_request().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionManager, "{error}");
    });
}

#[test]
fn event_that_cannot_be_taken_is_an_error_and_ends_a_step() {
    on_hosts(|host, peer| {
        let refuse = |host: &Host| drop(host.refuse("rdma_get_cm_event", libc::EIO).clone());
        let mut step = connecting();
        refuse(host);
        assert_eq!(step.poll().unwrap_err().errno(), Some(libc::EIO));
        assert!(step.poll_fd().is_none());
        assert!(matches!(step.poll(), Err(Error::Destroyed { .. })));
        assert_eq!(host.cm_ids(), 0);
        // An event that is no step changes nothing.
        let mut listener = peer.listener();
        let [mut ours, theirs] = connected(peer, &mut listener);
        refuse(host);
        let error = ours.connection.wait_disconnected(NOW).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
        drop(theirs);
        assert!(ours.connection.wait_disconnected(Some(SECOND)).unwrap());
        refuse(&peer.0);
        assert_eq!(listener.request(NOW).unwrap_err().errno(), Some(libc::EIO));
        drop(connected(peer, &mut listener));
    });
}

#[test]
fn failed_call_leaves_nothing_and_has_its_errno() {
    on_hosts(|host, peer| {
        for refused in ["rdma_create_event_channel", "rdma_create_id"] {
            host.refuse(refused, libc::ENODEV);
            assert_eq!(Connector::new().unwrap_err().errno(), Some(libc::ENODEV));
        }
        for refused in ["rdma_init_qp_attr", "rdma_connect"] {
            let route = route();
            host.refuse(refused, libc::ENOMEM);
            let error = route.connect(prepared(), b"").unwrap_err();
            assert_eq!(error.errno(), Some(libc::ENOMEM));
            assert_eq!(host.cm_ids(), 0);
        }
        // In answer to the acceptor, which may have given up.
        let mut listener = peer.listener();
        for (refused, errno) in [
            ("rdma_init_qp_attr", libc::ENOMEM),
            ("rdma_establish", libc::ENOMEM),
            ("rdma_init_qp_attr", libc::EINVAL),
            ("rdma_establish", libc::EINVAL),
            ("rdma_establish", libc::ENOTCONN),
        ] {
            let step = connecting();
            let _answers = peer.accept(peer.request(&mut listener)).unwrap();
            host.refuse(refused, errno);
            let error = step.wait(Some(SECOND)).unwrap_err();
            match errno {
                libc::ENOMEM => assert_eq!(error.errno(), Some(errno)),
                _ => {
                    let text = "connecting failed: the peer has given up";
                    assert_eq!(error.to_string(), text);
                }
            }
            assert_eq!(host.cm_ids(), 0);
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sets of signals")]
fn answer_connects_the_queue_pair_of_the_request_only() {
    // Two devices, which give the same numbers.
    let context = |name| Device::by_name(name).unwrap().open().unwrap();
    let contexts = ["soft0", "soft1"].map(context);
    let [mut ours, other] = contexts.each_ref().map(|context| {
        let (pd, cq) = super::domain(context);
        QueuePair::builder(&pd, &cq, &cq).build().unwrap()
    });
    assert_eq!(ours.qp_num(), other.qp_num());
    let mut listener = Listener::bind(([10, 0, 0, 2], 0).into(), 1).unwrap();
    let addr: SocketAddr = listener.local_addr().unwrap();
    let mut connector = Connector::new().unwrap();
    connector.bind(([10, 0, 0, 1], 0).into()).unwrap();
    let step = connector.resolve_addr(addr, SECOND).unwrap();
    let step = step.wait(NOW).unwrap().resolve_route(SECOND).unwrap();
    let step = step.wait(NOW).unwrap().request(&mut ours, b"").unwrap();
    let (pd, cq) = super::domain(&contexts[1]);
    let theirs = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let request = listener.request(Some(SECOND)).unwrap().unwrap();
    let _answers = request.accept(theirs, b"").unwrap();
    let error = step.wait(Some(SECOND)).unwrap().connect(other).unwrap_err();
    assert!(matches!(error, Error::ForeignParent { .. }), "{error}");
}

#[test]
fn steps_that_are_abandoned_leave_nothing() {
    on_hosts(|host, peer| {
        drop((resolving(), routing(), connecting(), joining()));
        assert_eq!(host.cm_ids(), 0);
        let mut listener = peer.listener();
        let asks = connecting();
        let answers = peer.accept(peer.request(&mut listener)).unwrap();
        // A request and an answer that are not taken.
        drop((listener, asks, answers));
    });
}

#[test]
fn accepted_peer_that_does_not_establish_is_an_error() {
    for (arrival, text) in [
        (Arrival(RDMA_CM_EVENT_REJECTED, 28), "rejected the request"),
        (
            Arrival(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            "timed out",
        ),
        (
            Arrival(RDMA_CM_EVENT_CONNECT_RESPONSE, 0),
            "connect response",
        ),
    ] {
        on_hosts(|_, peer| {
            let mut listener = peer.listener();
            let _asks = connecting();
            let step = peer.accept(peer.request(&mut listener)).unwrap();
            drop(listener);
            arrival.at(&peer.0);
            let failure = failure(step.wait(NOW), &peer.0);
            assert!(failure.to_string().contains(text), "{failure}");
        });
    }
}

#[test]
fn request_that_gets_no_descriptor_is_rejected_and_the_next_one_taken() {
    for refused in ["rdma_create_event_channel", "rdma_migrate_id"] {
        on_hosts(|_, peer| {
            let mut listener = peer.listener();
            let rejected = connecting();
            peer.0.refuse(refused, libc::EMFILE);
            let mut request = || peer.0.enter(|| listener.request(Some(SECOND)));
            assert_eq!(request().unwrap_err().errno(), Some(libc::EMFILE));
            assert_eq!(peer.0.cm_ids(), 1, "the request's is gone");
            rejected.wait(Some(SECOND)).unwrap_err();
            let _asks = connecting();
            drop(request().unwrap().unwrap());
        });
    }
}

#[test]
fn listener_at_any_port_tries_others_if_one_is_taken() {
    let tries = |port, taken| {
        let fabric = Fabric::seeded(1);
        let host = fabric.host("a");
        for _ in 0..taken {
            host.refuse("rdma_listen", libc::EADDRINUSE);
        }
        let listener = host.enter(|| Listener::bind(([0, 0, 0, 0], port).into(), 0));
        let errno = listener.map(drop).map_err(|error| error.errno().unwrap());
        (fabric.counts().refused, errno)
    };
    assert_eq!(tries(0, 7), (7, Ok(())));
    assert_eq!(tries(0, 100), (8, Err(libc::EADDRINUSE)));
    assert_eq!(tries(7471, 100), (1, Err(libc::EADDRINUSE)));
}

#[test]
fn failed_accept_drops_the_queue_pair_and_the_request() {
    on_hosts(|_, peer| {
        let mut listener = peer.listener();
        for (refused, errno, kind) in [
            ("rdma_accept", libc::ENOMEM, ErrorKind::OutOfMemory),
            ("rdma_init_qp_attr", libc::ENOMEM, ErrorKind::OutOfMemory),
            // The peer has given up.
            ("rdma_accept", libc::EINVAL, ErrorKind::ConnectionManager),
            (
                "rdma_init_qp_attr",
                libc::EINVAL,
                ErrorKind::ConnectionManager,
            ),
        ] {
            let asks = connecting();
            let request = peer.request(&mut listener);
            peer.0.refuse(refused, errno);
            let error = peer.accept(request).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(peer.0.cm_ids(), 1, "the listener's");
            asks.wait(Some(SECOND)).unwrap_err();
        }
    });
}

#[test]
fn membership_that_ends_is_reported_until_it_is_dropped() {
    on_hosts(|host, _| {
        for end in [RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_DEVICE_REMOVAL] {
            let mut group = joining().wait(NOW).unwrap();
            assert!(!group.poll_ended().unwrap());
            Arrival(RDMA_CM_EVENT_ADDR_CHANGE, 0).at(host);
            assert!(!group.poll_ended().unwrap());
            Arrival(end, -libc::ENETRESET).at(host);
            assert!(group.poll_ended().unwrap());
            assert!(group.poll_ended().unwrap());
            drop(group);
            assert_eq!(host.cm_ids(), 0);
        }
    });
}

#[test]
#[cfg(not(miri))]
fn a_child_ends_no_connection_request_listener_or_membership() {
    on_hosts(|host, peer| {
        let mut listener = peer.listener();
        let [ours, theirs] = connected(peer, &mut listener);
        let _asks = [connecting(), connecting()];
        let [request, refused] = [(); 2].map(|()| peer.request(&mut listener));
        let group = joining().wait(NOW).unwrap();
        let mut objects = Some((listener, request, refused, ours, theirs, group));
        in_the_child(fork(), || {
            let count = || (host.cm_ids(), peer.0.cm_ids());
            let before = count();
            let (listener, request, refused, mut ours, theirs, group) = objects.take().unwrap();
            for closed in [ours.connection.disconnect(), refused.reject(b"")] {
                let Err(Error::OtherProcess { object }) = closed else {
                    panic!("{closed:?}");
                };
                assert_eq!(object, "identifier of the connection manager");
            }
            drop((listener, request, ours, theirs, group));
            assert_eq!(count(), before);
        });
    });
}
