//! Only the thread of a scope posts in it.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        std::thread::scope(|threads| {
            threads.spawn(|| scope.post_send(region.gather_element(..).unwrap()).is_ok());
        });
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
