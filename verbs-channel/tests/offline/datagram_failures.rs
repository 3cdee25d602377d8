//! Datagrams and receives that fail: what becomes of the endpoint, and of this side's address.

use std::time::Duration;

use fake_libibverbs::{Port, assert_all_is_well, with};
use verbs_channel::verbs_core::Error as CoreError;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::verbs_sys::{
    IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_RTS, IBV_QPS_SQE, IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR,
};
use verbs_channel::{BufferPool, Datagrams, DownReason, Error, RejectReason};

use crate::datagrams::{buffer, comes, endpoint, peer, refused};
use crate::fake_device::{bounded, called, ends, forget_the_past, moved, posted, refuse, succeeds};

/// The table of this side's GIDs changes.
fn gids(gids: &[&str]) {
    with(|library| library.ports[0].gids = Port::roce(gids).gids);
}

fn sgid_index_of_the_last_handle() -> u8 {
    with(|library| library.paths.last().unwrap().grh.sgid_index)
}

/// How many receives are in flight that were posted since then.
fn receives_in_flight() -> usize {
    with(|library| {
        let posted = library.posted.iter().flatten();
        posted.filter(|posted| !posted.is_send).count()
    })
}

/// Each datagram fails, as with a handle whose GID index is empty.
fn fail(wr_ids: &[u64]) {
    ends(wr_ids[0], IBV_WC_LOC_QP_OP_ERR);
    for wr_id in &wr_ids[1..] {
        ends(*wr_id, IBV_WC_WR_FLUSH_ERR);
    }
}

#[test]
fn datagram_that_fails_is_reported_and_ends_no_endpoint() {
    let (pd, mut datagrams) = endpoint();
    let pool = BufferPool::new(&pd, 64, 2).unwrap();
    let receives = posted();
    // Arrived before, and was not polled.
    comes(receives[0], &peer(2), b"before", None);
    forget_the_past();
    for last in [1, 2] {
        let block = pool.take_with(b"lost").unwrap().unwrap();
        datagrams.send_to(&peer(last), block).unwrap();
    }
    fail(&posted());
    forget_the_past();
    let failures = [(); 3].map(|()| datagrams.take_failed());
    let texts = failures.map(|failure| failure.map(|failure| failure.to_string()));
    let words = |last| {
        Some(format!(
            "the datagram to queue pair {:#x} at ::ffff:10.0.0.{last} failed",
            0x700 + last
        ))
    };
    assert_eq!(texts, [words(1), words(2), None]);
    let error = failures[0].unwrap().error.unwrap();
    assert_eq!(error.status, WcStatus::LOC_QP_OP_ERR);
    assert_eq!(failures[1].unwrap().peer, peer(2));
    assert_eq!(pool.available(), 2);
    assert_eq!(
        (datagrams.down_reason(), datagrams.sends_in_flight()),
        (None, 0)
    );
    let before = datagrams.receive_from(Duration::ZERO).unwrap().unwrap();
    assert_eq!(&before[..], b"before");
    assert_eq!(receives_in_flight(), 2, "the other block has the datagram");
    forget_the_past();
    datagrams.send_to(&peer(2), buffer(&pd, b"again")).unwrap();
    succeeds(posted()[0]);
    assert!(datagrams.flush(None));
    // One that was in flight, and gets no completion from the reset queue pair.
    for last in [1, 2] {
        datagrams.send_to(&peer(last), buffer(&pd, b"x")).unwrap();
    }
    ends(posted()[1], IBV_WC_LOC_QP_OP_ERR);
    assert!(datagrams.flush(None));
    let second = [(); 2].map(|()| datagrams.take_failed().unwrap().error.is_some());
    assert_eq!(second, [true, false]);
    drop((datagrams, before, pool, pd));
    assert_all_is_well();
}

