//! A taken result must be used: its failure is not reported elsewhere.
#![deny(unused_must_use)]

use verbs_channel::verbs_core::ScatterElement;
use verbs_channel::{Channel, ChannelGroup, Error};

fn broken(channel: &mut Channel, group: &mut ChannelGroup, element: ScatterElement<'_>) {
    let ended = channel.scope(|scope| {
        let mut work = scope.post_receive(element)?;
        work.poll();
        work.wait_timeout(std::time::Duration::ZERO);
        Ok::<_, Error>(())
    });
    drop(ended);
    channel.next_completed();
    channel.wait_completed(None);
    group.next_completed();
    group.wait_completed(None);
}

fn main() {}
