//! The list of a loan is not accessible before the loan ends.

use verbs_channel::{Channel, Incoming};
use verbs_channel::verbs_core::MemoryRegion;

fn broken(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let loan = scope
            .lend(Incoming::receive(region.scatter_element(..).unwrap()))
            .unwrap();
        drop(loan.list);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
