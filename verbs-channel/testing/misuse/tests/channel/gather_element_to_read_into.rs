//! A gather element is not read into.

use verbs_channel::verbs_core::{GatherElement, RemoteMemoryRegion};
use verbs_channel::{Channel, Incoming};

fn broken(channel: &mut Channel, element: GatherElement<'_>, remote: RemoteMemoryRegion) {
    drop(channel.run(Incoming::read(element, remote)));
}

fn main() {}
