//! A handle does not outlive its scope.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        Ok::<_, ()>(work)
    });
    drop(ended);
}

fn main() {}
