//! Scopes: dropped handles, receives in flight at the end, and `?`.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::verbs_sys::{IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, ibv_wc};
use verbs_channel::{
    Channel, DownReason, Error, Outgoing, RejectReason, ScopeError, TransportError,
};

use crate::fake_device::{
    bounded, called, channel, connected, ends, flushes, pd, posted, region, succeeds,
};

/// The device completes everything that is posted.
fn all_succeeds() {
    posted().into_iter().for_each(succeeds);
    with(|library| library.posted.clear());
}

#[test]
fn leaked_handles_hold_their_slots_no_longer_than_the_scope() {
    let mut channel = channel();
    let from = region(&channel);
    // More, in all, than there are slots; completed before the scope ends, and as it ends.
    for completes_first in [true, false].repeat(10) {
        let ended = channel.scope(|scope| {
            let _forgotten = ManuallyDrop::new(scope.post_send(from.gather_element(..).unwrap())?);
            all_succeeds();
            if completes_first {
                assert_eq!(scope.poll(), 1);
            }
            Ok::<_, Error>(())
        });
        ended.unwrap();
    }
    assert!(channel.is_idle());
}

#[test]
fn scope_waits_for_its_own_operations_only() {
    let mut channel = channel();
    let from = region(&channel);
    let received = region(&channel);
    let receive = channel.start_receive(received).unwrap();
    channel.set_timeout(None);
    with(|library| library.posted.clear());
    let ended = bounded(|| {
        channel.scope(|scope| {
            scope.post_send(from.gather_element(..).unwrap())?;
            all_succeeds();
            Ok::<_, Error>(())
        })
    });
    ended.unwrap();
    assert!(channel.poll(receive).unwrap().is_none(), "it is in flight");
}

#[test]
fn scope_returns_the_first_failure() {
    let mut channel = channel();
    let from = region(&channel);
    let [mut before, mut after] = [(); 2].map(|()| region(&channel));
    let ended = channel.scope(|scope| {
        // The slots of the receives are before and after that of the send.
        scope.post_receive(before.scatter_element(..).unwrap())?;
        scope.post_send(from.gather_element(..).unwrap())?;
        scope.post_receive(after.scatter_element(..).unwrap())?;
        let [first, send, last] = posted()[..] else {
            panic!("three are posted");
        };
        ends(send, IBV_WC_RETRY_EXC_ERR);
        flushes(first);
        flushes(last);
        Ok::<_, Error>(())
    });
    let ScopeError::AutoPollError(TransportError::Work { queue, error }) = ended.unwrap_err()
    else {
        panic!("an operation has failed");
    };
    assert_eq!(
        (queue, error.status),
        (Queue::Send, WcStatus::RETRY_EXC_ERR)
    );
}

#[test]
fn too_many_untaken_handles_are_not_backpressure() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..).unwrap();
        let mut handles = Vec::new();
        for _ in 0..8 {
            handles.push(scope.post_send(element)?);
            all_succeeds();
            scope.poll();
        }
        let rejected = scope.try_lend(Outgoing::send(element)).unwrap_err();
        assert_eq!(*rejected.error(), RejectReason::Untaken);
        assert!(!rejected.error().is_backpressure(), "polling does not help");
        handles.pop().unwrap().spin_poll()?;
        scope.post_send(element)?;
        all_succeeds();
        Ok::<_, Error>(())
    });
    ended.unwrap();
}

/// Ends a scope, with a receive that has completed behind others, and was not polled.
fn ends_with_a_completed_receive(ends: impl FnOnce(&mut Channel, &mut dyn FnMut())) {
    let mut channel = channel();
    ends(&mut channel, &mut || {
        // More than one poll finds, of no operation.
        (0..20).for_each(succeeds);
        all_succeeds();
    });
    assert_eq!(channel.down_reason(), None, "all of it has succeeded");
    assert!(channel.is_idle());
}

