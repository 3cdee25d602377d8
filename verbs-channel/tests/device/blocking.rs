//! Blocking operations: one at a time, completed when the call returns.

use std::thread;
use std::time::{Duration, Instant};

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::{AccessFlags, RemoteMemoryRegion, ScatterElement};
use verbs_channel::{Channel, DownReason, Incoming, Outgoing, RejectReason, TransportError};
use verbs_harness::{begin, faults};

use super::ends::{
    SOON, assert_timed_out, bounded, filled, given, here, inside, pair, pair_of, patient, stubborn,
    work_error, works, zeros,
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
