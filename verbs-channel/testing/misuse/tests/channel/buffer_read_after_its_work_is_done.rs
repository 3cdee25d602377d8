//! A borrow of a scope lasts until the scope ends; only a loan ends earlier.

use verbs_channel::Channel;
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let work = scope.post_receive(region.scatter_element(..).unwrap());
        drop(work.unwrap().spin_poll());
        println!("{}", region[0]);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
