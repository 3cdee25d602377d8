//! Waits without a deadline that have to end.

use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::verbs_core::verbs_sys::ibv_wc;
use verbs_channel::{Channel, PollStrategy};

use crate::fake_device::{
    bounded, channel, connected, flushes, forget_the_past, pd, posted, region, succeeds,
};

#[test]
fn wait_with_nothing_in_flight_ends() {
    let mut channel = channel();
    bounded(|| assert!(channel.wait_completed(None).is_none()));
    let mut group = Channel::builder(&pd()).group(2).unwrap();
    bounded(|| assert!(group.wait_completed(None).is_none()));
}

#[test]
fn waits_for_all_operations_end() {
    let mut channel = channel();
    for _ in 0..3 {
        let _ticket = channel.start_receive(region(&channel)).unwrap();
    }
    let mut posted = posted().into_iter();
    posted.by_ref().take(2).for_each(succeeds);
    posted.for_each(flushes);
    let mut ended = Vec::new();
    bounded(|| {
        while let Some(completed) = channel.wait_completed(None) {
            ended.push(completed.result.is_ok());
        }
    });
    assert_eq!(ended, [true, true, false]);
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
