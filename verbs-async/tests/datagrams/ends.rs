//! The ends of awaited datagram endpoints: who destroys the queue pair, and who waits for that.

use fake_libibverbs::{posted, share, with};
use verbs_async::verbs_channel::error::CloseError;
use verbs_async::verbs_channel::verbs_core::codes::Gid;
use verbs_async::verbs_channel::verbs_core::path::{DatagramEndpoint, QKey};
use verbs_async::verbs_channel::verbs_core::verbs_sys::{IBV_WC_LOC_QP_OP_ERR, ibv_wc};
use verbs_async::verbs_channel::{BufferPool, DownReason};
use verbs_harness::logged::{lines, listen};

use crate::bench::{Bench, Held, Task, announce, done, later};
use crate::waits::{assert_all_ends, buffer, comes, endpoint, peer, sends};

#[test]
fn peers_without_an_answer_leave_helper_threads_to_other_endpoints() {
    let _shared = share();
    let bench = Bench::new();
    let (flooded, other) = (endpoint(&bench), endpoint(&bench));
    let held = Held::new(&["ibv_create_ah"]);
    // One for each helper thread, each at an address of its own.
    let peers = (0..64).map(|number| {
        let gid: Gid = format!("::ffff:10.0.1.{number}").parse().unwrap();
        let peer = DatagramEndpoint::builder(0x77, QKey::MAX).gid(gid);
        peer.build().unwrap()
    });
    let sends: Vec<_> = peers
        .map(|peer| {
            let (datagrams, buffer) = (flooded.1.clone(), buffer(&flooded.0));
            Task::new(async move { datagrams.send_to(&peer, buffer).await }).waits()
        })
        .collect();
    let peer = peer();
    let theirs = Task::new(other.1.send_to(&peer, buffer(&other.0))).waits();
    for _ in 0..17 {
        held.begins("ibv_create_ah");
    }
    assert!(!held.has_begun(), "one endpoint has more than its share");
    drop((held, sends, theirs));
    drop((flooded, other, bench));
    assert_all_ends();
}

#[test]
fn endpoint_is_destroyed_once_on_a_helper_thread() {
    let _shared = share();
    for way in ["dropped", "closed", "closing is abandoned"] {
        println!("{way}");
        let bench = Bench::new();
        let (pd, datagrams) = endpoint(&bench);
        sends(datagrams.send_to(&peer(), buffer(&pd))).unwrap();
        let clone = datagrams.clone();
        let mut waiting = Task::new(clone.receive_from()).waits();
        let destroys = Held::new(&["ibv_destroy_qp"]);
        if way == "dropped" {
            drop(waiting);
            drop(datagrams);
            assert!(!destroys.has_begun(), "there is another");
            drop(clone);
            destroys.begins("ibv_destroy_qp");
            destroys.returns();
        } else {
            let mut closing = Task::new(datagrams.close()).waits();
            assert!(waiting.was_woken() > 0);
            let error = waiting.ends().unwrap_err();
            assert_eq!(error.down_reason(), Some(DownReason::Closed));
            drop(waiting);
            destroys.begins("ibv_destroy_qp");
            destroys.returns();
            if way == "closed" {
                closing.ends_when_woken().unwrap();
            }
            drop(closing);
            sends(datagrams.close()).unwrap();
            assert!(!destroys.has_begun(), "once");
            drop((clone, datagrams));
        }
        drop(destroys);
        drop((pd, bench));
        assert_all_ends();
    }
}

#[test]
fn forgotten_handle_is_destroyed_on_a_helper_thread() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let peer = peer();
    sends(datagrams.send_to(&peer, buffer(&pd))).unwrap();
    let held = Held::new(&["ibv_destroy_ah"]);
    datagrams.forget(&peer);
    done([*posted().last().unwrap()]);
    sends(datagrams.flush());
    assert!(!held.has_begun(), "the datagram had needed it");
    datagrams.forget(&peer);
    held.begins("ibv_destroy_ah");
    // Nothing is locked meanwhile.
    assert_eq!(datagrams.down_reason(), None);
    held.returns();
    drop((datagrams, pd, bench));
    assert_all_ends();
}

