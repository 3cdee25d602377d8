//! One channel of a group is used at a time: they share a poller.

use verbs_channel::{ChannelGroup, ChannelId};

fn broken(group: &mut ChannelGroup, [one, other]: [ChannelId; 2]) {
    let mut first = group.channel(one).unwrap();
    let mut second = group.channel(other).unwrap();
    first.abort();
    second.abort();
}

fn main() {}
