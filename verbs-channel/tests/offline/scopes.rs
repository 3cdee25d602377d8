//! Scopes: dropped handles, receives in flight at the end, and `?`.

use std::error::Error as StdError;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::verbs_sys::{IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, ibv_wc};
use verbs_channel::{
    Channel, DownReason, Error, Incoming, Outgoing, RejectReason, ScopeError, TransportError,
};

use crate::fake_device::{
    bounded, called, channel, connected, ends, flushes, forget_the_past, pd, posted, region,
    succeeds,
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

#[test]
fn later_errors_have_the_first_failure_as_their_source() {
    let mut channel = channel();
    let (first, second) = (
        channel.start_send(region(&channel)).unwrap(),
        channel.start_receive(region(&channel)).unwrap(),
    );
    ends(posted()[0], IBV_WC_RETRY_EXC_ERR);
    flushes(posted()[1]);
    let failed = channel.wait(first, None).unwrap().unwrap();
    let failed = failed.result.unwrap_err();
    let TransportError::Work { queue, error } = failed else {
        panic!("{failed:?}");
    };
    let reason = DownReason::Work { queue, error };
    assert_eq!(channel.down_reason(), Some(reason));
    let flushed = channel.wait(second, None).unwrap().unwrap();
    let flushed = flushed.result.unwrap_err();
    assert_eq!(flushed, TransportError::Aborted(reason));
    let from = region(&channel);
    let refused = channel.send(from.gather_element(..).unwrap()).unwrap_err();
    let lates: [&dyn StdError; 2] = [&flushed, &refused];
    for late in lates {
        let mut chain = vec![late.to_string()];
        let mut next = late.source();
        while let Some(cause) = next {
            chain.push(cause.to_string());
            next = cause.source();
        }
        assert_eq!(chain.last(), Some(&error.to_string()), "{chain:?}");
        assert!(chain[0].contains("aborted") || chain[0].contains("down"));
    }
}

/// `?` in a scope, with errors that must not borrow.
mod question_mark {
    use super::*;

    /// For programs without an error type of their own.
    fn boxed(channel: &mut Channel) -> Result<u32, Box<dyn StdError>> {
        let mut into = region(channel);
        let from = region(channel);
        channel
            .scope(|scope| {
                let receive = scope.post_receive(into.scatter_element(..)?)?;
                scope.post_send(from.gather_element(..)?)?;
                let loan = scope.lend(Outgoing::send(from.gather_element(..)?))?;
                scope.post_batch([Outgoing::send(from.gather_element(..)?); 2])?;
                all_succeeds();
                loan.spin_poll().0?;
                Ok(receive.spin_poll()?.byte_len())
            })
            .map_err(ScopeError::flatten)
    }

    fn sendable(channel: &mut Channel) -> Result<(), Box<dyn StdError + Send + Sync>> {
        let from = region(channel);
        channel
            .scope(|scope| {
                scope.post_send(from.gather_element(..)?)?.spin_poll()?;
                Ok(())
            })
            .map_err(ScopeError::flatten)
    }

    fn anyhow(channel: &mut Channel) -> anyhow::Result<()> {
        let mut into = region(channel);
        channel
            .scope(|scope| {
                let loan = scope.lend(Incoming::receive(into.scatter_element(..)?))?;
                all_succeeds();
                loan.spin_poll().0?;
                Ok(())
            })
            .map_err(ScopeError::flatten)
    }

    #[test]
    fn question_mark_converts_into_every_usual_kind_of_error() {
        let mut channel = channel();
        boxed(&mut channel).unwrap();
        anyhow(&mut channel).unwrap();
        channel.engine_mut().destroy_all(DownReason::Abandoned);
        forget_the_past();
        let refused = boxed(&mut channel).unwrap_err();
        assert_eq!(
            refused.downcast_ref(),
            Some(&RejectReason::Down(DownReason::Abandoned))
        );
        assert!(sendable(&mut channel).is_err() && anyhow(&mut channel).is_err());
    }
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
fn send_that_fails_or_times_out_fails_a_scope_that_ends_with_receives_left() {
    for times_out in [true, false] {
        let mut channel = channel();
        channel.set_timeout(times_out.then_some(Duration::ZERO));
        let (mut into, from) = (region(&channel), region(&channel));
        let ended = bounded(|| {
            channel.scope(|scope| {
                scope.close_with_receives_left();
                scope.post_receive(into.scatter_element(..)?)?;
                scope.post_send(from.gather_element(..)?)?;
                if !times_out {
                    ends(posted()[1], IBV_WC_RETRY_EXC_ERR);
                    flushes(posted()[0]);
                }
                Ok::<_, Error>(())
            })
        });
        let Err(ScopeError::AutoPollError(error)) = ended else {
            panic!("{ended:?}");
        };
        let is_late = error.down_reason().is_some_and(DownReason::is_timed_out);
        assert_eq!(is_late, times_out, "{error:?}");
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
