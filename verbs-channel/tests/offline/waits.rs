//! Waits without a deadline that have to end.

use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::verbs_sys::ibv_wc;
use verbs_channel::{
    BufferPool, Channel, Error, Outgoing, OwnedBuffer, PollStrategy, RejectReason, Transfer,
    TransportError,
};

use crate::fake_device::{
    bounded, channel, connected, forget_the_past, pd, posted, region, succeeds,
};

#[test]
fn wait_with_nothing_in_flight_ends() {
    let mut channel = channel();
    bounded(|| assert!(channel.wait_completed(None).is_none()));
    let mut group = Channel::builder(&pd()).group(2).unwrap();
    bounded(|| assert!(group.wait_completed(None).is_none()));
}

#[test]
fn queue_that_was_built_without_room_is_an_error_and_no_wait() {
    let pd = pd();
    let prepared = || {
        let builder = Channel::builder(&pd).max_send_wr(0).max_recv_wr(0);
        builder.build().unwrap()
    };
    let reason = |error: TransportError| match error {
        TransportError::Rejected(reason @ RejectReason::NoCapacity(_))
            if !reason.is_backpressure() =>
        {
            reason
        }
        error => panic!("{error}"),
    };
    let [send, receive] = [Queue::Send, Queue::Receive].map(RejectReason::NoCapacity);
    let mut before = prepared();
    let rejected = before.start_receive(OwnedBuffer::empty()).unwrap_err();
    assert_eq!(rejected.into_error(), receive);
    let mut channel = connected(prepared());
    let pool = BufferPool::new(&pd, 64, 1).unwrap();
    bounded(|| {
        let mut region = region(&channel);
        let sent = channel.send(region.gather_element(..).unwrap());
        assert_eq!(reason(sent.unwrap_err()), send);
        let received = channel.receive(region.scatter_element(..).unwrap());
        assert_eq!(reason(received.unwrap_err()), receive);
        let mut transfer = Transfer::default();
        transfer.add(channel.id(), Outgoing::send(pool.take().unwrap()));
        assert!(channel.transfer(&mut transfer, None).is_err());
    });
    assert_eq!(pool.available(), 1);
    assert!(!channel.is_down());
}

#[test]
fn wait_completed_does_not_wait_for_unpolled_operations() {
    let mut channel = channel();
    let mut into = region(&channel);
    let element = into.scatter_element(..).unwrap();
    // SAFETY: `into` outlives the operation, and is not accessed during it.
    let ticket = unsafe { channel.post_receive_unpolled(element) }.unwrap();
    bounded(|| assert!(channel.wait_completed(None).is_none()));
    succeeds(posted()[0]);
    bounded(|| assert!(channel.wait_completed(None).is_none()));
    channel.poll(ticket).unwrap().unwrap().result.unwrap();
    drop(channel);
}

#[test]
fn waits_that_end_early_leave_one_event_in_total() {
    let strategy = PollStrategy::Notify { after: 0 };
    let mut channel = connected(Channel::builder(&pd()).strategy(strategy).build().unwrap());
    let events = channel.completion_channel().unwrap().clone();
    for _ in 0..100 {
        forget_the_past();
        let ticket = channel.start_receive(region(&channel)).unwrap();
        // It arrives when the wait has armed the queue, and the next poll finds it. If the queue is
        // still armed, an event for it is there already.
        let done = ibv_wc {
            wr_id: posted()[0],
            ..Default::default()
        };
        with(|library| library.when_armed.push_back(done));
        assert!(bounded(|| channel.wait(ticket, None)).unwrap().is_some());
    }
    let now = Some(Duration::ZERO);
    let left = std::iter::from_fn(|| events.get_cq_event(now).unwrap());
    assert!(left.count() <= 1);
}

#[test]
#[cfg_attr(miri, ignore = "polls some 270,000 times")]
fn waits_are_bounded_under_endless_unknown_completions() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    with(|library| library.endless = Some(0xdead_beef));
    let waited = bounded(|| channel.wait(ticket, Some(Duration::from_millis(1))));
    assert!(waited.unwrap().is_none());
    assert!(bounded(|| channel.next_completed()).is_none());
    with(|library| library.endless = None);
    channel.abort();
}

#[test]
fn timeout_beyond_the_clock_is_none() {
    let mut channel = channel();
    channel.set_timeout(Duration::MAX);
    let mut into = region(&channel);
    let ended = channel.scope(|scope| {
        let receive = scope.post_receive(into.scatter_element(..)?)?;
        let done = ibv_wc {
            wr_id: posted()[0],
            ..Default::default()
        };
        with(|library| library.done_later = Some((5, done)));
        Ok::<_, Error>(receive.spin_poll().map(drop)?)
    });
    ended.unwrap();
}
