//! Behaviour of the connection manager beside connecting: queue pairs, requests and events.

use std::net::TcpListener;
use std::time::Duration;

use verbs_core::codes::WcStatus;
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::Listener;
use verbs_core::{RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest};
use verbs_harness::pair::{End, Side};
use verbs_harness::{PATIENCE, begin, iwarp, until};

use super::{Server, both, client, connected, readable};

#[test]
#[ignore = "needs an RDMA device"]
fn depths_are_the_smaller_ones_of_both_sides() {
    let test = begin!(iwarp lacks "attributes with the depths that were agreed on");
    let mut server = server!(test);
    let prepared = |side: &Side, serves: u8, asks: u8| {
        side.builder()
            .max_dest_rd_atomic(serves)
            .max_rd_atomic(asks)
            .build()
            .unwrap()
    };
    for (theirs, ours) in [((4, 8), (2, 1)), ((16, 16), (16, 16)), ((4, 4), (0, 0))] {
        let (side, route) = client(server.addr);
        let asks = route.connect(prepared(&side, theirs.0, theirs.1), b"");
        let request = server.request();
        assert_eq!(request.initiator_depth(), theirs.0);
        assert_eq!(request.responder_resources(), theirs.1);
        let answers = request.accept(prepared(&server.side, ours.0, ours.1), b"");
        let ends = both(asks.unwrap(), answers.unwrap());
        let agreed = [theirs.1.min(ours.0), ours.1.min(theirs.0)];
        for (end, asked) in ends.iter().zip(agreed) {
            let attr = end.queue_pair.query().unwrap();
            assert_eq!(end.queue_pair.max_rd_atomic(), asked);
            assert_eq!(attr.max_rd_atomic(), asked);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn requests_beyond_the_backlog_are_dropped() {
    let test = begin!(iwarp lacks "a backlog of its own");
    let server = server!(test);
    let mut small = Listener::bind((server.addr.ip(), 0).into(), 1).unwrap();
    let addr = small.local_addr().unwrap();
    let [(side, first), (_, second)] = [client(addr), client(addr)];
    let waits = first.connect(side.prepared(), b"").unwrap();
    assert!(until(PATIENCE, || readable(&small)));
    // The peer asks again after seconds, which is not waited for.
    let dropped = second.connect(side.prepared(), b"").unwrap();
    let error = dropped.wait(Some(Duration::from_millis(100))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let request = small.request(Some(PATIENCE)).unwrap().unwrap();
    assert!(small.poll_request().unwrap().is_none());
    let answers = request.accept(server.side.prepared(), b"").unwrap();
    both(waits, answers);
}

#[test]
#[ignore = "needs an RDMA device"]
fn ports_are_those_of_tcp_on_iwarp_only() {
    let test = begin!();
    let server = server!(test);
    let tcp = TcpListener::bind((server.addr.ip(), 0)).unwrap();
    let beside = Listener::bind(tcp.local_addr().unwrap(), 1);
    if iwarp::is_iwarp() {
        assert_eq!(beside.unwrap_err().errno(), Some(libc::EADDRINUSE));
    } else {
        assert_eq!(beside.unwrap().local_addr(), tcp.local_addr().ok());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejection_by_an_iwarp_peer_ends_the_connection() {
    let test = begin!();
    if !iwarp::is_iwarp() {
        return test.skip("the device has failed completions of what the peer rejects");
    }
    for is_write in [true, false] {
        let mut server = server!(test);
        let ((side, asked), mut answered) = connected(&mut server);
        let (end, mut connection) = (
            End {
                qp: asked.queue_pair,
                side,
            },
            asked.connection,
        );
        let from = end.pd().reg_mr(vec![1_u8; 64]).unwrap();
        let mut list = [from.gather_element(..).unwrap()];
        if is_write {
            // A key of no region.
            let nowhere = RemoteMemoryRegion::new(0x1000, 64, 0x00bad000).unwrap();
            end.post_one(WriteWorkRequest::new(&mut list, &nowhere).unwrap());
        } else {
            // There is no receive.
            end.post_one(SendWorkRequest::new(&mut list));
        }
        // Mostly it has succeeded: the peer rejects it later.
        let status = end.send_status();
        assert!(matches!(
            status,
            WcStatus::SUCCESS | WcStatus::WR_FLUSH_ERR | WcStatus::REM_ACCESS_ERR
        ));
        assert!(connection.wait_disconnected(Some(PATIENCE)).unwrap());
        let ended = answered.connection.wait_disconnected(Some(PATIENCE));
        assert!(ended.unwrap());
    }
}
