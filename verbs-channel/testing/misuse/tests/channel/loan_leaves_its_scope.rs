//! A loan does not outlive its scope.

use verbs_channel::{Channel, Incoming};
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let mut kept = None;
    let ended = channel.scope(|scope| {
        kept = Some(scope.lend(Incoming::receive(region.scatter_element(..).unwrap())));
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
