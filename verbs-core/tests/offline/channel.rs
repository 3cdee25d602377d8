//! Completion channels: which queue an event is of, and that each is acknowledged exactly once.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fake_libibverbs::{announce, announce_last, assert_all_is_well, ladder, lend, report, with};
use verbs_core::verbs_sys::{
    IBV_EVENT_PORT_ERR, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_destroy_cq,
};
use verbs_core::{CompletionChannel, CompletionQueue, Error, ErrorKind};

const SOON: Option<Duration> = Some(Duration::from_millis(20));

fn on(channel: &CompletionChannel) -> CompletionQueue {
    let cq = CompletionQueue::builder(channel.context(), 16).channel(channel);
    cq.build().unwrap()
}

#[test]
fn events_are_acknowledged_exactly_before_a_queue_ends() {
    let (context, ..) = ladder();
    // Around the size of a batch of acknowledgements, and many of them.
    let counts = [0, 1, 2, 63, 64, 65, 127, 128, 1000];
    for count in counts.into_iter().take(if cfg!(miri) { 6 } else { 9 }) {
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = on(&channel);
        for _ in 0..count {
            announce(&cq);
            assert!(channel.get_cq_event(SOON).unwrap().unwrap().is(&cq));
        }
        cq.close().unwrap();
        channel.close().unwrap();
    }
    drop(context);
    assert_all_is_well();
}

#[test]
fn an_event_is_counted_for_its_own_queue() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let queues: Vec<_> = (0..5).map(|_| on(&channel)).collect();
    // 1, 2, 3 … events for each, in turns.
    for round in 0..5 {
        for cq in &queues[round..] {
            announce(cq);
        }
    }
    let mut counts = [0; 5];
    while let Some(ready) = channel.get_cq_event(SOON).unwrap() {
        counts[queues.iter().position(|cq| ready.is(cq)).unwrap()] += 1;
    }
    assert_eq!(counts, [1, 2, 3, 4, 5]);
    drop((channel, context, queues));
    assert_all_is_well();
}

#[test]
fn untaken_events_are_acknowledged_when_their_queue_is_destroyed() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let (gone, stays) = (on(&channel), on(&channel));
    announce(&gone);
    announce(&stays);
    announce(&gone);
    gone.close().unwrap();
    let ready = channel.get_cq_event(SOON).unwrap().unwrap();
    assert!(ready.is(&stays));
    assert!(
        channel
            .get_cq_event(Some(Duration::ZERO))
            .unwrap()
            .is_none()
    );
    drop((ready, stays, channel, context));
    assert_all_is_well();
}

#[test]
fn events_of_a_queue_that_cannot_be_destroyed_are_acknowledged() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let stuck = on(&channel);
    let raw = stuck.as_ptr();
    announce(&stuck);
    with(|library| library.refuse.push(("ibv_destroy_cq", libc::EBUSY)));
    drop(stuck);
    // The queue still exists in C, but not in this crate: its events are taken, and lead nowhere.
    for _ in 0..2 {
        assert!(channel.get_cq_event(SOON).unwrap().is_none());
        assert!(announce_last());
    }
    // SAFETY: the queue is alive, as it could not be destroyed, and nothing else has it.
    assert_eq!(unsafe { ibv_destroy_cq(raw) }, 0);
    channel.close().unwrap();
    drop(context);
    assert_all_is_well();
}

#[test]
fn events_are_taken_while_their_queues_are_destroyed() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let (library, is_over) = (lend(), AtomicBool::new(false));
    thread::scope(|scope| {
        let taker = scope.spawn(|| {
            library();
            while !is_over.load(Ordering::Relaxed) {
                drop(channel.get_cq_event(Some(Duration::ZERO)).unwrap());
            }
        });
        for _ in 0..if cfg!(miri) { 10 } else { 1000 } {
            let cq = on(&channel);
            announce(&cq);
            announce(&cq);
            cq.close().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        taker.join().unwrap();
    });
    drop((channel, context));
    assert_all_is_well();
}