#[test]
fn only_the_send_queue_is_restarted_where_only_that_is_in_error() {
    let (pd, mut datagrams) = endpoint();
    let receives = posted();
    forget_the_past();
    datagrams.send_to(&peer(1), buffer(&pd, b"lost")).unwrap();
    fail(&posted());
    with(|library| {
        library.qp_state = Some(IBV_QPS_SQE);
        library.modified.clear();
    });
    assert!(datagrams.flush(None));
    with(|library| library.qp_state = None);
    assert_eq!(moved(), [IBV_QPS_RTS]);
    // The receives are those that were posted at the begin.
    assert_eq!(receives_in_flight(), 0);
    comes(receives[0], &peer(2), b"kept", None);
    assert_eq!(
        &datagrams.receive_from(Duration::ZERO).unwrap().unwrap()[..],
        b"kept"
    );
}

#[test]
fn address_that_has_moved_is_used_at_its_new_index_and_named_in_the_failure() {
    let (pd, mut datagrams) = endpoint();
    let send = |datagrams: &mut Datagrams, last| {
        forget_the_past();
        datagrams.send_to(&peer(last), buffer(&pd, b"x"))
    };
    for last in [1, 2] {
        send(&mut datagrams, last).unwrap();
        succeeds(posted()[0]);
    }
    assert!(datagrams.flush(None));
    gids(&["fe80::1", "", "", "::ffff:10.0.0.1"]);
    // The endpoint does not know yet: this one is lost.
    send(&mut datagrams, 1).unwrap();
    fail(&posted());
    assert_eq!(
        datagrams.take_failed().unwrap().to_string(),
        "the datagram to queue pair 0x701 at ::ffff:10.0.0.1 failed: this side's GID ::ffff:10.0.0.1 has moved from \
         index 1 to 3, where the next datagram uses it"
    );
    // No other is: all handles have the old index.
    for last in [2, 1] {
        send(&mut datagrams, last).unwrap();
        assert!(called("ibv_create_ah"));
        assert_eq!(sgid_index_of_the_last_handle(), 3);
        succeeds(posted()[0]);
    }
    assert!(datagrams.flush(None));
    // The address is removed.
    gids(&["fe80::1"]);
    send(&mut datagrams, 1).unwrap();
    fail(&posted());
    assert_eq!(
        datagrams.take_failed().unwrap().to_string(),
        "the datagram to queue pair 0x701 at ::ffff:10.0.0.1 failed: this side's GID ::ffff:10.0.0.1 is no longer in \
         its port's table (it was at index 3): add the address to its network interface again"
    );
    let rejected = send(&mut datagrams, 2).unwrap_err();
    assert!(matches!(
        rejected.error(),
        Error::Core(CoreError::GidRemoved { .. })
    ));
    assert_eq!(datagrams.down_reason(), None);
    gids(&["fe80::1", "::ffff:10.0.0.1"]);
    datagrams.send_to(&peer(2), rejected.into_given()).unwrap();
    assert_eq!(sgid_index_of_the_last_handle(), 1);
    drop((datagrams, pd));
    assert_all_is_well();
}

#[test]
fn endpoint_that_waits_finds_out_that_its_address_has_moved_before_a_datagram_is_lost() {
    let (pd, mut datagrams) = endpoint();
    forget_the_past();
    datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap();
    succeeds(posted()[0]);
    assert!(datagrams.flush(None));
    gids(&["::ffff:10.0.0.1", "::ffff:10.0.0.2"]);
    let second = Some(Duration::from_secs(1));
    assert!(
        bounded(|| datagrams.receive_from(second))
            .unwrap()
            .is_none()
    );
    datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap();
    assert_eq!(sgid_index_of_the_last_handle(), 0);
    // So does one that is told.
    gids(&["fe80::1", "::ffff:10.0.0.1"]);
    datagrams.forget_all();
    datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap();
    assert_eq!(sgid_index_of_the_last_handle(), 1);
    drop((datagrams, pd));
    assert_all_is_well();
}

