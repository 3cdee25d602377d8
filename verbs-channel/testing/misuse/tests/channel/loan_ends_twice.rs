//! A loan returns its elements once.

use verbs_channel::{Channel, Incoming};
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let loan = scope
            .lend(Incoming::receive(region.scatter_element(..).unwrap()))
            .unwrap();
        let (_result, first) = loan.spin_poll();
        let (_result, second) = loan.spin_poll();
        drop((first, second));
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
