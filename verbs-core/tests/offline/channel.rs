//! Completion channels: which queue an event is of, and that each is acknowledged exactly once.

use std::time::{Duration, Instant};

use verbs_core::{CompletionChannel, CompletionQueue, Error, ErrorKind};

use crate::library::{announce, assert_all_is_well, ladder, with};

const SOON: Option<Duration> = Some(Duration::from_millis(20));

fn on(channel: &CompletionChannel) -> CompletionQueue {
    let cq = CompletionQueue::builder(channel.context(), 16).channel(channel);
    cq.build().unwrap()
}

#[test]
fn events_are_acknowledged_exactly_before_a_queue_ends() {
    let (context, ..) = ladder();
    // Around the size of a batch of acknowledgements, and many of them.
    for count in [0, 1, 2, 63, 64, 65, 127, 128, 1000] {
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
        counts[queues.iter().position(|cq| cq.is(&ready)).unwrap()] += 1;
    }
    assert_eq!(counts, [1, 2, 3, 4, 5]);
    drop((channel, context, queues));
    assert_all_is_well();
}

#[test]
fn events_that_nobody_took_go_with_their_queue() {
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
fn a_queue_that_c_will_not_destroy_still_knows_its_events() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let stuck = on(&channel);
    announce(&stuck);
    with(|library| library.refuse.push(("ibv_destroy_cq", libc::EBUSY)));
    drop(stuck);
    // The event is that queue's, which lives on in C: it is looked up, and nobody is there.
    assert!(channel.get_cq_event(SOON).unwrap().is_none());
    // What the queue leaked keeps its channel.
    assert!(matches!(channel.close(), Err(Error::InUse { .. })));
}

#[test]
fn waiting_ends_with_its_time() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let start = Instant::now();
    assert!(channel.get_cq_event(SOON).unwrap().is_none());
    assert!(start.elapsed() >= SOON.unwrap());
    assert!(
        channel
            .get_cq_event(Some(Duration::ZERO))
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_channel_that_fails_says_so() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    with(|library| library.refuse.push(("ibv_get_cq_event", libc::EIO)));
    let error = channel.get_cq_event(None).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EIO));
    assert_eq!(error.to_string(), "ibv_get_cq_event failed");
}

#[test]
fn the_last_one_ends_the_channel() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let cq = on(&channel);
    assert_eq!(cq.channel().unwrap().as_ptr(), channel.as_ptr());
    let error = channel.close().unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    drop((cq, context));
    assert_all_is_well();
}

#[test]
fn a_channel_of_another_context_is_refused() {
    let (context, ..) = ladder();
    let (other, ..) = ladder();
    let channel = CompletionChannel::create(&other).unwrap();
    let error = CompletionQueue::builder(&context, 16)
        .channel(&channel)
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the completion channel belongs to another device context"
    );
}

#[test]
fn arming_passes_on_what_is_to_wake() {
    let (_, _, cq) = ladder();
    cq.req_notify(false).unwrap();
    cq.req_notify(true).unwrap();
    assert_eq!(with(|library| library.armed.clone()), [0, 1]);
    // A few drivers give a negative errno here too.
    with(|library| library.refuse.push(("ibv_req_notify_cq", -libc::EBUSY)));
    assert_eq!(cq.req_notify(false).unwrap_err().kind(), ErrorKind::InUse);
}
