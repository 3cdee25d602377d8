//! Scopes: operations on borrowed buffers, and how they end.

use std::thread;

use verbs_channel::{DownReason, Error, ScopeError, TransportError};
use verbs_harness::{PATIENCE, begin, until};

use super::ends::{
    SOON, assert_scope_ended, bounded, bytes, filled, given, impatient, pair, pair_of, pattern,
    works, zeros,
};

#[test]
#[ignore = "needs an RDMA device"]
fn reads_writes_and_receives_mix() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let there = given(&b, pattern(1, 4000));
    let from = filled(&a, 2, 2000);
    let mut read = zeros(&a, 2000);
    let mut received = zeros(&a, 100);
    let message = filled(&b, 3, 100);
    let ended = a.scope(|scope| {
        let (low, high) = (there.remote().slice(..2000)?, there.remote().slice(2000..)?);
        let write = scope.post_write(from.gather_element(..)?, low)?;
        let read = scope.post_read(read.scatter_element(..)?, high)?;
        let receive = scope.post_receive(received.scatter_element(..)?)?;
        b.send(message.gather_element(..)?)?;
        assert_eq!(receive.spin_poll()?.byte_len(), 100);
        read.spin_poll()?;
        write.spin_poll()?;
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert!(received[..] == message[..] && read[..] == pattern(1, 4000)[2000..]);
    assert!(bytes(&there)[..2000] == from[..]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn scope_waits_for_operations_in_flight() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let from = filled(&a, 1, 1000);
    let mut into = zeros(&b, 1000);
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
        thread::sleep(2 * SOON);
        assert!(
            !receiver.is_finished(),
            "the scope ended before its receive"
        );
        a.send(from.gather_element(..).unwrap()).unwrap();
        receiver.join().unwrap().unwrap();
    });
    assert!(into[..] == from[..]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn result_is_taken_once() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let target = given(&b, vec![0_u8; 8]);
    let from = filled(&a, 1, 8);
    let ended = a.scope(|scope| {
        let mut work = scope
            .post_write(from.gather_element(..).unwrap(), target.remote())
            .unwrap();
        let mut first = None;
        assert!(until(PATIENCE, || {
            first = work.poll();
            first.is_some()
        }));
        first.unwrap().unwrap();
        assert!(work.poll().is_none());
        assert!(work.wait_timeout(SOON).is_none());
        assert_eq!(work.spin_poll().unwrap_err(), TransportError::Taken);
        Ok::<_, ()>(())
    });
    ended.unwrap();
    works(&mut a, &mut b, 10);
}

#[test]
#[ignore = "needs an RDMA device"]
fn taken_failure_does_not_fail_the_scope() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let (mut a, b) = pair_of(impatient);
    drop(b);
    let from = filled(&a, 1, 64);
    let ended = a.scope(|scope| {
        let work = scope.post_send(from.gather_element(..).unwrap()).unwrap();
        Ok::<_, ()>(bounded(|| work.spin_poll()))
    });
    assert!(ended.unwrap().is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn manual_scope_aborts_operations_in_flight_and_fails() {
    let _test = begin!();
    let (mut a, b) = pair();
    let mut into = zeros(&a, 64);
    let ended = bounded(|| {
        a.manual_scope(|scope| {
            drop(
                scope
                    .post_receive(into.scatter_element(..).unwrap())
                    .unwrap(),
            );
            Ok::<_, ()>(())
        })
    });
    assert_scope_ended(ended, &a, DownReason::Abandoned);
    // An operation that has completed is not aborted, although it was not polled.
    drop(b);
    let (mut a, b) = pair();
    let target = given(&b, vec![0_u8; 8]);
    let from = filled(&a, 1, 8);
    let ended = a.manual_scope(|scope| {
        let work = scope
            .post_write(from.gather_element(..).unwrap(), target.remote())
            .unwrap();
        let _ticket = work.spin_poll().unwrap();
        Ok::<_, ()>(())
    });
    ended.unwrap();
    assert!(!a.is_down());
}

#[test]
#[ignore = "needs an RDMA device"]
fn scopes_of_two_channels_can_be_nested() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let (mut a, mut b) = pair();
    let (mut c, mut d) = pair();
    let from = filled(&a, 1, 500);
    let other = filled(&c, 2, 500);
    let mut into = zeros(&b, 500);
    let mut too = zeros(&d, 500);
    let ended = a.scope(|outer| {
        let sent = outer.post_send(from.gather_element(..)?)?;
        let inner = b.scope(|inner| {
            let received = inner.post_receive(into.scatter_element(..)?)?;
            // The innermost scope fails; the outer ones continue.
            let innermost = d.scope(|third| {
                drop(third.post_receive(too.scatter_element(..)?)?);
                let fourth = c.scope(|fourth| {
                    drop(fourth.post_send(other.gather_element(..)?)?);
                    Ok::<_, Error>(())
                });
                fourth.unwrap();
                Err::<(), _>(Error::StaleTicket)
            });
            assert!(matches!(
                innermost,
                Err(ScopeError::ClosureError(Error::StaleTicket))
            ));
            Ok::<_, Error>(received.spin_poll()?.byte_len())
        });
        assert_eq!(inner.unwrap(), 500);
        sent.spin_poll()?;
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert!(into[..] == from[..]);
    assert!(!a.is_down() && !b.is_down());
    works(&mut a, &mut b, 77);
}

#[test]
#[ignore = "needs an RDMA device"]
fn empty_scope_ends_at_once() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    assert_eq!(a.scope(|_| Ok::<_, ()>(5)).unwrap(), 5);
    assert_eq!(a.scope(|scope| Ok::<_, ()>(scope.poll())).unwrap(), 0);
    assert!(matches!(
        a.scope(|_| Err::<(), _>(6)),
        Err(ScopeError::ClosureError(6))
    ));
    assert!(a.manual_scope(|_| Ok::<_, ()>(())).is_ok());
    let quiet = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        a.scope(|_| -> Result<(), ()> { std::panic::resume_unwind(Box::new(7)) })
    }));
    assert_eq!(quiet.unwrap_err().downcast_ref::<i32>(), Some(&7));
    // An error with nothing in flight does not take the channel down.
    assert!(!a.is_down());
    works(&mut a, &mut b, 9);
}
