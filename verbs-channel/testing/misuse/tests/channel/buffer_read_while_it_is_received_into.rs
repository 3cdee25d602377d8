//! Bytes that the device may write are not read.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let _work = scope.post_receive(region.scatter_element(..).unwrap());
        println!("{}", region[0]);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
