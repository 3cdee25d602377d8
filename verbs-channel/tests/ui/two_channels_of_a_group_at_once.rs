//! One channel of a group is used at a time: they share a poller.

use verbs_channel::ChannelGroup;

fn broken(group: &mut ChannelGroup) {
    let mut first = group.channel(0).unwrap();
    let mut second = group.channel(1).unwrap();
    first.abort();
    second.abort();
}

fn main() {}
