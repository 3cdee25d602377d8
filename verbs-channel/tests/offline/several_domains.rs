//! Memory that is registered on several devices, the owners of its slices, and the end of its registrations.

use std::future::Future as _;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::{AccessFlags, Error as CoreError, SharedRegion};
use verbs_channel::{Error, Outgoing, RejectReason, SharedMemory};
use verbs_harness::WakeCounter;
use verbs_harness::logged::listen;

use crate::fake_device::{channel, forget_the_past, pd, posted, refuse, remote, succeeds};
use crate::foreign::{ACCESS, LEN, dmabuf, rejected, shared};
use crate::pages::Pages;

/// The keys of the elements that were posted, in their order.
fn posted_keys() -> Vec<u32> {
    with(|library| {
        let posted = library.posted.concat().into_iter();
        posted.map(|request| request.list[0].2).collect()
    })
}

#[test]
fn memory_is_registered_once_and_posted_on_every_device() {
    let mut channels = [channel(), channel()];
    let mut other = channel();
    let domains = channels.each_ref().map(|channel| channel.pd().clone());
    let freed = Arc::default();
    let memories = [
        SharedMemory::register(&domains, vec![1_u8; LEN], ACCESS).unwrap(),
        Pages::new(LEN, &freed).register_on(&domains),
        SharedMemory::new(domains.each_ref().map(dmabuf)),
    ];
    for memory in memories {
        let keys = domains
            .each_ref()
            .map(|pd| memory.remote(pd).unwrap().rkey());
        assert!(memory.remote(other.pd()).is_err() && keys[0] != keys[1]);
        forget_the_past();
        let slice = memory.slice(8..16).unwrap();
        let mut chain = OwnedChain::new(vec![
            Outgoing::write(slice.clone(), remote()).into(),
            Outgoing::write(memory.slice(16..24).unwrap(), remote()).into(),
        ])
        .unwrap();
        for at in [1, 0, 1] {
            let channel = &mut channels[at];
            let write = channel.start_write(slice.clone(), remote()).unwrap();
            let ticket = channel.start_chain(chain).unwrap();
            posted().into_iter().for_each(succeeds);
            channel.poll(write).unwrap().unwrap();
            chain = channel.poll(ticket).unwrap().unwrap().chain.unwrap();
            let pd = channel.pd();
            // The library gives each region its lkey, and the next number as its rkey.
            let key = memory.remote(pd).unwrap().rkey() - 1;
            assert_eq!(posted_keys(), [key; 3]);
            forget_the_past();
        }
        let back = other.start_write(slice, remote());
        assert_eq!(rejected(back), Some(RejectReason::OtherDomain));
        let back = other.start_chain(chain);
        assert_eq!(rejected(back), Some(RejectReason::OtherDomain));
        assert!(posted().is_empty());
    }
    assert_eq!(freed.load(Ordering::Relaxed), 1);
}

#[test]
fn buffer_comes_back_if_a_later_domain_does_not_take_it() {
    let domains = [pd(), pd()];
    let mut registered = 0;
    let second_fails = domains.iter().inspect(|_| {
        registered += 1;
        if registered == 2 {
            refuse("ibv_reg_mr", 1);
        }
    });
    let back = SharedMemory::register(second_fails, vec![5_u8; LEN], ACCESS).unwrap_err();
    assert_eq!(back.into_given().unwrap(), vec![5; LEN]);
}

#[test]
fn owner_of_a_slice_is_dropped_when_the_device_is_done_with_it() {
    listen();
    let mut channel = channel();
    let memory = SharedMemory::new([shared(channel.pd())]);
    let owned = || {
        let owner = Arc::new(());
        let weak = Arc::downgrade(&owner);
        (memory.slice(..64).unwrap().owned_by(owner), weak)
    };
    let (slice, owner) = owned();
    let copy = slice.clone();
    channel.start_write(slice, remote()).unwrap();
    drop(copy);
    assert_eq!(owner.strong_count(), 1, "it is in flight");
    succeeds(posted()[0]);
    let ended = channel.next_completed().unwrap();
    assert_eq!(owner.strong_count(), 1, "the slice is back");
    drop(ended);
    assert_eq!(owner.strong_count(), 0);
    // Nobody takes the outcome.
    let (slice, owner) = owned();
    channel.start_receive(slice).unwrap();
    drop(channel);
    assert_eq!(owner.strong_count(), 0, "the queue pair was destroyed");
    let mut channel = self::channel();
    let memory = SharedMemory::new([shared(channel.pd())]);
    let owner = Arc::new(());
    let slice = memory.slice(..).unwrap().owned_by(Arc::clone(&owner));
    channel.start_receive(slice).unwrap();
    let mut ended = memory.deregister();
    let woken = WakeCounter::new();
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut ended).poll(&mut context).is_pending());
    refuse("ibv_modify_qp", 1);
    refuse("ibv_destroy_qp", 1);
    drop(channel);
    assert_eq!(
        Arc::strong_count(&owner),
        2,
        "the device may have it forever"
    );
    assert_eq!(woken.wakes(), 1);
    let never = ended.wait(Some(Duration::ZERO)).unwrap();
    assert!(matches!(never, Err(Error::NotDeregistered { regions: 1 })));
}