#[test]
fn receive_that_a_datagram_breaks_ends_no_endpoint() {
    let (pd, mut datagrams) = endpoint();
    // As soft-RoCE of Linux 6.1 does for a datagram that is longer than the receive, whoever sends it.
    for _ in 0..20 {
        let receives = posted();
        forget_the_past();
        fail(&receives);
        assert!(datagrams.receive_from(Duration::ZERO).unwrap().is_none());
        // Those blocks are posted again that were in flight at the end, and the others when they are free.
        assert!(datagrams.receive_from(Duration::ZERO).unwrap().is_none());
        assert_eq!(receives_in_flight(), 3);
        comes(posted()[0], &peer(2), b"next", None);
        assert_eq!(
            &datagrams.receive_from(Duration::ZERO).unwrap().unwrap()[..],
            b"next"
        );
        assert!(datagrams.receive_from(Duration::ZERO).unwrap().is_none());
        let left = posted().split_off(1);
        forget_the_past();
        with(|library| assert!(library.done.is_empty()));
        for wr_id in left {
            ends(wr_id, IBV_WC_WR_FLUSH_ERR);
        }
        assert!(datagrams.receive_from(Duration::ZERO).unwrap().is_none());
        assert!(datagrams.receive_from(Duration::ZERO).unwrap().is_none());
        datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap();
        let sent = with(|library| library.posted.last().unwrap()[0].wr_id);
        succeeds(sent);
        assert!(datagrams.flush(None));
        with(|library| library.posted.retain(|posted| !posted[0].is_send));
    }
    drop((datagrams, pd));
    assert_all_is_well();
}

#[test]
fn queue_pair_that_no_restart_helps_ends_the_endpoint() {
    let (_pd, mut datagrams) = endpoint();
    let error = bounded(|| {
        loop {
            for wr_id in posted() {
                ends(wr_id, IBV_WC_WR_FLUSH_ERR);
            }
            with(|library| library.qp_state = Some(IBV_QPS_ERR));
            forget_the_past();
            if let Err(error) = datagrams.receive_from(Duration::ZERO) {
                return error;
            }
        }
    });
    assert!(matches!(
        refused(&error),
        RejectReason::Down(DownReason::Work { .. })
    ));
}

#[test]
fn failed_operation_of_a_queue_pair_that_cannot_be_restarted_takes_the_endpoint_down_with_what_came_before()
 {
    let (pd, mut datagrams) = endpoint();
    with(|library| library.closed_state = Some((IBV_QPS_RESET.0, libc::EIO)));
    let receives = posted();
    let pool = BufferPool::new(&pd, 64, 1).unwrap();
    let block = pool.take_with(b"lost").unwrap().unwrap();
    datagrams.send_to(&peer(1), block).unwrap();
    comes(receives[0], &peer(2), b"before", None);
    ends(receives[1], IBV_WC_LOC_QP_OP_ERR);
    ends(receives[2], IBV_WC_WR_FLUSH_ERR);
    let before = datagrams.receive_from(None).unwrap().unwrap();
    assert_eq!(&before[..], b"before");
    let error = bounded(|| datagrams.receive_from(None)).unwrap_err();
    let RejectReason::Down(reason @ DownReason::Work { .. }) = refused(&error) else {
        panic!("{error}");
    };
    assert_eq!(datagrams.down_reason(), Some(*reason));
    assert!(called("ibv_destroy_qp"));
    assert_eq!(
        pool.available(),
        1,
        "the device has no access to it any more"
    );
    let rejected = datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap_err();
    assert_eq!(&rejected.into_given()[..], b"x");
    assert!(datagrams.flush(None));
    drop((datagrams, before, pool, pd));
    assert_all_is_well();
}

#[test]
fn unreachable_peer_leaves_the_endpoint_up() {
    let (pd, mut datagrams) = endpoint();
    with(|library| library.refuse.push(("ibv_create_ah", libc::ETIMEDOUT)));
    let rejected = datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap_err();
    assert!(matches!(
        rejected.error(),
        Error::Core(CoreError::Unreachable { .. })
    ));
    datagrams.send_to(&peer(1), rejected.into_given()).unwrap();
}

#[test]
fn device_that_fails_ends_a_wait_and_takes_the_endpoint_down() {
    for is_poll in [true, false] {
        let (_pd, mut datagrams) = endpoint();
        with(|library| library.poll_answer = is_poll.then_some(-2));
        refuse("ibv_query_qp", usize::from(!is_poll));
        let error = bounded(|| datagrams.receive_from(None)).unwrap_err();
        match refused(&error) {
            RejectReason::Down(DownReason::Poll(_)) => assert!(is_poll),
            RejectReason::Down(DownReason::Device(_)) => assert!(!is_poll),
            reason => panic!("{reason}"),
        }
    }
}
