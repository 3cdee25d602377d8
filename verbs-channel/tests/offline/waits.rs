//! Waits without a deadline, that end all the same.

use verbs_channel::Channel;

use crate::card::{bounded, channel, flushes, pd, posted, region, succeeds};

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
