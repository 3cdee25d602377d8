//! A region is sent as an element: the compiler says which call makes one.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn sends(channel: &mut Channel, region: &MemoryRegion<Vec<u8>>) {
    let _sent = channel.send(region);
}

fn main() {}
