//! A gather element is not received into.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    drop(channel.receive(region.gather_element(..).unwrap()));
}

fn main() {}
