//! Waits without a deadline, that end all the same.

use std::time::Duration;

use fake_libibverbs::with;
use verbs_channel::verbs_core::verbs_sys::ibv_wc;
use verbs_channel::{Channel, PollStrategy};

use crate::card::{
    bounded, channel, connected, flushes, forget_the_past, pd, posted, region, succeeds,
};

#[test]
fn for_nothing() {
    let mut channel = channel();
    bounded(|| assert!(channel.wait_completed(None).is_none()));
    let mut group = Channel::builder(&pd()).group(2).unwrap();
    bounded(|| assert!(group.wait_completed(None).is_none()));
}

#[test]
fn for_everything_and_then_for_nothing() {
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
fn for_work_of_an_unsafe_caller_which_it_does_not_find() {
    let mut channel = channel();
    let mut into = region(&channel);
    let element = into.scatter_element(..).unwrap();
    // SAFETY: `into` outlives the channel's work, and nobody touches it.
    let ticket = unsafe { channel.post_receive_unpolled(element) }.unwrap();
    bounded(|| assert!(channel.wait_completed(None).is_none()));
    succeeds(posted()[0]);
    bounded(|| assert!(channel.wait_completed(None).is_none()));
    channel.poll(ticket).unwrap().unwrap().result.unwrap();
    drop(channel);
}

#[test]
fn that_end_early_leave_one_event_and_not_one_each() {
    let strategy = PollStrategy::Notify { after: 0 };
    let mut channel = connected(Channel::builder(&pd()).strategy(strategy).build().unwrap());
    let announcer = channel.completion_channel().unwrap().clone();
    for _ in 0..100 {
        forget_the_past();
        let ticket = channel.start_receive(region(&channel)).unwrap();
        // It arrives when the wait has armed the queue, and the poll after that finds it; or, if the
        // queue is armed still, by an event that is there already.
        let done = ibv_wc {
            wr_id: posted()[0],
            ..Default::default()
        };
        with(|library| library.when_armed.push_back(done));
        assert!(bounded(|| channel.wait(ticket, None)).unwrap().is_some());
    }
    let now = Some(Duration::ZERO);
    let left = std::iter::from_fn(|| announcer.get_cq_event(now).unwrap());
    assert!(left.count() <= 1);
}

#[test]
#[cfg_attr(miri, ignore = "polls some 270,000 times")]
fn are_bounded_though_completions_of_others_never_end() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    with(|library| library.endless = Some(0xdead_beef));
    let waited = bounded(|| channel.wait(ticket, Some(Duration::from_millis(1))));
    assert!(waited.unwrap().is_none());
    assert!(bounded(|| channel.next_completed()).is_none());
    with(|library| library.endless = None);
    channel.abort();
}
