//! A channel does not give a peer's memory back as bytes.

use verbs_channel::Channel;
use verbs_channel::verbs_core::SharedRegion;

fn broken(channel: &mut Channel, region: SharedRegion<Vec<u8>>) {
    let _ticket = channel.start_receive(region);
}

fn main() {}
