//! Two receives do not have the same buffer.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(region.scatter_element(..).unwrap());
        let _more = scope.post_receive(region.scatter_element(..).unwrap());
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
