//! Blocking operations: one at a time, completed when the call returns.

use std::thread;
use std::time::{Duration, Instant};

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::{AccessFlags, RemoteMemoryRegion, ScatterElement};
use verbs_channel::{Channel, DownReason, Incoming, Outgoing, RejectReason, TransportError};
use verbs_harness::{PATIENCE, begin, faults};

use super::ends::{
    SOON, assert_timed_out, bounded, bytes, failed_send, filled, given, here, impatient, inside,
    pair, pair_of, patient, stubborn, work_error, works, zeros,
};

#[test]
#[ignore = "needs an RDMA device"]
fn default_timeout_is_none() {
    let _test = begin!();
    let (mut a, mut b) = Channel::loopback(&here()).unwrap();
    let mut into = zeros(&b, 8);
    thread::scope(|threads| {
        let receiver = threads.spawn(|| b.receive(into.scatter_element(..).unwrap()));
        thread::sleep(Duration::from_millis(300));
        assert!(!receiver.is_finished());
        let from = filled(&a, 1, 8);
        a.send(from.gather_element(..).unwrap()).unwrap();
        assert_eq!(receiver.join().unwrap().unwrap().byte_len(), 8);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn receive_without_a_message_is_aborted_at_its_deadline() {
    let _test = begin!();
    let (_a, mut b) = pair();
    let mut into = zeros(&b, 8);
    let result =
        bounded(|| b.run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(SOON)));
    assert_timed_out(result, &b);
    // The borrow has ended, and the channel rejects requests with the reason.
    into[0] = 1;
    let refused = b.receive(into.scatter_element(..).unwrap()).unwrap_err();
    let down = RejectReason::Down(DownReason::TimedOut {
        queue: Queue::Receive,
        after: SOON,
    });
    assert!(
        matches!(refused, TransportError::Rejected(reason) if reason == down),
        "{refused}"
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn send_to_a_peer_without_receives_is_aborted_at_its_deadline() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for timeout in [Duration::ZERO, Duration::from_nanos(1), SOON] {
        let (mut a, b) = inside(stubborn);
        let (from, start) = (filled(&a, 1, 64), Instant::now());
        let result =
            bounded(|| a.run(Outgoing::send(from.gather_element(..).unwrap()).timeout(timeout)));
        if timeout == SOON {
            let error = result.as_ref().unwrap_err();
            let within = faults::setting(start, "the deadline", timeout);
            faults::error(faults::NO_RECEIVE, "channel", error, within);
        }
        assert_timed_out(result, &a);
        drop(b);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_call_ends_with_a_timeout_of_zero() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    type Call =
        fn(&mut Channel, ScatterElement<'_>, RemoteMemoryRegion) -> Result<(), TransportError>;
    let calls: [Call; 4] = [
        |a, element, _| a.receive(element).map(drop),
        |a, element, _| a.send(element.into_gather()),
        |a, element, _| a.run_batch([Outgoing::send(element.into_gather())]),
        |a, element, remote| a.write(element.into_gather(), remote),
    ];
    for (index, call) in calls.into_iter().enumerate() {
        let (mut a, b) = inside(stubborn);
        a.set_timeout(Some(Duration::ZERO));
        let target = given(&b, vec![0_u8; 8]);
        let mut buffer = zeros(&a, 8);
        let result = bounded(|| call(&mut a, buffer.scatter_element(..).unwrap(), target.remote()));
        // An operation that does not need the peer may complete at the first poll.
        if index < 3 || result.is_err() {
            assert_timed_out(result, &a);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn timeout_beyond_the_clock_is_none() {
    let _test = begin!();
    let (mut a, mut b) = pair_of(|pd| {
        Channel::builder(pd)
            .timeout(Duration::MAX)
            .drain_timeout(Duration::MAX)
            .build()
            .unwrap()
    });
    works(&mut a, &mut b, 100);
    // Also with handles that were dropped, on both sides.
    let (from, mut into) = (filled(&a, 5, 100), zeros(&b, 100));
    thread::scope(|threads| {
        let receiver = threads.spawn(|| {
            b.scope(|scope| {
                drop(
                    scope
                        .post_receive(into.scatter_element(..).unwrap())
                        .unwrap(),
                );
                Ok::<_, ()>(())
            })
        });
        thread::sleep(SOON);
        let sent = a.scope(|scope| {
            drop(scope.post_send(from.gather_element(..).unwrap()).unwrap());
            Ok::<_, ()>(())
        });
        sent.unwrap();
        receiver.join().unwrap().unwrap();
    });
    assert!(into[..] == from[..]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn work_error_is_returned_and_takes_the_channel_down() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let (mut a, b) = pair();
    let target = given(&b, vec![0_u8; 64]);
    let remote = target.remote();
    let wrong = RemoteMemoryRegion::new(remote.addr(), 64, remote.rkey() ^ 0x55).unwrap();
    let from = filled(&a, 1, 64);
    let error = a
        .write(from.gather_element(..).unwrap(), wrong)
        .unwrap_err();
    let error = work_error(&error);
    assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(a.down_reason(), Some(failed_send(error)));
    assert!(a.is_down() && !b.is_down());
    assert_eq!(bytes(&target), [0; 64]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejected_write_flushes_the_peers_receives() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let (mut a, mut b) = pair_of(|pd| {
        let builder = Channel::builder(pd).drain_timeout(faults::NOT_AT_ONCE);
        builder.build().unwrap()
    });
    let target = b.pd().reg_shared(vec![0_u8; 64], AccessFlags::REMOTE_READ);
    let remote = target.as_ref().unwrap().remote();
    let receive = b.start_receive(zeros(&b, 8)).unwrap();
    let (from, start) = (filled(&a, 1, 64), Instant::now());
    let write = bounded(|| a.write(from.gather_element(..).unwrap(), remote));
    assert_eq!(
        work_error(&write.unwrap_err()).status,
        WcStatus::REM_ACCESS_ERR
    );
    let ended = bounded(|| b.wait(receive, None)).unwrap().unwrap();
    let error = ended.result.unwrap_err();
    faults::error(faults::QP_ERROR, "channel", &error, faults::at_once(start));
    assert!(b.is_down());
}

#[test]
#[ignore = "needs an RDMA device"]
fn invalid_request_is_rejected_before_it_is_posted() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let target = given(&b, vec![0_u8; 64]);
    let from = filled(&a, 1, 65);
    let mut into = zeros(&a, 65);
    let reject_reason = |result: Result<(), TransportError>| match result.unwrap_err() {
        TransportError::Rejected(reason) => reason,
        other => panic!("{other}"),
    };
    let long = RejectReason::RemoteTooShort {
        local: 65,
        remote: 64,
    };
    assert_eq!(
        reject_reason(a.write(from.gather_element(..).unwrap(), target.remote())),
        long
    );
    assert_eq!(
        reject_reason(a.read(into.scatter_element(..).unwrap(), target.remote())),
        long
    );
    let odd = target.remote().slice(4..).unwrap();
    let eight = into.scatter_element(..8).unwrap();
    assert!(matches!(
        reject_reason(a.run(Incoming::fetch_and_add(eight, odd, 1)).map(drop)),
        RejectReason::Misaligned { len: 8, .. }
    ));
    let short = into.scatter_element(..7).unwrap();
    assert!(matches!(
        reject_reason(
            a.run(Incoming::compare_and_swap(short, target.remote(), 0, 1))
                .map(drop)
        ),
        RejectReason::Misaligned { len: 7, .. }
    ));
    // More bytes inline than the channel was created for.
    let inline = Outgoing::write(from.gather_element(..64).unwrap(), target.remote()).inline();
    let mut plain = pair_of(|pd| Channel::builder(pd).timeout(PATIENCE).build().unwrap()).0;
    if let Err(error) = plain.run(inline) {
        assert!(
            matches!(
                error,
                TransportError::Rejected(
                    RejectReason::Post(_) | RejectReason::InlineTooLong { .. }
                ) | TransportError::Work { .. }
                    | TransportError::Aborted(_)
            ),
            "{error}"
        );
    }
    // None of them was posted: the channels still work.
    assert!(!a.is_down());
    assert_eq!(bytes(&target), [0; 64]);
    works(&mut a, &mut b, 100);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_message_that_is_too_long_for_its_receive_fails_on_both_sides() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let (mut a, mut b) = pair_of(impatient);
    let from = filled(&a, 1, 64);
    let mut into = zeros(&b, 64);
    let received = b.scope(|scope| {
        let receive = scope
            .post_receive(into.scatter_element(..32).unwrap())
            .unwrap();
        let error = bounded(|| a.send(from.gather_element(..).unwrap())).unwrap_err();
        let statuses = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR];
        assert!(statuses.contains(&work_error(&error).status), "{error}");
        Ok::<_, ()>(receive.spin_poll())
    });
    let error = received.unwrap().unwrap_err();
    let (a_is_down, b_is_down) = (a.is_down(), b.is_down());
    assert!(a_is_down && b_is_down, "{error}");
    assert_eq!(into[32..], [0; 32]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn channel_can_be_moved_between_threads() {
    let _test = begin!();
    let (mut a, mut b) = pair_of(patient);
    for round in 0..4 {
        let (x, y) = thread::spawn(move || {
            works(&mut a, &mut b, 1000 + round);
            (b, a)
        })
        .join()
        .unwrap();
        (a, b) = (x, y);
    }
    assert!(a.endpoint().is_some() && b.endpoint().is_some());
    // SAFETY: the queue is neither polled nor changed.
    assert!(unsafe { a.engine_mut().cq() }.min_capacity() >= 128);
}
