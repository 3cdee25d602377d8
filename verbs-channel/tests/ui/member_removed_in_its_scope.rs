//! A channel of a group stays in it as long as its scope.

use verbs_channel::ChannelGroup;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(group: &mut ChannelGroup, region: MemoryRegion<Vec<u8>>) {
    let ended = group.channel(0).unwrap().scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        group.remove(0).unwrap();
        drop(work);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
