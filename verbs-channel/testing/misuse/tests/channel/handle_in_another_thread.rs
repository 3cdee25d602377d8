//! A scope and its handles stay in their thread.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let work = scope.post_send(region.gather_element(..).unwrap()).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(move || work.spin_poll());
        });
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
