//! Lent elements are not read before the loan ends.

use verbs_channel::{Channel, Incoming};
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let element = region.scatter_element(..).unwrap();
    let ended = channel.scope(|scope| {
        let loan = scope.lend(Incoming::receive(element)).unwrap();
        println!("{}", element[0]);
        let (_result, element) = loan.spin_poll();
        println!("{}", element[0]);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
