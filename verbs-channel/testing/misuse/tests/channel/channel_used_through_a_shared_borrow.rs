//! One thread uses a channel at a time.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &Channel, region: &MemoryRegion<Vec<u8>>) {
    drop(channel.send(region.gather_element(..).unwrap()));
}

fn main() {}
