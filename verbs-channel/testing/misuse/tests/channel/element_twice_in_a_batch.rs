//! The requests of a batch do not share a scatter element.

use verbs_channel::verbs_core::{MemoryRegion, RemoteMemoryRegion};
use verbs_channel::{Channel, Incoming};

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>, remote: RemoteMemoryRegion) {
    let element = region.scatter_element(..).unwrap();
    let batch = [
        Incoming::read(element, remote),
        Incoming::read(element, remote),
    ];
    channel.run_batch(batch).unwrap();
}

fn main() {}
