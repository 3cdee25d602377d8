//! Connecting by a connection manager whose events are made up: those that no software device sends.

use std::time::Duration;

use fake_libibverbs as verbs;
use fake_librdmacm::{Arrival, alive, arrive, with};
use verbs_core::codes::QpState;
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::{
    AddrResolved, CmFailure, ConnectRequest, Connected, Connection, Connector, Listener,
    MulticastGroup, Pending, RouteResolved,
};
use verbs_core::verbs_sys::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_UNREACHABLE,
    ibv_qp_attr, rdma_cm_event_type,
};
use verbs_core::{AccessFlags, Context, Device, Error, PreparedQueuePair, QueuePair};

pub(crate) const NOW: Option<Duration> = Some(Duration::ZERO);
const SECOND: Duration = Duration::from_secs(1);
const UNKNOWN: rdma_cm_event_type = rdma_cm_event_type(99);

/// A device that addresses are behind; a queue pair of it is made when it is needed.
pub(crate) fn device() -> Context {
    let (context, ..) = verbs::ladder();
    with(|manager| manager.context = context.as_ptr());
    context
}

/// A queue pair that serves `serves` reads and atomics, and has at most `asks` in flight.
pub(crate) fn queue_pair(context: &Context, serves: u8, asks: u8) -> PreparedQueuePair {
    let pd = context.alloc_pd().unwrap();
    let cq = verbs_core::CompletionQueue::create(context, 8).unwrap();
    QueuePair::builder(&pd, &cq, &cq)
        .max_dest_rd_atomic(serves)
        .max_rd_atomic(asks)
        .build()
        .unwrap()
}

fn resolving() -> Pending<AddrResolved> {
    let addr = "192.0.2.1:7471".parse().unwrap();
    Connector::new()
        .unwrap()
        .resolve_addr(addr, SECOND)
        .unwrap()
}

