//! Connecting by a connection manager whose calls fail, and whose events are those that no peer in software sends.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use soft_verbs::{Fabric, Host};
use verbs_core::codes::QpState;
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::{
    AddrResolved, CmEventType as Event, CmFailure, ConnectRequest, Connected, Connector, Listener,
    MulticastGroup, Pending, RouteResolved, Step,
};
use verbs_core::{Device, Error, QueuePair};
use verbs_harness::assert_says;
#[cfg(not(miri))]
use verbs_harness::child::{fork, in_the_child};

use super::{on, prepared};

const NOW: Option<Duration> = Some(Duration::ZERO);
const SECOND: Duration = Duration::from_secs(1);
const UNKNOWN: Event = Event::from_raw(99);

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

/// An event with this status arrives.
fn arrives(host: &Host, event: Event, status: i32) {
    host.cm_event(event.as_raw(), status, b"\x03why");
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
    let refused = -libc::ECONNREFUSED;
    type Case = (Event, i32, &'static str);
    let address: [Case; 4] = [
        (
            Event::ADDR_ERROR,
            enodev,
            "address not resolved: No such device",
        ),
        (
            Event::ADDR_RESOLVED,
            enodev,
            "address resolved: No such device",
        ),
        (Event::DEVICE_REMOVAL, 0, "device removal"),
        (UNKNOWN, 0, "99"),
    ];
    let route: [Case; 2] = [
        (
            Event::ROUTE_ERROR,
            timed_out,
            "route not resolved: Connection timed out",
        ),
        (Event::ADDR_RESOLVED, 0, "address resolved"),
    ];
    let connection: [Case; 14] = [
        (
            Event::CONNECT_RESPONSE,
            enodev,
            "connect response: No such device",
        ),
        (Event::ESTABLISHED, enodev, "established: No such device"),
        (
            Event::UNREACHABLE,
            timed_out,
            "unreachable: Connection timed out",
        ),
        (
            Event::CONNECT_ERROR,
            enodev,
            "connect error: No such device",
        ),
        (Event::REJECTED, 4, "the peer has given up"),
        (Event::REJECTED, 5, "rejected (reason 5)"),
        (Event::REJECTED, 8, "rejected: no program listens"),
        (Event::REJECTED, refused, "rejected: no program listens"),
        (
            Event::REJECTED,
            10,
            "rejected: the peer still has a connection",
        ),
        (Event::REJECTED, 28, "the peer has rejected the request"),
        (
            Event::REJECTED,
            -libc::ECONNRESET,
            "the peer has rejected the request",
        ),
        (Event::DISCONNECTED, 0, "the peer has given up"),
        (Event::DEVICE_REMOVAL, 0, "device removal"),
        (UNKNOWN, 7, "(reason 7)"),
    ];
    let group: [Case; 1] = [(Event::MULTICAST_ERROR, timed_out, "")];
    let steps: [(&[Case], Ends); 4] = [
        (&address, |event| failing(resolving(), event)),
        (&route, |event| failing(routing(), event)),
        (&connection, |event| failing(connecting(), event)),
        (&group, |event| failing(joining(), event)),
    ];
    on_hosts(|host, _| {
        for (cases, fails) in steps {
            for (event, status, text) in cases {
                let failure = fails((host, *event, *status));
                let shown = failure.to_string();
                let is_begin = shown.starts_with(text) || *event == UNKNOWN;
                assert!(is_begin && shown.contains(text), "{shown}");
                assert_eq!((failure.event(), failure.status()), (*event, *status));
                let why = (!text.is_empty()).then_some(&b"why"[..]);
                assert_eq!(failure.private_data().message(), why);
            }
        }
    });
}

type Ends = fn((&Host, Event, i32)) -> CmFailure;

/// The failure of a step after this event.
fn failing<T: Debug + Step>(
    step: Pending<T>,
    (host, event, status): (&Host, Event, i32),
) -> CmFailure {
    arrives(host, event, status);
    failure(step.wait(NOW), host)
}

fn joining() -> Pending<MulticastGroup> {
    let [local, group] = [[10, 0, 0, 1], [239, 1, 2, 3]].map(IpAddr::from);
    MulticastGroup::join(local, group).unwrap()
}

#[test]
fn hint_that_an_address_has_changed_ends_nothing() {
    on_hosts(|host, peer| {
        let mut listener = peer.listener();
        let mut step = connecting();
        arrives(host, Event::ADDR_CHANGE, 0);
        assert!(step.poll().unwrap().is_none());
        let request = peer.request(&mut listener);
        let _answers = peer.accept(request).unwrap();
        let mut end = step.wait(Some(SECOND)).unwrap();
        for (hint, status) in [(Event::ADDR_CHANGE, 0), (UNKNOWN, 0), (UNKNOWN, -1)] {
            arrives(host, hint, status);
            assert!(!end.connection.poll_disconnected().unwrap());
        }
        for (hint, status) in [(Event::ADDR_CHANGE, 0), (UNKNOWN, 3)] {
            arrives(&peer.0, hint, status);
            assert!(listener.poll_request().unwrap().is_none());
        }
    });
}

#[test]
fn every_event_that_ends_a_connection_is_its_end() {
    on_hosts(|host, peer| {
        let mut listener = peer.listener();
        for event in [
            Event::DISCONNECTED,
            Event::DEVICE_REMOVAL,
            Event::TIMEWAIT_EXIT,
            Event::CONNECT_ERROR,
            Event::REJECTED,
        ] {
            let [mut ours, _theirs] = connected(peer, &mut listener);
            assert!(!ours.connection.wait_disconnected(NOW).unwrap());
            arrives(host, event, 0);
            assert!(ours.connection.wait_disconnected(NOW).unwrap());
            // One more comes later, which need not be taken.
            arrives(host, Event::TIMEWAIT_EXIT, 0);
            assert!(ours.connection.poll_disconnected().unwrap());
            let state = ours.queue_pair.query().unwrap().qp_state();
            assert_eq!(state, QpState::RTS);
        }
        arrives(&peer.0, Event::DEVICE_REMOVAL, 0);
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
    for (event, status, text) in [
        (Event::REJECTED, 28, "rejected the request"),
        (Event::UNREACHABLE, -libc::ETIMEDOUT, "timed out"),
        (Event::CONNECT_RESPONSE, 0, "connect response"),
    ] {
        on_hosts(|_, peer| {
            let mut listener = peer.listener();
            let _asks = connecting();
            let step = peer.accept(peer.request(&mut listener)).unwrap();
            drop(listener);
            let failure = failing(step, (&peer.0, event, status));
            assert_says(&failure, text);
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
        for end in [Event::MULTICAST_ERROR, Event::DEVICE_REMOVAL] {
            let mut group = joining().wait(NOW).unwrap();
            assert!(!group.poll_ended().unwrap());
            arrives(host, Event::ADDR_CHANGE, 0);
            assert!(!group.poll_ended().unwrap());
            arrives(host, end, -libc::ENETRESET);
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
