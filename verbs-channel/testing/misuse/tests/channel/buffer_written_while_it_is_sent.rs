//! Bytes that the device may read are not written.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_send(region.gather_element(..).unwrap());
        region[0] = 1;
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
