//! Behaviour of the connection manager beside connecting: queue pairs, requests and events.

use std::net::TcpListener;
use std::time::Duration;

use verbs_core::codes::{QpState, WcStatus};
use verbs_core::error::ErrorKind;
use verbs_core::queue_pair::QpAttr;
use verbs_core::rdmacm::Listener;
use verbs_core::{
    AckTimeout, Error, MaxAckRetries, QueuePair, RemoteMemoryRegion, SendWorkRequest,
    WriteWorkRequest,
};
use verbs_harness::pair::{End, Side};
use verbs_harness::{PATIENCE, begin, iwarp, peer_name, until};

use super::{Server, both, client, connected, readable};

#[test]
#[ignore = "needs an RDMA device"]
fn depths_are_the_smaller_ones_of_both_sides() {
    let test = begin!(iwarp lacks "attributes with the depths that were agreed on");
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let prepared = |side: &Side, serves: u8, asks: u8| {
        QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
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
fn queue_pairs_keep_their_own_timeouts_and_retries() {
    let test = begin!(iwarp lacks "timeouts and retries");
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let prepared = |side: &Side| {
        QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq)
            .timeout(AckTimeout::new(9).unwrap())
            .retry_cnt(MaxAckRetries::new(2).unwrap())
            .build()
            .unwrap()
    };
    let (side, route) = client(server.addr);
    let asks = route.connect(prepared(&side), b"").unwrap();
    let answers = server
        .request()
        .accept(prepared(&server.side), b"")
        .unwrap();
    for end in both(asks, answers) {
        let attr: QpAttr = end.queue_pair.query().unwrap();
        assert_eq!(attr.qp_state(), QpState::RTS);
        assert_eq!((attr.timeout(), attr.retry_cnt()), (9, 2));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn side_that_disconnects_first_is_told_when_its_peer_has_too() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let ((_side, mut asked), mut answered) = connected(&mut server);
    asked.connection.disconnect().unwrap();
    assert!(
        answered
            .connection
            .wait_disconnected(Some(PATIENCE))
            .unwrap()
    );
    if !verbs_harness::is_soft() || !asked.connection.poll_disconnected().unwrap() {
        answered.connection.disconnect().unwrap();
    }
    assert!(asked.connection.wait_disconnected(Some(PATIENCE)).unwrap());
    // Neither queue pair has changed its state; on iWARP the driver changes it.
    for end in [&asked, &answered] {
        let state = end.queue_pair.query().unwrap().qp_state();
        assert_eq!(state == QpState::RTS, !iwarp::is_iwarp());
    }
    // Disconnecting again does no harm.
    drop(asked.connection.disconnect());
    assert!(asked.connection.poll_disconnected().unwrap());
}

#[test]
#[ignore = "needs an RDMA device"]
fn accept_that_fails_rejects_the_peer_and_leaves_nothing() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let other = Side::new(&verbs_harness::device_name());
    if other.context.device().name() == server.side.context.device().name() {
        return test.skip("there is one device only");
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
fn requests_beyond_the_backlog_are_dropped() {
    let test = begin!(iwarp lacks "a backlog of its own");
    let Some(server) = Server::new(&test, &peer_name()) else {
        return;
    };
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
    let Some(server) = Server::new(&test, &peer_name()) else {
        return;
    };
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
        let Some(mut server) = Server::new(&test, &peer_name()) else {
            return;
        };
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

#[test]
#[ignore = "needs an RDMA device"]
fn parts_of_a_connection_end_in_any_order() {
    let test = begin!();
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let Some(mut server) = Server::new(&test, &peer_name()) else {
            return;
        };
        let ((side, mut asked), answered) = connected(&mut server);
        // An event that is never taken.
        asked.connection.disconnect().unwrap();
        assert!(until(PATIENCE, || readable(&answered.connection)));
        let (mut qp, mut connection) = (Some(answered.queue_pair), Some(answered.connection));
        let mut rest = Some(server);
        for part in order {
            match part {
                0 => drop(qp.take()),
                1 => drop(connection.take()),
                _ => drop(rest.take()),
            }
        }
        drop((asked, side));
    }
}