#[test]
fn failed_channel_is_an_error() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    with(|library| library.refuse.push(("ibv_get_cq_event", libc::EIO)));
    let error = channel.get_cq_event(None).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EIO));
    assert_eq!(error.to_string(), "ibv_get_cq_event failed");
}

#[test]
fn channel_of_another_context_is_rejected() {
    let (context, ..) = ladder();
    let (other, ..) = ladder();
    let channel = CompletionChannel::create(&other).unwrap();
    let error = CompletionQueue::builder(&context, 16)
        .channel(&channel)
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the completion channel belongs to another device context: create both from the same"
    );
}

#[test]
fn arming_passes_solicited_only_to_c() {
    let (_, _, cq) = ladder();
    cq.req_notify(false).unwrap();
    cq.req_notify(true).unwrap();
    assert_eq!(with(|library| library.armed.clone()), [0, 1]);
    // A few drivers give a negative errno here too.
    with(|library| library.refuse.push(("ibv_req_notify_cq", -libc::EBUSY)));
    assert_eq!(cq.req_notify(false).unwrap_err().kind(), ErrorKind::InUse);
}

#[test]
fn an_event_arms_its_own_queue_from_any_thread() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let (one, other) = (on(&channel), on(&channel));
    announce(&other);
    let event = channel.get_cq_event(SOON).unwrap().unwrap();
    assert_eq!(event.handle(), other.handle());
    assert!(event.is(&other) && !event.is(&one));
    let lent = lend();
    let arming = thread::spawn(move || {
        lent();
        event.req_notify(true)
    });
    arming.join().unwrap().unwrap();
    assert_eq!(with(|library| library.armed.clone()), [1]);
    drop((one, other, channel, context));
    assert_all_is_well();
}

#[test]
fn event_keeps_no_queue_alive_and_identifies_no_later_queue() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let cq = on(&channel);
    announce(&cq);
    let event = channel.get_cq_event(SOON).unwrap().unwrap();
    let clone = event.clone();
    cq.close().unwrap();
    // One of these would have the address, were it free.
    let later: Vec<_> = (0..100).map(|_| on(&channel)).collect();
    assert!(!later.iter().any(|cq| event.is(cq) || clone.is(cq)));
    let error = event.req_notify(false).unwrap_err();
    assert!(matches!(error, Error::Destroyed { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(with(|library| library.armed.clone()), [0; 0]);
    drop(later);
    channel.close().unwrap();
    drop(context);
    assert_all_is_well();
    assert!(clone.req_notify(false).is_err());
}

/// A `read(2)` of a duplicate, as safe code can do it.
fn read_from(descriptor: BorrowedFd<'_>) -> io::Error {
    let mut file = File::from(descriptor.try_clone_to_owned().unwrap());
    file.read(&mut [0; 64]).unwrap_err()
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no epoll sets")]
fn reading_a_channel_s_descriptor_takes_no_event() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let cq = on(&channel);
    announce(&cq);
    let error = read_from(channel.poll_fd().unwrap());
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(channel.get_cq_event(SOON).unwrap().unwrap().is(&cq));
    // Every event that was taken was acknowledged, or this would be wrong.
    cq.close().unwrap();
    channel.close().unwrap();
    drop(context);
    assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads no epoll sets")]
fn reading_a_context_s_descriptor_takes_no_device_event() {
    let (context, ..) = ladder();
    let event = ibv_async_event {
        element: ibv_async_event__bindgen_ty_1 { port_num: 1 },
        ..Default::default()
    };
    report(&context, IBV_EVENT_PORT_ERR, event);
    let error = read_from(context.poll_fd().unwrap());
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(context.get_async_event(SOON).unwrap().is_some());
    assert_eq!(with(|library| library.async_acks), 1);
}

#[test]
fn a_poll_descriptor_is_made_once() {
    use std::os::fd::AsRawFd as _;
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let first = channel.poll_fd().unwrap().as_raw_fd();
    assert_eq!(channel.clone().poll_fd().unwrap().as_raw_fd(), first);
    assert_ne!(context.poll_fd().unwrap().as_raw_fd(), first);
}
