//! A channel that is not connected does not send.

use verbs_channel::PreparedChannel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(mut prepared: PreparedChannel, region: MemoryRegion<Vec<u8>>) {
    drop(prepared.send(region.gather_element(..).unwrap()));
}

fn main() {}
