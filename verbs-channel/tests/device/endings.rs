//! How operations end: errors and panics in scopes, leaks, resets.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use verbs_channel::verbs_core::{RemoteMemoryRegion, ScatterElement};
use verbs_channel::{BufferPool, Channel, DownReason, PollingScope, ScopeError, TransportError};
use verbs_harness::{PATIENCE, begin};

use super::ends::{
    SOON, between, bounded, filled, given, here, inside, meet, pair_of, pattern, stubborn, there,
    works, zeros,
};

/// The operations in flight when a scope fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    Receives,
    Sends,
    Reads,
    All,
}

const LEFT: [Left; 4] = [Left::Receives, Left::Sends, Left::Reads, Left::All];

/// Posts a part of the buffer for each kind of operation.
fn post<'scope>(
    scope: &'scope PollingScope<'scope, '_>,
    left: Left,
    buffer: ScatterElement<'scope>,
    remote: RemoteMemoryRegion,
) {
    let mut chunks = buffer.chunks_mut(64).unwrap();
    let mut next = || chunks.next().unwrap();
    let kinds = |kind| left == Left::All || left == kind;
    if kinds(Left::Receives) {
        for _ in 0..4 {
            drop(scope.post_receive(next()).unwrap());
        }
    }
    if kinds(Left::Reads) {
        for _ in 0..4 {
            drop(scope.post_read(next(), remote).unwrap());
        }
    }
    if kinds(Left::Sends) {
        for _ in 0..4 {
            drop(scope.post_send(next().into_gather()).unwrap());
        }
    }
}

/// How a closure fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Error,
    Panic,
}

/// A scope whose closure fails with operations in flight. Returns how long the scope took to end.
fn fails(how: How, left: Left, manual: bool) -> (Channel, Duration) {
    // The peer posts no receive: sends never end by themselves.
    let (mut a, b) = inside(stubborn);
    let source = given(&b, pattern(1, 64));
    let mut buffer = zeros(&a, 12 * 64);
    let remote = source.remote();
    let start = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let element = buffer.scatter_element(..).unwrap();
        let closure = |scope: &PollingScope<'_, '_>| match how {
            How::Error => Err::<(), _>(5),
            How::Panic => {
                scope.poll();
                resume_unwind(Box::new("on purpose"))
            }
        };
        if manual {
            a.manual_scope(|scope| {
                post(scope, left, element, remote);
                closure(scope)
            })
        } else {
            a.scope(|scope| {
                post(scope, left, element, remote);
                closure(scope)
            })
        }
    }));
    let took = start.elapsed();
    match ended {
        Ok(ended) => {
            assert_eq!(how, How::Error);
            assert!(
                matches!(ended, Err(ScopeError::ClosureError(5))),
                "{ended:?}"
            );
        }
        Err(panic) => {
            assert_eq!(how, How::Panic);
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
        }
    }
    // The borrow has ended: the device does not write there any more.
    buffer.fill(7);
    std::thread::sleep(Duration::from_millis(20));
    assert!(buffer.iter().all(|byte| *byte == 7));
    (a, took)
}

#[test]
#[ignore = "needs an RDMA device"]
fn error_or_panic_in_a_scope_ends_operations_in_flight() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for how in [How::Error, How::Panic] {
        for left in LEFT {
            for manual in [false, true] {
                let (a, took) = bounded(|| fails(how, left, manual));
                check(&a, left, took);
            }
        }
    }
}

fn check(a: &Channel, left: Left, took: Duration) {
    match left {
        // They end by themselves, in the time that a failed scope gives them.
        Left::Reads => assert!(!a.is_down(), "{:?}", a.down_reason()),
        _ => assert_eq!(a.down_reason(), Some(DownReason::Abandoned), "{left:?}"),
    }
    if matches!(left, Left::Sends | Left::All) {
        assert!(took >= SOON, "sends get the drain timeout, not {took:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn failed_scope_does_not_wait_for_receives() {
    let _test = begin!();
    let (mut a, _b) = pair_of(|pd| {
        Channel::builder(pd)
            .drain_timeout(PATIENCE)
            .build()
            .unwrap()
    });
    let mut into = zeros(&a, 64);
    let ended = bounded(|| {
        a.scope(|scope| {
            drop(
                scope
                    .post_receive(into.scatter_element(..).unwrap())
                    .unwrap(),
            );
            Err::<(), _>(())
        })
    });
    assert!(matches!(ended, Err(ScopeError::ClosureError(()))));
    assert_eq!(a.down_reason(), Some(DownReason::Abandoned));
}

#[test]
#[ignore = "needs an RDMA device"]
fn reset_channel_connects_again_with_the_same_settings() {
    let _test = begin!();
    let (mut a, mut b) = between(&here(), &there(), |pd| {
        Channel::builder(pd)
            .max_send_wr(3)
            .timeout(PATIENCE)
            .build()
            .unwrap()
    });
    for round in 0..5 {
        let ticket = a.start_receive(filled(&a, round, 64)).unwrap();
        let number = a.endpoint().unwrap().qp_num();
        let (to_be_a, to_be_b) = (a.reset().unwrap(), b.reset().unwrap());
        // The buffers in flight are returned by the old channel.
        assert_eq!(a.down_reason(), Some(DownReason::Closed));
        assert!(a.endpoint().is_none());
        let ended = a.poll(ticket).unwrap().unwrap();
        let error = ended.result.unwrap_err();
        assert_eq!(error, TransportError::Aborted(DownReason::Closed));
        assert!(ended.buffer.unwrap()[..] == pattern(round, 64));
        assert_ne!((to_be_a.endpoint().qp_num(), 0), (number, 1));
        (a, b) = meet(to_be_a, to_be_b);
        works(&mut a, &mut b, 1000);
        let from = filled(&a, 1, 8);
        let target = given(&b, vec![0_u8; 8]);
        let ended = a.scope(|scope| {
            for _ in 0..3 {
                let element = from.gather_element(..).unwrap();
                drop(scope.post_write(element, target.remote()).unwrap());
            }
            let fourth = scope.post_write(from.gather_element(..).unwrap(), target.remote());
            assert!(fourth.unwrap_err().is_backpressure());
            Ok::<_, ()>(())
        });
        ended.unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn leaked_channel_keeps_the_buffers_in_flight() {
    let _test = begin!();
    let pd = here();
    let (mut a, mut b) = Channel::loopback(&pd).unwrap();
    let pool = BufferPool::new(&pd, 64, 8).unwrap();
    for _ in 0..4 {
        let _ticket = b.start_receive(pool.take().unwrap()).unwrap();
    }
    let _leaked = ManuallyDrop::new(b);
    drop(pd);
    // It still receives; its blocks are never returned.
    for seed in 0..4 {
        let from = filled(&a, seed, 64);
        a.send(from.gather_element(..).unwrap()).unwrap();
    }
    assert_eq!(pool.available(), 4);
    let _leaked = ManuallyDrop::new(Channel::builder(a.pd()).build().unwrap());
}
