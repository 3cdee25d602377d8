//! Listeners and the requests that arrive there, with a connection manager whose events are made up.

use fake_libibverbs as verbs;
use fake_librdmacm::{Arrival, alive, arrive, with};
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::Listener;
use verbs_core::verbs_sys::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_UNREACHABLE,
};

use crate::rdmacm::{NOW, all_is_well, device, failure, listener, queue_pair, requested};

#[test]
fn accepted_peer_that_does_not_establish_is_an_error() {
    let context = device();
    for (arrival, text) in [
        (
            Arrival::of(RDMA_CM_EVENT_REJECTED, 28),
            "rejected the request",
        ),
        (
            Arrival::of(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            "timed out",
        ),
        (
            Arrival::of(RDMA_CM_EVENT_CONNECT_RESPONSE, 0),
            "connect response",
        ),
    ] {
        let mut listener = listener();
        let request = requested(&mut listener, (1, 1));
        let step = request.accept(queue_pair(&context, 8, 8), b"").unwrap();
        arrive(1, arrival);
        let result = step.wait(NOW);
        drop(listener);
        let failure = failure(result);
        assert!(failure.to_string().contains(text), "{failure}");
    }
    drop(context);
    all_is_well();
}

#[test]
fn request_that_gets_no_descriptor_is_rejected_and_the_next_one_taken() {
    for refused in ["rdma_create_event_channel", "rdma_migrate_id"] {
        let mut listener = listener();
        for _ in 0..2 {
            arrive(0, Arrival::of(RDMA_CM_EVENT_CONNECT_REQUEST, 0));
        }
        with(|manager| manager.refuse.push((refused, libc::EMFILE)));
        let error = listener.poll_request().unwrap_err();
        assert_eq!(error.errno(), Some(libc::EMFILE));
        assert_eq!(alive(), 2, "the request's is gone");
        drop(listener.poll_request().unwrap().unwrap());
        assert!(listener.poll_request().unwrap().is_none());
        drop(listener);
    }
    all_is_well();
}

#[test]
fn listener_at_any_port_tries_others_if_one_is_taken() {
    let tries = |port, taken| {
        with(|manager| {
            let refused = ("rdma_listen", libc::EADDRINUSE);
            manager.refuse = vec![refused; taken];
            manager.calls.clear();
        });
        let listener = Listener::bind(([0, 0, 0, 0], port).into(), 0);
        let calls = with(|manager| std::mem::take(&mut manager.calls));
        let listens = calls.iter().filter(|call| **call == "rdma_listen");
        let errno = listener.map(drop).map_err(|error| error.errno().unwrap());
        (listens.count(), errno)
    };
    assert_eq!(tries(0, 7), (8, Ok(())));
    assert_eq!(tries(0, 100), (8, Err(libc::EADDRINUSE)));
    assert_eq!(tries(7471, 100), (1, Err(libc::EADDRINUSE)));
    fake_librdmacm::assert_all_is_well();
}

#[test]
fn failed_accept_drops_the_queue_pair_and_the_request() {
    let context = device();
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
        let mut listener = listener();
        let request = requested(&mut listener, (1, 1));
        with(|manager| manager.refuse.push((refused, errno)));
        let result = request.accept(queue_pair(&context, 8, 8), b"");
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(alive(), 1, "the listener's");
        assert!(!verbs::is_alive("ibv_create_qp"));
    }
    drop(context);
    all_is_well();
}
