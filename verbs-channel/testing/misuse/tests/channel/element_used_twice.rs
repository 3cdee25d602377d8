//! An element to receive into is posted once.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let element = region.scatter_element(..).unwrap();
    let ended = channel.scope(|scope| {
        let _first = scope.post_receive(element);
        let _second = scope.post_receive(element);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
