//! A scope that the program's own code reaches while the scope ends something: by a thread-local of its thread, as a
//! logger or a destructor can.
//!
//! Without Miri, which sees two mutable borrows at once, these tests show only that such code is called.

use std::cell::Cell;
use std::mem;
use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::verbs_core::ScatterElement;
use verbs_channel::{CreateChannel as _, Error, PollingScope};
use verbs_harness::logged::{does, lines, listen};

use crate::fake_device::{bounded, channel, connected, pd, refuse, region};

thread_local! {
    static REACHED: Cell<Option<&'static dyn Fn()>> = const { Cell::new(None) };
    static TIMES: Cell<usize> = const { Cell::new(0) };
}

/// Runs `within`, during which [`reach`] calls `again` on this thread: a scoped thread-local.
pub(crate) fn reached(again: &dyn Fn(), within: impl FnOnce()) {
    struct Ended;

    impl Drop for Ended {
        fn drop(&mut self) {
            REACHED.set(None);
        }
    }

    // SAFETY: the hook is removed before this returns.
    let again = unsafe { mem::transmute::<&dyn Fn(), &'static dyn Fn()>(again) };
    REACHED.set(Some(again));
    let _ended = Ended;
    within();
}

/// Calls what is [reached](reached) on this thread.
pub(crate) fn reach() {
    if let Some(again) = REACHED.get() {
        TIMES.set(TIMES.get() + 1);
        again();
    }
}

/// Uses a scope whose channel is down, as the code of others does.
fn uses<'scope>(scope: &'scope PollingScope<'scope, '_>) {
    scope.poll();
    let list: [ScatterElement<'_>; 0] = [];
    let rejected = scope.post_receive(list).map(drop);
    assert!(rejected.is_err(), "the channel is down");
    scope.poll();
}

/// How often [`reach`] was called since, by this thread.
fn times() -> usize {
    TIMES.take()
}

/// The next poll fails, so the queue pair is destroyed.
fn poll_fails(scope: &PollingScope<'_, '_>) {
    with(|library| library.poll_answer = Some(-2));
    scope.poll();
}

fn is_logged(part: &str) -> bool {
    lines().iter().any(|line| line.contains(part))
}

#[test]
fn logger_of_a_leak_may_use_the_scope() {
    listen();
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    refuse("ibv_destroy_qp", 1);
    let ended = channel.scope(|scope| {
        reached(&|| uses(scope), || {
            does(reach);
            poll_fails(scope);
            assert_eq!(times(), 1, "it is logged when the poll returns");
        });
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert!(is_logged("leaked 1 buffers"));
    let ended = channel.poll(ticket).unwrap().unwrap();
    assert!(ended.result.is_err() && ended.buffer.is_none());
}

#[test]
fn logger_of_a_domain_that_is_not_destroyed_may_use_the_scope() {
    listen();
    with(|library| library.thread_domains = true);
    let mut channel = connected(pd().create_channel().build().unwrap());
    channel.set_timeout(Some(Duration::ZERO));
    let mut into = region(&channel);
    refuse("ibv_modify_qp", 1);
    // That which the queue pair has to itself.
    refuse("ibv_dealloc_pd", 1);
    let ended = channel.scope(|scope| {
        let receive = scope.post_receive(into.scatter_element(..).unwrap())?;
        reached(&|| uses(scope), || {
            does(reach);
            assert!(bounded(|| receive.spin_poll()).is_err());
            assert_eq!(times(), 1);
        });
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert!(is_logged("leaked a protection domain"));
}