fn routing() -> Pending<RouteResolved> {
    let step = resolving();
    arrive(alive() - 1, Arrival::of(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
    step.wait(NOW).unwrap().resolve_route(SECOND).unwrap()
}

fn connecting(context: &Context) -> Pending<Connected> {
    let step = routing();
    arrive(alive() - 1, Arrival::of(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    let route = step.wait(NOW).unwrap();
    route.connect(queue_pair(context, 8, 8), b"").unwrap()
}

pub(crate) fn connected(context: &Context) -> (QueuePair, Connection) {
    let step = connecting(context);
    arrive(alive() - 1, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
    let Connected {
        queue_pair,
        connection,
        ..
    } = step.wait(NOW).unwrap();
    (queue_pair, connection)
}

pub(crate) fn listener() -> Listener {
    Listener::bind("0.0.0.0:0".parse().unwrap(), 0).unwrap()
}

/// A request of a peer that wants, and serves, this number of reads and atomics.
pub(crate) fn requested(listener: &mut Listener, depths: (u8, u8)) -> ConnectRequest {
    let arrival = Arrival::of(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    arrive(0, Arrival { depths, ..arrival });
    listener.poll_request().unwrap().unwrap()
}

/// The failure of a step, whose identifier and queue pair are gone.
pub(crate) fn failure<T: std::fmt::Debug>(result: Result<T, Error>) -> CmFailure {
    assert_eq!(alive(), 0);
    match result {
        Err(Error::ConnectionManager { failure, .. }) => *failure,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn all_is_well() {
    fake_librdmacm::assert_all_is_well();
    verbs::assert_all_is_well();
}

#[test]
fn every_failure_of_a_step_is_an_error_with_its_reason() {
    let context = device();
    let fails = |event, status| Arrival::of(event, status);
    let (enodev, timed_out) = (-libc::ENODEV, -libc::ETIMEDOUT);
    for (arrival, text) in [
        (
            fails(RDMA_CM_EVENT_ADDR_ERROR, enodev),
            "address not resolved: No such device",
        ),
        (
            fails(RDMA_CM_EVENT_ADDR_RESOLVED, enodev),
            "address resolved: No such device",
        ),
        (fails(RDMA_CM_EVENT_DEVICE_REMOVAL, 0), "device removal"),
        (fails(UNKNOWN, 0), "99"),
    ] {
        let step = resolving();
        arrive(0, arrival);
        let failure = failure(step.wait(NOW));
        assert!(failure.to_string().contains(text), "{failure}");
        assert_eq!(failure.event().as_raw(), arrival.event.0);
        assert_eq!(failure.status(), arrival.status);
    }
    for (arrival, text) in [
        (
            fails(RDMA_CM_EVENT_ROUTE_ERROR, timed_out),
            "route not resolved: Connection timed out",
        ),
        (fails(RDMA_CM_EVENT_ADDR_RESOLVED, 0), "address resolved"),
    ] {
        let step = routing();
        arrive(0, arrival);
        let failure = failure(step.wait(NOW));
        assert!(failure.to_string().contains(text), "{failure}");
    }
    for (arrival, text) in [
        (
            fails(RDMA_CM_EVENT_CONNECT_RESPONSE, enodev),
            "connect response: No such device",
        ),
        (
            fails(RDMA_CM_EVENT_ESTABLISHED, enodev),
            "established: No such device",
        ),
        (
            fails(RDMA_CM_EVENT_UNREACHABLE, timed_out),
            "unreachable: Connection timed out",
        ),
        (
            fails(RDMA_CM_EVENT_CONNECT_ERROR, enodev),
            "connect error: No such device",
        ),
        (fails(RDMA_CM_EVENT_REJECTED, 4), "the peer has given up"),
        (fails(RDMA_CM_EVENT_REJECTED, 5), "rejected (reason 5)"),
        (
            fails(RDMA_CM_EVENT_REJECTED, 8),
            "rejected: no program listens",
        ),
        (
            fails(RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED),
            "rejected: no program listens",
        ),
        (
            fails(RDMA_CM_EVENT_REJECTED, 10),
            "rejected: the peer still has a connection",
        ),
        (
            fails(RDMA_CM_EVENT_REJECTED, 28),
            "the peer has rejected the request",
        ),
        (
            fails(RDMA_CM_EVENT_DISCONNECTED, 0),
            "the peer has given up",
        ),
        (fails(RDMA_CM_EVENT_DEVICE_REMOVAL, 0), "device removal"),
        (fails(UNKNOWN, 7), "(reason 7)"),
    ] {
        let step = connecting(&context);
        arrive(
            0,
            Arrival {
                data: b"\x03why",
                ..arrival
            },
        );
        let failure = failure(step.wait(NOW));
        assert!(
            failure.to_string().starts_with(text) || arrival.event == UNKNOWN,
            "{failure}"
        );
        assert!(failure.to_string().contains(text), "{failure}");
        assert_eq!(failure.private_data().message(), Some(&b"why"[..]));
    }
    let step = MulticastGroup::join([192, 0, 2, 1].into(), [239, 1, 2, 3].into()).unwrap();
    arrive(0, Arrival::of(RDMA_CM_EVENT_MULTICAST_ERROR, timed_out));
    let failure = failure(step.wait(NOW));
    assert_eq!(failure.status(), timed_out);
    drop(context);
    all_is_well();
}

#[test]
fn hint_that_an_address_has_changed_ends_nothing() {
    let context = device();
    let hint = Arrival::of(RDMA_CM_EVENT_ADDR_CHANGE, 0);
    let mut step = connecting(&context);
    arrive(0, hint);
    assert!(step.poll().unwrap().is_none());
    arrive(0, hint);
    arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
    let mut end = step.wait(NOW).unwrap();
    for hint in [hint, Arrival::of(UNKNOWN, 0), Arrival::of(UNKNOWN, -1)] {
        arrive(0, hint);
        assert!(!end.connection.poll_disconnected().unwrap());
    }
    drop(end);
    let mut listener = listener();
    arrive(0, hint);
    arrive(0, Arrival::of(UNKNOWN, 3));
    assert!(listener.poll_request().unwrap().is_none());
    drop((listener, context));
    all_is_well();
}

#[test]
fn every_event_that_ends_a_connection_is_its_end() {
    let context = device();
    for event in [
        RDMA_CM_EVENT_DISCONNECTED,
        RDMA_CM_EVENT_DEVICE_REMOVAL,
        RDMA_CM_EVENT_TIMEWAIT_EXIT,
        RDMA_CM_EVENT_CONNECT_ERROR,
        RDMA_CM_EVENT_REJECTED,
    ] {
        let (queue_pair, mut connection) = connected(&context);
        assert!(!connection.wait_disconnected(NOW).unwrap());
        arrive(0, Arrival::of(event, 0));
        assert!(connection.wait_disconnected(NOW).unwrap());
        // One more comes later, which need not be taken.
        arrive(0, Arrival::of(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0));
        assert!(connection.poll_disconnected().unwrap());
        assert_eq!(queue_pair.query().unwrap().qp_state(), QpState::RTS);
    }
    let mut listener = listener();
    arrive(0, Arrival::of(RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
    let error = listener.poll_request().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionManager, "{error}");
    drop((listener, context));
    all_is_well();
}

#[test]
fn event_that_cannot_be_taken_is_an_error_and_ends_a_step() {
    let context = device();
    let refuse = || with(|manager| manager.refuse.push(("rdma_get_cm_event", libc::EIO)));
    let mut step = connecting(&context);
    refuse();
    assert_eq!(step.poll().unwrap_err().errno(), Some(libc::EIO));
    assert!(step.poll_fd().is_none());
    assert!(matches!(step.poll(), Err(Error::Destroyed { .. })));
    assert_eq!(alive(), 0);
    // An event that is no step changes nothing.
    let (queue_pair, mut connection) = connected(&context);
    refuse();
    let error = connection.wait_disconnected(NOW).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EIO));
    arrive(0, Arrival::of(RDMA_CM_EVENT_DISCONNECTED, 0));
    assert!(connection.poll_disconnected().unwrap());
    drop(connection);
    let mut listener = listener();
    refuse();
    assert_eq!(listener.request(NOW).unwrap_err().errno(), Some(libc::EIO));
    drop(requested(&mut listener, (1, 1)));
    drop((listener, queue_pair, context));
    all_is_well();
}

#[test]
fn failed_call_leaves_nothing_and_has_its_errno() {
    let context = device();
    for refused in ["rdma_create_event_channel", "rdma_create_id"] {
        with(|manager| manager.refuse.push((refused, libc::ENODEV)));
        assert_eq!(Connector::new().unwrap_err().errno(), Some(libc::ENODEV));
    }
    for refused in ["rdma_init_qp_attr", "rdma_connect"] {
        let step = routing();
        arrive(0, Arrival::of(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        let route = step.wait(NOW).unwrap();
        with(|manager| manager.refuse.push((refused, libc::ENOMEM)));
        let error = route.connect(queue_pair(&context, 8, 8), b"").unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOMEM));
        assert_eq!(alive(), 0);
    }
    for refused in ["rdma_init_qp_attr", "rdma_establish"] {
        let step = connecting(&context);
        arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
        with(|manager| manager.refuse.push((refused, libc::ENOMEM)));
        assert_eq!(step.wait(NOW).unwrap_err().errno(), Some(libc::ENOMEM));
        assert_eq!(alive(), 0);
    }
    drop(context);
    all_is_well();
}

#[test]
fn acceptor_that_gives_up_is_reported_as_such() {
    let context = device();
    for (refused, errno) in [
        ("rdma_init_qp_attr", libc::EINVAL),
        ("rdma_establish", libc::EINVAL),
        ("rdma_establish", libc::ENOTCONN),
    ] {
        let step = connecting(&context);
        arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
        with(|manager| manager.refuse.push((refused, errno)));
        let error = step.wait(NOW).unwrap_err();
        assert_eq!(
            error.to_string(),
            "connecting failed: the peer has given up"
        );
        assert_eq!(alive(), 0);
    }
    drop(context);
    all_is_well();
}

#[test]
fn address_that_leads_to_no_device_is_named() {
    let context = device();
    with(|manager| {
        manager.context = std::ptr::null_mut();
        manager.resolves = true;
    });
    let addr = "192.0.2.1:7471".parse().unwrap();
    let resolving = Connector::new()
        .unwrap()
        .resolve_addr(addr, SECOND)
        .unwrap();
    let step = resolving.wait(NOW).unwrap().resolve_route(SECOND).unwrap();
    let route = step.wait(NOW).unwrap();
    let error = route.connect(queue_pair(&context, 8, 8), b"").unwrap_err();
    let text = error.to_string();
    let words = "finding the device failed: no RDMA device leads to 192.0.2.1:7471: ";
    assert!(text.starts_with(words), "{text}");
    assert_eq!(error.errno(), Some(libc::ENODEV));
    drop(context);
    all_is_well();
}

#[test]
fn answer_connects_the_queue_pair_of_the_request_only() {
    let contexts = [device(), Device::by_name("fake1").unwrap().open().unwrap()];
    // Two devices, which give the same number.
    verbs::with(|library| library.qp_nums.extend([7, 7]));
    let [mut ours, other] = contexts.each_ref().map(|context| queue_pair(context, 1, 1));
    assert_eq!(ours.qp_num(), other.qp_num());
    let step = routing();
    arrive(alive() - 1, Arrival::of(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    let step = step.wait(NOW).unwrap().request(&mut ours, b"").unwrap();
    arrive(alive() - 1, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
    let error = step.wait(NOW).unwrap().connect(other).unwrap_err();
    assert!(matches!(error, Error::ForeignParent { .. }), "{error}");
    assert_eq!(alive(), 0);
    drop((ours, contexts));
    all_is_well();
}

#[test]
fn depths_are_those_that_both_sides_have_room_for() {
    let context = device();
    // This side asks for 8 and serves 8. The manager has agreed on less.
    with(|manager| manager.depths = (3, 2));
    let (ours, connection) = connected(&context);
    assert_eq!(ours.max_rd_atomic(), 2);
    assert_eq!(ours.remote_endpoint().max_dest_rd_atomic(), 2);
    let serves = ours.endpoint().max_dest_rd_atomic();
    assert_eq!(serves, 3);
    let params = || with(|manager| std::mem::take(&mut manager.params));
    let asked = params();
    assert_eq!(
        (asked[0].responder_resources, asked[0].initiator_depth),
        (8, 8)
    );
    drop((connection, ours));
    let mut listener = listener();
    for (theirs, answered) in [((1, 5), (1, 5)), ((200, 255), (8, 8)), ((0, 0), (0, 0))] {
        let request = requested(&mut listener, theirs);
        assert_eq!(
            (request.responder_resources(), request.initiator_depth()),
            theirs
        );
        drop(request.accept(queue_pair(&context, 8, 8), b"").unwrap());
        let param = params().pop().unwrap();
        assert_eq!((param.responder_resources, param.initiator_depth), answered);
    }
    // The manager has only what the peer asks for until this side has accepted.
    with(|manager| manager.depths = (200, 255));
    let request = requested(&mut listener, (200, 255));
    drop(request.accept(queue_pair(&context, 3, 2), b"").unwrap());
    let modified = verbs::with(|library| library.modified.clone());
    let max = |bit: u32, of: fn(&ibv_qp_attr) -> u8| {
        let set = modified.iter().rev().find(|(_, mask)| mask & bit != 0);
        set.map(|(attr, _)| of(attr))
    };
    let serves = max(IBV_QP_MAX_DEST_RD_ATOMIC.0, |attr| attr.max_dest_rd_atomic);
    let asks = max(IBV_QP_MAX_QP_RD_ATOMIC.0, |attr| attr.max_rd_atomic);
    assert_eq!((serves, asks), (Some(3), Some(2)));
    drop((listener, context));
    all_is_well();
}

#[test]
fn access_is_no_more_than_the_settings_allow() {
    // The manager's attributes grant everything.
    let context = device();
    let step = routing();
    arrive(0, Arrival::of(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
    let (_, pd, cq) = verbs::ladder();
    let allowed = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let builder = QueuePair::builder(&pd, &cq, &cq);
    let prepared = builder.qp_access_flags(allowed).build().unwrap();
    let route = step.wait(NOW).unwrap();
    drop(route.connect(prepared, b"").unwrap());
    let modified = verbs::with(|library| library.modified.clone());
    let flags = modified
        .iter()
        .filter(|(_, mask)| mask & IBV_QP_ACCESS_FLAGS.0 != 0);
    let flags: Vec<_> = flags.map(|(attr, _)| attr.qp_access_flags).collect();
    assert_eq!(
        flags,
        [allowed.bits(); 2],
        "when it is made, and by the manager"
    );
    drop((pd, cq, context));
    all_is_well();
}

#[test]
fn everything_ends_in_any_order() {
    for order in 0..6 {
        let context = device();
        let mut listener = listener();
        let request = requested(&mut listener, (1, 1));
        // Neither of the last two is taken.
        arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_REQUEST, 0));
        let step = request.accept(queue_pair(&context, 8, 8), b"").unwrap();
        arrive(1, Arrival::of(RDMA_CM_EVENT_ESTABLISHED, 0));
        let Connected {
            queue_pair,
            connection,
            ..
        } = step.wait(NOW).unwrap();
        arrive(1, Arrival::of(RDMA_CM_EVENT_DISCONNECTED, 0));
        drop(context);
        let (mut listener, mut queue_pair, mut connection) =
            (Some(listener), Some(queue_pair), Some(connection));
        for at in [
            order % 3,
            (order % 3 + 1 + order / 3) % 3,
            (order % 3 + 2 - order / 3) % 3,
        ] {
            match at {
                0 => drop(listener.take()),
                1 => drop(queue_pair.take()),
                _ => drop(connection.take()),
            }
        }
        assert!(listener.is_none() && queue_pair.is_none() && connection.is_none());
        all_is_well();
    }
    // Steps that are abandoned, with the event there and without.
    let context = device();
    drop(connecting(&context));
    let step = connecting(&context);
    arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0));
    drop((step, resolving(), routing(), context));
    all_is_well();
}
