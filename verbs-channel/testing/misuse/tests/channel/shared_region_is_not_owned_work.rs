//! A shared region is not owned by a channel, which would return it as bytes.

use verbs_channel::Channel;
use verbs_channel::verbs_core::SharedRegion;

fn broken(channel: &mut Channel, region: SharedRegion<Vec<u8>>) {
    let _ticket = channel.start_receive(region);
}

fn main() {}