#[test]
fn deregistration_is_waited_for_and_awaited() {
    listen();
    let freed = Arc::default();
    let mut channel = channel();
    let domains = [channel.pd().clone(), pd()];
    let memory = Pages::new(LEN, &freed).register_on(&domains);
    let ticket = channel.start_receive(memory.slice(..8).unwrap()).unwrap();
    assert!(!memory.is_idle());
    let mut ended = memory.deregister();
    assert!(ended.wait(Some(Duration::from_millis(1))).is_none());
    let woken = WakeCounter::new();
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut ended).poll(&mut context).is_pending());
    channel.abort();
    drop(channel.poll(ticket).unwrap());
    assert_eq!((woken.wakes(), freed.load(Ordering::Relaxed)), (1, 1));
    ended.wait(None).unwrap().unwrap();
    let polled = Pin::new(&mut ended).poll(&mut context);
    assert!(matches!(polled, Poll::Ready(Ok(()))));
    let memory = Pages::new(LEN, &freed).register_on(&domains);
    assert!(memory.is_idle());
    refuse("ibv_dereg_mr", 1);
    let failed = memory.deregister().wait(None).unwrap();
    assert!(matches!(failed, Err(Error::NotDeregistered { regions: 1 })));
    assert_eq!(freed.load(Ordering::Relaxed), 1, "a device may still write");
}

#[test]
fn chain_that_is_cleared_keeps_no_memory() {
    let channel = channel();
    let memory = SharedMemory::new([shared(channel.pd())]);
    let write = Outgoing::write(memory.slice(..8).unwrap(), remote());
    let mut chain = OwnedChain::new(vec![write.into()]).unwrap();
    assert!(!memory.is_idle());
    chain.clear();
    assert!(memory.is_idle());
    assert_eq!(chain.len(), 1);
}

#[test]
fn memory_whose_lease_could_not_be_ended_is_not_said_to_be_deregistered() {
    listen();
    let mut channel = channel();
    let domain = channel.pd().clone();
    let memory = SharedMemory::register([&domain], vec![0_u8; LEN], ACCESS).unwrap();
    let lease = channel.lease(memory.slice(..8).unwrap(), AccessFlags::REMOTE_READ);
    let lease = lease.unwrap();
    refuse("ibv_dereg_mr", 1);
    drop(lease);
    drop(channel);
    let ended = memory.deregister().wait(Some(Duration::ZERO)).unwrap();
    assert!(matches!(ended, Err(Error::NotDeregistered { .. })));
}

#[test]
fn memory_in_no_domain_is_an_error_that_hands_the_buffer_back() {
    let rejected = SharedMemory::register([], vec![7_u8; LEN], ACCESS);
    let (error, buffer) = rejected.map(drop).unwrap_err().into_parts();
    let is_none = |error: &CoreError| matches!(error, CoreError::OutOfRange { value: 0, .. });
    assert!(is_none(&error), "{error}");
    assert_eq!(buffer, Some(vec![7; LEN]));
    // SAFETY: nothing is registered.
    let raw = unsafe { SharedMemory::register_raw([], NonNull::dangling(), LEN, ACCESS, ()) };
    let error = raw.map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::Core(error) if is_none(error)),
        "{error}"
    );

    let memory = SharedMemory::new(Vec::<SharedRegion<Vec<u8>>>::new());
    let rejected = channel().start_write(memory.slice(..).unwrap(), remote());
    assert_eq!(*rejected.unwrap_err().error(), RejectReason::OtherDomain);
}
