//! Forks: in the child, whatever ends of a parent's channel touches nothing of the device's.

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_libibverbs::{assert_all_is_well, assert_unused, with};
use verbs_channel::error::CloseError;
use verbs_channel::verbs_core::Error as CoreError;
use verbs_channel::{
    BufferPool, Channel, DownReason, Error, RegistrationCache, ScopeError, TransportError,
};
use verbs_harness::child::{end_the_child, fork, in_the_child, wait_for_the_child};
use verbs_harness::{PATIENCE, logged, until};

use crate::fake_device::{channel, forget_the_past, pd, posted, region, succeeds};
use crate::pages::Pages;
use crate::peers::{CLOSED, group};
use crate::shared_receives::Shared;
use crate::transfers::writes;

/// The child runs this, which must not use the device.
fn without_the_device(run: impl FnOnce()) {
    logged::listen();
    in_the_child(fork(), || unused(run));
}

/// Panics if this uses the device, or logs anything.
fn unused(run: impl FnOnce()) {
    assert_unused(run);
    assert_eq!(logged::lines(), [""; 0]);
}

/// Forks; in the child, nothing is recorded yet.
fn fork_afresh() -> i32 {
    let child = fork();
    if child == 0 {
        forget_the_past();
        with(|library| library.rooms.clear());
    }
    child
}

/// The end of a scope in a child.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Return,
    Fail,
    Panic,
}

#[test]
fn a_scope_that_ends_in_a_child_ends_its_borrows_and_goes_on_in_the_parent() {
    for end in [End::Return, End::Fail, End::Panic] {
        let mut channel = channel();
        let (mut into, from) = (region(&channel), region(&channel));
        let mut is_child = false;
        let ended = catch_unwind(AssertUnwindSafe(|| {
            channel.scope(|scope| {
                let received = scope
                    .post_receive(into.scatter_element(..).unwrap())
                    .unwrap();
                scope.post_send(from.gather_element(..).unwrap()).unwrap();
                let child = fork_afresh();
                if child == 0 {
                    is_child = true;
                    return match end {
                        End::Return => Ok(()),
                        End::Fail => Err("failed"),
                        End::Panic => resume_unwind(Box::new("panicked")),
                    };
                }
                wait_for_the_child(child);
                posted().into_iter().for_each(succeeds);
                received.spin_poll().unwrap();
                Ok(())
            })
        }));
        if is_child {
            end_the_child(|| {
                unused_since_the_fork(|| match (end, ended) {
                    (End::Return, Ok(Err(ScopeError::AutoPollError(error)))) => {
                        assert_eq!(error, TransportError::Aborted(DownReason::Closed));
                    }
                    (End::Fail, Ok(Err(ScopeError::ClosureError("failed")))) => {}
                    (End::Panic, Err(panic)) => {
                        assert_eq!(panic.downcast_ref(), Some(&"panicked"));
                    }
                    (end, ended) => panic!("{end:?}: {:?}", ended.is_ok()),
                });
                drop((channel, into, from));
            });
        }
        assert!(matches!(ended, Ok(Ok(()))), "{end:?}");
        assert!(!channel.is_down());
        drop((channel, into, from));
        assert_all_is_well();
    }
}

/// As [`unused`], for what the scope has done, too.
fn unused_since_the_fork(run: impl FnOnce()) {
    let used = with(|library| {
        (
            library.calls.clone(),
            library.rooms.len(),
            library.modified.len(),
        )
    });
    assert_eq!(used, (Vec::new(), 0, 0));
    unused(run);
}

#[test]
fn a_transfer_that_unwinds_in_a_child_is_quiesced_there_and_finished_in_the_parent() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 6).unwrap();
    with(|library| library.completes_sends = true);
    let mut transfer = writes(channel.id(), &pool, 6);
    let (mut child, mut ended) = (None, 0);
    let result = catch_unwind(AssertUnwindSafe(|| {
        channel.transfer_with(&mut transfer, None, |_, _| {
            ended += 1;
            if *child.get_or_insert_with(fork_afresh) == 0 {
                resume_unwind(Box::new("panicked"));
            }
        })
    }));
    match child {
        Some(0) => end_the_child(|| {
            assert!(result.is_err());
            assert_eq!(transfer.drain().count(), 6);
            unused_since_the_fork(|| drop((transfer, channel, pool)));
        }),
        child => wait_for_the_child(child.unwrap()),
    }
    result.unwrap().unwrap();
    assert_eq!(ended, 6);
}

