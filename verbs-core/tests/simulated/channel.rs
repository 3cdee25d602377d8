//! Completion channels and the events of devices: faults, and descriptors that other code reads.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use soft_verbs::Fabric;
use verbs_core::completion::CompletionChannel;
use verbs_core::error::ErrorKind;
use verbs_core::verbs_sys::ibv_destroy_cq;
use verbs_core::{CompletionQueue, Error, QueuePair, SendWorkRequest};
use verbs_harness::faults;

use super::{ladder, on_host};

const NOW: Option<Duration> = Some(Duration::ZERO);

fn on(channel: &CompletionChannel) -> CompletionQueue {
    let cq = CompletionQueue::builder(channel.context(), 16).channel(channel);
    cq.build().unwrap()
}

/// Arms a queue, and brings it a completion.
fn complete(cq: &CompletionQueue) {
    cq.req_notify(false).unwrap();
    raise(cq);
}

fn raise(cq: &CompletionQueue) {
    let pd = cq.context().alloc_pd().unwrap();
    let qp = QueuePair::builder(&pd, cq, cq).build().unwrap();
    let endpoint = qp.endpoint();
    let qp = qp.handshake(&endpoint).unwrap();
    qp.to_error().unwrap();
    // SAFETY: the request names no memory.
    unsafe { qp.post_send(&mut [SendWorkRequest::empty()]) }.unwrap();
}

#[test]
fn events_of_a_queue_that_cannot_be_destroyed_are_acknowledged() {
    on_host(1, |host| {
        let (context, ..) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let stuck = on(&channel);
        let raw = stuck.as_ptr();
        complete(&stuck);
        host.refuse("ibv_destroy_cq", libc::EBUSY);
        drop(stuck);
        // The queue still exists in C, but not in this crate: its event is taken, and leads nowhere.
        assert!(channel.get_cq_event(NOW).unwrap().is_none());
        // SAFETY: the queue is alive, as it could not be destroyed, and nothing else has it.
        assert_eq!(unsafe { ibv_destroy_cq(raw) }, 0);
    });
}

#[test]
fn failed_channel_is_an_error() {
    on_host(0, |host| {
        let (context, ..) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        host.refuse("ibv_get_cq_event", libc::EIO);
        let error = channel.get_cq_event(None).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
        assert_eq!(error.to_string(), "ibv_get_cq_event failed");
    });
}

#[test]
fn failed_device_is_an_error() {
    on_host(0, |host| {
        let (context, ..) = ladder();
        host.refuse("ibv_get_async_event", libc::EIO);
        let start = Instant::now();
        let error = context.get_async_event(None).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO));
        faults::error(faults::REMOVED, "core", &error, faults::at_once(start));
    });
}

#[test]
fn channel_of_another_context_is_rejected() {
    on_host(0, |_host| {
        let (context, ..) = ladder();
        let (other, ..) = ladder();
        let channel = CompletionChannel::create(&other).unwrap();
        let builder = CompletionQueue::builder(&context, 16).channel(&channel);
        assert_eq!(
            builder.build().unwrap_err().to_string(),
            "the completion channel belongs to another device context: create both from the same"
        );
    });
}

#[test]
fn an_event_arms_its_own_queue_from_any_thread() {
    on_host(0, |_host| {
        let (context, ..) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let (one, other) = (on(&channel), on(&channel));
        complete(&other);
        let event = channel.get_cq_event(NOW).unwrap().unwrap();
        assert_eq!(event.handle(), other.handle());
        assert!(event.is(&other) && !event.is(&one));
        let arming = thread::spawn(move || event.req_notify(true));
        arming.join().unwrap().unwrap();
        raise(&one);
        assert!(channel.get_cq_event(NOW).unwrap().is_none());
        raise(&other);
        assert!(channel.get_cq_event(NOW).unwrap().unwrap().is(&other));
    });
}

#[test]
fn event_keeps_no_queue_alive_and_identifies_no_later_queue() {
    on_host(0, |_host| {
        let (context, ..) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = on(&channel);
        complete(&cq);
        let event = channel.get_cq_event(NOW).unwrap().unwrap();
        let clone = event.clone();
        cq.close().unwrap();
        // One of these would have the address, were it free.
        let later: Vec<_> = (0..100).map(|_| on(&channel)).collect();
        assert!(!later.iter().any(|cq| event.is(cq) || clone.is(cq)));
        let error = event.req_notify(false).unwrap_err();
        assert!(matches!(error, Error::Destroyed { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        drop(later);
        channel.close().unwrap();
        assert!(clone.req_notify(false).is_err());
    });
}

#[test]
#[cfg_attr(miri, ignore = "there, time is real")]
fn waiting_ends_with_its_time() {
    let fabric = Fabric::seeded(1);
    fabric.host("a").enter(|| {
        let (context, ..) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = on(&channel);
        cq.req_notify(false).unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(100)] {
            // Reading the clock takes some virtual time.
            let within = timeout..timeout + Duration::from_millis(1);
            let start = fabric.now();
            assert!(channel.get_cq_event(Some(timeout)).unwrap().is_none());
            assert!(within.contains(&(fabric.now() - start)));
            let start = fabric.now();
            assert!(context.get_async_event(Some(timeout)).unwrap().is_none());
            assert!(within.contains(&(fabric.now() - start)));
        }
    });
}

/// A `read(2)` of a duplicate, as safe code can do it.
fn read_from(descriptor: BorrowedFd<'_>) -> io::ErrorKind {
    let mut file = File::from(descriptor.try_clone_to_owned().unwrap());
    file.read(&mut [0; 64]).unwrap_err().kind()
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no epoll sets")]
fn reading_a_descriptor_takes_no_event() {
    on_host(0, |host| {
        let (context, ..) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = on(&channel);
        complete(&cq);
        let invalid = io::ErrorKind::InvalidInput;
        assert_eq!(read_from(channel.poll_fd().unwrap()), invalid);
        assert!(channel.get_cq_event(NOW).unwrap().unwrap().is(&cq));
        host.device_fatal();
        assert_eq!(read_from(context.poll_fd().unwrap()), invalid);
        assert!(context.get_async_event(NOW).unwrap().is_some());
    });
}

#[test]
fn a_poll_descriptor_is_made_once() {
    on_host(0, |_host| {
        let (context, ..) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let first = channel.poll_fd().unwrap().as_raw_fd();
        assert_eq!(channel.clone().poll_fd().unwrap().as_raw_fd(), first);
        assert_ne!(context.poll_fd().unwrap().as_raw_fd(), first);
    });
}