#[test]
fn handles_of_an_endpoint_that_ends_are_destroyed_on_helper_threads() {
    let _shared = share();
    for is_closed in [false, true] {
        let bench = Bench::new();
        let (pd, datagrams) = endpoint(&bench);
        sends(datagrams.send_to(&peer(), buffer(&pd))).unwrap();
        done([*posted().last().unwrap()]);
        // It is forgotten while a datagram needs it.
        let gid: Gid = "::ffff:10.0.0.10".parse().unwrap();
        let other = DatagramEndpoint::builder(0x77, QKey::MAX).gid(gid);
        let other = other.build().unwrap();
        sends(datagrams.send_to(&other, buffer(&pd))).unwrap();
        datagrams.forget(&other);
        let destroys = Held::new(&["ibv_destroy_ah"]);
        (0..2).for_each(|_| destroys.returns());
        if is_closed {
            sends(datagrams.close()).unwrap();
            destroys.begins("ibv_destroy_ah");
        }
        drop(datagrams);
        (usize::from(is_closed)..2).for_each(|_| destroys.begins("ibv_destroy_ah"));
        drop(destroys);
        drop((pd, bench));
        assert_all_ends();
    }
}

#[test]
fn notifier_that_fails_after_the_endpoint_was_closed_logs_nothing() {
    let _shared = share();
    for is_closed in [true, false] {
        listen();
        let bench = Bench::new();
        let (_pd, datagrams) = endpoint(&bench);
        if is_closed {
            sends(datagrams.close()).unwrap();
        }
        bench.hand.over();
        assert_eq!(lines().len(), usize::from(!is_closed));
        drop(datagrams);
    }
}

#[test]
fn closing_waits_for_a_queue_pair_that_another_thread_destroys() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let held = Held::new(&["ibv_destroy_qp"]);
    // It fails, and is destroyed for that.
    bench.hand.over();
    held.begins("ibv_destroy_qp");
    let mut closing = [(); 2].map(|()| Task::new(datagrams.close()).waits());
    held.returns();
    for close in &mut closing {
        close.ends_when_woken().unwrap();
    }
    drop(closing);
    drop((datagrams, pd, bench));
    assert_all_ends();
}

#[test]
fn queue_pair_that_cannot_be_destroyed_is_the_error_of_every_close() {
    let _shared = share();
    // At the first close, after a failure, and after a post that may have taken the datagram.
    for way in ["close", "failure", "post"] {
        println!("{way}");
        let bench = Bench::new();
        let (pd, datagrams) = endpoint(&bench);
        let pool = BufferPool::new(&pd, 64, 2).unwrap();
        let block = pool.take_with(b"stuck").unwrap().unwrap();
        if way == "post" {
            with(|library| library.refuse_post = Some((1, libc::EIO, false)));
        }
        with(|library| library.refuse.push(("ibv_destroy_qp", libc::EBUSY)));
        let sent = sends(datagrams.send_to(&peer(), block));
        assert_eq!(sent.is_err(), way == "post");
        if way == "failure" {
            bench.hand.over();
        }
        assert_eq!(datagrams.down_reason().is_some(), way != "close");
        for _ in 0..2 {
            assert_eq!(later(datagrams.close()), Err(CloseError::Stuck));
        }
        assert_eq!(pool.available(), 1, "the device may still access the other");
        fake_libibverbs::touch_posted();
        fake_libibverbs::forget_requests();
    }
}

#[test]
fn failed_datagram_is_reported_and_tasks_wait_on() {
    let _shared = share();
    let bench = Bench::new();
    let (pd, datagrams) = endpoint(&bench);
    let peer = peer();
    sends(datagrams.send_to(&peer, buffer(&pd))).unwrap();
    let mut receive = Task::new(datagrams.receive_from()).waits();
    let send = Task::new(datagrams.send_to(&peer, buffer(&pd))).waits();
    let sent = *posted().last().unwrap();
    with(|library| {
        library.posted.clear();
        library.done.push_back(ibv_wc {
            wr_id: sent,
            status: IBV_WC_LOC_QP_OP_ERR,
            ..ibv_wc::default()
        });
    });
    announce(&bench);
    assert_eq!((send.was_woken(), receive.was_woken()), (1, 0));
    let failure = datagrams.take_failed().unwrap();
    assert_eq!(failure.peer, peer);
    assert_eq!(
        (datagrams.take_failed(), datagrams.down_reason()),
        (None, None)
    );
    // The handle that it was sent with is made again.
    let again = sends(datagrams.send_to(&peer, buffer(&pd)));
    again.unwrap();
    drop(send);
    comes(posted()[0], b"next");
    announce(&bench);
    assert_eq!(&receive.ends().unwrap()[..], b"next");
    drop(receive);
    drop((datagrams, pd, bench));
    assert_all_ends();
}
