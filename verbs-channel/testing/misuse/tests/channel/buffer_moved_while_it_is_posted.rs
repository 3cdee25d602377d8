//! A region is not moved while an element of it is posted.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(region.scatter_element(..).unwrap());
        let moved = region;
        drop(moved);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
