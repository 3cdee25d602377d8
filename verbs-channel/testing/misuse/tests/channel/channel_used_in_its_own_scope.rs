//! A channel is not used directly in its own scope.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        channel.abort();
        drop(work);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