#[test]
fn a_channel_with_owned_operations_is_dropped_in_a_child_and_its_outcomes_are_the_parents() {
    let mut channel = channel();
    let sent = channel.start_send(region(&channel)).unwrap();
    let received = channel.start_receive(region(&channel)).unwrap();
    let mut channel = Some(channel);
    without_the_device(|| drop(channel.take()));
    let mut channel = channel.unwrap();
    posted().into_iter().for_each(succeeds);
    for ticket in [sent, received] {
        let ended = channel.poll(ticket).unwrap().unwrap();
        ended.result.unwrap();
    }
    channel.close().unwrap();
    assert_all_is_well();
}

#[test]
fn a_close_in_a_child_is_an_error_and_an_abort_ends_the_childs_operations_only() {
    let mut channel = channel();
    let sent = channel.start_send(region(&channel)).unwrap();
    let mut channel = Some(channel);
    without_the_device(|| {
        let mut channel = channel.take().unwrap();
        channel.abort();
        let ended = channel.poll(sent).unwrap().unwrap();
        let aborted = TransportError::Aborted(DownReason::Closed);
        assert_eq!(ended.result.unwrap_err(), aborted);
        let closed = channel.close().unwrap_err();
        assert_eq!(closed, CloseError::OtherProcess);
        assert!(!closed.is_stuck());
        let error = Error::from(closed).to_string();
        assert!(error.contains("forked child"), "{error}");
    });
    let mut channel = channel.unwrap();
    succeeds(posted()[0]);
    channel.poll(sent).unwrap().unwrap().result.unwrap();
    channel.close().unwrap();
    assert_all_is_well();
}

#[test]
fn a_child_that_drops_a_group_leaves_its_parents_peers_watched() {
    let (group, mut theirs) = group(2);
    let ids: Vec<_> = group.channels().collect();
    let mut group = Some(group);
    without_the_device(|| drop(group.take()));
    let mut group = group.unwrap();
    let mut left = theirs.remove(0);
    left.set_nonblocking(true).unwrap();
    let error = left.read(&mut [0]).unwrap_err();
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::WouldBlock,
        "it is connected"
    );
    drop(left);
    let mut down = |id| {
        assert!(group.next_completed().is_none());
        group.channel(id).unwrap().down_reason()
    };
    assert!(until(PATIENCE, || down(ids[0]) == Some(CLOSED)));
    assert_eq!(down(ids[1]), None);
}

#[test]
fn shared_receives_prepared_channels_datagrams_and_pools_are_dropped_in_a_child() {
    let shared = Shared::new(8, 4, 2);
    let block = shared.pool.take().unwrap();
    let (pd, mut datagrams) = crate::datagrams::endpoint();
    datagrams
        .send_to(
            &crate::datagrams::peer(1),
            crate::datagrams::buffer(&pd, b"hello"),
        )
        .unwrap();
    let prepared = Channel::builder(&pd).build().unwrap();
    let mut objects = Some((shared, block, prepared, pd, datagrams));
    without_the_device(|| {
        let (shared, block, prepared, pd, datagrams) = objects.take().unwrap();
        match datagrams.close() {
            Err(Error::Core(error)) => {
                assert!(matches!(error, CoreError::OtherProcess { .. }));
            }
            closed => panic!("{closed:?}"),
        }
        drop((shared, block, prepared, pd));
    });
    drop(objects);
    assert_all_is_well();
}

#[test]
fn a_cache_of_registrations_is_dropped_in_a_child_and_frees_no_memory() {
    let freed = Arc::new(AtomicUsize::new(0));
    let pd = pd();
    let cache = RegistrationCache::builder(&pd, 4096).part_len(64).build();
    let pages = Arc::new(Pages::new(256, &freed));
    let memory = cache.memory(256, move |pd, part| {
        pages.register_part(pd, part, Arc::clone(&pages))
    });
    drop(memory.slice(..64).unwrap());
    let slice = memory.slice(64..128).unwrap();
    let mut objects = Some((slice, memory, cache, pd));
    without_the_device(|| {
        drop(objects.take());
        assert_eq!(freed.load(Ordering::Relaxed), 0);
    });
    drop(objects);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
    assert_all_is_well();
}
