//! A channel of a group is not removed during its scope.

use verbs_channel::verbs_core::MemoryRegion;
use verbs_channel::{ChannelGroup, ChannelId};

fn broken(group: &mut ChannelGroup, member: ChannelId, region: MemoryRegion<Vec<u8>>) {
    let ended = group.channel(member).unwrap().scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap());
        group.remove(member).unwrap();
        drop(work);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
