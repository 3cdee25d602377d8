//! A buffer that was moved into the channel is not used.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let _ticket = channel.start_receive(region).unwrap();
    println!("{}", region[0]);
}

fn main() {}
