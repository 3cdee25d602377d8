//! A region is not deregistered while an element of it is posted.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_send(region.gather_element(..).unwrap());
        drop(region.dereg());
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