#[test]
fn receive_that_has_completed_is_no_reason_to_abort() {
    ends_with_a_completed_receive(|channel, completes| {
        let mut into = region(channel);
        let ended: Result<(), ScopeError<Error>> = channel.scope(|scope| {
            scope.post_receive(into.scatter_element(..)?)?;
            completes();
            Err(Error::from(TransportError::Taken))
        });
        assert!(matches!(ended, Err(ScopeError::ClosureError(_))));
    });
    ends_with_a_completed_receive(|channel, completes| {
        let mut into = region(channel);
        let ended = channel.scope(|scope| {
            scope.close_with_receives_left();
            scope.post_receive(into.scatter_element(..)?)?;
            completes();
            Ok::<_, Error>(())
        });
        ended.unwrap();
    });
    ends_with_a_completed_receive(|channel, completes| {
        let mut into = region(channel);
        let ended = channel.manual_scope(|scope| {
            scope.post_receive(into.scatter_element(..)?)?;
            completes();
            Ok::<_, Error>(())
        });
        ended.unwrap();
    });
    ends_with_a_completed_receive(|channel, completes| {
        let mut into = region(channel);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            channel.scope(|scope| -> Result<(), Error> {
                scope.post_receive(into.scatter_element(..)?)?;
                completes();
                panic!("on purpose");
            })
        }));
        assert!(panic.is_err());
    });
}

#[test]
fn failed_scope_polls_until_its_sends_complete() {
    // Long enough for five polls, wherever they run.
    let drain = Duration::from_secs(10);
    let prepared = Channel::builder(&pd()).drain_timeout(drain).build();
    let mut channel = connected(prepared.unwrap());
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        drop(scope.post_send(from.gather_element(..).unwrap()).unwrap());
        let done = ibv_wc {
            wr_id: posted()[0],
            status: IBV_WC_SUCCESS,
            ..Default::default()
        };
        with(|library| library.done_later = Some((5, done)));
        Err::<(), _>("on purpose")
    });
    assert!(matches!(ended, Err(ScopeError::ClosureError("on purpose"))));
    assert!(!called("ibv_modify_qp") && !called("ibv_destroy_qp"));
    assert!(channel.is_idle() && !channel.is_down());
}

/// A value whose drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn value_of_a_scope_that_failed_may_panic_when_it_is_dropped() {
    let mut channel = channel();
    let from = region(&channel);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        channel.scope(|scope| {
            drop(scope.post_send(from.gather_element(..).unwrap()).unwrap());
            ends(posted()[0], IBV_WC_RETRY_EXC_ERR);
            Ok::<_, ()>(Bomb)
        })
    }));
    // All operations have ended, so the process goes on.
    assert!(unwound.is_err());
    assert!(channel.is_down() && channel.is_idle());
}

#[test]
fn scope_that_ends_with_receives_left_closes_the_connection_and_returns_a_failed_send() {
    for status in [Some(IBV_WC_SUCCESS), Some(IBV_WC_RETRY_EXC_ERR), None] {
        let mut channel = channel();
        channel.set_timeout(status.is_none().then_some(Duration::ZERO));
        let (mut into, from) = (region(&channel), region(&channel));
        let ended = bounded(|| {
            channel.scope(|scope| {
                scope.close_with_receives_left();
                scope.post_receive(into.scatter_element(..)?)?;
                scope.post_send(from.gather_element(..)?)?;
                status
                    .into_iter()
                    .for_each(|status| ends(posted()[1], status));
                Ok::<_, Error>(())
            })
        });
        assert!(channel.is_down());
        match ended {
            Ok(()) => assert_eq!(status, Some(IBV_WC_SUCCESS)),
            Err(ScopeError::AutoPollError(error)) => {
                let is_late = error.down_reason().is_some_and(DownReason::is_timed_out);
                assert_eq!(is_late, status.is_none(), "{error:?}");
                assert_ne!(status, Some(IBV_WC_SUCCESS));
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn result_is_taken_once_and_a_failure_that_was_taken_does_not_fail_the_scope() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let mut work = scope.post_send(from.gather_element(..)?)?;
        ends(posted()[0], IBV_WC_RETRY_EXC_ERR);
        assert!(matches!(
            work.poll(),
            Some(Err(TransportError::Work { .. }))
        ));
        assert!(work.poll().is_none() && work.wait_timeout(Duration::ZERO).is_none());
        assert_eq!(work.spin_poll().unwrap_err(), TransportError::Taken);
        Ok::<_, Error>(())
    });
    ended.unwrap();
}
